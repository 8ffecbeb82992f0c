//! Hosts whose own firewall drops tunnels of other hosts: the report matches the kernel's verdict.

use humanz::checks::forward::input::{TunnelTraffic, problems};
use humanz::net::Family;
use humanz::nft::base_chains::BaseChains;

use super::network::{HOST, OUTSIDE, on_host, run_args};

const PORT: u16 = 10400;

/// A host with this firewall has a problem for each family that is dropped, none for others; its fix
/// helps.
fn check(firewall: &'static str, gets_in: [bool; 2]) {
    on_host(move |network| {
        let shell = |script: &str| run_args("sh", &["-ec", script]);
        shell(firewall);
        let base_chains = BaseChains::open().unwrap();
        let found = || {
            let found = base_chains.observe_input(&Family::BOTH).unwrap();
            let family = |family: usize| TunnelTraffic {
                uplink: "uplink".parse().unwrap(),
                source: OUTSIDE[family].parse().unwrap(),
                destination: HOST[family].parse().unwrap(),
                udp_port: PORT,
            };
            [0, 1].map(|at| problems(&family(at), &found))
        };
        // Neighbours have found each other before anything is lost.
        assert_eq!(network.reaches_host(PORT, gets_in), gets_in, "{firewall}");
        let dropped = found();
        assert_eq!(dropped.each_ref().map(Vec::is_empty), gets_in, "{dropped:?}");
        let fixes = dropped.concat().into_iter().map(|problem| problem.fix.unwrap());
        let here: Vec<String> = fixes.filter(|fix| !fix.starts_with("firewall-cmd")).collect();
        here.iter().for_each(|fix| drop(shell(fix)));
        if !here.is_empty() {
            assert_eq!(network.reaches_host(PORT, [true; 2]), [true; 2], "{here:?}");
            assert_eq!(found().concat(), []);
        }
    });
}

#[test]
fn a_host_without_a_firewall_accepts_tunnels() {
    check("true", [true; 2]);
}

#[test]
fn a_policy_that_drops_is_reported() {
    check(
        "iptables-nft -P INPUT DROP; iptables-nft -A INPUT -p tcp --dport 22 -j ACCEPT",
        [false, true],
    );
    check(
        "ip6tables-legacy -P INPUT DROP; ip6tables-legacy -A INPUT -p ipv6-icmp -j ACCEPT; iptables-legacy -P INPUT DROP; \
           iptables-legacy -A INPUT -p udp -m multiport --dports 53,10400:10401 -j ACCEPT",
        [true, false],
    );
}

#[test]
fn an_open_port_is_seen_in_every_form() {
    for rule in [
        "udp dport 10400 accept",
        "udp dport { 53, 10400-10500 } accept",
        "meta l4proto { tcp, udp } th dport { 22, 10400 } accept",
        "meta l4proto { tcp, udp } accept",
        "iif uplink udp dport != 53 accept",
        "ip protocol udp accept; ip6 nexthdr udp accept",
    ] {
        let table = format!(
            "nft 'table inet f {{ chain input {{ type filter hook input priority 0; policy drop; \
             ct state vmap {{ established : accept, invalid : drop }}; icmpv6 type {{ \
             nd-neighbor-solicit, nd-neighbor-advert }} accept; tcp dport 22 accept; {rule}; }}; }}'"
        );
        check(Box::leak(table.into_boxed_str()), [true; 2]);
    }
    check(
        "iptables-nft -P INPUT DROP; iptables-nft -A INPUT -p udp -m udp --dport 10400 -j ACCEPT",
        [true; 2],
    );
}

/// The input chains of firewalld 1.3 as installed.
#[test]
fn a_firewalld_that_rejects_is_reported() {
    check(
        "nft 'table inet firewalld {
           chain filter_IN_public_allow { tcp dport 22 accept; ip6 daddr fe80::/64 udp dport 546 accept; }
           chain filter_IN_public {
             jump filter_IN_public_allow
             meta l4proto { icmp, ipv6-icmp } accept
             reject with icmpx admin-prohibited
           }
           chain filter_INPUT_ZONES { iifname \"uplink\" goto filter_IN_public; goto filter_IN_public; }
           chain filter_INPUT {
             type filter hook input priority filter + 10; policy accept;
             ct state { established, related } accept
             ct status dnat accept
             iifname \"lo\" accept
             ct state invalid drop
             jump filter_INPUT_ZONES
             reject with icmpx admin-prohibited
           }
         }'",
        [false; 2],
    );
}
