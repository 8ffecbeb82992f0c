//! The cases of the ClusterNetworkPolicy conformance suite: four houses with two pods each.

use std::sync::Arc;

use humanz::net::Protocol;
use humanz::policy::{Endpoint, Endpoints, NamedPort, Namespace, Rules, Transport};
use serde_json::{Value, json};

use crate::reachability::{PING, cluster, labels, parsed, reaches, sctp, tcp, udp, understood};

const HOUSES: [&str; 4] = ["gryffindor", "slytherin", "hufflepuff", "ravenclaw"];

/// Pods `<house>/0` and `/1`, which serve `web` (TCP 80) and `dns` (UDP 53).
fn houses() -> Endpoints {
    let mut pods = Vec::new();
    for (i, house) in HOUSES.into_iter().enumerate() {
        let own = labels(&[("conformance-house", house)]);
        let namespace = Arc::new(Namespace::new(house.parse().unwrap(), own.clone()));
        for j in 0..2 {
            let port = |name: &str, protocol, port| NamedPort {
                name: name.parse().unwrap(),
                protocol,
                port,
            };
            pods.push(Endpoint {
                namespace: namespace.clone(),
                name: j.to_string().parse().unwrap(),
                uid: None,
                labels: own.clone(),
                addresses: vec![
                    format!("10.244.{}.{}", 1 + j, 2 + i).parse().unwrap(),
                    format!("fd00:{}::{}", 1 + j, 2 + i).parse().unwrap(),
                ],
                ports: vec![port("web", Protocol::Tcp, 80), port("dns", Protocol::Udp, 53)],
                host: format!("h{}", 1 + j).parse().unwrap(),
                group: None,
                network: None,
                annotations: Default::default(),
            });
        }
    }
    Endpoints { pods, ..cluster() }
}

fn policy(name: &str, tier: &str, priority: u16, ingress: Value, egress: Value) -> Value {
    json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": name}, "spec": {"tier": tier, "priority": priority,
        "subject": {"namespaces": house("gryffindor")}, "ingress": ingress, "egress": egress}})
}

fn house(name: &str) -> Value {
    json!({"matchLabels": {"conformance-house": name}})
}

/// A rule from (or to) the namespaces of a house.
fn rule(peers: &str, action: &str, of: &str, protocols: Value) -> Value {
    let mut rule = json!({"name": format!("{action}-{of}").to_lowercase(), "action": action});
    rule[peers] = json!([{"namespaces": house(of)}]);
    if !protocols.is_null() {
        rule["protocols"] = protocols;
    }
    rule
}

fn ports(tcp: u16, udp: u16, sctp: u16) -> Value {
    json!([{"tcp": {"destinationPort": {"number": tcp}}},
        {"udp": {"destinationPort": {"number": udp}}},
        {"sctp": {"destinationPort": {"number": sctp}}}])
}

/// The rules of the suite's `gress-rules`, for one direction.
fn gress(peers: &str, hufflepuff: u16) -> Value {
    json!([
        rule(peers, "Accept", "ravenclaw", Value::Null),
        rule(peers, "Deny", "ravenclaw", Value::Null),
        rule(peers, "Pass", "ravenclaw", Value::Null),
        rule(peers, "Deny", "slytherin", ports(80, 53, 9003)),
        rule(peers, "Pass", "slytherin", Value::Null),
        rule(peers, "Accept", "hufflepuff", ports(hufflepuff, 5353, 9003)),
        rule(peers, "Deny", "hufflepuff", Value::Null),
    ])
}

fn gress_rules(tier: &str) -> Value {
    policy("gress-rules", tier, 15, gress("from", 80), gress("to", 8080))
}

fn swapped(mut policy: Value, one: usize, other: usize) -> Value {
    for direction in ["ingress", "egress"] {
        policy["spec"][direction].as_array_mut().unwrap().swap(one, other);
    }
    policy
}

fn check(case: &str, rules: &Rules, cases: &[(&str, &str, Transport, bool)]) {
    let houses = houses();
    for (source, destination, transport, allowed) in cases {
        let found = reaches(rules, &houses, source, destination, *transport);
        assert_eq!(found, *allowed, "{case}: {source} to {destination}, {transport:?}");
    }
}

/// Both directions between gryffindor and a house, with each protocol.
fn between(
    house: &str,
    transports: [Transport; 3],
    allowed: bool,
) -> Vec<(String, String, Transport, bool)> {
    let mut cases = Vec::new();
    for (at, transport) in transports.into_iter().enumerate() {
        let (own, other) = (format!("gryffindor/{}", at % 2), format!("{house}/{}", (at + 1) % 2));
        cases.push((own.clone(), other.clone(), transport, allowed));
        cases.push((other, own, transport, allowed));
    }
    cases
}

fn check_between(
    case: &str,
    rules: &Rules,
    house: &str,
    transports: [Transport; 3],
    allowed: bool,
) {
    let cases = between(house, transports, allowed);
    let cases: Vec<_> =
        cases.iter().map(|(a, b, t, ok)| (a.as_str(), b.as_str(), *t, *ok)).collect();
    check(case, rules, &cases);
}

#[test]
fn gress_rules_in_both_tiers() {
    for tier in ["Admin", "Baseline"] {
        let rules = understood(&[gress_rules(tier)]);
        let all = [tcp(80), udp(53), sctp(9003)];
        check_between("allow-gress", &rules, "ravenclaw", all, true);
        check_between("deny-gress at ports", &rules, "slytherin", all, false);
        let others = [tcp(8080), udp(5353), sctp(9005)];
        check_between("other ports", &rules, "slytherin", others, true);
        check(
            "allow-gress at ports",
            &rules,
            &[
                ("gryffindor/0", "hufflepuff/1", tcp(8080), true),
                ("gryffindor/1", "hufflepuff/1", tcp(80), false),
                ("gryffindor/0", "hufflepuff/1", udp(5353), true),
                ("gryffindor/1", "hufflepuff/1", udp(53), false),
                ("gryffindor/0", "hufflepuff/1", sctp(9003), true),
                ("gryffindor/1", "hufflepuff/1", sctp(9005), false),
                ("hufflepuff/0", "gryffindor/1", tcp(80), true),
                ("hufflepuff/1", "gryffindor/1", tcp(8080), false),
                ("hufflepuff/0", "gryffindor/1", udp(5353), true),
                ("hufflepuff/1", "gryffindor/1", udp(53), false),
                ("hufflepuff/0", "gryffindor/1", PING, false),
                ("slytherin/0", "gryffindor/1", PING, true),
                ("slytherin/0", "ravenclaw/1", tcp(80), true),
            ],
        );
        let denied = understood(&[swapped(gress_rules(tier), 0, 1)]);
        check_between("deny-gress", &denied, "ravenclaw", all, false);
        let passed = understood(&[swapped(gress_rules(tier), 0, 2)]);
        check_between("pass-gress, nothing after it", &passed, "ravenclaw", all, true);
    }
}

/// A NetworkPolicy of gryffindor that denies everything in both directions, or allows it.
fn network_policy(rules: Value) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "np", "namespace": "gryffindor"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"],
            "ingress": rules, "egress": rules}})
}

fn simple(name: &str, tier: &str, priority: u16, action: &str) -> Value {
    policy(
        name,
        tier,
        priority,
        json!([rule("from", action, "slytherin", Value::Null)]),
        json!([rule("to", action, "slytherin", Value::Null)]),
    )
}

#[test]
fn tiers_and_priorities_together() {
    let all = [tcp(80), udp(53), sctp(9003)];
    let (deny_all, allow_all) = (network_policy(json!([])), network_policy(json!([{}])));
    let cases: &[(&str, Vec<Value>, bool)] = &[
        (
            "admin accept beats NetworkPolicy deny",
            vec![simple("a", "Admin", 50, "Accept"), deny_all.clone()],
            true,
        ),
        (
            "admin deny beats NetworkPolicy allow",
            vec![simple("a", "Admin", 50, "Deny"), allow_all.clone()],
            false,
        ),
        (
            "admin pass leaves it to NetworkPolicy: deny",
            vec![simple("a", "Admin", 50, "Pass"), deny_all.clone()],
            false,
        ),
        (
            "admin pass leaves it to NetworkPolicy: allow",
            vec![
                simple("a", "Admin", 50, "Pass"),
                allow_all.clone(),
                simple("b", "Baseline", 10, "Deny"),
            ],
            true,
        ),
        (
            "admin pass leaves it to Baseline",
            vec![simple("a", "Admin", 50, "Pass"), simple("b", "Baseline", 10, "Deny")],
            false,
        ),
        (
            "NetworkPolicy deny beats Baseline accept",
            vec![deny_all.clone(), simple("b", "Baseline", 10, "Accept")],
            false,
        ),
        (
            "NetworkPolicy allow beats Baseline deny",
            vec![allow_all, simple("b", "Baseline", 10, "Deny")],
            true,
        ),
        (
            "a lower number is judged first: accept",
            vec![simple("z", "Admin", 30, "Accept"), simple("a", "Admin", 40, "Deny")],
            true,
        ),
        (
            "a lower number is judged first: deny",
            vec![simple("z", "Admin", 30, "Deny"), simple("a", "Admin", 40, "Accept")],
            false,
        ),
        (
            "a pass hides the rest of its tier",
            vec![simple("z", "Admin", 30, "Pass"), simple("a", "Admin", 40, "Deny")],
            true,
        ),
        (
            "a pass of Baseline ends in the default",
            vec![simple("z", "Baseline", 0, "Pass"), simple("a", "Baseline", 1, "Deny")],
            true,
        ),
        (
            "priority 1000 is the last",
            vec![simple("z", "Admin", 1000, "Deny"), simple("a", "Admin", 0, "Accept")],
            true,
        ),
    ];
    for (case, policies, allowed) in cases {
        let rules = understood(policies);
        check_between(case, &rules, "slytherin", all, *allowed);
        let reversed: Vec<Value> = policies.iter().rev().cloned().collect();
        assert_eq!(understood(&reversed), rules, "{case}: the order of objects counts");
    }
}

/// Isolation is per direction: a policy of one direction leaves the other to Baseline.
#[test]
fn a_network_policy_of_one_direction_leaves_the_other_to_baseline() {
    let mut egress = network_policy(json!([{}]));
    egress["spec"]["policyTypes"] = json!(["Egress"]);
    let rules = understood(&[egress, simple("b", "Baseline", 10, "Deny")]);
    check(
        "egress only",
        &rules,
        &[
            ("gryffindor/0", "slytherin/0", tcp(80), true),
            ("slytherin/0", "gryffindor/0", tcp(80), false),
        ],
    );
}

#[test]
fn named_ports_ranges_and_pods() {
    let to = |protocols: Value| {
        let deny = rule("to", "Deny", "hufflepuff", Value::Null);
        policy(
            "p",
            "Admin",
            5,
            json!([]),
            json!([rule("to", "Accept", "hufflepuff", protocols), deny]),
        )
    };
    let named = understood(&[to(json!([{"destinationNamedPort": "web"}]))]);
    check(
        "named port",
        &named,
        &[
            ("gryffindor/0", "hufflepuff/1", tcp(80), true),
            ("gryffindor/1", "hufflepuff/1", tcp(8080), false),
            ("gryffindor/1", "hufflepuff/1", udp(80), false),
            ("gryffindor/1", "hufflepuff/1", udp(53), false),
        ],
    );
    let range = json!([{"tcp": {"destinationPort": {"range": {"start": 8000, "end": 8080}}}}]);
    check(
        "range",
        &understood(&[to(range)]),
        &[
            ("gryffindor/0", "hufflepuff/1", tcp(8000), true),
            ("gryffindor/0", "hufflepuff/1", tcp(8080), true),
            ("gryffindor/0", "hufflepuff/1", tcp(7999), false),
            ("gryffindor/0", "hufflepuff/1", tcp(8081), false),
            ("gryffindor/0", "hufflepuff/1", udp(8000), false),
        ],
    );
    let mut pods = simple("p", "Admin", 5, "Deny");
    pods["spec"]["subject"] = json!({"pods": {"namespaceSelector": house("gryffindor"),
        "podSelector": {"matchLabels": {"none": "such"}}}});
    check(
        "no pod is subject",
        &understood(&[pods]),
        &[("gryffindor/0", "slytherin/0", tcp(80), true)],
    );
}

#[test]
fn networks_and_nodes_as_peers() {
    let egress = json!([
        {"action": "Deny", "to": [{"networks": ["203.0.113.0/24", "2001:db8:9::/48"]}]},
        {"action": "Accept", "to": [{"nodes": {"matchLabels": {"kubernetes.io/hostname": "h2"}}}],
            "protocols": [{"tcp": {"destinationPort": {"number": 36363}}}]},
        {"action": "Deny", "to": [{"nodes": {}}]},
    ]);
    let rules = understood(&[policy("p", "Admin", 5, json!([]), egress)]);
    check(
        "networks and nodes",
        &rules,
        &[
            ("gryffindor/0", "203.0.113.7", tcp(80), false),
            ("gryffindor/0", "203.0.113.7", PING, false),
            ("gryffindor/0", "2001:db8:9::7", tcp(80), false),
            ("gryffindor/0", "198.51.100.7", tcp(80), true),
            ("gryffindor/0", "192.0.2.2", tcp(36363), true),
            ("gryffindor/0", "192.0.2.2", tcp(36364), false),
            ("gryffindor/0", "192.0.2.1", tcp(36363), false),
            ("gryffindor/0", "2001:db8::2", tcp(36363), true),
            ("slytherin/0", "192.0.2.1", tcp(36363), true),
            ("192.0.2.1", "gryffindor/0", tcp(80), true),
        ],
    );
}

/// Unlike NetworkPolicy, tier Admin judges a pod's connection to itself, over a service too.
#[test]
fn a_pods_connection_to_itself_is_subject_to_admin_only() {
    let own = |tier| {
        policy("p", tier, 5, json!([rule("from", "Deny", "gryffindor", Value::Null)]), json!([]))
    };
    check(
        "hairpin",
        &understood(&[own("Admin")]),
        &[
            ("gryffindor/0", "gryffindor/0", tcp(80), false),
            ("gryffindor/0", "gryffindor/1", tcp(80), false),
        ],
    );
    check(
        "Baseline",
        &understood(&[own("Baseline")]),
        &[
            ("gryffindor/0", "gryffindor/0", tcp(80), true),
            ("gryffindor/0", "gryffindor/1", tcp(80), false),
        ],
    );
}

/// "For Accept rules, fail closed means: treat the rule as matching no traffic. For Deny and Pass
/// rules: treat the rule as a deny all rule."
#[test]
fn rules_that_are_not_understood_fail_closed() {
    let unknown = [
        ("no peer at all", "to", json!([{"action": "ACTION", "to": []}])),
        ("no field of a peer", "to", json!([{"action": "ACTION", "to": [{}]}])),
        ("unknown peer", "to", json!([{"action": "ACTION", "to": [{"moon": {}}]}])),
        (
            "unknown beside a known one",
            "to",
            json!([{"action": "ACTION", "to": [{"namespaces": {}, "moon": {}}]}]),
        ),
        (
            "names of domains",
            "to",
            json!([{"action": "ACTION", "to": [{"domainNames": ["example.com"]}]}]),
        ),
        ("no network", "to", json!([{"action": "ACTION", "to": [{"networks": ["10.0.0.0"]}]}])),
        (
            "unknown operator",
            "to",
            json!([{"action": "ACTION", "to": [{"namespaces":
            {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}}]}]),
        ),
        (
            "unknown protocol",
            "to",
            json!([{"action": "ACTION", "to": [{"namespaces": {}}],
            "protocols": [{"quic": {}}]}]),
        ),
        (
            "nothing of a protocol",
            "to",
            json!([{"action": "ACTION", "to": [{"namespaces": {}}],
            "protocols": [{"tcp": {}}]}]),
        ),
        (
            "unknown field",
            "to",
            json!([{"action": "ACTION", "to": [{"namespaces": {}}],
            "ports": []}]),
        ),
    ];
    for (case, _, rules) in unknown {
        let text = rules.to_string();
        let with = |action: &str| serde_json::from_str(&text.replace("ACTION", action)).unwrap();
        let policy = |action: &str| policy("p", "Admin", 5, json!([]), with(action));
        let deny = simple("d", "Admin", 6, "Deny");
        let (rules, problems) = parsed(&[policy("Accept"), deny]);
        assert_eq!(problems.len(), 1, "{case}: {problems:?}");
        assert!(problems[0].subject.to_string().contains("ClusterNetworkPolicy p"), "{problems:?}");
        check(
            case,
            &rules,
            &[
                ("gryffindor/0", "slytherin/0", tcp(80), false),
                ("gryffindor/0", "ravenclaw/0", tcp(80), true),
            ],
        );
        for action in ["Deny", "Pass", "Moon"] {
            let (rules, problems) = parsed(&[policy(action)]);
            assert_eq!(problems.len(), 1, "{case}: {problems:?}");
            check(
                case,
                &rules,
                &[
                    ("gryffindor/0", "ravenclaw/0", tcp(80), false),
                    ("gryffindor/0", "203.0.113.1", udp(1), false),
                    ("ravenclaw/0", "gryffindor/0", tcp(80), true),
                ],
            );
        }
    }
}

#[test]
fn the_older_kinds_are_read() {
    let admin = json!({"apiVersion": "policy.networking.k8s.io/v1alpha1",
        "kind": "AdminNetworkPolicy", "metadata": {"name": "a"}, "spec": {"priority": 5,
        "subject": {"namespaces": house("gryffindor")}, "ingress": [
            {"action": "Allow", "from": [{"namespaces": house("ravenclaw")}],
                "ports": [{"portNumber": {"protocol": "TCP", "port": 80}},
                    {"portRange": {"protocol": "UDP", "start": 50, "end": 60}},
                    {"namedPort": "dns"}]},
            {"action": "Deny", "from": [{"namespaces": house("ravenclaw")}]},
            {"action": "Pass", "from": [{"pods": {"podSelector": {}}}]}]}});
    let baseline = json!({"apiVersion": "policy.networking.k8s.io/v1alpha1",
        "kind": "BaselineAdminNetworkPolicy", "metadata": {"name": "default"}, "spec": {
        "subject": {"namespaces": {}}, "egress": [
            {"action": "Deny", "to": [{"networks": ["203.0.113.0/24"]}]}],
        "ingress": [{"action": "Deny", "from": [{"namespaces": house("slytherin")}]}]}});
    check(
        "v1alpha1",
        &understood(&[admin, baseline]),
        &[
            ("ravenclaw/0", "gryffindor/0", tcp(80), true),
            ("ravenclaw/0", "gryffindor/0", tcp(81), false),
            ("ravenclaw/0", "gryffindor/0", udp(55), true),
            ("ravenclaw/0", "gryffindor/0", udp(61), false),
            ("slytherin/0", "gryffindor/0", tcp(80), false),
            ("hufflepuff/0", "gryffindor/0", tcp(80), true),
            ("ravenclaw/1", "203.0.113.9", tcp(80), false),
        ],
    );
}
