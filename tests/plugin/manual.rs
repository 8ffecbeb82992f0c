//! The examples of packaging/humanz.5 are networks that work as they stand there.

use crate::support::Place;
use crate::support::cni::{Attachment, Network, PLUGINS};
use crate::support::guide::examples;
use crate::support::plugin_host::PluginHost;

#[test]
fn the_examples_of_the_manual_are_networks() {
    let examples = examples("humanz.5");
    // What podman is called with has a test of its own (tests/runtimes/podman5.rs).
    let [podman, shown] = &examples[..] else { panic!("{examples:?}") };
    assert!(podman.starts_with("# podman network create --driver humanz "), "{podman}");
    let networks: Vec<Network> = shown.split("\n\n").map(Network::parse).collect();
    let names: Vec<&str> = networks.iter().map(|network| network.name.as_str()).collect();
    assert_eq!(names, ["pods", "theirs"]);
    let host = PluginHost::new();
    host.shell(&format!("ln -s /usr/lib/cni/* {PLUGINS}/")).ok();
    for (network, gateway) in networks.iter().zip(["10.244.1.1", "10.88.0.1"]) {
        let container = network.name.as_str();
        host.netns(container);
        let attachment = Attachment::new(container);
        let result = network.add(&host, &attachment).unwrap_or_else(|e| panic!("{container}: {e}"));
        host.run(&format!("ip netns exec {container} ping -n -c 1 -W 5 {gateway}")).ok();
        network.check(&host, &attachment, &result).unwrap_or_else(|e| panic!("{container}: {e}"));
        network.del(&host, &attachment, &result).unwrap_or_else(|e| panic!("{container}: {e}"));
    }
}
