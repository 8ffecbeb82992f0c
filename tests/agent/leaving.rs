//! State that remains after the agent stops.

use crate::support::cni::Network;
use crate::support::{Agent, Node, Place, Pod, facts};
use crate::{CONFIGURATION, alone, serve};

fn there(host: &Node) -> [bool; 4] {
    [
        !facts::addresses(host, "humanz0").is_empty(),
        host.run("nft list table inet humanz").succeeded(),
        host.read(CONFIGURATION).is_some(),
        host.run("/opt/cni/bin/humanz").succeeded(),
    ]
}

#[test]
fn a_stop_leaves_pods_their_network() {
    let alone = alone();
    let agent = serve(&alone.host, &[]);
    let pod = Pod::add(&alone.host, "a");
    agent.stop();
    assert_eq!(there(&alone.host), [true; 4]);
    pod.run("ping -n -c 1 -W 2 10.244.1.1").ok();
    pod.delete();
}

#[test]
fn a_stop_with_cleanup_leaves_only_the_plugin() {
    let alone = alone();
    let host = &alone.host;
    host.shell("iptables -P FORWARD DROP").ok();
    let agent = serve(host, &[("CLEANUP_ON_STOP", "true")]);
    let network = Network::of(host);
    let pod = Pod::try_add(host, "a", &network).unwrap_or_else(|e| panic!("{e}"));
    assert!(host.run("iptables -S FORWARD").ok().contains("humanz0"));
    agent.stop();
    assert!(host.run("ip link show dev humanz0").stderr.contains("does not exist"));
    assert!(!host.run("nft list table inet humanz").succeeded());
    assert_eq!(host.read(CONFIGURATION), None);
    assert!(!host.run("iptables -S FORWARD").ok().contains("humanz0"));
    assert!(host.run("/opt/cni/bin/humanz").succeeded(), "DELs still come");
    pod.delete();
    assert_eq!(facts::veths(host), Vec::<String>::new());
}

#[test]
fn a_stop_is_handled_while_waiting_for_etcd() {
    let alone = alone();
    let agent = Agent::start(&alone.host, &[("ETCD_HOST", "192.0.2.2")]);
    agent.wait_log(&["etcd does not answer"]);
    agent.stop();
}
