//! Groups: what Contiv's policies meant, without its holes.

use humanz::net::Problem;
use humanz::policy::read::groups::{self, Objects};
use humanz::policy::read::membership::{Claims, NamespaceRule, assign, configured};
use humanz::policy::{Endpoints, Labels, ObjectName, Rules, Scoped, Transport};
use serde_json::{Value, json};

use crate::reachability::{PING, cluster, labels, reaches, tcp, udp};

fn scoped(text: &str) -> Scoped {
    let (tenant, name) = text.split_once('/').unwrap_or(("default", text));
    Scoped { tenant: tenant.parse().unwrap(), name: name.parse().unwrap() }
}

/// Pods of namespace x are in group web, of y in db, of z in none; all in network `default/pods`.
fn endpoints() -> Endpoints {
    let mut endpoints = cluster();
    for pod in &mut endpoints.pods {
        pod.group = match pod.namespace.name().as_str() {
            "x" => Some(scoped("web")),
            "y" => Some(scoped("db")),
            _ => None,
        };
        pod.network = Some(scoped("pods"));
    }
    endpoints
}

fn objects(of: &[(&str, Value)]) -> Objects {
    of.iter().map(|(name, value)| (scoped(name), value.clone())).collect()
}

fn read(groups: &[(&str, Value)], policies: &[(&str, Value)]) -> (Rules, Vec<Problem>) {
    let parsed = groups::read(&objects(groups), &objects(policies));
    (Rules::new(parsed.rules), parsed.problems)
}

/// Group web with one policy of these rules; `db` without.
fn web(default: &str, rules: Value) -> Rules {
    let groups = [("web", json!({"policies": ["p"], "default": default})), ("db", json!({}))];
    let (rules, problems) = read(&groups, &[("p", json!({"rules": rules}))]);
    assert_eq!(problems, []);
    rules
}

fn check(case: &str, rules: &Rules, cases: &[(&str, &str, Transport, bool)]) {
    for (source, destination, transport, allowed) in cases {
        let found = reaches(rules, &endpoints(), source, destination, *transport);
        assert_eq!(found, *allowed, "{case}: {source} to {destination}, {transport:?}");
    }
}

/// The documented demo: ping fails, TCP 6379 works, a group without a policy still pings.
#[test]
fn contivs_demo() {
    let rules = web("allow", json!([{"direction": "in", "action": "deny", "protocol": "icmp"}]));
    check(
        "demo",
        &rules,
        &[
            ("y/a", "x/a", PING, false),
            ("y/a", "x/a", tcp(6379), true),
            ("y/a", "y/b", PING, true),
            ("z/a", "z/b", PING, true),
            ("x/a", "y/a", PING, true),
        ],
    );
}

#[test]
fn peers_protocols_and_ports() {
    let rules = web(
        "deny",
        json!([
            {"direction": "in", "action": "allow", "protocol": "tcp", "ports": [80, "8000-8999"],
                "peer": {"group": "db"}},
            {"direction": "in", "action": "allow", "protocol": "udp", "ports": ["serve-80-udp"],
                "peer": {"network": "default/pods"}},
            {"direction": "out", "action": "allow",
                "peer": {"cidr": "203.0.113.0/24", "except": ["203.0.113.8/29"]}},
            {"direction": "out", "action": "allow", "protocol": 47, "peer": {"group": "db"}},
            {"direction": "out", "action": "allow", "protocol": "icmp", "icmpType": 8,
                "peer": {"cidr": "198.51.100.0/24"}},
        ]),
    );
    let timestamp = Transport::Icmp { kind: 13, code: 0 };
    check(
        "peers",
        &rules,
        &[
            ("y/a", "x/a", tcp(80), true),
            ("y/a", "x/a", tcp(8500), true),
            ("y/a", "x/a", tcp(9000), false),
            ("z/a", "x/a", tcp(80), false),
            ("z/a", "x/a", udp(80), true),
            ("203.0.113.1", "x/a", udp(80), false),
            ("x/a", "203.0.113.1", tcp(1), true),
            ("x/a", "203.0.113.9", tcp(1), false),
            ("x/a", "y/a", Transport::Other(47), true),
            ("x/a", "y/a", Transport::Other(50), false),
            ("x/a", "198.51.100.1", PING, true),
            ("x/a", "198.51.100.1", timestamp, false),
            ("x/a", "x/b", tcp(80), false),
            ("x/a", "x/a", tcp(80), true),
            ("192.0.2.1", "x/a", tcp(80), true),
        ],
    );
}

#[test]
fn priorities_count_and_deny_wins_at_equal_ones() {
    let rule = |priority: u16, action: &str| json!({"direction": "in", "priority": priority, "action": action, "protocol": "tcp"});
    for (rules, allowed) in [
        (json!([rule(10, "allow"), rule(1, "deny")]), true),
        (json!([rule(10, "deny"), rule(1, "allow")]), false),
        (json!([rule(5, "allow"), rule(5, "deny")]), false),
        (json!([rule(5, "deny"), rule(5, "allow")]), false),
        (json!([rule(100, "pass"), rule(5, "deny")]), true),
    ] {
        check(&rules.to_string(), &web("allow", rules), &[("y/a", "x/a", tcp(80), allowed)]);
    }
}

/// Contiv's table was one for both ends: the sender's allow beat the receiver's deny.
#[test]
fn an_allow_of_the_sender_does_not_open_the_receiver() {
    let groups = [
        ("web", json!({"policies": ["out"], "default": "deny"})),
        ("db", json!({"policies": ["in"]})),
    ];
    let out = json!({"rules": [{"direction": "out", "priority": 100, "action": "allow"}]});
    let into = json!({"rules": [{"direction": "in", "priority": 1, "action": "deny"}]});
    let (rules, problems) = read(&groups, &[("out", out), ("in", into)]);
    assert_eq!(problems, []);
    check("both ends", &rules, &[("x/a", "y/a", tcp(80), false), ("x/a", "z/a", tcp(80), true)]);
}

/// In Contiv it was "any".
#[test]
fn a_name_that_resolves_to_nothing_matches_nothing() {
    for peer in [json!({"group": "gone"}), json!({"network": "gone"}), json!({"group": "other/db"})]
    {
        let allow = json!([{"direction": "in", "action": "allow", "peer": peer}]);
        check(
            "gone",
            &web("deny", allow),
            &[("y/a", "x/a", tcp(80), false), ("203.0.113.1", "x/a", tcp(80), false)],
        );
        let deny = json!([{"direction": "in", "action": "deny", "peer": peer}]);
        check("gone", &web("allow", deny), &[("y/a", "x/a", tcp(80), true)]);
    }
}

#[test]
fn what_is_not_understood_closes() {
    for rule in [
        json!({"action": "ACTION"}),
        json!({"direction": "up", "action": "ACTION"}),
        json!({"direction": "in", "action": "ACTION", "peer": {}}),
        json!({"direction": "in", "action": "ACTION", "peer": {"moon": 1}}),
        json!({"direction": "in", "action": "ACTION", "peer": {"group": "../x"}}),
        json!({"direction": "in", "action": "ACTION", "peer": {"cidr": "10.0.0.0/33"}}),
        json!({"direction": "in", "action": "ACTION", "moon": 1}),
        json!({"direction": "in", "action": "ACTION", "ports": [80]}),
        json!({"direction": "in", "action": "ACTION", "protocol": "icmp", "ports": [80]}),
        json!({"direction": "in", "action": "ACTION", "protocol": "tcp", "ports": [0]}),
        json!({"direction": "in", "action": "ACTION", "protocol": "tcp", "ports": ["90-80"]}),
        json!({"direction": "in", "action": "ACTION", "protocol": 256}),
        json!({"direction": "in", "action": "ACTION", "protocol": "tcp", "icmpType": 8}),
        json!({"direction": "in", "action": "ACTION", "audit": "yes"}),
    ] {
        let text = rule.to_string();
        for (action, default, allowed) in [
            ("allow", "deny", false),
            ("deny", "allow", false),
            ("pass", "allow", false),
            ("moon", "allow", false),
            ("allow", "allow", true),
        ] {
            let rule: Value = serde_json::from_str(&text.replace("ACTION", action)).unwrap();
            let groups = [("web", json!({"policies": ["p"], "default": default}))];
            let (rules, problems) = read(&groups, &[("p", json!({"rules": [rule]}))]);
            assert!(!problems.is_empty(), "{text} with {action}");
            check(
                &format!("{text} with {action}, else {default}"),
                &rules,
                &[("y/a", "x/a", tcp(80), allowed)],
            );
        }
    }
}

#[test]
fn a_group_whose_policies_cannot_be_read_is_closed() {
    for (case, group, policy) in [
        ("no such policy", json!({"policies": ["gone"]}), json!({"rules": []})),
        ("no rules", json!({"policies": ["p"]}), json!({"rules": 7})),
        ("unknown field of the policy", json!({"policies": ["p"]}), json!({"moon": []})),
        ("policies are no list", json!({"policies": "p"}), json!({})),
        ("unknown field", json!({"policies": [], "moon": 1}), json!({})),
        ("unknown default", json!({"default": "maybe"}), json!({})),
        ("no object", json!([]), json!({})),
    ] {
        let (rules, problems) = read(&[("web", group)], &[("p", policy)]);
        assert!(!problems.is_empty(), "{case}");
        check(
            case,
            &rules,
            &[
                ("y/a", "x/a", tcp(80), false),
                ("x/a", "y/a", tcp(80), false),
                ("y/a", "z/a", tcp(80), true),
            ],
        );
    }
}

#[test]
fn the_default_may_differ_by_direction_and_leaves_the_rest_to_the_next_tier() {
    let (rules, problems) = read(&[("web", json!({"default": {"in": "deny"}}))], &[]);
    assert_eq!(problems, []);
    check("default", &rules, &[("y/a", "x/a", tcp(80), false), ("x/a", "y/a", tcp(80), true)]);

    let deny = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "deny", "namespace": "x"}, "spec": {"podSelector": {}}});
    let network_policy = humanz::policy::read::policy(&deny).unwrap().rules;
    let with = |group: Value, rules: Value| {
        let parsed =
            groups::read(&objects(&[("web", group)]), &objects(&[("p", json!({"rules": rules}))]));
        Rules::new(parsed.rules.into_iter().chain(network_policy.clone()).collect())
    };
    let group = json!({"policies": ["p"], "default": "allow"});
    let allow = json!([{"direction": "in", "action": "allow", "protocol": "udp"}]);
    check(
        "a NetworkPolicy beside it",
        &with(group, allow),
        &[("y/a", "x/a", tcp(80), false), ("y/a", "x/a", udp(80), true)],
    );
}

/// The pod's group, and why it is not the one that it asks for.
fn member(pod: (&str, Labels, Labels), rule: Option<Value>, free: bool) -> (String, String) {
    let (name, annotations, labels) = pod;
    let rule = rule.map(|value| NamespaceRule::read(&value).unwrap());
    let name: ObjectName = name.parse().unwrap();
    let claims = Claims {
        name: &name,
        annotations: &annotations,
        labels: &labels,
        namespace: rule.as_ref(),
        free,
    };
    let (found, refusal) = assign(&claims);
    let refusal = refusal.map(|refusal| refusal.to_string());
    let of_settings = configured(rule.as_ref(), &scoped("configured")).ok();
    let group = found.group.or(of_settings).map(|group| group.to_string());
    (group.unwrap_or_default(), refusal.unwrap_or_default())
}

#[test]
fn a_group_is_what_annotation_label_namespace_or_configuration_say() {
    let none = Labels::new;
    let group = |name: &str| labels(&[("humanz.io/group", name)]);
    let rule = || {
        Some(json!({"tenant": "blue", "group": "all", "allow": ["web", "green/db"],
        "pods": [{"match": "db-*", "group": "db"}]}))
    };
    for (pod, rule, free, wanted, refused) in [
        (("p", none(), none()), None, false, "default/configured", ""),
        (("p", none(), none()), rule(), false, "blue/all", ""),
        (("db-0", none(), none()), rule(), false, "blue/db", ""),
        (("p", group("web"), none()), rule(), false, "blue/web", ""),
        (("p", none(), group("web")), rule(), false, "blue/web", ""),
        (("p", group("web"), group("all")), rule(), false, "blue/web", ""),
        (("p", none(), labels(&[("io.contiv.net-group", "web")])), rule(), false, "blue/web", ""),
        (("p", group("green/db"), none()), rule(), false, "green/db", ""),
        (
            ("p", labels(&[("io.contiv.tenant", "green"), ("humanz.io/group", "db")]), none()),
            rule(),
            false,
            "green/db",
            "",
        ),
        (("p", group("all"), none()), rule(), false, "blue/all", ""),
        (("p", group("db"), none()), rule(), false, "blue/all", "not allowed"),
        (("db-0", group("green/web"), none()), rule(), false, "blue/db", "not allowed"),
        (("p", group("web"), none()), None, false, "default/configured", "not allowed"),
        (("p", group("web"), none()), None, true, "default/web", ""),
        (("p", group("a/b/c"), none()), None, true, "default/configured", "not a name"),
        (("p", group("$(id)"), none()), rule(), true, "blue/all", "not a name"),
        (
            ("p", labels(&[("humanz.io/network", "red/x")]), none()),
            rule(),
            false,
            "blue/all",
            "network red/x is not allowed",
        ),
        (("p", group(""), none()), rule(), false, "blue/all", ""),
    ] {
        let case = format!("{pod:?}, {rule:?}, {free}");
        let found = member(pod, rule, free);
        assert_eq!(found.0, wanted, "{case}");
        assert!(found.1.contains(refused) && found.1.is_empty() == refused.is_empty(), "{found:?}");
    }
}

#[test]
fn all_groups_of_a_tenant_may_be_allowed_and_no_other() {
    let rule = || Some(json!({"tenant": "blue", "allow": ["*"]}));
    let group = |name: &str| ("p", labels(&[("humanz.io/group", name)]), Labels::new());
    assert_eq!(member(group("any"), rule(), false).0, "blue/any");
    assert_eq!(member(group("green/any"), rule(), false).0, "", "nor that of the settings");
}

#[test]
fn a_rule_of_a_namespace_that_is_not_understood_is_refused_whole() {
    for bad in [
        json!([]),
        json!({"allow": "*"}),
        json!({"moon": 1}),
        json!({"tenant": "a/b"}),
        json!({"pods": [{"group": "db"}]}),
        json!({"group": "a/b/c"}),
    ] {
        assert!(NamespaceRule::read(&bad).is_err(), "{bad}");
    }
}
