//! The cases of Kubernetes' `test/e2e/network/netpol`: namespaces x, y, z, pods a, b, c.

use serde_json::{Value, json};

use crate::reachability::{PING, Table, cluster, labels, reaches, sctp, tcp, udp, understood};

/// A policy of namespace `x` (or of what `name` has before a slash).
fn policy(name: &str, spec: Value) -> Value {
    let (namespace, name) = name.split_once('/').unwrap_or(("x", name));
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace}, "spec": spec})
}

fn pod(name: &str) -> Value {
    json!({"matchLabels": {"pod": name}})
}

fn ns(name: &str) -> Value {
    json!({"matchLabels": {"ns": name}})
}

/// The policies decide `table` for TCP 80 and 81, UDP 80, SCTP 80 and ping.
fn check(case: &str, policies: &[Value], table: Table) {
    let rules = understood(policies);
    for transport in [tcp(80), tcp(81), udp(80), sctp(80), PING] {
        table.check(case, &rules, transport);
    }
}

/// The policies decide `open` for the transport that is allowed, `closed` for all others.
fn check_port(
    case: &str,
    policies: &[Value],
    open: (&[humanz::policy::Transport], Table),
    closed: (&[humanz::policy::Transport], Table),
) {
    let rules = understood(policies);
    for (transports, table) in [open, closed] {
        for transport in transports {
            table.check(case, &rules, *transport);
        }
    }
}

#[test]
fn without_policies_everything_is_allowed() {
    check("no policy", &[], Table::all());
}

#[test]
fn default_deny_ingress() {
    let deny = policy("deny", json!({"podSelector": {}, "policyTypes": ["Ingress"]}));
    check("default-deny-ingress", &[deny], Table::all().no_ingress("x/*"));
    let empty = policy("deny", json!({"podSelector": {}, "ingress": []}));
    check("empty list, types by default", &[empty], Table::all().no_ingress("x/*"));
    let absent = policy("deny", json!({}));
    check("nothing but a name", &[absent], Table::all().no_ingress("x/*"));
    let nulls = json!({"podSelector": null, "policyTypes": null, "ingress": null, "egress": null});
    check("nulls", &[policy("deny", nulls)], Table::all().no_ingress("x/*"));
}

#[test]
fn default_deny_egress_and_all() {
    let egress = policy("deny", json!({"podSelector": {}, "policyTypes": ["Egress"]}));
    check("default-deny-egress", &[egress], Table::all().no_egress("x/*"));
    let both = policy("deny", json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}));
    check("default-deny-all", &[both], Table::all().no_ingress("x/*").no_egress("x/*"));
    let empty = policy("deny", json!({"podSelector": {}, "egress": []}));
    check("an empty egress is none", &[empty], Table::all().no_ingress("x/*"));
    let egress = policy("open", json!({"podSelector": {}, "egress": [{}]}));
    check("egress isolates too, ingress by default", &[egress], Table::all().no_ingress("x/*"));
    let only = json!({"podSelector": {}, "policyTypes": ["Egress"], "ingress": [], "egress": [{}]});
    check("rules of a direction that is no type do nothing", &[policy("e", only)], Table::all());
}

#[test]
fn allow_all_and_empty_rules() {
    let all = policy("all", json!({"podSelector": {}, "ingress": [{}]}));
    check("allow-all-ingress", &[all], Table::all());
    let empty = policy("all", json!({"podSelector": {}, "ingress": [{"from": [], "ports": []}]}));
    check("empty lists are no limit", &[empty], Table::all());
}

#[test]
fn pod_selectors_and_namespace_selectors() {
    let from =
        |from: Value| policy("a", json!({"podSelector": pod("a"), "ingress": [{"from": from}]}));
    let only = |from: &[&str]| Table::all().ingress_only(from, "x/a");
    check("own namespace", &[from(json!([{"podSelector": pod("b")}]))], only(&["x/b"]));
    check("every own pod", &[from(json!([{"podSelector": {}}]))], only(&["x/*"]));
    check("one namespace", &[from(json!([{"namespaceSelector": ns("y")}]))], only(&["y/*"]));
    check("every pod", &[from(json!([{"namespaceSelector": {}}]))], only(&["*/*"]));
    let and = json!([{"namespaceSelector": ns("y"), "podSelector": pod("b")}]);
    check("both are an and", &[from(and)], only(&["y/b"]));
    let or = json!([{"namespaceSelector": ns("y")}, {"podSelector": pod("b")}]);
    check("two entries are an or", &[from(or)], only(&["y/*", "x/b"]));
    let name = json!([{"namespaceSelector":
        {"matchLabels": {"kubernetes.io/metadata.name": "z"}}}]);
    check("a namespace by its name", &[from(name)], only(&["z/*"]));
    let none = json!([{"podSelector": pod("nobody")}]);
    check("a selector that finds nothing", &[from(none)], only(&[]));
}

#[test]
fn match_expressions() {
    let from = |expressions: Value| {
        let from = json!([{"namespaceSelector": {"matchExpressions": expressions}}]);
        policy(
            "a",
            json!({"podSelector": {"matchExpressions":
            [{"key": "pod", "operator": "In", "values": ["a"]}]}, "ingress": [{"from": from}]}),
        )
    };
    let only = |from: &[&str]| Table::all().ingress_only(from, "x/a");
    for (expression, found) in [
        (json!([{"key": "ns", "operator": "In", "values": ["x", "y"]}]), &["x/*", "y/*"][..]),
        (json!([{"key": "ns", "operator": "NotIn", "values": ["x"]}]), &["y/*", "z/*"]),
        (json!([{"key": "none", "operator": "NotIn", "values": ["x"]}]), &["*/*"]),
        (json!([{"key": "ns", "operator": "Exists"}]), &["*/*"]),
        (json!([{"key": "ns", "operator": "DoesNotExist"}]), &[]),
        (json!([{"key": "none", "operator": "DoesNotExist"}]), &["*/*"]),
        (
            json!([{"key": "ns", "operator": "In", "values": ["x", "y"]},
            {"key": "ns", "operator": "NotIn", "values": ["y"]}]),
            &["x/*"],
        ),
    ] {
        check(&expression.to_string(), &[from(expression)], only(found));
    }
}

#[test]
fn policies_add_up_and_a_change_of_labels_counts() {
    let b = policy(
        "b",
        json!({"podSelector": pod("a"),
        "ingress": [{"from": [{"podSelector": pod("b")}]}]}),
    );
    let y = policy(
        "y",
        json!({"podSelector": pod("a"),
        "ingress": [{"from": [{"namespaceSelector": ns("y")}]}]}),
    );
    let deny = policy("deny", json!({"podSelector": {}}));
    let table = Table::all().no_ingress("x/b").no_ingress("x/c");
    let table = table.ingress_only(&["x/b", "y/*"], "x/a");
    check("stacked", &[b.clone(), y.clone(), deny.clone()], table.clone());
    check("stacked, another order", &[deny, y, b.clone()], table);

    let mut changed = cluster();
    changed.pods.iter_mut().filter(|pod| pod.to_string() == "x/b").for_each(|pod| {
        pod.labels = labels(&[("pod", "other")]);
    });
    let rules = understood(&[b]);
    assert!(reaches(&rules, &cluster(), "x/b", "x/a", tcp(80)));
    assert!(!reaches(&rules, &changed, "x/b", "x/a", tcp(80)));
}

#[test]
fn ports_by_number_name_range_and_protocol() {
    let port =
        |port: Value| policy("a", json!({"podSelector": pod("a"), "ingress": [{"ports": [port]}]}));
    let (open, closed) = (Table::all(), Table::all().no_ingress("x/a"));
    for (entry, allowed, denied) in [
        (json!({"port": 81}), vec![tcp(81)], vec![tcp(80), udp(81), sctp(81), PING]),
        (json!({"port": 81, "protocol": "TCP"}), vec![tcp(81)], vec![tcp(80), udp(81)]),
        (json!({"port": 80, "protocol": "UDP"}), vec![udp(80)], vec![tcp(80), udp(81), PING]),
        (json!({"port": 80, "protocol": "SCTP"}), vec![sctp(80)], vec![tcp(80), sctp(81)]),
        (json!({"protocol": "UDP"}), vec![udp(80), udp(81)], vec![tcp(80), sctp(80), PING]),
        (json!({}), vec![tcp(80), tcp(81)], vec![udp(80), sctp(80), PING]),
        (json!({"port": "serve-80-tcp"}), vec![tcp(80)], vec![tcp(81), udp(80), sctp(80)]),
        (json!({"port": "serve-81-udp", "protocol": "UDP"}), vec![udp(81)], vec![tcp(81), udp(80)]),
        (json!({"port": "serve-81-udp"}), vec![], vec![tcp(81), udp(81)]),
        (json!({"port": "nothing"}), vec![], vec![tcp(80), tcp(81), udp(80)]),
        (
            json!({"port": 80, "endPort": 81}),
            vec![tcp(80), tcp(81)],
            vec![tcp(79), tcp(82), udp(80)],
        ),
        (json!({"port": 81, "endPort": 81}), vec![tcp(81)], vec![tcp(80), tcp(82)]),
    ] {
        let case = entry.to_string();
        let policies = [port(entry)];
        let (open, closed) = ((&*allowed, open.clone()), (&*denied, closed.clone()));
        check_port(&case, &policies, open, closed);
    }
}

#[test]
fn a_named_port_is_that_of_each_destination() {
    let mut endpoints = cluster();
    for pod in endpoints.pods.iter_mut().filter(|pod| pod.to_string() == "y/b") {
        pod.ports.iter_mut().for_each(|port| port.port += 8000);
    }
    let spec = json!({"podSelector": pod("a"), "policyTypes": ["Egress"], "egress":
        [{"to": [{"namespaceSelector": ns("y")}], "ports": [{"port": "serve-80-tcp"}]}]});
    let rules = understood(&[policy("a", spec)]);
    for (destination, port, allowed) in [
        ("y/a", 80, true),
        ("y/b", 80, false),
        ("y/b", 8080, true),
        ("y/a", 8080, false),
        ("z/a", 80, false),
        ("203.0.113.9", 80, false),
    ] {
        let found = reaches(&rules, &endpoints, "x/a", destination, tcp(port));
        assert_eq!(found, allowed, "{destination}:{port}");
    }
}

#[test]
fn networks_and_what_they_leave_out() {
    let block = |block: Value| {
        policy(
            "a",
            json!({"podSelector": pod("a"), "policyTypes": ["Egress"],
            "egress": [{"to": [{"ipBlock": block}]}]}),
        )
    };
    let reach = |policies: &[Value], to: &str| {
        reaches(&understood(policies), &cluster(), "x/a", to, tcp(80))
    };
    let except = block(json!({"cidr": "203.0.113.0/24", "except": ["203.0.113.128/25"]}));
    assert!(reach(std::slice::from_ref(&except), "203.0.113.5"));
    assert!(!reach(std::slice::from_ref(&except), "203.0.113.129"));
    assert!(!reach(std::slice::from_ref(&except), "198.51.100.1"));
    assert!(!reach(std::slice::from_ref(&except), "2001:db8::9"));
    let again = policy(
        "again",
        json!({"podSelector": pod("a"), "policyTypes": ["Egress"],
        "egress": [{"to": [{"ipBlock": {"cidr": "203.0.113.129/32"}}]}]}),
    );
    assert!(reach(&[except, again], "203.0.113.129"), "another policy may allow it again");
    let v6 = block(json!({"cidr": "2001:db8::/32", "except": ["2001:db8:1::/48"]}));
    assert!(reach(std::slice::from_ref(&v6), "2001:db8::9"));
    assert!(!reach(std::slice::from_ref(&v6), "2001:db8:1::9"));
    assert!(!reach(&[v6], "203.0.113.5"));
    let host_bits = block(json!({"cidr": "203.0.113.77/24"}));
    assert!(reach(&[host_bits], "203.0.113.5"), "Kubernetes takes host bits");
    let pod = block(json!({"cidr": "10.244.0.0/16"}));
    let rules = understood(&[pod]);
    assert!(
        humanz::policy::evaluate(
            &rules,
            &cluster(),
            &humanz::policy::Tuple {
                source: crate::reachability::address(&cluster(), "x/a", false),
                destination: crate::reachability::address(&cluster(), "y/b", false),
                transport: tcp(80),
            }
        )
        .allowed(),
        "a pod by its own address"
    );
}

#[test]
fn egress_and_ingress_must_both_allow() {
    let out = policy(
        "out",
        json!({"podSelector": pod("a"), "policyTypes": ["Egress"],
        "egress": [{"to": [{"namespaceSelector": ns("y"), "podSelector": pod("a")}]}]}),
    );
    let into = policy(
        "y/in",
        json!({"podSelector": pod("a"),
        "ingress": [{"from": [{"namespaceSelector": ns("x"), "podSelector": pod("a")}]}]}),
    );
    let egress = Table::all().egress_only("x/a", &["y/a"]);
    check("egress", std::slice::from_ref(&out), egress.clone());
    check("both", &[out, into.clone()], egress.ingress_only(&["x/a"], "y/a"));
    let shut = policy("y/in", json!({"podSelector": pod("a")}));
    let open = policy(
        "out",
        json!({"podSelector": pod("a"), "egress": [{}],
        "policyTypes": ["Egress"]}),
    );
    check("the other end decides too", &[open, shut], Table::all().no_ingress("y/a"));
}

#[test]
fn the_own_node_always_reaches_its_pods_and_others_do_not() {
    let deny = policy(
        "deny",
        json!({"podSelector": {},
        "policyTypes": ["Ingress", "Egress"]}),
    );
    let rules = understood(&[deny]);
    for (source, destination, allowed) in [
        ("192.0.2.1", "x/a", true),
        ("10.244.1.1", "x/a", true),
        ("2001:db8::1", "x/a", true),
        ("192.0.2.2", "x/a", false),
        ("2001:db8::2", "x/a", false),
        ("192.0.2.2", "x/b", true),
        ("203.0.113.1", "x/a", false),
        ("x/a", "192.0.2.1", false),
        ("y/a", "192.0.2.1", true),
        ("x/a", "x/a", true),
    ] {
        let found = reaches(&rules, &cluster(), source, destination, tcp(80));
        assert_eq!(found, allowed, "{source} to {destination}");
    }
    let block = policy(
        "node",
        json!({"podSelector": {},
        "ingress": [{"from": [{"ipBlock": {"cidr": "192.0.2.2/32"}}]}]}),
    );
    let rules = understood(&[block]);
    assert!(reaches(&rules, &cluster(), "192.0.2.2", "x/a", tcp(80)));
    let all = policy(
        "pods",
        json!({"podSelector": {},
        "ingress": [{"from": [{"namespaceSelector": {}}]}]}),
    );
    let rules = understood(&[all]);
    assert!(!reaches(&rules, &cluster(), "192.0.2.2", "x/a", tcp(80)), "a node is no pod");
}

#[test]
fn the_decision_names_the_rule() {
    let allow = policy(
        "web",
        json!({"podSelector": pod("a"), "ingress": [
        {"ports": [{"port": 81}]}, {"from": [{"podSelector": pod("b")}]}]}),
    );
    let rules = understood(&[allow]);
    let endpoints = cluster();
    for (source, wanted) in [
        ("x/b", "allowed: NetworkPolicy x/web ingress rule 1"),
        ("x/c", "denied: NetworkPolicy x/web ingress default"),
        ("x/a", "allowed: the pod itself"),
        ("10.244.1.1", "allowed: from the pod's own node"),
    ] {
        let tuple = humanz::policy::Tuple {
            source: crate::reachability::address(&endpoints, source, false),
            destination: crate::reachability::address(&endpoints, "x/a", false),
            transport: tcp(80),
        };
        let judgement = humanz::policy::evaluate(&rules, &endpoints, &tuple);
        assert_eq!(judgement.ingress.to_string(), wanted);
    }
}

#[test]
fn an_audited_policy_decides_nothing_and_says_what_it_would() {
    let mut deny = policy("deny", json!({"podSelector": {}}));
    deny["metadata"]["annotations"] = json!({"humanz.io/audit": "true"});
    check("audit", std::slice::from_ref(&deny), Table::all());
    let (rules, endpoints) = (understood(&[deny]), cluster());
    let tuple = humanz::policy::Tuple {
        source: crate::reachability::address(&endpoints, "y/a", true),
        destination: crate::reachability::address(&endpoints, "x/a", true),
        transport: tcp(80),
    };
    let decision = humanz::policy::evaluate(&rules, &endpoints, &tuple).ingress;
    assert_eq!(decision.audit.unwrap().to_string(), "NetworkPolicy x/deny ingress default");
}
