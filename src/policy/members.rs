//! Pure. Which pods and nodes the selectors in use find.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::policy::endpoint::{Endpoints, NamedPort};
use crate::policy::rule::{Peer, Rule};
use crate::policy::selector::Selector;

/// What a peer's set holds of one pod or node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    pub addresses: Vec<IpAddr>,
    /// For rules with named ports.
    pub ports: Vec<NamedPort>,
}

/// Selector → what it finds. A selector without entry finds nothing.
pub type Members = BTreeMap<Selector, BTreeSet<Member>>;

/// The selectors that stand as peers in `rules`.
pub fn peers<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> BTreeSet<&'a Selector> {
    let peers = rules.into_iter().flat_map(|rule| rule.peers.iter().flatten());
    peers
        .filter_map(|peer| match peer {
            Peer::Selected(selector) => Some(selector),
            Peer::Network { .. } => None,
        })
        .collect()
}

/// What each of `selectors` finds in `endpoints`.
pub fn find<'a>(
    selectors: impl IntoIterator<Item = &'a Selector>,
    endpoints: &Endpoints,
) -> Members {
    let found = |selector: &Selector| {
        let pods = endpoints.pods.iter().filter(|pod| selector.matches_pod(pod));
        let pods =
            pods.map(|pod| Member { addresses: pod.addresses.clone(), ports: pod.ports.clone() });
        let nodes = endpoints.nodes.iter().filter(|node| selector.matches_node(node));
        let nodes =
            nodes.map(|node| Member { addresses: node.addresses.clone(), ports: Vec::new() });
        pods.chain(nodes).collect()
    };
    selectors.into_iter().map(|selector| (selector.clone(), found(selector))).collect()
}
