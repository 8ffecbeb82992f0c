//! What holds for all policies, whatever they say.

use std::collections::BTreeMap;

use humanz::policy::{
    Direction, PolicyPeer, PolicyVerdict, Reason, Rule, Rules, Selector, Tuple, evaluate, members,
};
use serde_json::{Value, json};

use crate::grid::{Case, Random};

/// Cases of each property; seeds from 0.
const CASES: u64 = 1_200;

fn for_all(check: impl Fn(&Case, &Rules)) {
    for seed in 0..CASES {
        let case = Case::new(seed);
        check(&case, &case.rules());
    }
}

fn allowed(case: &Case, rules: &Rules) -> Vec<bool> {
    let verdict = |tuple: &Tuple| evaluate(rules, &case.endpoints, tuple).allowed();
    case.tuples.iter().map(verdict).collect()
}

/// Verdicts under `changed` where they differ from those under `rules`: seed, connection, now.
fn differences(case: &Case, rules: &Rules, changed: &Rules) -> Vec<(u64, Tuple, bool)> {
    let (before, after) = (allowed(case, rules), allowed(case, changed));
    let pairs = case.tuples.iter().zip(before.into_iter().zip(after));
    pairs
        .filter(|(_, (before, after))| before != after)
        .map(|(tuple, (_, after))| (case.seed, *tuple, after))
        .collect()
}

/// The grid is worth something only if it decides both ways, by every kind of rule.
#[test]
fn the_grid_reaches_every_kind_of_decision() {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for seed in 0..CASES {
        let case = Case::new(seed);
        let rules = case.rules();
        for tuple in &case.tuples {
            let judgement = evaluate(&rules, &case.endpoints, tuple);
            for direction in Direction::BOTH {
                let decision = judgement.end(direction);
                let reason = match decision.reason {
                    Reason::Rule(rule) => {
                        let place = if rule.origin.index.is_some() { "rule" } else { "default" };
                        format!("{:?} {place}", rule.origin.source)
                    }
                    other => other.to_string(),
                };
                let key = format!("{direction} {} {reason}", decision.allowed);
                *seen.entry(key).or_default() += 1;
            }
        }
    }
    println!("seeds 0 to {CASES}: {seen:#?}");
    for kind in ["ClusterNetworkPolicy", "AdminNetworkPolicy", "BaselineAdminNetworkPolicy"] {
        for direction in Direction::BOTH {
            for verdict in [true, false] {
                let key = format!("{direction} {verdict} {kind} rule");
                assert!(seen.get(&key).is_some_and(|count| *count > 50), "{key}: {seen:?}");
            }
        }
    }
    for direction in Direction::BOTH {
        for rest in [
            "true NetworkPolicy rule",
            "false NetworkPolicy default",
            "true GroupPolicy rule",
            "false GroupPolicy rule",
            "false Group default",
            "true no rule matches",
            "true not a pod",
            "true the pod itself",
        ] {
            let key = format!("{direction} {rest}");
            assert!(seen.get(&key).is_some_and(|count| *count > 50), "{key}: {seen:?}");
        }
    }
    assert!(seen["ingress true from the pod's own node"] > 50, "{seen:?}");
}

#[test]
fn the_order_of_objects_does_not_count() {
    for_all(|case, rules| {
        let mut shuffled = case.clone();
        let mut random = Random(case.seed);
        for at in (1..shuffled.objects.len()).rev() {
            shuffled.objects.swap(at, random.below(at as u64 + 1) as usize);
        }
        assert_eq!(shuffled.rules(), *rules, "seed {}", case.seed);
    });
}

#[test]
fn a_further_rule_of_a_network_policy_never_denies() {
    for_all(|case, rules| {
        let mut more = case.clone();
        for object in &mut more.objects {
            if object["kind"] != "NetworkPolicy" {
                continue;
            }
            for direction in ["ingress", "egress"] {
                if let Some(list) =
                    object["spec"][direction].as_array_mut().filter(|l| !l.is_empty())
                {
                    list.push(json!({"ports": [{"port": 80}, {"protocol": "UDP"}]}));
                }
            }
        }
        let closed = differences(case, rules, &more.rules());
        assert!(closed.iter().all(|(.., now)| *now), "{closed:?}");
    });
}

#[test]
fn a_further_isolating_policy_never_opens() {
    for_all(|case, rules| {
        let mut more = case.clone();
        more.objects.push(json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": "further", "namespace": "x"},
            "spec": {"policyTypes": ["Ingress", "Egress"]}}));
        // It keeps connections from a tier Baseline that would accept or deny them, never opens them
        // unless that tier alone denied: isolation denies the same.
        let opened = differences(case, rules, &more.rules());
        assert!(opened.iter().all(|(.., now)| !*now), "{opened:?}");
    });
}

#[test]
fn a_first_deny_of_tier_admin_denies_and_changes_nothing_else() {
    for_all(|case, rules| {
        let mut more = case.clone();
        more.objects.push(json!({"apiVersion": "policy.networking.k8s.io/v1alpha2",
            "kind": "ClusterNetworkPolicy", "metadata": {"name": "0"}, "spec": {"tier": "Admin",
            "priority": 0, "subject": {"namespaces": {"matchLabels": {"ns": "y"}}},
            "ingress": [{"action": "Deny", "from": [{"namespaces": {}}]}]}}));
        // A policy of the same priority comes in the order of names.
        let first = |object: &Value| object["spec"]["priority"] != 0;
        if !case.objects.iter().all(first) {
            return;
        }
        let endpoints = &case.endpoints;
        for (seed, tuple, now) in differences(case, rules, &more.rules()) {
            let to = endpoints.pod(tuple.destination).expect("a pod");
            assert_eq!(to.namespace.name().as_str(), "y", "seed {seed}: {tuple}");
            assert!(!now && endpoints.pod(tuple.source).is_some(), "seed {seed}: {tuple}");
        }
    });
}

#[test]
fn a_policy_for_no_pod_changes_nothing() {
    for_all(|case, rules| {
        let mut more = case.clone();
        more.objects.push(json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": "none", "namespace": "x"},
            "spec": {"podSelector": {"matchLabels": {"pod": "none"}}}}));
        assert_eq!(differences(case, rules, &more.rules()), []);
    });
}

/// Members are found by each host among its own pods, with the same function.
#[test]
fn members_are_those_that_the_peers_of_rules_match() {
    for_all(|case, rules| {
        let found = members::find(&members::peers(rules.iter()), &case.endpoints);
        for tuple in &case.tuples {
            let peers = rules.iter().flat_map(|rule: &Rule| rule.peers.iter().flatten());
            for peer in peers {
                let PolicyPeer::Selected(selector) = peer else { continue };
                let members = found[selector].iter().flat_map(|member| &member.addresses);
                let is_member = members.clone().any(|address| *address == tuple.source);
                let endpoints = &case.endpoints;
                let pod = endpoints.pod(tuple.source).is_some_and(|pod| selector.matches_pod(pod));
                let node = endpoints.node(tuple.source);
                let matches = pod || node.is_some_and(|node| selector.matches_node(node));
                assert_eq!(is_member, matches, "seed {}: {selector}, {tuple}", case.seed);
            }
        }
    });
}

#[test]
fn the_text_of_a_selector_is_canonical() {
    for_all(|_, rules| {
        for selector in members::peers(rules.iter()) {
            let text = selector.text();
            assert_eq!(Selector::parse(&text).as_ref(), Ok(&selector), "{text}");
            assert!(Selector::parse(&format!(" {text}")).is_err());
        }
    });
}

/// Rules of a tier that pass are never the ones that decide.
#[test]
fn what_decides_allows_or_denies() {
    for_all(|case, rules| {
        for tuple in &case.tuples {
            let judgement = evaluate(rules, &case.endpoints, tuple);
            for direction in Direction::BOTH {
                if let Reason::Rule(rule) = judgement.end(direction).reason {
                    assert_ne!(rule.verdict, PolicyVerdict::Pass, "seed {}: {tuple}", case.seed);
                    assert_eq!(rule.direction, direction);
                }
            }
        }
    });
}
