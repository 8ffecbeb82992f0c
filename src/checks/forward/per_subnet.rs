//! Pure. What chains do to the pods of other hosts, who may be treated apart from each other.
//!
//! Nobody asks for one host after the other: packets to and from the whole pool are asked about at
//! once, and its parts only where a rule tells them apart.

use std::collections::BTreeMap;

use crate::net::range::merged;
use crate::net::{AddressRange, Family, subnet};
use crate::nft::base_chains::{BaseChain, Direction, End};

use crate::checks::forward::evaluate::{Packet, fate_of_all};
use crate::checks::forward::{Traffic, elsewhere, of_pod, stopping_chain};

/// Whom a chain stops. `None` in it for its policy, else the chain with the rule.
pub enum Stopped {
    /// The pods of all other hosts.
    All(Option<String>),
    /// Pods with these addresses: in order, not touching. Not empty.
    Some(BTreeMap<Option<String>, Vec<AddressRange>>),
}

/// So many rules of a chain are looked at for each direction, family and interface that pods of other
/// hosts come by, one as often as there are parts of the pool: some 50 ms each. A chain of thousands
/// of rules, each about another part, is judged by the first parts.
const LOOKS: usize = 1 << 21;

/// Whom the chain stops of the pods of other hosts.
pub fn stopped(chain: &BaseChain, direction: Direction, traffic: &Traffic) -> Option<Stopped> {
    let mut by_chain = BTreeMap::<_, Vec<_>>::new();
    for family in Family::BOTH.into_iter().filter(|family| chain.place.sees(*family)) {
        for link in &traffic.pods_come_by {
            let (parts, passes) = parts(chain, direction, traffic, (family, link.as_str()));
            if let (Some((_, by)), false) = (parts.first(), passes) {
                return Some(Stopped::All(by.clone()));
            }
            for (range, by) in parts {
                by_chain.entry(by).or_default().push(range);
            }
        }
    }
    let by_chain = by_chain.into_iter().map(|(by, ranges)| (by, merged(ranges)));
    let by_chain: BTreeMap<_, _> = by_chain.collect();
    (!by_chain.is_empty()).then_some(Stopped::Some(by_chain))
}

/// The parts of the pool whose packets by the interface are stopped, each with the chain that does
/// it; true if others pass.
fn parts(
    chain: &BaseChain,
    direction: Direction,
    traffic: &Traffic,
    (family, link): (Family, &str),
) -> (Vec<(AddressRange, Option<String>)>, bool) {
    let (mut stopped, mut passes) = (Vec::new(), false);
    let Some(own) = traffic.subnets.get(family).copied() else { return (stopped, passes) };
    let end = match direction {
        Direction::In => End::Destination,
        Direction::Out => End::Source,
    };
    let rules = chain.rules.len() + chain.called.values().map(Vec::len).sum::<usize>();
    let mut left = LOOKS / rules.max(1);
    let mut waiting = others(traffic, family);
    while left > 0 {
        let Some(range) = waiting.pop() else { break };
        left -= 1;
        let packet: Packet<'_> = of_pod(traffic, own, direction, (link, range.first()));
        match fate_of_all(chain, &packet, (end, range)) {
            Ok(fate) => match stopping_chain(&fate) {
                Some(by) => stopped.push((range, by)),
                None => passes = true,
            },
            Err(at) => {
                waiting.extend(AddressRange::new(at, range.last()));
                let before = subnet::offset(at, u128::MAX);
                waiting.extend(AddressRange::new(range.first(), before));
            }
        }
    }
    (stopped, passes || !waiting.is_empty())
}

/// The pool without this host's subnet.
fn others(traffic: &Traffic, family: Family) -> Vec<AddressRange> {
    let Some(own) = traffic.subnets.get(family).copied() else { return Vec::new() };
    let pool = traffic.pools.get(family).copied().unwrap_or(own);
    if !subnet::contains(pool, own) {
        return vec![pool.into()];
    }
    let (pool, own_range) = (AddressRange::from(pool), AddressRange::from(own));
    let before = (pool.first() < own_range.first())
        .then(|| AddressRange::new(pool.first(), subnet::offset(own_range.first(), u128::MAX)));
    let behind = (own_range.last() < pool.last())
        .then(|| AddressRange::new(subnet::offset(own_range.last(), 1), pool.last()));
    let parts: Vec<AddressRange> = behind.into_iter().chain(before).flatten().collect();
    match parts.is_empty() {
        true => vec![AddressRange::single(elsewhere(own, own))],
        false => parts,
    }
}

#[cfg(test)]
mod tests;
