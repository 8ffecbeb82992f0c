//! Pure. Which pods and nodes the selectors in use find.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::policy::endpoint::{Endpoints, NamedPort};
use crate::policy::rule::{Direction, Peer, Rule};
use crate::policy::selector::Selector;
use crate::policy::service::Service;

/// What a peer's set holds of one pod or node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Member {
    pub addresses: Vec<IpAddr>,
    /// For rules with named ports.
    pub ports: Vec<NamedPort>,
}

/// Selector → what it finds. A selector without entry finds nothing.
pub type Members = BTreeMap<Selector, BTreeSet<Member>>;

/// The selectors whose members `rules` need: their peers, and all pods where an egress rule has ports by
/// name and a peer that is no selector.
pub fn peers<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> BTreeSet<Selector> {
    let needed = |rule: &'a Rule| {
        let peers = rule.peers.iter().flatten().filter_map(|peer| match peer {
            Peer::Selected(selector) => Some(selector.clone()),
            Peer::Network { .. } => None,
        });
        peers.chain(looks_up_every_pod(rule).then(Selector::every_pod))
    };
    rules.into_iter().flat_map(needed).collect()
}

fn looks_up_every_pod(rule: &Rule) -> bool {
    let is_named = |service: &Service| matches!(service, Service::Named(..));
    let is_network = |peer: &Peer| matches!(peer, Peer::Network { .. });
    rule.direction == Direction::Egress
        && rule.services.iter().flatten().any(is_named)
        && rule.peers.as_ref().is_none_or(|peers| peers.iter().any(is_network))
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
