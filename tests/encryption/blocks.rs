//! Blocks of tenants' networks, which hosts lease beside their own subnets: what pods in them send to other hosts is
//! encrypted, and no host sends with the addresses of another one's block.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use ipnetwork::IpNetwork;
use serde_json::{Value, json};

use crate::ENCRYPTED;
use crate::capture::Capture;
use crate::hosts::{device, wait_for_sessions};
use crate::refused::shows_the_reason;
use crate::support::cni::{Attachment, Network};
use crate::support::node::Place;
use crate::support::ping::{addresses, unreached};
use crate::support::pod::make_netns;
use crate::support::wait::{SOON, eventually, soon};
use crate::support::{Agent, Cluster, Node, Pod, kernel, local};

const PORT: u16 = 5000;

/// Five pods fill a block of IPv4.
const POOLS: [&str; 2] = ["10.32.0.0/16", "fd00:32::/64"];

fn settings() -> Vec<(&'static str, &'static str)> {
    [ENCRYPTED, &[("POLICY", "on"), ("BLOCK_RELEASE_AFTER", "1s")]].concat()
}

/// The network, which pods of the namespace `blue` are in.
fn apply(host: &Node) {
    let spec = json!({"subnets": POOLS, "blocks": {"v4": 29}});
    let object = |kind: &str, metadata: Value, spec: Value| json!({"apiVersion": "humanz.io/v1", "kind": kind, "metadata": metadata, "spec": spec});
    let objects = json!([
        object("Network", json!({"tenant": "blue", "name": "front"}), spec),
        object(
            "NamespaceRule",
            json!({"name": "blue"}),
            json!({"tenant": "blue", "network": "front"})
        ),
    ]);
    host.write("/etc/objects.json", &objects.to_string());
    Agent::run(host, "policy apply -f /etc/objects.json", &settings()).ok();
}

/// As a runtime does, which tries again where the agent had no time to answer.
fn add(host: &Node, name: &str) -> Pod {
    make_netns(host, name);
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=blue;K8S_POD_NAME={name}");
    let attachment = Attachment { args, ..Attachment::new(name) };
    let pod = eventually(&format!("{}/{name}", host.name()), SOON, || {
        let added = Pod::connect(host, &Network::of(host), attachment.clone());
        added.map_err(|error| error.to_string())
    });
    let pools = POOLS.map(|pool| pool.parse::<IpNetwork>().unwrap());
    assert!(pools[0].contains(pod.v4()) && pools[1].contains(pod.v6()), "{}", pod.result);
    pod
}

/// The keys of blocks in etcd: host and block.
fn held(cluster: &Cluster) -> Vec<(String, IpNetwork)> {
    let keys = cluster.etcd.list("/humanz/v1-blocks/").into_iter();
    keys.map(|(key, _)| {
        let (host, block) = key["/humanz/v1-blocks/".len()..].split_once('/').unwrap();
        let (address, prefix) = block.rsplit_once('-').unwrap();
        (host.to_owned(), format!("{address}/{prefix}").parse().unwrap())
    })
    .collect()
}

/// What the device of `host` takes from `other`, and sends to it.
fn allowed(host: &Node, other: &Node) -> BTreeSet<IpNetwork> {
    let key = device(other).public_key.unwrap();
    let peers = device(host).peers;
    peers.into_iter().find(|peer| peer.key == key).map(|peer| peer.allowed).unwrap_or_default()
}

/// Waits until every device has for each other host its two subnets and the blocks that etcd says it has, and no more.
fn devices_follow(cluster: &Cluster, what: &str) {
    eventually(what, SOON, || {
        let held = held(cluster);
        for host in &cluster.hosts {
            for other in cluster.hosts.iter().filter(|other| other.name() != host.name()) {
                let own = held.iter().filter(|(of, _)| of == other.name());
                let blocks: BTreeSet<IpNetwork> = own.map(|(_, block)| *block).collect();
                let found = allowed(host, other);
                if !(found.is_superset(&blocks) && found.len() == blocks.len() + 2) {
                    let names = (host.name(), other.name());
                    return Err(format!("{names:?}: {found:?}, not {blocks:?}"));
                }
            }
        }
        Ok(())
    });
}

/// Routes follow the peers of a device.
fn all_ways(pods: &[&Pod]) {
    let places: Vec<&dyn Place> = pods.iter().map(|pod| *pod as &dyn Place).collect();
    eventually("all ways", SOON, || {
        let missing = unreached(&places, &addresses(&places));
        if missing.is_empty() { Ok(()) } else { Err(missing.join("\n")) }
    });
}

/// Three hosts on two segments.
fn started() -> Option<(Cluster, Vec<Agent>)> {
    if !kernel::has_wireguard() {
        shows_the_reason();
        return None;
    }
    let cluster = Cluster::routed(2, 1);
    apply(&cluster.hosts[0]);
    let agents = cluster.start_agents(&settings());
    cluster.hosts.iter().for_each(|host| wait_for_sessions(host, 2));
    Some((cluster, agents))
}

#[test]
fn pods_in_blocks_of_networks_are_encrypted_and_devices_follow_the_blocks() {
    let Some((cluster, agents)) = started() else { return };
    let [h1, h2, h3] = &cluster.hosts[..] else { panic!("three hosts") };
    let capture = Capture::start(&cluster);
    let first = [h1, h2, h3].map(|host| add(host, "first"));
    assert_eq!(held(&cluster).len(), 6, "{:?}", held(&cluster));
    devices_follow(&cluster, "the first blocks on every device");
    all_ways(&first.each_ref());
    capture.assert_encrypted("between the first blocks");

    // A block that comes later.
    let mut later: Vec<Pod> = (0..5).map(|number| add(h1, &format!("p{number}"))).collect();
    assert_eq!(held(&cluster).len(), 7, "{:?}", held(&cluster));
    devices_follow(&cluster, "the second block on every device");
    let last = later.pop().unwrap();
    all_ways(&[&first[1], &first[2], &last]);
    capture.assert_encrypted("a block that came later");
    // One that goes back, while the others are used.
    last.delete();
    later.into_iter().for_each(Pod::delete);
    soon("the second block to go back", || held(&cluster).len() == 6);
    devices_follow(&cluster, "the second block on no device");
    all_ways(&first.each_ref());
    capture.assert_encrypted("a block that went back");

    // Without agent and etcd, and after the start of an agent that reads no etcd.
    let [stays, goes, other] = <[Agent; 3]>::try_from(agents).ok().unwrap();
    cluster.etcd.kill();
    goes.kill();
    let again = Agent::start(h2, &settings());
    again.wait_ready();
    all_ways(&first.each_ref());
    capture.assert_encrypted("h2 began anew, without etcd");
    drop((stays, again, other));
}

/// Packets from `source`, an address that `from` has, to the pod; gives the sources of those that arrive.
fn sent(from: &Node, source: IpAddr, to: &Pod) -> BTreeSet<IpAddr> {
    let to_address = if source.is_ipv4() { to.v4() } else { to.v6() };
    let server = to.spot().inside(|| UdpSocket::bind((to_address, PORT)).unwrap());
    server.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
    let socket = from.spot().inside(|| UdpSocket::bind((source, 0)).unwrap());
    for _ in 0..10 {
        socket.send_to(b"forged", SocketAddr::new(to_address, PORT)).unwrap();
    }
    let mut arrived = BTreeSet::new();
    while let Ok((_, from)) = server.recv_from(&mut [0; 16]) {
        arrived.insert(from.ip());
    }
    arrived
}

/// By a key in etcd, and by packets.
#[test]
fn no_host_takes_the_block_of_another_one_nor_sends_with_its_addresses() {
    let Some((cluster, agents)) = started() else { return };
    let [h1, h2, h3] = &cluster.hosts[..] else { panic!("three hosts") };
    let capture = Capture::start(&cluster);
    let pods = [h1, h2, h3].map(|host| add(host, "first"));
    devices_follow(&cluster, "the blocks on every device");
    all_ways(&pods.each_ref());
    let before = [allowed(h1, h2), allowed(h1, h3)];

    // h3 is stolen: it claims what h2 has, exactly, as a part of more, and everything.
    let [near, far, stolen] = <[Agent; 3]>::try_from(agents).ok().unwrap();
    stolen.kill();
    let of_h2 = held(&cluster).into_iter().filter(|(host, _)| host == "h2");
    for (_, block) in of_h2 {
        let key = format!("/humanz/v1-blocks/h3/{}-{}", block.network(), block.prefix());
        cluster.etcd.put(&key, "blue/front");
    }
    for claim in ["10.32.0.0-16", "fd00:32::-64", "0.0.0.0-0", "::-0"] {
        cluster.etcd.put(&format!("/humanz/v1-blocks/h3/{claim}"), "blue/front");
    }
    local::wait_problem(h1, "other-host", "host h3");
    assert_eq!([allowed(h1, h2), allowed(h1, h3)], before);
    all_ways(&[&pods[0], &pods[1]]);
    capture.assert_encrypted("h3 claims the blocks of h2");

    // Nothing of its own keeps it from sending with the addresses of a pod of h2.
    h3.run("nft flush ruleset").ok();
    let (forged, own) = (&pods[1], device(h3));
    for address in forged.addresses() {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        h3.run(&format!("ip address add {address}/{bits} dev lo")).ok();
    }
    for address in forged.addresses() {
        assert_eq!(sent(h3, address, &pods[0]), BTreeSet::new(), "{address} by h3");
    }
    all_ways(&[&pods[0], &pods[1]]);
    // It is the device of h1 that takes nothing: with those addresses h3 is received.
    near.kill();
    let all: Vec<String> = before.iter().flatten().map(ToString::to_string).collect();
    let key = own.public_key.unwrap();
    h1.run(&format!("wg set humanz-wg peer {key} allowed-ips {}", all.join(","))).ok();
    for address in forged.addresses() {
        assert_eq!(sent(h3, address, &pods[0]), BTreeSet::from([address]));
    }
    drop(far);
}
