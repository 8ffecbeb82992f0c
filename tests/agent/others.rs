//! Foreign configuration on the host: each problem is logged once when it begins and once when it
//! ends.

use std::time::Instant;

use crate::support::{Agent, Node, Place, facts, soon};
use crate::{alone, serve, standalone};

/// One second between full reconciles.
const OFTEN: (&str, &str) = ("RESYNC_INTERVAL", "1s");

/// After `set_up` a line with `words` is logged once, and its end after `tear_down`.
fn check(set_up: &str, words: &[&str], tear_down: &str) {
    let alone = alone();
    let agent = serve(&alone.host, &[OFTEN]);
    alone.host.shell(set_up).ok();
    let line = agent.wait_log(words);
    assert!(line.contains("ERROR") || line.contains("WARN"), "{line}");
    let dry = Agent::run(&alone.host, "--dry-run", &standalone(&[]));
    let reported =
        |line: &str| line.starts_with("! ") && words.iter().all(|word| line.contains(word));
    assert!(dry.stdout.lines().any(reported), "{dry}");
    alone.host.shell(tear_down).ok();
    agent.wait_log(&[&["no longer"], words].concat());
    let log = agent.log();
    // A look at the links while a thousand are made is not a complete one.
    let is_found = |line: &&str| !line.contains("kept changing while it was read");
    let lines = log.lines().filter(|line| line.contains("ERROR") || line.contains("WARN"));
    assert_eq!(lines.filter(is_found).count(), 1, "logged once:\n{log}");
    agent.stop();
}

#[test]
fn a_route_left_by_another_pod_network_is_reported() {
    check(
        "ip link add flannel.1 type bridge; ip link set flannel.1 up
         ip route add 10.244.9.0/24 dev flannel.1",
        &["the route 10.244.9.0/24 is not humanz's", "ip route delete 10.244.9.0/24"],
        "ip link del flannel.1",
    );
}

#[test]
fn a_configuration_that_runtimes_prefer_is_reported() {
    check(
        "echo '{}' > /etc/cni/net.d/00-other.conflist",
        &["CNI configuration 00-other.conflist comes before 05-humanz.conflist"],
        "rm /etc/cni/net.d/00-other.conflist",
    );
}

#[test]
fn services_that_do_not_work_beside_kube_proxy_are_reported() {
    check(
        "sysctl -qw net.bridge.bridge-nf-call-iptables=0
         nft add table ip kube-proxy; nft add chain ip kube-proxy services",
        &["services of kube-proxy", "sysctl -w net.bridge.bridge-nf-call-iptables=1"],
        "sysctl -qw net.bridge.bridge-nf-call-iptables=1",
    );
}

/// The start refuses an address inside the pool, so this one is added later.
#[test]
fn an_address_inside_the_pool_is_reported() {
    let alone = alone();
    let agent = serve(&alone.host, &[OFTEN]);
    alone.host.shell("ip link add cni0 type bridge; ip address add 10.244.9.1/24 dev cni0").ok();
    let line = agent.wait_log(&["cni0 has the address 10.244.9.1/24 inside the pool"]);
    assert!(line.contains("ip link delete cni0"), "{line}");
    alone.host.run("ip link delete cni0").ok();
    agent.wait_log(&["no longer", "cni0"]);
    agent.stop();
}

#[test]
fn disabled_management_is_reported_when_it_would_be_needed() {
    let alone = alone();
    let host = &alone.host;
    host.shell("iptables-nft -P FORWARD DROP; sysctl -qw net.ipv4.ip_forward=0").ok();
    let agent = serve(host, &[("MANAGE_FORWARD", "false"), ("MANAGE_SYSCTL", "false"), OFTEN]);
    agent.wait_log(&["iptables chain FORWARD drops pod traffic, and MANAGE_FORWARD=false"]);
    agent.wait_log(&["MANAGE_SYSCTL=false, and sysctl net.ipv4.ip_forward = 0"]);
    assert_eq!(host.run("iptables-nft -S FORWARD").ok(), "-P FORWARD DROP\n");
    agent.stop();
}

#[test]
fn a_host_whose_new_links_have_no_ipv6_gets_it_on_the_bridge() {
    let alone = alone();
    let host = &alone.host;
    host.run("sysctl -qw net.ipv6.conf.default.disable_ipv6=1").ok();
    let agent = serve(host, &[]);
    let has_ipv6 = |host: &Node| facts::addresses(host, "humanz0").iter().any(|a| a.contains(':'));
    assert!(has_ipv6(host));
    assert!(!agent.log().contains("ERROR"), "{}", agent.log());
    host.run("sysctl -qw net.ipv6.conf.humanz0.disable_ipv6=1").ok();
    soon("IPv6 is back", || has_ipv6(host));
    agent.stop();
}

/// Each command that flushes foreign rules, without a periodic reconcile.
fn check_repair(set_up: &str, wipe: &str, repaired: impl Fn(&Node) -> bool) {
    let alone = alone();
    let host = &alone.host;
    host.shell(set_up).ok();
    let agent = serve(host, &[("RESYNC_INTERVAL", "3600s")]);
    assert!(repaired(host), "{}", agent.log());
    for _ in 0..3 {
        host.shell(wipe).ok();
        let wiped = Instant::now();
        soon("the rules are back", || repaired(host));
        println!("{wipe}: repaired after {:?}", wiped.elapsed());
    }
    agent.stop();
}

fn has_both_rules(host: &Node, program: &str) -> bool {
    host.run(&format!("{program} -S FORWARD")).stdout.matches("humanz0").count() == 2
}

#[test]
fn a_flush_of_iptables_nft_is_repaired() {
    let (drop, flush) = ("iptables-nft -P FORWARD DROP", "iptables-nft -F");
    check_repair(drop, flush, |host| has_both_rules(host, "iptables-nft"));
}

/// The kernel sends no event for this change.
#[test]
fn a_flush_of_iptables_legacy_is_repaired() {
    let (drop, flush) = ("iptables-legacy -P FORWARD DROP", "iptables-legacy -F");
    check_repair(drop, flush, |host| has_both_rules(host, "iptables-legacy"));
    // And one by a first run of the program ever, in a folder that had no lock file.
    let late = "rm -f /run/xtables.lock; iptables-legacy -F; iptables-legacy -P FORWARD DROP";
    check_repair(drop, late, |host| has_both_rules(host, "iptables-legacy"));
}

#[test]
fn a_flush_of_the_whole_ruleset_is_repaired() {
    check_repair("true", "nft flush ruleset", |host| {
        host.run("nft list chain inet humanz postrouting").stdout.contains("masquerade")
    });
}

#[test]
fn disabled_forwarding_of_an_uplink_is_repaired() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[OFTEN]);
    host.run("sysctl -qw net.ipv4.conf.eth0.forwarding=0").ok();
    agent.wait_log(&["changed sysctl net.ipv4.conf.eth0.forwarding = 1"]);
    agent.stop();
}

#[test]
fn a_nearly_full_bridge_is_reported() {
    check(
        "seq 975 | sed 's/.*/link add d& master humanz0 type veth peer name e&/' | ip -batch -",
        &["bridge humanz0 has less than a twentieth of its 1,023 ports left", "maxPods"],
        "seq 10 | sed 's/.*/link del d&/' | ip -batch -",
    );
}
