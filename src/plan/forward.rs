//! Pure. Whether other people's firewalls let pod traffic through, and what to do if not.
//!
//! A packet must pass every base chain at a hook, so an `accept` in our own table does not help
//! against a drop in another (Docker sets the policy of iptables' FORWARD to DROP). Where the
//! chain is iptables' own, our rules go to its head; everything else is its owner's to change.

pub(in crate::plan) mod fate;
pub mod input;

use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::linux::forward::{
    Action, Direction, Edit, ForwardChain, ForwardError, ForwardRule, FoundForward, MARK, Place,
};
use crate::linux::nft::ChainPlace;
use crate::net::{Family, IfName, PerFamily, subnet};
use crate::plan::{Describe, Line, Object};
use fate::{Fate, Packet, fate};

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
    pub edits: Vec<Edit>,
    /// What somebody else must change.
    pub obstacles: Vec<Obstacle>,
}

/// A chain that stops pod traffic, or may do so, and that humanz does not touch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// The chain.
    pub place: Place,
    /// Why nothing was done.
    pub reason: Reason,
    /// Whose traffic it stops.
    pub traffic: Traffic,
}

/// Why an obstacle is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It stops packets that go these ways.
    Stops {
        /// From pods, to pods, or both.
        directions: Vec<Direction>,
        /// The chain with the rule that does it; `None` if the policy does.
        chain: Option<String>,
    },
    /// It cannot be read: the error, whole.
    Unreadable(String),
}

/// What to do so that `traffic` passes the chains found.
///
/// Nothing to do for a chain that stops nothing, and for one that accepts pods before it stops
/// anything, whoever made the rule. Our rules go before a drop that is about everything; one that is
/// about interfaces or addresses is its owner's will, and told. One that is about more (a port, a
/// protocol) is neither.
pub fn plan(traffic: &Traffic, found: &FoundForward) -> ForwardPlan {
    let mut plan = ForwardPlan::default();
    for chain in &found.chains {
        let mut stopped: Vec<(Direction, Option<String>)> = Vec::new();
        for direction in Direction::BOTH {
            let fates = fates(chain, direction, traffic);
            if chain.place.is_iptables() && fates.iter().any(is_about_everything) {
                plan.edits.extend(edits(chain, direction, &traffic.bridge));
                continue;
            }
            stopped.extend(fates.iter().find_map(stopping_chain).map(|chain| (direction, chain)));
        }
        if let Some((_, by)) = stopped.first().cloned() {
            let directions = stopped.into_iter().map(|(direction, _)| direction).collect();
            let reason = Reason::Stops { directions, chain: by };
            plan.obstacles.push(obstacle(&chain.place, reason, traffic));
        }
    }
    plan.obstacles.extend(
        found
            .unreadable
            .iter()
            .map(|(place, error)| obstacle(place, Reason::Unreadable(whole(error)), traffic)),
    );
    plan
}

fn obstacle(place: &Place, reason: Reason, traffic: &Traffic) -> Obstacle {
    Obstacle { place: place.clone(), reason, traffic: traffic.clone() }
}

/// What becomes of packets that go one way.
fn fates(chain: &ForwardChain, direction: Direction, traffic: &Traffic) -> Vec<Fate> {
    let families = Family::BOTH.into_iter().filter(|family| chain.place.sees(*family));
    let packets = families.flat_map(|family| packets(traffic, family, direction, &chain.place));
    packets.map(|packet| fate(chain, chain.place.chain(), &packet)).collect()
}

/// A packet between pods of two hosts. Where others may be let in and out, one between a pod and the
/// outside too: a firewall may well keep the outside out.
fn packets<'a>(
    traffic: &'a Traffic,
    family: Family,
    direction: Direction,
    place: &Place,
) -> Vec<Packet<'a>> {
    let Some(own) = traffic.subnets.get(family).copied() else { return Vec::new() };
    let pool = traffic.pools.get(family).copied().unwrap_or(own);
    let pod = subnet::offset(own.network(), 2);
    let bridge = traffic.bridge.as_str();
    let packet = |link: &'a str, other: IpAddr| match direction {
        Direction::In => between((bridge, pod), (link, other)),
        Direction::Out => between((link, other), (bridge, pod)),
    };
    let mut packets: Vec<Packet<'a>> = traffic
        .pods_come_by
        .iter()
        .map(|link| packet(link.as_str(), elsewhere(pool, own)))
        .collect();
    if direction == Direction::In || place.is_iptables() {
        let uplink = traffic.uplink.as_ref().map_or("", IfName::as_str);
        packets.push(packet(uplink, outside(family)));
    }
    if traffic.bridged.contains(&family) {
        packets.push(between((bridge, pod), (bridge, subnet::offset(pod, 1))));
    }
    packets
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

fn is_about_everything(fate: &Fate) -> bool {
    match fate {
        Fate::Unclear | Fate::StoppedByPolicy => true,
        Fate::StoppedIn { aimed, .. } => !aimed,
        Fate::Passes => false,
    }
}

/// The chain with the rule that stops, `None` inside for the policy; `None` if nothing does.
fn stopping_chain(fate: &Fate) -> Option<Option<String>> {
    match fate {
        Fate::Passes | Fate::Unclear => None,
        Fate::StoppedByPolicy => Some(None),
        Fate::StoppedIn { chain, .. } => Some(Some(chain.clone())),
    }
}

/// What is in the way if `edit` must not be made.
pub fn not_ours(edit: &Edit) -> Option<String> {
    let Edit { place, direction, bridge, .. } = edit;
    (edit.action == Action::Insert).then(|| {
        format!(
            "{place} drops pod traffic, and MANAGE_FORWARD=false; put `{} {bridge} -j ACCEPT` at \
             its head",
            direction.option()
        )
    })
}

/// Takes every rule of ours for `bridge` out again.
pub fn removals(bridge: &IfName, found: &FoundForward) -> Vec<Edit> {
    let both = |chain| {
        Direction::BOTH.into_iter().flat_map(move |direction| remove(chain, direction, bridge))
    };
    found.chains.iter().filter(|chain| chain.place.is_iptables()).flat_map(both).collect()
}

fn edits(chain: &ForwardChain, direction: Direction, bridge: &IfName) -> Vec<Edit> {
    let mut edits = remove(chain, direction, bridge);
    let place = chain.place.clone();
    edits.push(Edit { place, action: Action::Insert, direction, bridge: bridge.clone() });
    edits
}

fn remove(chain: &ForwardChain, direction: Direction, bridge: &IfName) -> Vec<Edit> {
    let ours = chain.rules.iter().filter(|rule| {
        let marked = rule.comment.as_ref().is_some_and(|comment| comment.starts_with(MARK));
        marked && rule.accepts(direction, bridge)
    });
    let removal = |rule: &ForwardRule| Edit {
        place: chain.place.clone(),
        action: Action::Remove(rule.handle),
        direction,
        bridge: bridge.clone(),
    };
    ours.map(removal).collect()
}

/// The error with its sources.
fn whole(error: &ForwardError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

impl Describe for Edit {
    fn line(&self) -> Line {
        let rule = Object::Rule(self.place.clone(), self.direction, self.bridge.clone());
        match self.action {
            Action::Insert => Line::added(rule),
            Action::Remove(_) => Line::removed(rule),
        }
    }
}

impl fmt::Display for Obstacle {
    /// One line: which chain stops which pod traffic, and what to do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Obstacle { place, reason, traffic } = self;
        let Reason::Stops { directions, chain } = reason else {
            let Reason::Unreadable(error) = reason else { return Ok(()) };
            return write!(f, "{place}: may drop pod traffic and cannot be read: {error}");
        };
        let what = match chain {
            None => "its policy".to_owned(),
            Some(chain) if chain == place.chain() => "a rule".to_owned(),
            Some(chain) => format!("a rule of chain {chain}"),
        };
        let packets = match directions[..] {
            [Direction::In] => "what pods send",
            [Direction::Out] => "what other hosts' pods send to pods",
            _ => "pod traffic",
        };
        write!(f, "{place}: {what} drops {packets}; ")?;
        cure(f, place, traffic)
    }
}

/// What the owner of the chain can do about it: whole, and so without a semicolon, behind the last
/// of which others look for it.
fn cure(f: &mut fmt::Formatter<'_>, place: &Place, traffic: &Traffic) -> fmt::Result {
    let bridge = &traffic.bridge;
    match place {
        // Every pod is known by its address, whichever interface its packets come by.
        Place::Nft(ChainPlace { table, .. }) if table == "firewalld" => {
            write!(f, "accept it: firewall-cmd --permanent --zone=trusted")?;
            for pool in traffic.pools.iter() {
                write!(f, " --add-source={pool}")?;
            }
            write!(f, " && firewall-cmd --reload")
        }
        Place::Nft(ChainPlace { table, .. }) if table == "firewalld_policy_drop" => {
            write!(
                f,
                "wait, firewalld is loading its rules (if this stays: systemctl restart firewalld)"
            )
        }
        Place::Nft(ChainPlace { family, table, chain }) if !place.is_iptables() => write!(
            f,
            "accept it: nft 'insert rule {family} {table} {chain} iifname \"{bridge}\" accept' && nft \
             'insert rule {family} {table} {chain} oifname \"{bridge}\" accept', and likewise in the \
             file that makes the table"
        ),
        _ => write!(f, "accept it: put a rule for {bridge} before it"),
    }
}

#[cfg(test)]
mod tests;
