//! Pure. How much of the kernel's table the NetworkPolicies of one namespace may take, and how many selectors they have.
//!
//! A table costs more than in proportion to the sets in it: until 1,000 selected peers were in force took 0.5 s, 5,000 of
//! them 2.3 s, 10,000 8.3 s (Linux 6.18). Whoever may write NetworkPolicies could do that to every node with a pod of
//! theirs. And every host of the cluster looks for what each selector finds, at each start of a pod.

use std::collections::{BTreeMap, BTreeSet};

use crate::net::Problem;
use crate::policy::lines::lines_of;
use crate::policy::name::ObjectName;
use crate::policy::read::fields::Fault;
use crate::policy::read::parsed::Parsed;
use crate::policy::rule::{Origin, PolicyKind, PolicyPeer, PolicyVerdict, Rule};
use crate::policy::selector::Selector;

/// Of one namespace: the rules, their ends times kinds of services, and a line for every four blocks and ports. 10 policies
/// of 4 rules of 9,990 blocks took 30 s and 300 MB of each node before blocks counted.
const LINES_LIMIT: usize = 10_000;

/// Different selectors of one namespace's peers.
const SELECTORS_LIMIT: usize = 1_000;

/// `rules` without those of NetworkPolicies that would exceed the limit of their namespace, but for the isolation;
/// each is a problem. Policies are counted by name, so that every host leaves out the same.
///
/// For what comes from the API: files are written by whoever may break the host anyway.
pub fn limited(mut rules: Vec<Rule>) -> (Vec<Rule>, Vec<Problem>) {
    let closed = beyond_limit(&rules);
    if closed.is_empty() {
        return (rules, Vec::new());
    }
    rules.retain(|rule| !counts(rule) || !closed.contains(&rule.origin.object()));
    let problem = |origin: &Origin| {
        let why = format!(
            "NetworkPolicies of one namespace may have {SELECTORS_LIMIT} different selectors as peers, and take \
             {LINES_LIMIT} lines of the table (rules, peers times kinds of services, and a line for every four blocks \
             and ports); with this one it is more, and it allows nothing"
        );
        Parsed::new(origin, Vec::new(), &[Fault::of_object(why)]).problems
    };
    (rules, closed.iter().flat_map(problem).collect())
}

/// It allows something; the isolation stays.
fn counts(rule: &Rule) -> bool {
    rule.origin.source == PolicyKind::NetworkPolicy && rule.verdict == PolicyVerdict::Allow
}

fn beyond_limit(rules: &[Rule]) -> BTreeSet<Origin> {
    let mut policies: BTreeMap<Origin, PolicyUse<'_>> = BTreeMap::new();
    for rule in rules.iter().filter(|rule| counts(rule)) {
        let policy = policies.entry(rule.origin.object()).or_default();
        policy.lines += lines_of(rule);
        policy.selectors.extend(rule.peers.iter().flatten().filter_map(PolicyPeer::selector));
    }
    let mut used: BTreeMap<Option<ObjectName>, PolicyUse<'_>> = BTreeMap::new();
    let mut closed = BTreeSet::new();
    for (origin, policy) in policies {
        let used = used.entry(origin.namespace.clone()).or_default();
        match used.has_room_for(&policy) {
            true => used.add(policy),
            false => drop(closed.insert(origin)),
        }
    }
    closed
}

/// What policies take.
#[derive(Default)]
struct PolicyUse<'a> {
    lines: usize,
    selectors: BTreeSet<&'a Selector>,
}

impl<'a> PolicyUse<'a> {
    fn has_room_for(&self, policy: &PolicyUse<'a>) -> bool {
        let more = policy.selectors.difference(&self.selectors).count();
        self.lines + policy.lines <= LINES_LIMIT && self.selectors.len() + more <= SELECTORS_LIMIT
    }

    fn add(&mut self, mut policy: PolicyUse<'a>) {
        self.lines += policy.lines;
        self.selectors.append(&mut policy.selectors);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::policy::read::network_policy;

    /// With a rule of two lines for each of so many peers, of which so many are different.
    fn policy(namespace: &str, name: &str, rules: usize, peers: usize) -> Value {
        let rule = |at| {
            let labels = json!({"app": format!("{name}{}", at % peers)});
            json!({"from": [{"podSelector": {"matchLabels": labels}}], "ports": [{"port": 80}, {"port": 90}]})
        };
        let ingress: Vec<Value> = (0..rules).map(rule).collect();
        json!({"metadata": {"namespace": namespace, "name": name},
            "spec": {"podSelector": {}, "ingress": ingress}})
    }

    /// The policies of `objects` of which only the isolation is left.
    fn closed(objects: &[Value]) -> Vec<String> {
        let rules = objects.iter().flat_map(|object| network_policy::read(object).rules);
        let (rules, problems) = limited(rules.collect());
        let is = |verdict| {
            let of = rules.iter().filter(|rule| rule.verdict == verdict);
            of.map(|rule| rule.origin.object().to_string()).collect::<BTreeSet<_>>()
        };
        let (open, all) = (is(PolicyVerdict::Allow), is(PolicyVerdict::Deny));
        assert_eq!(all.len(), objects.len());
        let closed: Vec<String> = all.difference(&open).cloned().collect();
        assert_eq!(problems.len(), closed.len());
        closed
    }

    #[test]
    fn a_policy_with_more_than_a_namespace_may_have_allows_nothing() {
        let policy = |rules, peers| policy("shop", "db", rules, peers);
        assert_eq!(closed(&[policy(LINES_LIMIT / 2, 100)]), [""; 0]);
        assert_eq!(closed(&[policy(LINES_LIMIT / 2 + 1, 100)]), ["NetworkPolicy shop/db"]);
        let mut both = policy(LINES_LIMIT / 2, 100);
        both["spec"]["ingress"][0]["ports"][0]["protocol"] = json!("UDP");
        assert_eq!(closed(&[both]), ["NetworkPolicy shop/db"]);
        assert_eq!(closed(&[policy(SELECTORS_LIMIT, SELECTORS_LIMIT)]), [""; 0]);
        let many = policy(SELECTORS_LIMIT + 1, SELECTORS_LIMIT + 1);
        assert_eq!(closed(&[many]), ["NetworkPolicy shop/db"]);
    }

    #[test]
    fn policies_add_up_inside_of_a_namespace_and_the_first_by_name_hold() {
        for [rules, peers] in [[LINES_LIMIT / 4, 100], [SELECTORS_LIMIT / 2, SELECTORS_LIMIT / 2]] {
            let half = |namespace, name| policy(namespace, name, rules, peers);
            let all = [half("shop", "c"), half("shop", "a"), half("shop", "b"), half("x", "d")];
            assert_eq!(closed(&all), ["NetworkPolicy shop/c"]);
        }
    }

    #[test]
    fn a_selector_counts_once() {
        let named = |name: &str| {
            let mut policy = policy("shop", "x", SELECTORS_LIMIT, SELECTORS_LIMIT);
            policy["metadata"]["name"] = json!(name);
            policy
        };
        assert_eq!(closed(&[named("a"), named("b")]), [""; 0]);
    }

    /// With four rules of so many blocks and exceptions, and so many ports.
    fn ranges(name: &str, blocks: usize, ports: usize) -> Value {
        let block = |at: usize| {
            let within = format!("10.{}.{}", at / 250, at % 250);
            json!({"ipBlock": {"cidr": format!("{within}.0/24"), "except": [format!("{within}.7/32")]}})
        };
        let blocks: Vec<Value> = (0..blocks / 2).map(block).collect();
        let ports: Vec<Value> = (0..ports).map(|at| json!({"port": format!("p{at}")})).collect();
        let mut object = policy("shop", name, 4, 1);
        for rule in object["spec"]["ingress"].as_array_mut().unwrap() {
            *rule = json!({"from": blocks, "ports": ports});
        }
        object
    }

    #[test]
    fn blocks_and_ports_may_be_as_many_as_one_object_holds() {
        // Kubernetes takes 1.5 MB; these are more.
        assert_eq!(closed(&[ranges("db", 9_980, 0)]), [""; 0]);
        assert_eq!(closed(&[ranges("db", 4_990, 4_990)]), [""; 0]);
        assert_eq!(closed(&[ranges("db", 5_000, 5_000)]), ["NetworkPolicy shop/db"]);
        assert_eq!(closed(&[ranges("a", 5_000, 0), ranges("b", 0, 4_900)]), [""; 0]);
    }

    #[test]
    fn blocks_and_ports_of_a_namespace_add_up() {
        let all = ["a", "b", "c"].map(|name| ranges(name, 4_000, 0));
        assert_eq!(closed(&all), ["NetworkPolicy shop/c"]);
        let all = ["a", "b", "c"].map(|name| ranges(name, 10, 4_000));
        assert_eq!(closed(&all), ["NetworkPolicy shop/c"]);
    }
}
