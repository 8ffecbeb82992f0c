//! Pure. What the selectors that a host needs find in the whole cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::policy::{Endpoint, Member, Members, Node, ObjectName, Rule, Selector, members};

/// The selectors in the rules for `pods`: what concerns no pod of this host needs no members here.
pub fn needed<'a>(rules: impl Iterator<Item = &'a Rule>, pods: &[Endpoint]) -> BTreeSet<Selector> {
    let mut subjects: BTreeMap<&Selector, bool> = BTreeMap::new();
    let mut concerns = |subject: &'a Selector| {
        let is_some = || pods.iter().any(|pod| subject.matches_pod(pod));
        *subjects.entry(subject).or_insert_with(is_some)
    };
    members::peers(rules.filter(|rule| concerns(&rule.subject)))
}

/// What `selectors` find among pods by namespace, and nodes.
pub fn find<'a>(
    selectors: &BTreeSet<Selector>,
    pods: &BTreeMap<&ObjectName, Vec<&'a Endpoint>>,
    nodes: impl Iterator<Item = &'a Node> + Clone,
) -> Members {
    let found = |selector: &Selector| -> BTreeSet<Member> {
        let mut found = BTreeSet::new();
        if let Selector::Nodes(_) = selector {
            let nodes = nodes.clone().filter(|node| selector.matches_node(node));
            found.extend(
                nodes.map(|node| Member { addresses: node.addresses.clone(), ports: Vec::new() }),
            );
            return found;
        }
        for pods in pods.values() {
            // All have the same namespace.
            let Some(first) = pods.first() else { continue };
            if !selector.may_match_namespace(&first.namespace) {
                continue;
            }
            let pods = pods.iter().filter(|pod| selector.matches_pod(pod));
            found.extend(
                pods.map(|pod| Member {
                    addresses: pod.addresses.clone(),
                    ports: pod.ports.clone(),
                }),
            );
        }
        found
    };
    selectors.iter().map(|selector| (selector.clone(), Arc::new(found(selector)))).collect()
}
