//! Pure. How much of the kernel's table the NetworkPolicies of one namespace may take.
//!
//! A table costs more than in proportion to the sets in it: until 1,000 selected peers were in force took 0.5 s, 5,000 of
//! them 2.3 s, 10,000 8.3 s (Linux 6.18). Whoever may write NetworkPolicies could do that to every node with a pod of
//! theirs.

use std::collections::{BTreeMap, BTreeSet};

use crate::net::Problem;
use crate::policy::name::ObjectName;
use crate::policy::read::fields::Fault;
use crate::policy::read::parsed::Parsed;
use crate::policy::rule::{Direction, Origin, PolicyKind, PolicyPeer, PolicyVerdict, Rule};
use crate::policy::service::Service;

/// Of one namespace: ends of its rules times kinds of services, and the rules themselves.
const LINES_LIMIT: usize = 10_000;

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
            "NetworkPolicies of one namespace may take {LINES_LIMIT} lines of the table (rules, and peers times \
             kinds of services), and with this one they take more; it allows nothing"
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
    let mut lines: BTreeMap<Origin, usize> = BTreeMap::new();
    for rule in rules.iter().filter(|rule| counts(rule)) {
        *lines.entry(rule.origin.object()).or_default() += lines_of(rule);
    }
    let mut used: BTreeMap<Option<ObjectName>, usize> = BTreeMap::new();
    let mut closed = BTreeSet::new();
    for (origin, lines) in lines {
        let used = used.entry(origin.namespace.clone()).or_default();
        match *used + lines > LINES_LIMIT {
            true => drop(closed.insert(origin)),
            false => *used += lines,
        }
    }
    closed
}

/// At most so many rules and sets the table has of `rule`, for each family.
fn lines_of(rule: &Rule) -> usize {
    let peers = || rule.peers.iter().flatten();
    let selectors: BTreeSet<_> = peers().filter_map(PolicyPeer::selector).collect();
    let networks = peers().any(|peer| peer.selector().is_none());
    let ends = match &rule.peers {
        None => 1,
        Some(_) => selectors.len() + usize::from(networks),
    };
    let kinds: BTreeSet<_> =
        rule.services.iter().flatten().map(|service| kind(service, rule.direction)).collect();
    1 + ends * kinds.len().max(1)
}

/// Services of one kind are one condition.
fn kind(service: &Service, direction: Direction) -> (u8, u8) {
    match (service, direction) {
        (Service::Protocol(_), _) => (0, 0),
        (Service::Ports(protocol, _), _) => (1, protocol.number()),
        // They become ports of the pod's own.
        (Service::Named(protocol, _), Direction::Ingress) => {
            (1, protocol.map_or(0, |protocol| protocol.number()))
        }
        (Service::Named(..), Direction::Egress) => (2, 0),
        (Service::Icmp { family, .. }, _) => (3, family.bits()),
        (Service::HostPort, _) => (4, 0),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::policy::read::network_policy;

    fn policy(namespace: &str, name: &str, peers: usize, ports: Value) -> Value {
        let peer = |at| json!({"podSelector": {"matchLabels": {"app": format!("x{at}")}}});
        let from: Vec<Value> = (0..peers).map(peer).collect();
        json!({"metadata": {"namespace": namespace, "name": name},
            "spec": {"podSelector": {}, "ingress": [{"from": from, "ports": ports}]}})
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
        let tcp = || json!([{"port": 80}, {"port": 90}]);
        assert_eq!(closed(&[policy("shop", "db", LINES_LIMIT - 1, tcp())]), [""; 0]);
        let large = policy("shop", "db", LINES_LIMIT, tcp());
        assert_eq!(closed(&[large]), ["NetworkPolicy shop/db"]);
        let both = json!([{"port": 80}, {"port": 80, "protocol": "UDP"}]);
        assert_eq!(
            closed(&[policy("shop", "db", LINES_LIMIT / 2, both)]),
            ["NetworkPolicy shop/db"]
        );
    }

    #[test]
    fn policies_add_up_inside_of_a_namespace_and_the_first_by_name_hold() {
        let half = |namespace, name| policy(namespace, name, LINES_LIMIT / 2 - 10, json!([]));
        let all = [half("shop", "c"), half("shop", "a"), half("shop", "b"), half("x", "d")];
        assert_eq!(closed(&all), ["NetworkPolicy shop/c"]);
    }

    #[test]
    fn blocks_and_ports_may_be_as_many_as_the_text_holds() {
        let blocks: Vec<Value> = (0..10_000)
            .map(|at| json!({"ipBlock": {"cidr": format!("10.{}.{}.0/24", at / 250, at % 250)}}))
            .collect();
        let ports: Vec<Value> = (0..10_000).map(|at| json!({"port": format!("p{at}")})).collect();
        let mut object = policy("shop", "db", 0, json!(ports));
        object["spec"]["ingress"][0]["from"] = json!(blocks);
        assert_eq!(closed(&[object]), [""; 0]);
    }
}
