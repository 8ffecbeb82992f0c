//! The agent on one host without etcd: its command line, what it reports to the service manager,
//! what it keeps and what it leaves alone.

// A test stops at the first failure and may print its measurements.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use humanz_test_support as support;

mod browser;
mod command_line;
mod files;
mod flows;
mod health;
mod history;
mod hostports;
mod keeping;
mod leaving;
mod local;
mod metrics;
mod others;
mod ports;
mod reloading;
mod scraped;
mod secrets;
mod starting;
mod ui;
mod ui_keyboard;
mod ui_typed;
mod uninstall;

use support::cluster::Alone;
use support::{Agent, Node, Place};

/// A host that serves itself.
const STANDALONE: &[(&str, &str)] =
    &[("SUBNET_SOURCE", "static"), ("ETCD_HOST", ""), ("IPV6_SUBNET", "fd10::/48")];

/// The configuration that it writes.
const CONFIGURATION: &str = "/etc/cni/net.d/05-humanz.conflist";

/// [`STANDALONE`] and more.
fn standalone<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [STANDALONE, more].concat()
}

/// Everything of the kernel and the disk that the agent could change. Which pods sent what their guard drops is the
/// kernel's to note, at any time.
fn state(host: &Node) -> String {
    host.shell(
        "ip -o link | sed 's/ qlen .*//'; ip -o address | sed 's/ tentative / /'; ip route; ip -6 route; \
         nft -s list ruleset | sed -E '/^\\s*(elements = \\{ )?(\"hz[0-9a-f]+\"|[0-9]+) counter/d'; \
         sysctl -n net.ipv4.ip_forward net.ipv6.conf.all.forwarding; \
         find /opt /etc/cni /var/lib/humanz -printf '%p %T@ %i\\n' | sort",
    )
    .ok()
}

/// Fails with the lines of the state that are not as they were.
#[track_caller]
fn assert_unchanged(host: &Node, before: &str) {
    let now = state(host);
    let gone: Vec<_> =
        before.lines().filter(|line| !now.lines().any(|other| other == *line)).collect();
    let new: Vec<_> =
        now.lines().filter(|line| !before.lines().any(|other| other == *line)).collect();
    assert!(now == before, "gone: {gone:#?}\nnew: {new:#?}");
}

/// Starts the agent and waits until it serves.
fn serve(host: &Node, more: &[(&str, &str)]) -> Agent {
    let agent = Agent::start(host, &standalone(more));
    agent.wait_ready();
    agent
}

fn alone() -> Alone {
    Alone::new()
}
