//! Pure. Whether other people's firewalls let pod traffic through, and what to do if not.
//!
//! A packet must pass every base chain at a hook, so an `accept` in our own table does not help
//! against a drop in another (Docker sets the policy of iptables' FORWARD to DROP). Where the
//! chain is iptables' own, our rules go to its head; everything else is its owner's to change.

mod blocking_rule;
pub mod evaluate;
pub mod input;
mod per_subnet;

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::checks::forward::evaluate::{ChainVerdict, Packet, evaluate};
use crate::checks::forward::per_subnet::Stopped;
use crate::net::{Family, IfName, Object, PerFamily, Problem, ProblemKind, subnet};
use crate::nft::base_chains::{
    BaseChain, COMMENT_PREFIX, ChainError, ChainRef, ChainRule, Direction, EditKind, FoundChains,
    RuleEdit,
};
use crate::plan::{Describe, Line};
pub use blocking_rule::{BlockingRule, Cause, Hosts};

/// Of so many chains with rules about some pods is told what they do, of each base chain and direction …
const CHAINS: usize = 3;
/// … and so many are looked at: for each of them all hosts are.
const LOOKED_AT: usize = 64;

/// The traffic that must get through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// The bridge that the pods are plugged into.
    pub bridge: IfName,
    /// The interface that leads to the other hosts; none on a host without a network.
    pub uplink: Option<IfName>,
    /// Where packets of other hosts' pods come in, and go out to them: that, or tunnels.
    pub pods_come_by: Vec<IfName>,
    /// Where this host's pods have their addresses.
    pub subnets: PerFamily<IpNetwork>,
    /// Where the pods of all hosts have them.
    pub pools: PerFamily<IpNetwork>,
    /// Families whose packets from pod to pod on the bridge are shown to firewalls
    /// (`bridge-nf-call-iptables`).
    pub bridged: Vec<Family>,
}

/// What lets pod traffic through.
#[derive(Debug, Default)]
pub struct ForwardPlan {
    /// Rules to insert into iptables' chains, and useless ones to remove before.
    pub edits: Vec<RuleEdit>,
    /// What somebody else must change.
    pub blocking_rules: Vec<BlockingRule>,
}

/// What to do so that `traffic` passes the chains found.
///
/// Nothing to do for a chain that stops nothing, and for one that accepts pods before it stops
/// anything, whoever made the rule. Our rules go before a drop that is about everything; one that is
/// about interfaces or addresses is its owner's will, and told: if it is about some of the pods of
/// other hosts, with the hosts among `others` (each with a pod subnet) that have them. One that is about
/// more (a port, a protocol) is neither.
pub fn plan<'a>(
    traffic: &Traffic,
    others: impl Iterator<Item = (&'a str, IpNetwork)> + Clone,
    found: &FoundChains,
) -> ForwardPlan {
    let mut plan = ForwardPlan::default();
    for chain in &found.chains {
        let mut reasons: Vec<Cause> = Vec::new();
        for direction in Direction::BOTH {
            let fates = fates(chain, direction, traffic);
            if chain.place.is_iptables() && fates.iter().any(is_about_everything) {
                plan.edits.extend(edits(chain, direction, &traffic.bridge));
                continue;
            }
            let stopped = stopped(chain, direction, traffic);
            for reason in stopped.into_iter().flat_map(|one| told(one, direction, &others)) {
                blocking_rule::add(&mut reasons, reason);
            }
        }
        let obstacles = reasons.into_iter().map(|reason| obstacle(&chain.place, reason, traffic));
        plan.blocking_rules.extend(obstacles);
    }
    plan.blocking_rules.extend(
        found
            .unreadable
            .iter()
            .map(|(place, error)| obstacle(place, Cause::Unreadable(whole(error)), traffic)),
    );
    plan
}

fn obstacle(place: &ChainRef, reason: Cause, traffic: &Traffic) -> BlockingRule {
    BlockingRule { place: place.clone(), reason, traffic: traffic.clone() }
}

/// What is told of it: nothing of pods that no host has, and of a few chains with rules at once, the
/// others once those are mended.
fn told<'a>(
    stopped: Stopped,
    direction: Direction,
    others: &(impl Iterator<Item = (&'a str, IpNetwork)> + Clone),
) -> Vec<Cause> {
    let reason = |(chain, hosts)| Cause::Drops { directions: vec![direction], chain, hosts };
    match stopped {
        Stopped::All(chain) => vec![reason((chain, None))],
        Stopped::Some(by_chain) => {
            let hit = by_chain.into_iter().take(LOOKED_AT).filter_map(|(chain, ranges)| {
                Some((chain, Some(Hosts::with(&ranges, others.clone())?)))
            });
            hit.take(CHAINS).map(reason).collect()
        }
    }
}

/// Whom the chain stops of those that go one way.
fn stopped(chain: &BaseChain, direction: Direction, traffic: &Traffic) -> Option<Stopped> {
    let families = Family::BOTH.into_iter().filter(|family| chain.place.sees(*family));
    let mut packets = families.flat_map(|family| further(traffic, family, direction, &chain.place));
    let all =
        packets.find_map(|packet| stopping_chain(&evaluate(chain, chain.place.chain(), &packet)));
    all.map(Stopped::All).or_else(|| per_subnet::stopped(chain, direction, traffic))
}

/// It stops all pod traffic that goes one way, not only some of it.
pub fn drops_all(chain: &BaseChain, direction: Direction, traffic: &Traffic) -> bool {
    matches!(stopped(chain, direction, traffic), Some(Stopped::All(_)))
}

/// What becomes of packets that go one way.
fn fates(chain: &BaseChain, direction: Direction, traffic: &Traffic) -> Vec<ChainVerdict> {
    let families = Family::BOTH.into_iter().filter(|family| chain.place.sees(*family));
    let packets = families.flat_map(|family| {
        let further = further(traffic, family, direction, &chain.place);
        between_hosts(traffic, family, direction).into_iter().chain(further)
    });
    packets.map(|packet| evaluate(chain, chain.place.chain(), &packet)).collect()
}

/// A packet between pods of two hosts, for each interface that it may come or go by.
fn between_hosts(traffic: &Traffic, family: Family, direction: Direction) -> Vec<Packet<'_>> {
    let Some(own) = traffic.subnets.get(family).copied() else { return Vec::new() };
    let other = elsewhere(traffic.pools.get(family).copied().unwrap_or(own), own);
    let links = traffic.pods_come_by.iter();
    links.map(|link| of_pod(traffic, own, direction, (link.as_str(), other))).collect()
}

/// A packet from pod to pod where firewalls see those. Where others may be let in and out, one between
/// a pod and the outside too: a firewall may well keep the outside out.
fn further<'a>(
    traffic: &'a Traffic,
    family: Family,
    direction: Direction,
    place: &ChainRef,
) -> Vec<Packet<'a>> {
    let Some(own) = traffic.subnets.get(family).copied() else { return Vec::new() };
    let mut packets = Vec::new();
    if direction == Direction::In || place.is_iptables() {
        let uplink = traffic.uplink.as_ref().map_or("", IfName::as_str);
        packets.push(of_pod(traffic, own, direction, (uplink, outside(family))));
    }
    if traffic.bridged.contains(&family) {
        let (bridge, pod) = (traffic.bridge.as_str(), pod_in(own));
        packets.push(between((bridge, pod), (bridge, subnet::offset(pod, 1))));
    }
    packets
}

/// A packet from or to a pod of this host: `other` is the interface and the address at its other end.
fn of_pod<'a>(
    traffic: &'a Traffic,
    own: IpNetwork,
    direction: Direction,
    other: (&'a str, IpAddr),
) -> Packet<'a> {
    let pod = (traffic.bridge.as_str(), pod_in(own));
    match direction {
        Direction::In => between(pod, other),
        Direction::Out => between(other, pod),
    }
}

/// The first address that a pod can have.
fn pod_in(own: IpNetwork) -> IpAddr {
    subnet::offset(own.network(), 2)
}

/// A packet from an address behind one interface to one behind another.
fn between<'a>(from: (&'a str, IpAddr), to: (&'a str, IpAddr)) -> Packet<'a> {
    Packet { input: from.0, output: to.0, source: from.1, destination: to.1, transport: None }
}

/// An address in the pool that is not this host's, if the pool has others.
fn elsewhere(pool: IpNetwork, own: IpNetwork) -> IpAddr {
    let first = subnet::offset(pool.network(), 2);
    match own.contains(first) {
        true => subnet::offset(subnet::last(own), 3),
        false => first,
    }
}

/// Nobody's (RFC 5737, RFC 3849).
fn outside(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from([203, 0, 113, 1]),
        Family::V6 => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]),
    }
}

fn is_about_everything(fate: &ChainVerdict) -> bool {
    match fate {
        ChainVerdict::MayDrop | ChainVerdict::DroppedByPolicy => true,
        ChainVerdict::DroppedIn { aimed, .. } => !aimed,
        ChainVerdict::Accepts => false,
    }
}

/// The chain with the rule that stops, `None` inside for the policy; `None` if nothing does.
fn stopping_chain(fate: &ChainVerdict) -> Option<Option<String>> {
    match fate {
        ChainVerdict::Accepts | ChainVerdict::MayDrop => None,
        ChainVerdict::DroppedByPolicy => Some(None),
        ChainVerdict::DroppedIn { chain, .. } => Some(Some(chain.clone())),
    }
}

/// What is in the way if `edit` must not be made.
pub fn not_ours(edit: &RuleEdit) -> Option<Problem> {
    let RuleEdit { place, direction, bridge, .. } = edit;
    let option = direction.option();
    (edit.action == EditKind::Insert).then(|| {
        let what = format!("{place} drops pod traffic, and MANAGE_FORWARD=false");
        Problem::new(ProblemKind::ForwardBlocked, Object::Chain(place.to_string()), what)
            .with_fix(format!("put `{option} {bridge} -j ACCEPT` at its head"))
    })
}

/// Takes every rule of ours for `bridge` out again.
pub fn removals(bridge: &IfName, found: &FoundChains) -> Vec<RuleEdit> {
    let both = |chain| {
        Direction::BOTH.into_iter().flat_map(move |direction| remove(chain, direction, bridge))
    };
    found.chains.iter().filter(|chain| chain.place.is_iptables()).flat_map(both).collect()
}

fn edits(chain: &BaseChain, direction: Direction, bridge: &IfName) -> Vec<RuleEdit> {
    let mut edits = remove(chain, direction, bridge);
    let place = chain.place.clone();
    edits.push(RuleEdit { place, action: EditKind::Insert, direction, bridge: bridge.clone() });
    edits
}

fn remove(chain: &BaseChain, direction: Direction, bridge: &IfName) -> Vec<RuleEdit> {
    let ours = chain.rules.iter().filter(|rule| {
        let marked =
            rule.comment.as_ref().is_some_and(|comment| comment.starts_with(COMMENT_PREFIX));
        marked && rule.accepts(direction, bridge)
    });
    let removal = |rule: &ChainRule| RuleEdit {
        place: chain.place.clone(),
        action: EditKind::Remove(rule.handle),
        direction,
        bridge: bridge.clone(),
    };
    ours.map(removal).collect()
}

/// The error with its sources.
fn whole(error: &ChainError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

impl Describe for RuleEdit {
    fn line(&self) -> Line {
        let rule = Object::Rule {
            chain: self.place.to_string(),
            option: self.direction.option(),
            bridge: self.bridge.clone(),
        };
        match self.action {
            EditKind::Insert => Line::added(rule),
            EditKind::Remove(_) => Line::removed(rule),
        }
    }
}

#[cfg(test)]
mod tests;
