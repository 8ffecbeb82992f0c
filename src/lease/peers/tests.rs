use proptest::prelude::*;

use crate::lease::peers::*;
use crate::lease::records::Roots;
use crate::lease::snapshot::Raw;

/// A store with these keys, each written at a revision of its own.
fn found(keys: &[(&str, &str)]) -> Snapshot {
    let roots = Roots { hosts: "/h".to_owned(), counter: "/c".to_owned(), humanz: "/z".to_owned() };
    let mut found = Snapshot::default();
    for (key, value) in keys {
        let (created, modified) = (found.revision + 1, found.revision + 1);
        found.put(&roots, Raw { key: key.as_bytes(), value: value.as_bytes(), created, modified });
    }
    found
}

fn node(subnets: &str, addresses: &str) -> String {
    format!(
        r#"{{"schema":1,"machineId":"m","bootId":"b","version":"0.1.0","subnets":[{subnets}],"addresses":[{addresses}],"backend":"direct","mtu":1500}}"#
    )
}

fn pools() -> PerFamily<Pool> {
    let pool = |text, margin| Pool::new(subnet::parse(text).unwrap(), margin).ok();
    PerFamily { v4: pool("10.0.0.0/16", 8), v6: pool("fd00:10::/48", 16) }
}

/// What h1, which has 10.0.1.0/24, makes of these keys: each peer with its subnets and addresses,
/// and the faults.
fn check(keys: &[(&str, &str)], expected: &[&str], faults: &[&str]) {
    let own = PerFamily { v4: subnet::parse("10.0.1.0/24").ok(), v6: None };
    let peers = peers(&found(keys), &"h1".parse().unwrap(), &own, &pools());
    let shown = |(name, peer): (&NodeName, &Peer)| {
        let subnets = peer.subnets.iter().map(ToString::to_string);
        let addresses = peer.addresses.iter().map(ToString::to_string);
        let python = peer.python.then(|| "python".to_owned());
        let words: Vec<_> = subnets.chain(addresses).chain(python).collect();
        format!("{name} {}", words.join(" "))
    };
    assert_eq!(peers.by_name.iter().map(shown).collect::<Vec<_>>(), expected);
    let found: Vec<_> = peers.faults.iter().map(ToString::to_string).collect();
    assert_eq!(found, faults);
}

#[test]
fn a_host_with_a_record_has_its_addresses() {
    let node = node(r#""10.0.2.0/24","fd00:10:0:2::/64""#, r#""192.0.2.2","2001:db8::2""#);
    check(
        &[("/h/h2", "10.0.2.0/24"), ("/z/nodes/h2", &node)],
        &["h2 10.0.2.0/24 fd00:10:0:2::/64 192.0.2.2 2001:db8::2"],
        &[],
    );
}

/// A host's agent runs.
const ALIVE: &str = r#"{"schema":1,"machineId":"m","since":"x"}"#;

/// What h1 says of its POLICY_GROUP and those of h2, h3, …; behind `gone` that of a host whose agent does not run.
fn check_groups(groups: &[&str], fault: Option<&str>) {
    let hosts = (1..).zip(groups).map(|(number, group)| {
        let gone = group.strip_prefix("gone ");
        let group = format!(r#""policyGroup":"{}","mtu""#, gone.unwrap_or(group));
        let node = node(&format!(r#""10.0.{number}.0/24""#), "").replace(r#""mtu""#, &group);
        let node = node.replace(r#""policyGroup":"","#, "");
        let subnet = format!("10.0.{number}.0/24");
        let alive = gone.is_none().then(|| (format!("/z/alive/h{number}"), ALIVE.to_owned()));
        let host = [(format!("/h/h{number}"), subnet), (format!("/z/nodes/h{number}"), node)];
        host.into_iter().chain(alive)
    });
    let keys: Vec<(String, String)> = hosts.flatten().collect();
    let keys: Vec<(&str, &str)> = keys.iter().map(|(key, value)| (&**key, &**value)).collect();
    let own = PerFamily { v4: subnet::parse("10.0.1.0/24").ok(), v6: None };
    let found = peers(&found(&keys), &"h1".parse().unwrap(), &own, &pools()).faults;
    assert_eq!(found.iter().map(ToString::to_string).next().as_deref(), fault, "{groups:?}");
}

#[test]
fn hosts_with_another_group_of_the_settings_are_one_fault() {
    let differs = |what: &str| format!("POLICY_GROUP is not the same on all hosts: {what}");
    check_groups(&["default/base", "default/base", "default/base"], None);
    check_groups(&["-", "-"], None);
    // Policies are off on one, or its version does not say it.
    check_groups(&["default/base", "", "default/base"], None);
    check_groups(&["", "default/base", "-"], None);
    check_groups(&["default/base", "gone -", "default/base"], None);
    let wanted = differs("default/base on this one, not set on host h3, blue/web on host h4");
    check_groups(&["default/base", "default/base", "-", "blue/web"], Some(&wanted));
    check_groups(&["-", "blue/web"], Some(&differs("not set on this one, blue/web on host h2")));
    let many: Vec<&str> = std::iter::once("-").chain(["blue/web"; 12]).collect();
    let listed = ["h10", "h11", "h12", "h13", "h2", "h3", "h4", "h5"];
    let listed = listed.map(|host| format!("blue/web on host {host}")).join(", ");
    check_groups(&many, Some(&differs(&format!("not set on this one, {listed} (and on 4 more)"))));
}

#[test]
fn a_host_of_the_python_agent_has_only_a_subnet() {
    check(&[("/h/py", "10.0.2.0/24")], &["py 10.0.2.0/24 python"], &[]);
}

#[test]
fn this_host_is_no_peer_and_a_host_without_key_is_gone() {
    check(&[("/h/h1", "10.0.1.0/24"), ("/z/nodes/h2", &node("", ""))], &[], &[]);
}

#[test]
fn a_subnet_outside_the_pool_is_ignored() {
    check(
        &[
            ("/h/h2", "10.1.2.0/24"),
            ("/h/h3", "10.0.3.0/24"),
            ("/h/h4", "0.0.0.0/0"),
            ("/h/h5", "10.0.0.0/16"),
        ],
        &["h3 10.0.3.0/24 python"],
        &[
            "host h2: subnet 10.1.2.0/24 is ignored: it is not in the pool 10.0.0.0/16",
            "host h4: subnet 0.0.0.0/0 is ignored: it is not in the pool 10.0.0.0/16",
            "host h5: subnet 10.0.0.0/16 is ignored: it is not in the pool 10.0.0.0/16",
        ],
    );
}

#[test]
fn a_subnet_that_overlaps_this_host_is_ignored_whichever_host_claims_it() {
    check(
        &[("/h/h2", "10.0.0.0/23"), ("/z/subnets/4/10.0.0.0-23", "h2")],
        &[],
        &["host h2: subnet 10.0.0.0/23 is ignored: it overlaps 10.0.1.0/24 of host h1 (this host)"],
    );
}

#[test]
fn of_two_the_one_that_had_it_first_wins_whatever_the_claim_says() {
    check(
        &[("/h/h2", "10.0.2.0/24"), ("/h/h3", "10.0.2.0/24"), ("/z/subnets/4/10.0.2.0-24", "h3")],
        &["h2 10.0.2.0/24 python"],
        &[
            "host h3: subnet 10.0.2.0/24 is ignored: it overlaps 10.0.2.0/24 of host h2",
            "the claim of subnet 10.0.2.0/24 says h3 since revision 3, but host h2 has had the subnet since revision 1; the claim is ignored",
        ],
    );
    check(
        &[("/h/h3", "10.0.2.128/25"), ("/h/h2", "10.0.2.0/24")],
        &["h3 10.0.2.128/25 python"],
        &["host h2: subnet 10.0.2.0/24 is ignored: it overlaps 10.0.2.128/25 of host h3"],
    );
}

#[test]
fn a_reservation_is_a_right() {
    check(
        &[("/z/subnets/4/10.0.2.0-24", "h3"), ("/h/h2", "10.0.2.0/24"), ("/h/h3", "10.0.2.0/24")],
        &["h3 10.0.2.0/24 python"],
        &["host h2: subnet 10.0.2.0/24 is ignored: it overlaps 10.0.2.0/24 of host h3"],
    );
}

#[test]
fn a_host_that_takes_half_the_pool_gets_only_what_was_free() {
    check(
        &[
            ("/h/h2", "10.0.2.0/24"),
            ("/h/h3", "10.0.3.0/24"),
            ("/h/evil", "10.0.0.0/17"),
            ("/z/subnets/4/10.0.0.0-17", "evil"),
        ],
        &["h2 10.0.2.0/24 python", "h3 10.0.3.0/24 python"],
        &["host evil: subnet 10.0.0.0/17 is ignored: it overlaps 10.0.3.0/24 of host h3"],
    );
}

/// h2 and h3 came first, evil is older than both and overwrites its own keys and a claim.
#[test]
fn an_older_host_takes_nothing_by_later_writes() {
    let roots = Roots { hosts: "/h".to_owned(), counter: "/c".to_owned(), humanz: "/z".to_owned() };
    let mut found = Snapshot::default();
    let stolen = node(r#""10.0.2.0/24","fd00:10:0:3::/64""#, r#""192.0.2.66""#);
    let (h2, h3) = (
        node(r#""10.0.2.0/24","fd00:10:0:2::/64""#, r#""192.0.2.2""#),
        node(r#""10.0.3.0/24","fd00:10:0:3::/64""#, r#""192.0.2.3""#),
    );
    for (key, value, created, modified) in [
        ("/h/h2", "10.0.2.0/24", 5, 5),
        ("/z/nodes/h2", &*h2, 5, 12),
        ("/z/subnets/4/10.0.2.0-24", "evil", 5, 9),
        ("/z/subnets/6/fd00:10:0:2::-64", "h2", 5, 5),
        ("/h/h3", "10.0.3.0/24", 6, 6),
        ("/z/nodes/h3", &*h3, 6, 12),
        ("/z/subnets/6/fd00:10:0:3::-64", "evil", 6, 10),
        ("/h/evil", "10.0.2.0/24", 2, 8),
        ("/z/nodes/evil", &*stolen, 2, 8),
    ] {
        let (key, value) = (key.as_bytes(), value.as_bytes());
        found.put(&roots, Raw { key, value, created, modified });
    }
    let own = PerFamily { v4: subnet::parse("10.0.1.0/24").ok(), v6: None };
    let peers = peers(&found, &"h1".parse().unwrap(), &own, &pools());
    let names: Vec<_> = peers.by_name.keys().map(NodeName::as_str).collect();
    assert_eq!(names, ["h2", "h3"], "{:#?}", peers.faults);
    for (name, v4, v6) in
        [("h2", "10.0.2.0/24", "fd00:10:0:2::/64"), ("h3", "10.0.3.0/24", "fd00:10:0:3::/64")]
    {
        let subnets = peers.by_name[name].subnets;
        assert_eq!(subnets.v4, subnet::parse(v4).ok());
        assert_eq!(subnets.v6, subnet::parse(v6).ok());
    }
    let named = |words: &str| peers.faults.iter().any(|fault| fault.to_string().contains(words));
    for words in [
        "host evil: subnet 10.0.2.0/24 is ignored",
        "host evil: subnet fd00:10:0:3::/64 is ignored",
        "the claim of subnet 10.0.2.0/24 says evil since revision 9",
        "the claim of subnet fd00:10:0:3::/64 says evil since revision 10",
    ] {
        assert!(named(words), "{words}: {:#?}", peers.faults);
    }
}

#[test]
fn an_address_of_two_hosts_is_reported_and_costs_neither_its_route() {
    let (h2, evil) = (node("", r#""192.0.2.2""#), node("", r#""192.0.2.2""#));
    let keys = [
        ("/h/h2", "10.0.2.0/24"),
        ("/z/nodes/h2", &*h2),
        ("/h/evil", "10.0.9.0/24"),
        ("/z/nodes/evil", &*evil),
    ];
    let peers = ["evil 10.0.9.0/24 192.0.2.2", "h2 10.0.2.0/24 192.0.2.2"];
    let fault = "host evil: its address 192.0.2.2 is that of host h2 as well";
    let dead = format!("{fault}, whose agent does not run");
    check(&keys, &peers, &[&dead]);
    check(&[&keys[..], &[("/z/alive/h2", ALIVE)]].concat(), &peers, &[fault]);
}

#[test]
fn one_bad_family_does_not_cost_the_other() {
    let node = node(r#""10.0.2.0/24","fd99::/64""#, r#""192.0.2.2""#);
    check(
        &[("/h/h2", "10.0.2.0/24"), ("/z/nodes/h2", &node)],
        &["h2 10.0.2.0/24 192.0.2.2"],
        &["host h2: subnet fd99::/64 is ignored: it is not in the pool fd00:10::/48"],
    );
}

/// In a cluster that is dual-stack each node has both families, whichever the settings use.
#[test]
fn a_family_that_is_not_used_is_no_fault_of_those_who_have_it_as_this_host_does() {
    let own = node(r#""10.0.1.0/24","fd10:0:0:1::/64""#, "");
    let h2 = node(r#""10.0.2.0/24","fd10:0:0:2::/64""#, r#""192.0.2.2""#);
    let keys = [("/z/nodes/h1", &*own), ("/h/h2", "10.0.2.0/24"), ("/z/nodes/h2", &*h2)];
    let used = PerFamily { v6: None, ..pools() };
    let faults = |keys| {
        let own = PerFamily { v4: subnet::parse("10.0.1.0/24").ok(), v6: None };
        let peers = peers(&found(keys), &"h1".parse().unwrap(), &own, &used);
        assert_eq!(peers.by_name.len(), 1);
        peers.faults.len()
    };
    assert_eq!((faults(&keys), faults(&keys[1..])), (0, 1));
}

#[test]
fn the_host_key_counts_for_its_family_and_not_the_record() {
    let node = node(r#""10.0.9.0/24""#, r#""192.0.2.2""#);
    check(&[("/h/h2", "10.0.2.0/24"), ("/z/nodes/h2", &node)], &["h2 10.0.2.0/24 192.0.2.2"], &[]);
}

#[test]
fn addresses_that_cannot_be_next_hops_are_ignored() {
    for (address, reason) in [
        ("127.0.0.1", "it is not an address by which other hosts reach a host"),
        ("0.0.0.0", "it is not an address by which other hosts reach a host"),
        ("224.0.0.1", "it is not an address by which other hosts reach a host"),
        ("255.255.255.255", "it is not an address by which other hosts reach a host"),
        ("169.254.1.1", "it is not an address by which other hosts reach a host"),
        ("fe80::1", "it is not an address by which other hosts reach a host"),
        ("10.0.9.9", "it lies inside the pool of pod addresses"),
        ("192.0.2.1", "it is this host's own; is NODE_IP right on both hosts?"),
    ] {
        let own = node("", r#""192.0.2.1""#);
        let other = node("", &format!("{address:?}"));
        let keys = [("/z/nodes/h1", &*own), ("/h/h2", "10.0.2.0/24"), ("/z/nodes/h2", &*other)];
        let fault = format!("host h2: address {address} is ignored: {reason}");
        check(&keys, &["h2 10.0.2.0/24"], &[&fault]);
    }
}

proptest! {
    #[test]
    fn peers_never_overlap_each_other_or_this_host(
        hosts in proptest::collection::vec((0u32..64, 20u8..=28, proptest::bool::ANY), 0..40),
    ) {
        let texts: Vec<_> = hosts
            .iter()
            .map(|(slot, prefix, _)| {
                let first = subnet::offset("10.0.0.0".parse().unwrap(), u128::from(*slot) * 64);
                subnet::masked(subnet::with_prefix(first, *prefix))
            })
            .collect();
        let mut keys = Vec::new();
        for (number, (subnet, (_, _, claimed))) in texts.iter().zip(&hosts).enumerate() {
            let name = format!("p{number}");
            keys.push((format!("/h/{name}"), subnet.to_string()));
            if *claimed {
                keys.push((format!("/z/subnets/4/{}-{}", subnet.ip(), subnet.prefix()), name));
            }
        }
        let keys: Vec<_> = keys.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let own = subnet::parse("10.0.1.0/24").unwrap();
        let subnets = PerFamily { v4: Some(own), v6: None };
        let peers = peers(&found(&keys), &"h1".parse().unwrap(), &subnets, &pools());
        let mut all: Vec<_> = peers.by_name.values().filter_map(|peer| peer.subnets.v4).collect();
        all.push(own);
        for (index, one) in all.iter().enumerate() {
            prop_assert!(all[..index].iter().all(|other| !subnet::overlap(*one, *other)));
        }
        let refused = |fault: &&PeerFault| !matches!(fault, PeerFault::Claim { .. });
        let refused = peers.faults.iter().filter(refused).count();
        prop_assert_eq!(peers.by_name.len() + refused, hosts.len());
    }
}

/// The record of a host with a WireGuard key of that many equal bytes.
fn with_key(subnet: &str, key: u8) -> String {
    let key = PublicKey([key; 32]);
    let end = format!(r#","wireguard":{{"publicKey":"{key}","port":10401}},"mtu""#);
    node(&format!("{subnet:?}"), "").replace(r#","mtu""#, &end)
}

/// The keys that h1 takes for those of others, and the faults, where these hosts have the keys 1, 2 … and h1 has
/// `own`. The first host's record is the oldest.
fn check_keys(hosts: &[(&str, u8)], keys: &[(&str, u8)], faults: &[&str]) {
    let records: Vec<[(String, String); 3]> = hosts
        .iter()
        .zip(1..)
        .map(|((host, key), number)| {
            let subnet = format!("10.0.{number}.0/24");
            let record = with_key(&subnet, *key);
            let claim = PublicKey([*key; 32]).to_string();
            [
                (format!("/h/{host}"), subnet),
                (format!("/z/wireguard/{host}"), claim),
                (format!("/z/nodes/{host}"), record),
            ]
        })
        .collect();
    let flat = records.iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()));
    let found = found(&flat.collect::<Vec<_>>());
    let own = hosts.iter().position(|(host, _)| *host == "h1").unwrap() + 1;
    let own = PerFamily { v4: subnet::parse(&format!("10.0.{own}.0/24")).ok(), v6: None };
    let peers = peers(&found, &"h1".parse().unwrap(), &own, &pools());
    let used = peers
        .by_name
        .iter()
        .filter_map(|(name, peer)| Some((name.as_str(), peer.wireguard?.public_key.0[0])));
    assert_eq!(used.collect::<Vec<_>>(), keys);
    let found: Vec<_> = peers.faults.iter().map(ToString::to_string).collect();
    assert_eq!(found, faults);
    assert!(peers.problems().iter().all(|problem| problem.fix.is_some()));
}

#[test]
fn each_host_has_a_key_of_its_own() {
    check_keys(&[("h1", 1), ("h2", 2), ("h3", 3)], &[("h2", 2), ("h3", 3)], &[]);
}

#[test]
fn a_second_claim_to_a_key_is_refused_with_both_names() {
    check_keys(
        &[("h1", 1), ("z", 2), ("a", 2)],
        &[("z", 2)],
        &[
            "host a: its WireGuard key is ignored: it is that of host z, which had it first and whose agent does not run",
        ],
    );
}

#[test]
fn this_hosts_key_is_no_other_hosts() {
    let fault = |host: &str, owner: &str| {
        format!(
            "host {host}: its WireGuard key is ignored: it is that of host {owner}, which had it first and whose agent does not run"
        )
    };
    check_keys(&[("h1", 1), ("h2", 1), ("h3", 3)], &[("h3", 3)], &[&fault("h2", "h1")]);
    check_keys(&[("h2", 1), ("h1", 1), ("h3", 3)], &[("h3", 3)], &[&fault("h1", "h2")]);
}

#[test]
fn a_record_with_a_garbled_key_is_no_record_and_no_other_host_is_affected() {
    let garbled = with_key("10.0.2.0/24", 2).replace("AgIC", "AgI");
    check(
        &[
            ("/h/h2", "10.0.2.0/24"),
            ("/z/nodes/h2", &garbled),
            ("/h/h3", "10.0.3.0/24"),
            ("/z/nodes/h3", &with_key("10.0.3.0/24", 3)),
        ],
        &["h2 10.0.2.0/24 python", "h3 10.0.3.0/24"],
        &[],
    );
}
