use std::net::IpAddr;

use serde_json::{Value, json};

use super::*;
use crate::policy::{PolicyVerdict, members};

fn put(state: &mut ClusterState, resource: Resource, name: &str, object: &Value) {
    let key = ObjectKey { namespace: None, name: name.into() };
    state.take(resource, ResourceUpdate::Put(key, Item::read(resource, object)));
}

/// The host n1 of a cluster without objects.
fn listed() -> ClusterState {
    let understood = UnderstoodRules::default();
    let mut state = ClusterState::new(
        "n1".parse().unwrap(),
        PodScope::All,
        ObjectSource::Kubernetes,
        understood,
    );
    for resource in Resource::ALL {
        assert!(state.take(resource, ResourceUpdate::All(BTreeMap::new())));
    }
    state
}

#[test]
fn a_peer_of_a_namespace_that_is_not_known_is_denied_and_never_allowed() {
    let mut state = listed();
    let pod = |name: &str, namespace: &str, node: &str, address: &str| {
        json!({"metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
            "spec": {"nodeName": node}, "status": {"podIPs": [{"ip": address}]}})
    };
    let namespace =
        |name: &str, labels: Value| json!({"metadata": {"name": name, "labels": labels}});
    put(&mut state, Resource::Namespaces, "shop", &namespace("shop", json!({})));
    put(&mut state, Resource::Pods, "db", &pod("db", "shop", "n1", "10.1.2.3"));
    put(&mut state, Resource::Pods, "web", &pod("web", "late", "n2", "10.1.9.9"));
    let expression = |key: &str, operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
    let rule = |action: &str, namespaces: Value, app: Value| json!({"action": action, "from": [{"pods": {"namespaceSelector": namespaces, "podSelector": app}}]});
    let name_label = "kubernetes.io/metadata.name";
    let found = |state: &mut ClusterState, rules: &[Value], verdict: PolicyVerdict| {
        let policy = json!({"apiVersion": "policy.networking.k8s.io/v1alpha2",
            "kind": "ClusterNetworkPolicy", "metadata": {"name": "p"},
            "spec": {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}, "ingress": rules}});
        put(state, Resource::ClusterNetworkPolicies, "p", &policy);
        let snapshot = state.update().snapshot.unwrap();
        let of_verdict = snapshot.rules.iter().filter(|rule| rule.verdict == verdict);
        let peers = of_verdict.flat_map(|rule| members::peers([rule]));
        peers.map(|peer| snapshot.members[&peer].len()).sum::<usize>()
    };
    let allowed =
        |state: &mut ClusterState, rule: Value| found(state, &[rule], PolicyVerdict::Allow);
    let denied = |state: &mut ClusterState, rule: Value| found(state, &[rule], PolicyVerdict::Deny);
    for (asked, by_name) in [
        (expression("tier", "In", &["back"]), false),
        (expression("tier", "NotIn", &["front"]), false),
        (expression("tier", "DoesNotExist", &[]), false),
        (expression(name_label, "In", &["late"]), true),
        (expression(name_label, "NotIn", &["shop"]), true),
        (json!({}), true),
    ] {
        let web = || json!({"matchLabels": {"app": "web"}});
        let accepted = allowed(&mut state, rule("Accept", asked.clone(), web()));
        assert_eq!(accepted, usize::from(by_name), "{asked}");
        assert_eq!(denied(&mut state, rule("Deny", asked.clone(), web())), 1, "{asked}");
        // The same selector twice: what one rule denies in doubt another one does not allow.
        let both = ["Deny", "Accept"].map(|action| rule(action, asked.clone(), web()));
        assert_eq!(found(&mut state, &both, PolicyVerdict::Allow), accepted, "{asked}");
        assert_eq!(found(&mut state, &both, PolicyVerdict::Deny), 1, "{asked}");
        // Nor is left to the next tier in doubt what the rest of its own may deny.
        let pass = [rule("Pass", asked.clone(), web())];
        let passed = found(&mut state, &pass, PolicyVerdict::Pass);
        assert_eq!(passed, usize::from(by_name), "{asked}");
        assert_eq!(found(&mut state, &pass, PolicyVerdict::Deny), 1 - passed, "{asked}");
        let other = json!({"matchLabels": {"app": "other"}});
        assert_eq!(denied(&mut state, rule("Deny", asked.clone(), other)), 0, "{asked}");
    }
    let not_late = expression(name_label, "NotIn", &["late"]);
    assert_eq!(denied(&mut state, rule("Deny", not_late, json!({}))), 1, "db alone");
    // Once it is known, its labels decide.
    put(&mut state, Resource::Namespaces, "late", &namespace("late", json!({"tier": "front"})));
    let front = |operator| expression("tier", operator, &["front"]);
    assert_eq!(allowed(&mut state, rule("Accept", front("In"), json!({}))), 1);
    assert_eq!(
        denied(&mut state, rule("Deny", front("NotIn"), json!({"matchLabels": {"app": "web"}}))),
        0
    );
}

#[test]
fn a_host_that_publishes_its_own_pods_asks_the_api_for_nothing_else() {
    let mut state = ClusterState::new(
        "n1".parse().unwrap(),
        PodScope::Own,
        ObjectSource::Etcd,
        UnderstoodRules::default(),
    );
    for resource in Resource::ALL {
        assert!(state.take(resource, ResourceUpdate::All(BTreeMap::new())));
    }
    let pod = |name: &str, namespace: &str, node: &str| {
        json!({"metadata": {"name": name, "namespace": namespace, "labels": {"app": "web"},
            "annotations": {"humanz.io/group": "ops", "other": "x"}},
            "spec": {"nodeName": node}, "status": {"podIPs": [{"ip": "10.1.9.9"}]}})
    };
    put(&mut state, Resource::Namespaces, "shop", &json!({"metadata": {"name": "shop"}}));
    for (name, namespace, node) in
        [("web", "shop", "n1"), ("far", "shop", "n2"), ("late", "unknown", "n1")]
    {
        put(&mut state, Resource::Pods, name, &pod(name, namespace, node));
    }
    let rule = |peer: Value| {
        json!({"apiVersion": "policy.networking.k8s.io/v1alpha2",
        "kind": "ClusterNetworkPolicy", "metadata": {"name": "p"},
        "spec": {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
            "egress": [{"action": "Deny", "to": [peer]}]}})
    };
    let members = |state: &mut ClusterState, peer: Value| {
        put(state, Resource::ClusterNetworkPolicies, "p", &rule(peer));
        let snapshot = state.update().snapshot.unwrap();
        let found = snapshot.members.values().flat_map(|found| &**found);
        found.flat_map(|member| member.addresses.clone()).collect::<Vec<_>>()
    };
    assert_eq!(members(&mut state, json!({"namespaces": {}})), [] as [IpAddr; 0]);
    let update = state.update();
    let said = update.snapshot.unwrap();
    assert_eq!(said.pods.iter().map(ToString::to_string).collect::<Vec<_>>(), ["shop/web"]);
    assert_eq!((&said.pods[0].addresses, said.pods[0].annotations.len()), (&vec![], 1));
    assert!(update.problems.iter().any(|it| it.what.contains("no node of this name")));

    // Its podCIDR belongs to no host here.
    let node = json!({"metadata": {"name": "n1", "labels": {"zone": "a"}},
        "spec": {"podCIDRs": ["172.30.1.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}});
    put(&mut state, Resource::Nodes, "n1", &node);
    let zone = json!({"nodes": {"matchLabels": {"zone": "a"}}});
    assert_eq!(members(&mut state, zone), ["192.0.2.1".parse::<IpAddr>().unwrap()]);
    assert_eq!(state.update().problems, []);
    assert_eq!(state.update().snapshot.unwrap().node.len(), 1);
}

#[test]
fn a_pod_of_a_namespace_that_is_not_known_is_in_quarantine() {
    let mut state = listed();
    let pod = json!({
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"nodeName": "n1"}, "status": {"podIPs": [{"ip": "10.1.2.3"}]},
    });
    let namespace = |labels| json!({"metadata": {"name": "shop", "labels": labels}});
    let own = |state: &mut ClusterState| state.update().snapshot.unwrap().pods;
    put(&mut state, Resource::Pods, "web", &pod);
    assert_eq!(own(&mut state), []);
    put(&mut state, Resource::Namespaces, "shop", &namespace(json!({"tier": "front"})));
    let known = own(&mut state);
    assert_eq!(known.len(), 1);
    put(&mut state, Resource::Namespaces, "shop", &namespace(json!(7)));
    assert_eq!(own(&mut state), [], "it is not understood");
}

#[test]
fn a_policy_that_is_not_understood_any_longer_denies_pods_that_come_later() {
    let new = |last| {
        let mut state =
            ClusterState::new("n1".parse().unwrap(), PodScope::All, ObjectSource::Kubernetes, last);
        for resource in Resource::ALL {
            state.take(resource, ResourceUpdate::All(BTreeMap::new()));
        }
        put(&mut state, Resource::Namespaces, "shop", &json!({"metadata": {"name": "shop"}}));
        let own = json!({"metadata": {"name": "db", "namespace": "shop"},
            "spec": {"nodeName": "n1"}, "status": {"podIPs": [{"ip": "10.1.2.3"}]}});
        put(&mut state, Resource::Pods, "db", &own);
        state
    };
    let policy = |subject: Value| {
        json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
            "metadata": {"name": "p"},
            "spec": {"tier": "Admin", "priority": 1, "subject": subject, "ingress": [{"action": "Deny",
                "from": [{"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "web"}}}}]}]}})
    };
    let say = |state: &mut ClusterState, subject: Value| {
        put(state, Resource::ClusterNetworkPolicies, "p", &policy(subject));
        let update = state.update();
        (update.snapshot.unwrap(), update.problems)
    };
    let mut state = new(UnderstoodRules::default());
    let (good, problems) = say(&mut state, json!({"namespaces": {}}));
    assert_eq!((good.rules.iter().count(), problems.len()), (1, 0));
    let mut after_restart = new(good.understood());
    for state in [&mut state, &mut after_restart] {
        let web = json!({"metadata": {"name": "web", "namespace": "shop", "labels": {"app": "web"}},
            "spec": {"nodeName": "n2"}, "status": {"podIPs": [{"ip": "10.1.9.9"}]}});
        put(state, Resource::Pods, "web", &web);
        let (broken, problems) = say(state, json!({"namespaces": 7}));
        assert_eq!(broken.rules, good.rules);
        assert!(problems[0].what.contains("its rules of before hold"), "{problems:?}");
        let denied = members::peers(broken.rules.iter());
        let found = denied.iter().flat_map(|peer| &*broken.members[peer]);
        assert_eq!(found.count(), 1, "a pod that came since");
    }
    let gone = ObjectKey { namespace: None, name: "p".into() };
    state.take(Resource::ClusterNetworkPolicies, ResourceUpdate::Gone(gone));
    assert_eq!(state.update().snapshot.unwrap().rules, Rules::default());
}

#[test]
fn a_policy_beyond_the_limit_of_its_namespace_isolates_and_is_a_problem() {
    let mut state = listed();
    let peer = |at| json!({"podSelector": {"matchLabels": {"app": format!("x{at}")}}});
    let mut update = |peers: usize| {
        let from: Vec<Value> = (0..peers).map(peer).collect();
        let policy = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": "shop", "name": "many"},
            "spec": {"podSelector": {}, "ingress": [{"from": from}]}});
        put(&mut state, Resource::NetworkPolicies, "many", &policy);
        let update = state.update();
        let rules = update.snapshot.unwrap().rules;
        (rules.iter().map(|rule| rule.verdict).collect::<Vec<_>>(), update.problems.len())
    };
    assert_eq!(update(1_000), (vec![PolicyVerdict::Allow, PolicyVerdict::Deny], 0));
    assert_eq!(update(1_001), (vec![PolicyVerdict::Deny], 1));
    assert_eq!(update(1_000), (vec![PolicyVerdict::Allow, PolicyVerdict::Deny], 0));
}

#[test]
fn pods_that_come_while_rules_are_not_followed_are_in_quarantine() {
    let mut state = listed();
    let pod = |name: &str, uid: &str| {
        json!({"metadata": {"name": name, "namespace": "shop", "uid": uid},
            "spec": {"nodeName": "n1"}, "status": {"podIPs": [{"ip": "10.1.2.3"}]}})
    };
    let why = || ResourceUpdate::Disconnected { why: "status 503".to_owned().into() };
    put(&mut state, Resource::Namespaces, "shop", &json!({"metadata": {"name": "shop"}}));
    put(&mut state, Resource::Pods, "a", &pod("a", "1"));
    state.take(Resource::NetworkPolicies, why());
    assert_eq!(state.update().snapshot, None, "nothing is known of which pods had rules");
    state.take(Resource::NetworkPolicies, ResourceUpdate::Connected);
    let own = |state: &mut ClusterState| {
        let update = state.update();
        let own = update.snapshot.unwrap().pods.into_iter();
        own.map(|pod| format!("{} {}", pod.name, pod.uid.unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(own(&mut state), ["a 1"]);
    for away in [Resource::Namespaces, Resource::NetworkPolicies, Resource::GroupPolicies] {
        state.take(away, why());
        put(&mut state, Resource::Pods, "b", &pod("b", "2"));
        assert_eq!(own(&mut state), ["a 1"], "{away:?}");
        put(&mut state, Resource::Pods, "a", &pod("a", "3"));
        assert_eq!(own(&mut state), [""; 0], "{away:?}: another pod of the name");
        put(&mut state, Resource::Pods, "a", &pod("a", "1"));
        assert_eq!(own(&mut state), ["a 1"], "{away:?}");
        state.take(away, ResourceUpdate::Connected);
        assert_eq!(own(&mut state), ["a 1", "b 2"], "{away:?}");
        let gone = ObjectKey { namespace: None, name: "b".into() };
        state.take(Resource::Pods, ResourceUpdate::Gone(gone));
        assert_eq!(own(&mut state), ["a 1"]);
    }
    for away in [Resource::Nodes, Resource::Pods] {
        state.take(away, why());
    }
    put(&mut state, Resource::Pods, "b", &pod("b", "2"));
    assert_eq!(own(&mut state), ["a 1", "b 2"], "they are no rules");
}

#[test]
fn pods_of_all_hosts_are_in_the_group_of_the_settings_that_nothing_else_puts_into_one() {
    let mut state = listed();
    state.group = Some(Scoped::parse("base", &"default".parse().unwrap()).unwrap());
    put(&mut state, Resource::Namespaces, "shop", &json!({"metadata": {"name": "shop"}}));
    put(&mut state, Resource::Namespaces, "ruled", &json!({"metadata": {"name": "ruled"}}));
    let own = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "humanz.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let from_base =
        json!({"rules": [{"direction": "in", "action": "allow", "peer": {"group": "base"}}]});
    let of_policies = own("GroupPolicy", "from-base", from_base);
    put(&mut state, Resource::GroupPolicies, "from-base", &of_policies);
    let base = json!({"policies": ["from-base"], "default": {"in": "deny"}});
    put(&mut state, Resource::Groups, "base", &own("Group", "base", base));
    let rule = own("NamespaceRule", "ruled", json!({"tenant": "blue"}));
    put(&mut state, Resource::NamespaceRules, "ruled", &rule);
    for (name, namespace, node, address) in [
        ("own", "shop", "n1", "10.1.2.3"),
        ("barred", "ruled", "n1", "10.1.2.4"),
        ("far", "shop", "n2", "10.1.9.8"),
        ("far-barred", "ruled", "n2", "10.1.9.9"),
    ] {
        let pod = json!({"metadata": {"name": name, "namespace": namespace},
            "spec": {"nodeName": node}, "status": {"podIPs": [{"ip": address}]}});
        put(&mut state, Resource::Pods, name, &pod);
    }
    for (node, subnet) in [("n1", "10.1.2.0/24"), ("n2", "10.1.9.0/24")] {
        let node = json!({"metadata": {"name": node}, "spec": {"podCIDRs": [subnet]}});
        put(&mut state, Resource::Nodes, node["metadata"]["name"].as_str().unwrap(), &node);
    }
    let update = state.update();
    let snapshot = update.snapshot.unwrap();
    let own: Vec<String> = snapshot
        .pods
        .iter()
        .map(|pod| format!("{pod} {}", pod.group.as_ref().map_or("-".into(), ToString::to_string)))
        .collect();
    assert_eq!(own, ["ruled/barred -", "shop/own default/base"]);
    let members: BTreeSet<&IpAddr> =
        snapshot.members.values().flat_map(|it| &**it).flat_map(|it| &it.addresses).collect();
    let wanted: [IpAddr; 2] = ["10.1.2.3", "10.1.9.8"].map(|text| text.parse().unwrap());
    assert_eq!(members, wanted.iter().collect());
    let wrong: Vec<&str> = update.problems.iter().map(|it| it.what.as_str()).collect();
    let wanted = "pod ruled/barred: POLICY_GROUP: group default/base is not allowed for pods of this namespace";
    assert_eq!(wrong, [wanted]);
}
