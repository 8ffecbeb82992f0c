//! Three hosts on two segments whose pods talk to each other, while everything is done to the agents that can be
//! done to them: no packet in clear text.

use std::collections::BTreeSet;
use std::net::IpAddr;

use humanz::net::PublicKey;
use humanz::netlink::wireguard::{PeerEdit, Wireguard, WireguardInfo};
use humanz::plan::encryption::device_name;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::ENCRYPTED;
use crate::capture::Capture;
use crate::refused::shows_the_reason;
use crate::support::node::{Place, command};
use crate::support::ping::{Pinger, addresses, all_reach};
use crate::support::wait::{SOON, eventually};
use crate::support::{Agent, Cluster, Node, Pod, facts, kernel, local};

/// Hosts, agents and a pod on each.
pub struct Encrypted {
    pub agents: Vec<Agent>,
    pub pods: Vec<Pod>,
    pub cluster: Cluster,
}

/// `None` where the kernel has no WireGuard: then that is shown.
pub fn encrypted() -> Option<Encrypted> {
    if !kernel::has_wireguard() {
        shows_the_reason();
        return None;
    }
    let cluster = Cluster::routed(2, 1);
    let agents = cluster.start_agents(ENCRYPTED);
    for host in &cluster.hosts {
        wait_for_routes(host, 4);
        wait_for_sessions(host, 2);
    }
    let pods = cluster.hosts.iter().map(|host| Pod::add(host, "a")).collect();
    Some(Encrypted { agents, pods, cluster })
}

impl Encrypted {
    pub fn host(&self, number: usize) -> &Node {
        &self.cluster.hosts[number - 1]
    }

    /// Pods reach pods by both families.
    pub fn all_reach(&self) {
        let places: Vec<&dyn Place> = self.pods.iter().map(|pod| pod as &dyn Place).collect();
        all_reach(&places, &addresses(&places));
    }

    pub fn restart(&mut self, number: usize) {
        self.agents[number - 1] = Agent::start(self.host(number), ENCRYPTED);
        self.agents[number - 1].wait_ready();
    }
}

pub fn wait_for_routes(host: &Node, count: usize) {
    eventually(&format!("{}: routes by the device", host.name()), SOON, || {
        let devices = facts::devices(host);
        let encrypted = devices.values().filter(|device| *device == "humanz-wg").count();
        if encrypted == count { Ok(()) } else { Err(format!("{devices:?}")) }
    });
}

/// WireGuard asks again five seconds after a first message that came before the other host knew this one.
pub fn wait_for_sessions(host: &Node, count: usize) {
    eventually(&format!("{}: sessions with {count} hosts", host.name()), SOON, || {
        let peers = device(host).peers;
        let with = peers.iter().filter(|peer| peer.last_handshake.is_some()).count();
        if with == count { Ok(()) } else { Err(format!("{with} of {}", peers.len())) }
    });
}

pub fn device(host: &Node) -> WireguardInfo {
    host.inside(|| Wireguard::open().unwrap().unwrap().device(&device_name()).unwrap())
}

pub fn unanswered(from: &Pod, to: IpAddr) {
    assert!(!from.run(&format!("ping -n -c 3 -i 0.2 -W 1 {to}")).succeeded(), "{to} answers");
}

pub fn record_key(host: &str) -> String {
    format!("/humanz/v1/nodes/{host}")
}

/// The node record of a host, changed.
fn rewrite(cluster: &Cluster, host: &str, change: impl Fn(&mut Value)) {
    let key = record_key(host);
    let mut record: Value = serde_json::from_str(&cluster.etcd.get(&key).unwrap()).unwrap();
    change(&mut record);
    cluster.etcd.put(&key, record.to_string());
}

#[test]
fn pods_and_hosts_reach_pods_of_other_hosts_and_nothing_of_it_is_clear_text() {
    let Some(all) = encrypted() else { return };
    let capture = Capture::start(&all.cluster);
    all.all_reach();
    let hosts: Vec<&dyn Place> = all.cluster.hosts.iter().map(|host| host as &dyn Place).collect();
    let pods: Vec<&dyn Place> = all.pods.iter().map(|pod| pod as &dyn Place).collect();
    all_reach(&hosts, &addresses(&pods));
    // As large as the pods' MTU lets them be, whole.
    let mtu = all.host(1).run("cat /sys/class/net/humanz0/mtu").ok();
    assert_eq!(mtu.trim(), "1440");
    let large = format!("ping -n -c 1 -W 3 -M do -s {} {}", 1440 - 28, all.pods[2].v4());
    all.pods[0].until_ok(&large, SOON);
    capture.assert_encrypted("at rest");
    assert_reported(&all);
    // Not encrypted: what pods send to other hosts themselves. It goes by the address of the pod's host.
    all_reach(&pods, &hosts.iter().map(|host| host.addresses()[0]).collect::<Vec<_>>());
    capture.assert_encrypted("no address of a pod is on the wire");
}

/// What operators see of it.
fn assert_reported(all: &Encrypted) {
    let host = all.host(1);
    let status = local::status(host);
    let peer = &status["peers"][0];
    assert_eq!(peer["via"][0], "encrypted to 192.0.2.12", "{peer}");
    assert!(peer["encryption"]["handshake_seconds"].as_f64().unwrap() < 180.0, "{peer}");
    // Somebody's route leads past the device.
    let far = all.pods[1].v4();
    host.run(&format!("ip route add {far}/32 via 192.0.2.12")).ok();
    assert!(!host.run(&format!("ping -n -c 2 -i 0.2 -W 1 {far}")).succeeded());
    let metrics = local::get(host, "/metrics").1;
    host.run(&format!("ip route del {far}/32 via 192.0.2.12")).ok();
    assert!(metrics.contains("humanz_encryption_peers{handshake=\"recent\"} 2"), "{metrics}");
    // As in the dashboard.
    for name in [
        "bytes_total{direction=\"sent\"}",
        "bytes_total{direction=\"received\"}",
        "dropped_packets_total{reason=\"leaving\"}",
        "key_age_seconds",
    ] {
        let name = format!("humanz_encryption_{name} ");
        let value = metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok());
        assert!(value > Some(0.0), "{name}: {metrics}");
    }
}

/// Somebody's firewall lets everything through but the port of the encryption.
#[test]
fn a_port_that_is_blocked_between_the_hosts_is_in_the_problem() {
    if !kernel::has_wireguard() {
        return shows_the_reason();
    }
    let cluster = Cluster::new(2);
    let block = "table inet theirs { chain in { \
                 type filter hook input priority -200; udp dport 10401 drop; }; }";
    cluster.hosts[1].run_command(&mut command("nft -f -"), block).ok();
    let settings: Vec<(&str, &str)> =
        ENCRYPTED.iter().copied().chain([("PROBE_INTERVAL", "1s")]).collect();
    let _agents = cluster.start_agents(&settings);
    let host = &cluster.hosts[0];
    let has_port = |found: &Value| {
        let of_peer = local::problem(found, "host-unanswered", "host h2");
        let fix = of_peer.and_then(|problem| problem["fix"].as_str()).unwrap_or_default();
        fix.starts_with("nft list ruleset # let UDP from and to port 10401 of 192.0.2.12 through")
    };
    local::status_when(host, "the problem has the port", has_port);
    let doctor = Agent::run(host, "doctor --json", &settings);
    assert!(has_port(&serde_json::from_str(&doctor.stdout).unwrap()), "{doctor}");
    cluster.hosts[1].run("nft delete table inet theirs").ok();
    eventually("the problem ends", 3 * SOON, || {
        let status = local::status(host);
        let is_left = local::has_problem(&status, "host-unanswered");
        if is_left { Err(format!("{status:#}")) } else { Ok(()) }
    });
}

#[test]
fn stops_kills_and_outages_let_no_clear_text_out_and_cut_no_connection() {
    let Some(mut all) = encrypted() else { return };
    let capture = Capture::start(&all.cluster);
    let (near, far) = (all.pods[1].v4(), all.pods[2].v6());
    let pingers = [Pinger::start(&all.pods[0], near), Pinger::start(&all.pods[0], far)];
    all.agents[0].stop();
    capture.assert_encrypted("the agent of h1 is stopped");
    all.agents[1].kill();
    capture.assert_encrypted("that of h2 is killed");
    all.restart(1);
    all.restart(2);
    capture.assert_encrypted("both run again");
    all.cluster.etcd.kill();
    all.agents[2].kill();
    all.restart(3);
    all.all_reach();
    capture.assert_encrypted("etcd is away, and h3 was restarted");
    for pinger in pingers {
        let report = pinger.report();
        assert!(report.lost.is_empty(), "{report:?}");
    }
}

#[test]
fn what_is_changed_by_hand_is_put_back_and_meanwhile_closed() {
    let Some(all) = encrypted() else { return };
    let capture = Capture::start(&all.cluster);
    let key = device(all.host(1)).public_key;
    let (near, ping) = (all.host(1), format!("ping -n -c 1 -W 1 {}", all.pods[1].v4()));
    for change in [
        "ip link del humanz-wg",
        "ip link set humanz-wg down",
        "ip link set humanz-wg name wg7",
        "ip address flush dev humanz-wg",
        "ip route replace 10.244.0.0/16 via 192.0.2.12",
        "nft delete table inet humanz-encryption",
    ] {
        near.shell(&format!("{change} || true")).ok();
        wait_for_routes(near, 4);
        near.until_ok("nft list table inet humanz-encryption", SOON);
        all.pods[0].until_ok(&ping, SOON);
        println!("{change}: put back");
    }
    near.run("ip route del 10.244.0.0/16").ok();
    // A peer that went, and a stranger.
    let there = device(near).peers[0].key;
    near.inside(|| {
        let kernel = Wireguard::open().unwrap().unwrap();
        let stranger = humanz::netlink::wireguard::NewWireguardPeer {
            key: PublicKey([9; 32]),
            preshared: None,
            endpoint: "192.0.2.12:7".parse().ok(),
            allowed: ["0.0.0.0/0".parse().unwrap()].into(),
        };
        let edits = [PeerEdit::Remove(there), PeerEdit::Set(&stranger)];
        kernel.change_peers(&device_name(), edits).unwrap();
    });
    eventually("the peers are put back", SOON, || {
        let found: Vec<PublicKey> = device(near).peers.iter().map(|peer| peer.key).collect();
        let right = found.len() == 2 && found.contains(&there);
        if right { Ok(()) } else { Err(format!("{found:?}")) }
    });
    assert_eq!(device(near).public_key, key, "the key outlives its device");
    all.all_reach();
    capture.assert_encrypted("after all of it");
}

/// What a boot leaves: the disk.
#[test]
fn a_host_that_lost_what_the_kernel_had_is_encrypted_with_its_key_before_it_sends() {
    let Some(mut all) = encrypted() else { return };
    let key = device(all.host(2)).public_key;
    let capture = Capture::start(&all.cluster);
    all.cluster.etcd.kill();
    all.agents[1].kill();
    all.host(2)
        .shell(
            "ip link del humanz-wg
             ip link del humanz0
             nft delete table inet humanz-encryption
             nft delete table inet humanz",
        )
        .ok();
    all.restart(2);
    assert_eq!(device(all.host(2)).public_key, key);
    let pod = Pod::add(all.host(2), "b");
    all.pods[0].until_ok(&format!("ping -n -c 1 -W 1 {}", pod.v4()), SOON);
    capture.assert_encrypted("h2 began anew, without etcd");
}

#[test]
fn a_missing_or_doubled_key_closes_the_way_and_names_the_hosts() {
    let Some(mut all) = encrypted() else { return };
    let capture = Capture::start(&all.cluster);
    all.all_reach();
    all.agents[1].kill();
    rewrite(&all.cluster, "h2", |record| {
        record.as_object_mut().unwrap().remove("wireguard");
    });
    local::wait_problem(all.host(1), "host-unreachable", "host h2");
    unanswered(&all.pods[0], all.pods[1].v4());
    capture.assert_encrypted("h2 has no key");
    all.restart(2);
    all.pods[0].until_ok(&format!("ping -n -c 1 -W 1 {}", all.pods[1].v4()), SOON);

    // The older host is stolen, and claims and publishes the key of the newer one.
    let older = created(&all.cluster, "h2") < created(&all.cluster, "h3");
    let (owner, taker) = if older { (3, 2) } else { (2, 3) };
    all.agents[taker - 1].kill();
    let taken = device(all.host(owner)).public_key.unwrap();
    rewrite(&all.cluster, &format!("h{taker}"), |record| {
        record["wireguard"]["publicKey"] = taken.to_string().into();
    });
    all.cluster.etcd.put(&format!("/humanz/v1/wireguard/h{taker}"), taken.to_string());
    for host in [all.host(1), all.host(owner)] {
        let problem = local::wait_problem(host, "other-host", &format!("host h{taker}"));
        let what = problem["what"].as_str().unwrap();
        assert!(what.contains(&format!("host h{owner}")), "both hosts are in it: {what}");
    }
    all.pods[0].until_ok(&format!("ping -n -c 1 -W 1 {}", all.pods[owner - 1].v4()), SOON);
    unanswered(&all.pods[0], all.pods[taker - 1].v4());
    capture.assert_encrypted("two hosts have one key");
    all.restart(taker);
    wait_for_routes(all.host(1), 4);
    all.pods[0].until_ok(&format!("ping -n -c 1 -W 1 {}", all.pods[taker - 1].v4()), SOON);
    capture.assert_encrypted("each has its own again");
}

/// The revision at which a host's node record was created.
fn created(cluster: &Cluster, host: &str) -> i64 {
    let pairs = cluster.etcd.pairs(&record_key(host));
    pairs[0].create_revision()
}

#[test]
fn hosts_that_are_changed_over_are_listed_and_reached() {
    if !kernel::has_wireguard() {
        return shows_the_reason();
    }
    let cluster = Cluster::routed(2, 1);
    let mut agents = cluster.start_agents(&ENCRYPTED[..1]);
    let pods: Vec<Pod> = cluster.hosts.iter().map(|host| Pod::add(host, "a")).collect();
    let places: Vec<&dyn Place> = pods.iter().map(|pod| pod as &dyn Place).collect();
    let loose = [ENCRYPTED, &[("ENCRYPTION_STRICT", "false")]].concat();
    for (number, host) in cluster.hosts.iter().enumerate() {
        agents[number].process.signal(Signal::SIGTERM);
        agents[number].process.wait(SOON);
        agents[number] = Agent::start(host, &loose);
        agents[number].wait_ready();
        for (from, place) in places.iter().enumerate() {
            for to in addresses(&places[from + 1..]) {
                place.until_ok(&format!("ping -n -c 1 -W 1 {to}"), SOON);
            }
        }
        let remaining = cluster.hosts[number + 1..].iter();
        let remaining: BTreeSet<String> =
            remaining.map(|host| format!("host {}", host.name())).collect();
        local::status_when(host, "hosts in clear text are listed", |status| {
            let listed = local::problems(status, "clear-text");
            let subjects = listed.filter_map(|problem| problem["subject"].as_str());
            subjects.map(str::to_owned).collect::<BTreeSet<String>>() == remaining
        });
    }
    cluster.hosts.iter().for_each(|host| wait_for_routes(host, 4));
    let capture = Capture::start(&cluster);
    all_reach(&places, &addresses(&places));
    capture.assert_encrypted("all were changed over");
    drop(agents);
}
