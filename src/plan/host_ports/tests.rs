//! Pure. What differs, case by case.

use crate::net::Protocol;
use crate::plan::Describe;
use crate::plan::host_ports::*;

const STORE: u64 = 7;

/// A claim of the container `name` on `port` of `address`.
fn claim(name: &str, address: &str, port: u16) -> PortClaim {
    let from = HostPort { protocol: Protocol::Tcp, port, address: address.parse().unwrap() };
    PortClaim {
        forward: PortForward { from, to: "10.1.2.3:80".parse().unwrap() },
        bridge: "hz0".parse().unwrap(),
        network: "net".to_owned(),
        container_id: name.to_owned(),
        ifname: "eth0".to_owned(),
        pod: None,
    }
}

fn check(claims: &[PortClaim], found: &[PortElement], bridges: &[&str], wanted: &[&str]) {
    let bridges = bridges.iter().map(|name| name.parse().unwrap()).collect();
    let changes = changes(claims, STORE, (found, &bridges), &BTreeSet::new());
    let lines: Vec<String> = changes.iter().map(|change| change.line().to_string()).collect();
    assert_eq!(lines, wanted);
}

const ADDED: &str = "+ host port 80/tcp on every IPv4 address to 10.1.2.3:80 (humanz net c1 eth0)";

#[test]
fn what_is_missing_is_added() {
    let bridge = "+ bridge hz0 to table inet humanz-hostports";
    check(&[claim("c1", "0.0.0.0", 80)], &[], &[], &[bridge, ADDED]);
    check(&[claim("c1", "0.0.0.0", 80)], &[], &["hz0", "hz1"], &[ADDED]);
}

#[test]
fn what_is_there_stays() {
    let own = claim("c1", "0.0.0.0", 80);
    check(std::slice::from_ref(&own), &[element(&own, STORE)], &["hz0"], &[]);
    check(&[], &[], &[], &[]);
}

#[test]
fn the_element_of_another_owner_is_replaced() {
    let former = element(&claim("c0", "0.0.0.0", 80), STORE);
    let changed = ADDED.replace("+ ", "~ ");
    check(&[claim("c1", "0.0.0.0", 80)], &[former], &["hz0"], &[&changed]);
}

#[test]
fn what_no_pod_has_any_more_is_removed() {
    let former = element(&claim("c1", "0.0.0.0", 80), STORE);
    check(&[], &[former], &["hz0"], &[&ADDED.replace("+ ", "- ")]);
}

#[test]
fn elements_of_another_store_and_of_other_people_stay() {
    let other = element(&claim("c1", "0.0.0.0", 80), STORE + 1);
    let by_hand = PortElement { mark: None, ..element(&claim("c2", "192.0.2.1", 80), STORE) };
    check(&[], &[other.clone(), by_hand], &["hz0"], &[]);
    check(&[claim("c3", "0.0.0.0", 80)], &[other], &["hz0"], &[]);
}

#[test]
fn the_elements_of_running_pods_that_the_store_lost_stay() {
    let lost = element(&claim("c1", "0.0.0.0", 80), STORE);
    let orphans = BTreeSet::from([lost.mark.clone().unwrap().link]);
    let bridges = BTreeSet::from(["hz0".parse().unwrap()]);
    let found = [lost, element(&claim("c2", "0.0.0.0", 81), STORE)];
    let changes = changes(&[], STORE, (&found, &bridges), &orphans);
    let lines: Vec<String> = changes.iter().map(|change| change.line().to_string()).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("81/tcp"), "{lines:?}");
}

#[test]
fn a_port_that_another_element_has_is_blocked() {
    let own = claim("c1", "0.0.0.0", 80);
    let blocked_by = |found: &[PortElement]| {
        let blocked = blocked(std::slice::from_ref(&own), STORE, found);
        blocked.into_iter().map(|(_, other)| other.forward.from).collect::<Vec<_>>()
    };
    let others = |address, port| element(&claim("c9", address, port), STORE + 1);
    let [same, beside] = ["0.0.0.0", "192.0.2.1"].map(|address| others(address, 80));
    assert_eq!(blocked_by(std::slice::from_ref(&same)), [same.forward.from]);
    assert_eq!(blocked_by(std::slice::from_ref(&beside)), [beside.forward.from]);
    let present = element(&own, STORE);
    assert!(blocked_by(&[beside, present]).is_empty(), "ours is there");
    assert!(blocked_by(&[others("0.0.0.0", 81), others("::", 80)]).is_empty());
    assert!(blocked_by(&[]).is_empty(), "it is missing, and will be added");
}

#[test]
fn a_replacement_is_a_removal_and_an_addition() {
    let element = element(&claim("c1", "0.0.0.0", 80), STORE);
    let steps = HostPortChange::Replace(element.clone()).steps();
    assert_eq!(steps, [PortChange::Remove(element.forward.from), PortChange::Add(element)]);
}

#[test]
fn a_table_is_intact_with_our_rules_and_no_others() {
    let rules = ruleset().chains.into_iter().map(|chain| {
        (chain.name, chain.rules.iter().map(|rule| Some(rule.fingerprint())).collect())
    });
    let rules: Fingerprints = rules.collect();
    assert!(is_intact(Some(&rules)));
    assert!(!is_intact(None) && !is_intact(Some(&Fingerprints::new())));
    let mut more = rules.clone();
    more.get_mut("output").unwrap().push(None);
    let mut fewer = rules.clone();
    fewer.remove("guard");
    let mut disordered = rules;
    disordered.get_mut("prerouting").unwrap().swap(1, 2);
    assert!(![more, fewer, disordered].iter().any(|rules| is_intact(Some(rules))));
}

#[test]
fn the_rules_read_as_nft_writes_them() {
    let ruleset = ruleset();
    let lines = ruleset.chains.iter().flat_map(|chain| {
        chain.rules.iter().map(|rule| format!("{}: {rule}", chain.name)).collect::<Vec<_>>()
    });
    let lines: Vec<String> = lines.collect();
    let wanted = [
        "guard: ip saddr 127.0.0.0/8 iifname @bridges counter drop",
        "guard: ip daddr 127.0.0.0/8 iifname @bridges counter drop",
        "prerouting: fib daddr type != local counter return",
        "prerouting: iifname @bridges counter meta mark set meta mark | 0x2000",
        "prerouting: dnat ip to ip daddr . meta l4proto . th dport map @at4",
        "prerouting: dnat ip6 to ip6 daddr . meta l4proto . th dport map @at6",
        "prerouting: dnat ip to meta l4proto . th dport map @any4",
        "prerouting: dnat ip6 to meta l4proto . th dport map @any6",
        "output: fib daddr type != local counter return",
        "output: ip6 daddr ::1/128 counter return",
        "output: dnat ip to ip daddr . meta l4proto . th dport map @at4",
        "output: dnat ip6 to ip6 daddr . meta l4proto . th dport map @at6",
        "output: dnat ip to meta l4proto . th dport map @any4",
        "output: dnat ip6 to meta l4proto . th dport map @any6",
        "postrouting: oifname @bridges meta mark & 0x2000 == 0x2000 counter masquerade fully-random",
        "postrouting: oifname @bridges ip saddr 127.0.0.0/8 counter masquerade fully-random",
    ];
    assert_eq!(lines, wanted);
}

#[test]
fn a_mismatch_says_where_a_port_leads() {
    let own = claim("c1", "0.0.0.0", 80);
    let mut other = element(&own, STORE);
    assert!(mismatches(&[own.forward], &[other.clone()]).is_empty());
    other.forward.to = "10.1.2.9:80".parse().unwrap();
    let port = "host port 80/tcp on every IPv4 address to 10.1.2.3:80";
    assert_eq!(mismatches(&[own.forward], &[other]), [format!("{port}: it leads to 10.1.2.9:80")]);
    let missing = format!("{port}: missing in nftables table inet humanz-hostports");
    assert_eq!(mismatches(&[own.forward], &[]), [missing]);
}
