//! Values that anybody may have written: nothing panics, nothing grows, nothing opens.

use humanz::policy::read::groups::{self, Objects};
use humanz::policy::read::membership::NamespaceRule;
use humanz::policy::{Scoped, Selector, evaluate, read};
use serde_json::{Value, json};

use crate::grid::{Case, Random};
use crate::reachability::{cluster, parsed, reaches, tcp};

fn scoped(name: &str) -> Scoped {
    Scoped { tenant: "default".parse().unwrap(), name: name.parse().unwrap() }
}

/// Replaces a value somewhere in `value` by something else.
fn damage(value: &mut Value, random: &mut Random) {
    let inside = !random.one_in(4);
    match value {
        Value::Object(map) if inside && !map.is_empty() => {
            let at = random.below(map.len() as u64) as usize;
            let key = map.keys().nth(at).cloned().unwrap();
            if random.one_in(8) {
                map.insert(format!("{key}\u{1b}[31m"), json!(1));
            } else {
                damage(&mut map[&key], random);
            }
        }
        Value::Array(list) if inside && !list.is_empty() => {
            let at = random.below(list.len() as u64) as usize;
            damage(&mut list[at], random);
        }
        other => {
            *other = random.pick(&[
                Value::Null,
                json!(-1),
                json!(65536),
                json!(1e300),
                json!(u64::MAX),
                json!(""),
                json!("\u{0}\u{7}\n$(id)"),
                json!("a".repeat(100_000)),
                json!([]),
                json!({}),
                json!([[[[{}]]]]),
                json!(true),
                json!("::/129"),
                json!("10.0.0.0/33"),
                json!("70000-1"),
            ]);
        }
    }
}

#[test]
fn damaged_objects_are_read_without_panic_and_their_problems_are_few_and_printable() {
    for seed in 0..2_000 {
        let mut case = Case::new(seed);
        let mut random = Random(seed);
        for value in case.objects.iter_mut().chain(case.groups.values_mut()) {
            for _ in 0..=random.below(3) {
                damage(value, &mut random);
            }
        }
        for value in case.policies.values_mut() {
            damage(value, &mut random);
        }
        let mut all = groups::read(&case.groups, &case.policies);
        for object in &case.objects {
            let _rule = NamespaceRule::read(object);
            let Some(read) = read::policy(object) else { continue };
            assert!(read.problems.len() <= 9, "seed {seed}: {:?}", read.problems);
            all.append(read);
        }
        for problem in &all.problems {
            let text = format!("{} {problem}", problem.subject);
            assert!(text.len() < 1_000, "seed {seed}: {} bytes", text.len());
            assert!(!text.chars().any(char::is_control), "seed {seed}: {text:?}");
        }
        let rules = humanz::policy::Rules::new(all.rules);
        for tuple in &case.tuples {
            let _judgement = evaluate(&rules, &case.endpoints, tuple);
        }
    }
}

fn network_policy(spec: Value) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "p", "namespace": "x"}, "spec": spec})
}

/// A part of a NetworkPolicy that is not understood allows nothing.
#[test]
fn a_network_policy_that_is_not_understood_isolates() {
    for spec in [
        json!({"podSelector": {"moon": 1}, "ingress": [{"from": [{"moon": {}}]}]}),
        json!({"podSelector": {"matchLabels": {"a b": "c"}}}),
        json!({"podSelector": {"matchLabels": {"pod": 7}}}),
        json!({"podSelector": {"matchLabels": {"pod": "x".repeat(64)}}}),
        json!({"podSelector": {"matchExpressions": [{"key": "pod", "operator": "Like"}]}}),
        json!({"podSelector": {"matchExpressions": [{"key": "pod", "operator": "In"}]}}),
        json!({"podSelector": [], "policyTypes": ["Ingress"]}),
        json!({"policyTypes": ["Sideways"]}),
        json!({"policyTypes": "Ingress"}),
        json!({"ingress": {}}),
        json!({"ingress": [7]}),
        json!({"ingress": [{"moon": 1}]}),
        json!({"ingress": [{"from": {}}]}),
        json!({"ingress": [{"from": [{}]}]}),
        json!({"ingress": [{"from": [null]}]}),
        json!({"ingress": [{"from": [{"namespaceSelector": {}, "moon": 1}]}]}),
        json!({"ingress": [{"from": [{"namespaceSelector": {}, "ipBlock": {"cidr": "::/0"}}]}]}),
        json!({"ingress": [{"from": [{"ipBlock": {"cidr": "10.244.0.0"}}]}]}),
        json!({"ingress": [{"from": [{"ipBlock": {"cidr": "10.244.0.0/16", "except": ["x"]}}]}]}),
        json!({"ingress": [{"from": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["::/0"]}}]}]}),
        json!({"ingress": [{"ports": [{"port": 0}]}]}),
        json!({"ingress": [{"ports": [{"port": 80.5}]}]}),
        json!({"ingress": [{"ports": [{"port": 65616}]}]}),
        json!({"ingress": [{"ports": [{"port": 80, "endPort": 79}]}]}),
        json!({"ingress": [{"ports": [{"port": "serve-80-tcp", "endPort": 81}]}]}),
        json!({"ingress": [{"ports": [{"endPort": 81}]}]}),
        json!({"ingress": [{"ports": [{"protocol": "ICMP"}]}]}),
        json!({"ingress": [{"ports": [{"port": 80, "moon": 1}]}]}),
        json!({"ingress": [{"ports": vec![json!({"port": 80}); 10_001]}]}),
        json!({"ingress": vec![json!({}); 10_001]}),
    ] {
        let case: String = spec.to_string().chars().take(200).collect();
        let (rules, problems) = parsed(&[network_policy(spec)]);
        assert!(!problems.is_empty(), "{case}");
        assert!(problems[0].subject.to_string().contains("x/p"), "{case}: {problems:?}");
        for destination in ["x/a", "x/b"] {
            assert!(!reaches(&rules, &cluster(), "y/a", destination, tcp(80)), "{case}");
        }
        assert!(
            reaches(&rules, &cluster(), "x/a", "y/a", tcp(79))
                || case.contains("Sideways")
                || case.contains("\"policyTypes\":\"Ingress\""),
            "{case}"
        );
    }
}

#[test]
fn names_that_could_leave_their_place_are_refused() {
    for metadata in [
        json!({}),
        json!({"name": "p"}),
        json!({"name": "../p", "namespace": "x"}),
        json!({"name": "p", "namespace": "x\n"}),
        json!({"name": "p;", "namespace": "x"}),
        json!({"name": "a".repeat(254), "namespace": "x"}),
        json!({"name": 7, "namespace": "x"}),
    ] {
        let mut object = network_policy(json!({}));
        object["metadata"] = metadata.clone();
        let (rules, problems) = parsed(&[object]);
        assert_eq!((rules.iter().count(), problems.len()), (0, 1), "{metadata}");
    }
}

#[test]
fn another_version_of_a_policy_is_a_problem_and_other_objects_are_not_ours() {
    for (version, kind, known) in [
        ("networking.k8s.io/v2", "NetworkPolicy", true),
        ("policy.networking.k8s.io/v1", "ClusterNetworkPolicy", true),
        ("networking.k8s.io/v1", "Ingress", false),
        ("crd.projectcalico.org/v1", "NetworkPolicy", false),
        ("v1", "Pod", false),
    ] {
        let read = read::policy(&json!({"apiVersion": version, "kind": kind, "metadata": {}}));
        assert_eq!(read.is_some_and(|read| read.problems.len() == 1), known, "{version} {kind}");
    }
}

#[test]
fn a_group_lists_a_policy_once_and_a_million_names_cost_nothing() {
    let rules = json!({"rules": vec![json!({"direction": "in", "action": "deny"}); 1_000]});
    let group = json!({"policies": vec!["p"; 10_000]});
    let policies = Objects::from([(scoped("p"), rules)]);
    let read = groups::read(&Objects::from([(scoped("web"), group)]), &policies);
    assert_eq!((read.rules.len(), read.problems.len()), (1_000, 0));
    let many = json!({"policies": vec!["gone"; 1_000_000]});
    let read = groups::read(&Objects::from([(scoped("web"), many)]), &policies);
    assert_eq!((read.rules.len(), read.problems.len()), (2, 1), "closed, one problem");
}

#[test]
fn only_the_canonical_text_of_a_selector_is_taken() {
    for bad in [
        "",
        "{}",
        "[]",
        r#"{"group":{"tenant":"a","name":"../b"}}"#,
        r#"{"group":{"name":"b","tenant":"a"}}"#,
        r#"{"nodes":[{"In":["a",[]],"x":1}]}"#,
        r#"{"nodes":[{"In":["a b",["c"]]}]}"#,
        r#"{"nodes":[{"Exists":"b"},{"Exists":"a"}]}"#,
        r#"{"nodes":[{"Exists":"a"},{"Exists":"a"}]}"#,
        r#"{ "nodes":[]}"#,
    ] {
        assert!(Selector::parse(bad).is_err(), "{bad}");
    }
    assert!(Selector::parse(r#"{"nodes":[]}"#).is_ok());
    assert!(Selector::parse(&format!("{}1", "[".repeat(100_000))).is_err());
}
