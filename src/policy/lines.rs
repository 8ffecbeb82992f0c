//! Pure. What a rule takes of the kernel's table.

use std::collections::BTreeSet;

use crate::net::gather::Gather;
use crate::policy::rule::{Direction, PolicyPeer, Rule};
use crate::policy::service::Service;

/// Blocks, exceptions and ports that cost as much as a line.
const RANGES: usize = 4;

/// At most so many rules and sets the table has of `rule`, for each family; and a line for every four blocks, exceptions
/// and ports, which are elements of sets.
pub fn lines_of(rule: &Rule) -> usize {
    let peers = || rule.peers.iter().flatten();
    let blocks: usize = peers()
        .map(|peer| match peer {
            PolicyPeer::Network { except, .. } => 1 + except.len(),
            PolicyPeer::Selected(_) => 0,
        })
        .sum();
    let ranges = blocks + rule.services.as_ref().map_or(0, Vec::len);
    let selectors: BTreeSet<_> = peers().filter_map(PolicyPeer::selector).gather();
    let ends = match &rule.peers {
        None => 1,
        Some(_) => selectors.len() + usize::from(blocks > 0),
    };
    let kinds: BTreeSet<_> =
        rule.services.iter().flatten().map(|service| kind(service, rule.direction)).gather();
    1 + ends * kinds.len().max(1) + ranges / RANGES
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
