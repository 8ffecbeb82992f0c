//! This release reads what 0.1.0 wrote.

use crate::support::cluster::Alone;
use crate::support::cni::{Attachment, Network};
use crate::support::pod::make_netns;
use crate::support::{Agent, Cluster, Node, Place, Pod, facts, soon};

const STATE: &str = include_str!("0.1.0/state.json");
const ENTRY: &str = include_str!("0.1.0/entry.json");
const ETCD: &str = include_str!("0.1.0/etcd.txt");

/// The host that wrote them, and its pools.
const MACHINE_ID: &str = "b8d76d3d490c9b29f166cf0bd648a3c3\n";
const POOLS: &[(&str, &str)] = &[("IPV6_SUBNET", "fd10::/48")];

/// Its addresses on the bridge.
fn has_its_subnets(host: &Node) -> bool {
    let addresses = facts::addresses(host, "humanz0");
    ["10.244.1.1/24", "fd10:0:0:1::1/64"].iter().all(|own| addresses.iter().any(|a| a == own))
}

#[test]
fn a_host_without_etcd_serves_what_the_older_agent_saved() {
    let alone = Alone::new();
    let host = &alone.host;
    host.write("/etc/machine-id", MACHINE_ID);
    host.shell("mkdir -p /var/lib/humanz").ok();
    host.write("/var/lib/humanz/state.json", STATE);
    let agent = Agent::start(host, POOLS);
    agent.wait_ready();
    assert!(has_its_subnets(host));
    let routes = host.run("ip route show proto 104").ok();
    assert!(routes.contains("10.244.2.0/24 via 192.0.2.12"), "{routes}");
    agent.stop();
}

#[test]
fn a_host_finds_its_lease_in_the_keys_of_the_older_agent() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    host.write("/etc/machine-id", MACHINE_ID);
    let lines: Vec<&str> = ETCD.lines().collect();
    for pair in lines.chunks(2) {
        cluster.etcd.put(pair[0], pair[1]);
    }
    let counted = cluster.etcd.version("/humanz/counter");
    let agent = Agent::start(host, POOLS);
    agent.wait_ready();
    assert!(has_its_subnets(host));
    let routes = host.run("ip route show proto 104").ok();
    assert!(routes.contains("10.244.2.0/24 via 192.0.2.12"), "{routes}");
    assert_eq!(cluster.etcd.version("/humanz/counter"), counted, "no subnet was chosen");
    agent.stop();
}

#[test]
fn pods_of_the_older_plugin_keep_their_addresses_until_del() {
    let alone = Alone::new();
    let host = &alone.host;
    let subnets = [("SUBNET_SOURCE", "static"), ("SUBNET", "10.244.1.0/24,fd10:0:0:1::/64")];
    let agent = Agent::start(host, &[POOLS, &subnets, &[("ETCD_HOST", "")]].concat());
    agent.wait_ready();
    let store = "/run/humanz/ipam/humanz";
    host.shell(&format!(
        "mkdir -p {store}/owners; cp /proc/sys/kernel/random/boot_id {store}/boot"
    ))
    .ok();
    for file in ["10.244.1.2", "fd10:0:0:1::2", "owners/a:eth0"] {
        host.write(&format!("{store}/{file}"), ENTRY);
    }
    let network = Network::of(host);
    let newer = Pod::add(host, "b");
    assert_eq!(newer.v4().to_string(), "10.244.1.3");
    make_netns(host, "a");
    network.del(host, &Attachment::new("a"), &serde_json::Value::Null).unwrap();
    soon("the addresses are free", || !host.list(store).contains(&"10.244.1.2".to_owned()));
    assert!(host.list(store).contains(&"10.244.1.3".to_owned()));
    assert_eq!(host.list(&format!("{store}/owners")), ["b:eth0"]);
    newer.delete();
    agent.stop();
}
