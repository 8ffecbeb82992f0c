//! Pure. Whether firewalls of other programs let pod traffic through, and what to do if not.
//!
//! A packet must pass every base chain at a hook, so an `accept` in our own table does not help
//! against a drop in another (Docker sets the policy of iptables' FORWARD to DROP). Where the
//! chain is iptables' own, our rules go to its head; everything else is its owner's to change.
//!
//! A chain that drops packets of some hosts alone is reported with these hosts: probes show that they do not
//! answer, not which chain is the reason.

mod blocking_rule;
pub mod evaluate;
pub mod input;
mod traffic;

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::checks::forward::blocking_rule::{DroppedHosts, iptables};
use crate::checks::forward::evaluate::{ChainVerdict, evaluate};
use crate::net::{Family, IfName, Object, Problem, ProblemKind, subnet};
use crate::nft::base_chains::{
    BaseChain, COMMENT_PREFIX, ChainError, ChainRef, ChainRule, EditKind, FirstPacket, HookChains,
    HookDirection, RuleEdit, RuleMatch,
};
use crate::plan::{Describe, Line};
pub use blocking_rule::{BlockingRule, Cause};
pub use traffic::Traffic;

/// Chains with rules about the pods of some hosts are reported up to so many, of each base chain and
/// direction; the others once those are repaired.
const CHAINS: usize = 3;

/// So many rules are evaluated for each base chain and direction, some 50 ms: with thousands of rules
/// not for every host.
const EVALUATIONS: usize = 1 << 21;

/// What lets pod traffic through.
#[derive(Debug, Default)]
pub struct ForwardPlan {
    /// Rules to insert into iptables' chains, and useless ones to remove before.
    pub edits: Vec<RuleEdit>,
    /// What the owner of a chain must change.
    pub problems: Vec<Problem>,
}

/// Pods whose packets a chain drops. `None` in it for its policy, else the chain with the rule.
enum Dropped<'a> {
    All(Option<String>),
    /// Of these hosts, each with a pod subnet.
    OfHosts(BTreeMap<Option<String>, Vec<(&'a str, IpNetwork)>>),
}

/// What to do so that `traffic` passes the chains found.
///
/// Nothing to do for a chain that drops nothing, and for one that accepts pods before it drops
/// anything, whoever made the rule. Our rules go before a drop of everything; one for certain
/// interfaces or addresses is its owner's will, and reported: if it concerns some other hosts, with
/// those among `others` (each with a pod subnet). One for a port or protocol is neither.
pub fn plan<'a>(
    traffic: &Traffic,
    others: impl Iterator<Item = (&'a str, IpNetwork)> + Clone,
    found: &HookChains,
) -> ForwardPlan {
    let mut plan = ForwardPlan::default();
    for chain in &found.chains {
        let mut causes: Vec<Cause> = Vec::new();
        for direction in HookDirection::BOTH {
            let verdicts = verdicts(chain, direction, traffic);
            if chain.place.is_iptables() && verdicts.iter().any(is_about_everything) {
                plan.edits.extend(edits(chain, direction, &traffic.bridge));
                continue;
            }
            for cause in causes_of(chain, direction, traffic, others.clone()) {
                blocking_rule::add(&mut causes, cause);
            }
            if causes.is_empty() && verdicts.contains(&ChainVerdict::MayDrop) {
                causes.push(Cause::NotUnderstood);
            }
        }
        let place = || chain.place.clone();
        let rules = causes.into_iter().map(|cause| BlockingRule { place: place(), cause });
        plan.problems.extend(rules.map(|rule| rule.problem(traffic)));
    }
    let unreadable = found.unreadable.iter().map(|(place, error)| {
        let cause = Cause::Unreadable(whole(error));
        BlockingRule { place: place.clone(), cause }.problem(traffic)
    });
    plan.problems.extend(unreadable);
    plan
}

fn causes_of<'a>(
    chain: &BaseChain,
    direction: HookDirection,
    traffic: &Traffic,
    others: impl Iterator<Item = (&'a str, IpNetwork)> + Clone,
) -> Vec<Cause> {
    let directions = || vec![direction];
    match dropped(chain, direction, traffic, others) {
        None => Vec::new(),
        Some(Dropped::All(by)) => {
            vec![Cause::Drops { directions: directions(), chain: by, hosts: None }]
        }
        Some(Dropped::OfHosts(by_chain)) => {
            let cause = |(by, hosts)| Cause::Drops {
                directions: directions(),
                chain: by,
                hosts: Some(DroppedHosts::of(hosts)),
            };
            by_chain.into_iter().take(CHAINS).map(cause).collect()
        }
    }
}

/// It drops all pod traffic that goes one way, not only some of it.
pub fn drops_all(chain: &BaseChain, direction: HookDirection, traffic: &Traffic) -> bool {
    matches!(dropped(chain, direction, traffic, std::iter::empty()), Some(Dropped::All(_)))
}

/// Which pods' packets the chain drops of those that go one way.
fn dropped<'a>(
    chain: &BaseChain,
    direction: HookDirection,
    traffic: &Traffic,
    others: impl Iterator<Item = (&'a str, IpNetwork)> + Clone,
) -> Option<Dropped<'a>> {
    let families = || Family::BOTH.into_iter().filter(|family| chain.place.sees(*family));
    let by = |packet: &FirstPacket<'_>| evaluate(chain, packet).dropping_chain();
    let mut further =
        families().flat_map(|family| further(traffic, family, direction, &chain.place));
    if let Some(by) = further.find_map(|packet| by(&packet)) {
        return Some(Dropped::All(by));
    }
    let rules = || [&chain.rules].into_iter().chain(chain.called.values()).flatten();
    let tells_hosts_apart = rules().any(|rule| rule.matches.iter().any(RuleMatch::is_of_address));
    let most = if tells_hosts_apart { EVALUATIONS / rules().count().max(1) } else { 0 };
    let mut by_chain: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for family in families() {
        let Some(own) = traffic.subnets.get(family).copied() else { continue };
        let hosts = others.clone().filter(|(_, other)| subnet::family(*other) == family);
        for link in &traffic.pods_come_by {
            let by = |other| by(&of_pod(traffic, own, direction, (link.as_str(), other)));
            // The pods of a host that no rule knows.
            let unknown = by(elsewhere(traffic.pools.get(family).copied().unwrap_or(own), own));
            let (mut all, mut some) = (unknown.is_some(), Vec::new());
            for (host, subnet) in hosts.clone().take(most) {
                match by(pod_in(subnet)) {
                    Some(by) => some.push((by, (host, subnet))),
                    None => all = false,
                }
            }
            if let Some(by) = unknown.filter(|_| all) {
                return Some(Dropped::All(by));
            }
            for (by, host) in some {
                by_chain.entry(by).or_default().push(host);
            }
        }
    }
    (!by_chain.is_empty()).then_some(Dropped::OfHosts(by_chain))
}

/// What the chain does with packets that go one way.
fn verdicts(chain: &BaseChain, direction: HookDirection, traffic: &Traffic) -> Vec<ChainVerdict> {
    let families = Family::BOTH.into_iter().filter(|family| chain.place.sees(*family));
    let packets = families.flat_map(|family| {
        let further = further(traffic, family, direction, &chain.place);
        between_hosts(traffic, family, direction).into_iter().chain(further)
    });
    packets.map(|packet| evaluate(chain, &packet)).collect()
}

/// A packet between pods of two hosts, for each interface that it may come or go by.
fn between_hosts(
    traffic: &Traffic,
    family: Family,
    direction: HookDirection,
) -> Vec<FirstPacket<'_>> {
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
    direction: HookDirection,
    place: &ChainRef,
) -> Vec<FirstPacket<'a>> {
    let Some(own) = traffic.subnets.get(family).copied() else { return Vec::new() };
    let mut packets = Vec::new();
    if direction == HookDirection::In || place.is_iptables() {
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
    direction: HookDirection,
    other: (&'a str, IpAddr),
) -> FirstPacket<'a> {
    let pod = (traffic.bridge.as_str(), pod_in(own));
    match direction {
        HookDirection::In => between(pod, other),
        HookDirection::Out => between(other, pod),
    }
}

/// The first address that a pod can have.
fn pod_in(own: IpNetwork) -> IpAddr {
    subnet::offset(own.network(), 2)
}

/// A packet from an address behind one interface to one behind another.
fn between<'a>(from: (&'a str, IpAddr), to: (&'a str, IpAddr)) -> FirstPacket<'a> {
    FirstPacket { input: from.0, output: to.0, source: from.1, destination: to.1, transport: None }
}

/// An address in the pool that is not this host's, if the pool has others.
fn elsewhere(pool: IpNetwork, own: IpNetwork) -> IpAddr {
    let first = subnet::offset(pool.network(), 2);
    match own.contains(first) {
        true => subnet::offset(subnet::last(own), 3),
        false => first,
    }
}

/// For documentation only (RFC 5737, RFC 3849).
fn outside(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from([203, 0, 113, 1]),
        Family::V6 => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]),
    }
}

fn is_about_everything(verdict: &ChainVerdict) -> bool {
    match verdict {
        ChainVerdict::MayDrop | ChainVerdict::DroppedByPolicy => true,
        ChainVerdict::DroppedIn { targeted, .. } => !targeted,
        ChainVerdict::Accepts => false,
    }
}

/// The problem that is left if `edit` must not be made.
pub fn not_inserted(edit: &RuleEdit, why: &str) -> Option<Problem> {
    let RuleEdit { place, direction, bridge, .. } = edit;
    let option = direction.option();
    (edit.action == EditKind::Insert).then(|| {
        let what = format!("{place} drops pod traffic, and {why}");
        Problem::new(ProblemKind::ForwardBlocked, Object::Chain(place.to_string()), what).with_fix(
            format!("{} -I {} {option} {bridge} -j ACCEPT", iptables(place), place.chain()),
        )
    })
}

/// Takes every rule of ours for `bridge` out again.
pub fn removals(bridge: &IfName, found: &HookChains) -> Vec<RuleEdit> {
    let both = |chain| {
        HookDirection::BOTH.into_iter().flat_map(move |direction| remove(chain, direction, bridge))
    };
    found.chains.iter().filter(|chain| chain.place.is_iptables()).flat_map(both).collect()
}

fn edits(chain: &BaseChain, direction: HookDirection, bridge: &IfName) -> Vec<RuleEdit> {
    let mut edits = remove(chain, direction, bridge);
    let place = chain.place.clone();
    edits.push(RuleEdit { place, action: EditKind::Insert, direction, bridge: bridge.clone() });
    edits
}

fn remove(chain: &BaseChain, direction: HookDirection, bridge: &IfName) -> Vec<RuleEdit> {
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
