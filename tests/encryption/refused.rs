//! A kernel without WireGuard.

use crate::support::node::Place;
use crate::support::{Agent, Cluster, Node, kernel, local};

const ON: &[(&str, &str)] = &[("ENCRYPTION", "wireguard")];
const WHY: &str = "ENCRYPTION=wireguard: this kernel has no WireGuard";

/// What every test of encryption shows where the kernel has none.
pub fn shows_the_reason() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let ended = Agent::run(host, "--once", ON);
    assert_eq!(ended.status.code(), Some(2), "{ended}");
    assert!(ended.stderr.contains(WHY), "{ended}");
    nothing_was_made(host);
}

fn nothing_was_made(host: &Node) {
    assert!(!host.run("nft list table inet humanz-encryption").succeeded());
    assert!(!host.run("ip link show humanz-wg").succeeded());
    assert!(host.inside(|| !std::path::Path::new("/var/lib/humanz/wireguard.key").exists()));
}

#[test]
fn a_start_is_refused_with_the_reason() {
    if !kernel::has_wireguard() {
        shows_the_reason();
    }
}

/// As with any setting that does not fit the host.
#[test]
fn a_host_that_was_served_in_clear_text_is_served_on_and_says_so() {
    if kernel::has_wireguard() {
        return;
    }
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let agent = Agent::start(host, &[]);
    agent.wait_ready();
    agent.stop();
    let again = Agent::start(host, ON);
    again.wait_ready();
    local::status_when(host, "the setting is a problem", |status| {
        status["problems"].to_string().contains(WHY)
    });
    host.run("ip link show humanz0").ok();
    nothing_was_made(host);
}
