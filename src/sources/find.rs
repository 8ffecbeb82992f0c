//! Pure. What the selectors that a host needs find in the whole cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::policy::shares::{CLUSTER_LIMIT, Excess};
use crate::policy::{Endpoint, Member, Members, Node, ObjectName, Rule, Selector, Shares, members};

/// The selectors in the rules for `pods`: what concerns no pod of this host needs no members here.
pub fn needed<'a>(rules: impl Iterator<Item = &'a Rule>, pods: &[Endpoint]) -> BTreeSet<Selector> {
    let mut subjects: BTreeMap<&Selector, bool> = BTreeMap::new();
    let mut concerns = |subject: &'a Selector| {
        let is_some = || pods.iter().any(|pod| subject.matches_pod(pod));
        *subjects.entry(subject).or_insert_with(is_some)
    };
    members::peers(rules.filter(|rule| concerns(&rule.subject)))
}

#[derive(Debug, Default)]
pub struct ClusterPods<'a> {
    pub by_namespace: BTreeMap<&'a ObjectName, Vec<&'a Endpoint>>,
    /// Namespaces whose labels are not known.
    pub unknown: BTreeSet<&'a ObjectName>,
}

/// What `selectors` find among pods and nodes, and what exceeds `shares`.
pub fn find<'a>(
    selectors: &BTreeSet<Selector>,
    shares: &Shares,
    pods: &ClusterPods<'_>,
    nodes: impl Iterator<Item = &'a Node> + Clone,
) -> (Members, Excess) {
    let find = |selector: &Selector| found(selector, pods, nodes.clone());
    let mut members = Members::new();
    let excess = shares.excess(selectors, CLUSTER_LIMIT, |selector| {
        let found = Arc::new(find(selector));
        let size = found.len();
        members.insert(selector.clone(), found);
        size
    });
    members.retain(|selector, _| !excess.selectors.contains(selector));
    for selector in selectors.difference(&excess.selectors) {
        members.entry(selector.clone()).or_insert_with(|| Arc::new(find(selector)));
    }
    (members, excess)
}

fn found<'a>(
    selector: &Selector,
    pods: &ClusterPods<'_>,
    nodes: impl Iterator<Item = &'a Node>,
) -> BTreeSet<Member> {
    let mut found = BTreeSet::new();
    if let Selector::Nodes(_) = selector {
        let nodes = nodes.filter(|node| selector.matches_node(node));
        found.extend(
            nodes.map(|node| Member { addresses: node.addresses.clone(), ports: Vec::new() }),
        );
        return found;
    }
    for (name, of_namespace) in &pods.by_namespace {
        // All have the same namespace.
        let Some(first) = of_namespace.first() else { continue };
        let is_unknown = pods.unknown.contains(name);
        if !is_unknown && !selector.may_match_namespace(&first.namespace) {
            continue;
        }
        let is_found = |pod: &&&Endpoint| match is_unknown {
            true => selector.matches_pod_of_unknown(pod) == Some(true),
            false => selector.matches_pod(pod),
        };
        let member =
            |pod: &&Endpoint| Member { addresses: pod.addresses.clone(), ports: pod.ports.clone() };
        found.extend(of_namespace.iter().filter(is_found).map(member));
    }
    found
}
