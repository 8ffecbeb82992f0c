//! Pure. Pods and nodes matched by the selectors in use.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::net::gather::Gather;
use crate::policy::endpoint::{Endpoint, Endpoints, NamedPort};
use crate::policy::rule::{Direction, PolicyPeer, Rule};
use crate::policy::selector::Selector;
use crate::policy::selector_index::SelectorIndex;
use crate::policy::service::Service;

/// What a peer's set holds of one pod or node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Member {
    pub addresses: Vec<IpAddr>,
    /// For rules with named ports.
    pub ports: Vec<NamedPort>,
}

/// What a selector matches. Shared by `Arc`, so that equal values compare by pointer.
pub type FoundMembers = Arc<BTreeSet<Member>>;

/// Selector → what it finds. A selector without entry finds nothing.
pub type Members = BTreeMap<Selector, FoundMembers>;

/// The selectors whose members `rules` need: their peers, and all pods where an egress rule has ports by
/// name and a peer that is no selector.
pub fn peers<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> BTreeSet<Selector> {
    let (mut selected, mut every_pod) = (BTreeSet::new(), false);
    for rule in rules {
        selected.extend(rule.peers.iter().flatten().filter_map(PolicyPeer::selector));
        every_pod |= looks_up_every_pod(rule);
    }
    selected.into_iter().cloned().chain(every_pod.then(Selector::every_pod)).gather()
}

fn looks_up_every_pod(rule: &Rule) -> bool {
    let by_name = |service: &Service| matches!(service, Service::Named(..));
    let is_network = |peer: &PolicyPeer| matches!(peer, PolicyPeer::Network { .. });
    rule.direction == Direction::Egress
        && rule.services.iter().flatten().any(by_name)
        && rule.peers.as_ref().is_none_or(|peers| peers.iter().any(is_network))
}

/// What each of `selectors` finds in `endpoints`.
pub fn find<'a>(
    selectors: impl IntoIterator<Item = &'a Selector>,
    endpoints: &Endpoints,
) -> Members {
    let selectors: Vec<&Selector> = selectors.into_iter().collect();
    let pods = find_pods(&selectors, &endpoints.pods);
    let found = |(selector, mut found): (&Selector, BTreeSet<Member>)| {
        let nodes = endpoints.nodes.iter().filter(|node| selector.matches_node(node));
        found.extend(
            nodes.map(|node| Member { addresses: node.addresses.clone(), ports: Vec::new() }),
        );
        (selector.clone(), Arc::new(found))
    };
    selectors.iter().copied().zip(pods).map(found).gather()
}

/// What each of `selectors` finds among `pods`.
pub fn find_pods(selectors: &[&Selector], pods: &[Endpoint]) -> Vec<BTreeSet<Member>> {
    let index = SelectorIndex::new(selectors.iter().copied());
    let mut found = vec![BTreeSet::new(); selectors.len()];
    for pod in pods {
        let member = Member { addresses: pod.addresses.clone(), ports: pod.ports.clone() };
        for place in index.matching(pod) {
            found[place].insert(member.clone());
        }
    }
    found
}

/// How many of `pods` each of `selectors` finds.
pub fn sizes(selectors: &BTreeSet<Selector>, pods: &[Endpoint]) -> BTreeMap<Selector, usize> {
    let index = SelectorIndex::new(selectors.iter());
    let mut sizes = BTreeMap::new();
    for place in pods.iter().flat_map(|pod| index.matching(pod)) {
        *sizes.entry(index.all()[place].clone()).or_default() += 1;
    }
    sizes
}

/// Of each selector those that have one of `addresses`: enough where no others are looked for.
pub fn having(members: &Members, addresses: &BTreeSet<IpAddr>) -> Members {
    let is_one = |member: &&Member| member.addresses.iter().any(|it| addresses.contains(it));
    let few = |found: &FoundMembers| Arc::new(found.iter().filter(is_one).cloned().gather());
    members.iter().map(|(selector, found)| (selector.clone(), few(found))).gather()
}

/// The same, where each of `selectors` finds nothing that it is not known to find.
pub fn no_more(mut members: Members, selectors: BTreeSet<Selector>) -> Members {
    for selector in selectors {
        members.entry(selector).or_default();
    }
    members
}

/// Reuses the `Arc`s of `before` for unchanged selectors.
pub fn share(members: &mut Members, before: &Members) {
    for (selector, found) in members {
        if let Some(before) = before.get(selector).filter(|before| *before == found) {
            *found = Arc::clone(before);
        }
    }
}
