//! Pure. The nftables table of host ports: its rules and elements, and the changes.
//!
//! One table for all networks of the host, with or without an agent. No rule has a port: the maps
//! do, and cost the same with one port and with thousands.

mod maps;

use std::collections::{BTreeMap, BTreeSet};

use crate::ipam::PortClaim;
use crate::net::gather::Gather;
use crate::net::{HostPort, IfName, PortForward, Protocol, ReservedPort};
use crate::nft::{
    Action, Base, Chain, ChainPolicy, Field, Fingerprints, Hook, Match, NftRule, Ruleset, Verdict,
};
pub use crate::plan::host_ports::maps::{
    BRIDGES, PortChange, PortElement, PortMap, PortMark, bridge_names, bridges, element_changes,
};
use crate::plan::pod::LinkIdentity;

/// The table's name. No network's table can have it: theirs is `humanz_<network>`.
pub const TABLE: &str = "humanz-hostports";

/// Priorities `raw`, `dstnat` and `srcnat` of nft.
const PRIORITY_RAW: i32 = -300;
const PRIORITY_DSTNAT: i32 = -100;
const PRIORITY_SRCNAT: i32 = 100;

/// The mark bit of a pod's packet to a port of its own host, kept while its destination is translated.
/// The portmap plugin uses the same bit for the same purpose, so that other users of marks avoid it.
const FROM_POD: u32 = 1 << 13;

/// The table without ports.
///
/// - `guard`: with `route_localnet` on a bridge, which 127.0.0.1 needs, a pod could reach services on
///   the host's loopback, or send from 127.0.0.1. Packets from a bridge are checked before any
///   translation; answers to the host still have another address there.
/// - `prerouting`, `output`: a port of one address takes precedence over that of all.
/// - `postrouting`: a pod that reaches a pod of the same bridge through a host port would get answers
///   from an address it never sent to, and 127.0.0.1 is the pod itself: both are masqueraded.
pub fn ruleset() -> Ruleset {
    let chain = |name: &str, kind: &str, hook, priority, rules| {
        let base = Base { kind: kind.to_owned(), hook, priority, policy: ChainPolicy::Accept };
        Chain { name: name.to_owned(), base: Some(base), rules }
    };
    let comment = "written by humanz: ports of this host that lead to pods".to_owned();
    let chains = vec![
        chain("guard", "filter", Hook::PREROUTING, PRIORITY_RAW, guard()),
        chain("prerouting", "nat", Hook::PREROUTING, PRIORITY_DSTNAT, prerouting()),
        chain("output", "nat", Hook::OUTPUT, PRIORITY_DSTNAT, output()),
        chain("postrouting", "nat", Hook::POSTROUTING, PRIORITY_SRCNAT, postrouting()),
    ];
    let sets = [bridges()].into_iter().chain(PortMap::ALL.map(PortMap::set)).collect();
    Ruleset { table: TABLE.to_owned(), comment, flowtable: None, sets, chains }
}

fn rule(comment: &str, matches: &[Match], action: Action) -> NftRule {
    NftRule { comment: comment.to_owned(), matches: matches.to_vec(), action }
}

fn loopback4() -> ipnetwork::IpNetwork {
    "127.0.0.0/8".parse().expect("a network")
}

fn guard() -> Vec<NftRule> {
    let from_pods = Match::In(Field::InputInterface, BRIDGES.to_owned());
    let comment = "127.0.0.1 is the host alone";
    vec![
        // Every packet of the host passes here: the match that fails most often is first.
        rule(
            comment,
            &[Match::Source(loopback4()), from_pods.clone()],
            Action::Verdict(Verdict::Drop),
        ),
        rule(
            comment,
            &[Match::Destination(loopback4()), from_pods],
            Action::Verdict(Verdict::Drop),
        ),
    ]
}

fn prerouting() -> Vec<NftRule> {
    let from_pods = Match::In(Field::InputInterface, BRIDGES.to_owned());
    let mark = rule("from pods of this host", &[from_pods], Action::Mark(FROM_POD));
    [not_local(), mark].into_iter().chain(forward()).collect()
}

fn output() -> Vec<NftRule> {
    let loopback6 = Match::Destination("::1/128".parse().expect("a network"));
    let comment = "the kernel carries ::1 nowhere";
    let refused = rule(comment, &[loopback6], Action::Verdict(Verdict::Return));
    [not_local(), refused].into_iter().chain(forward()).collect()
}

fn not_local() -> NftRule {
    rule("not for this host", &[Match::NotLocal], Action::Verdict(Verdict::Return))
}

fn forward() -> impl Iterator<Item = NftRule> {
    PortMap::ALL.into_iter().map(|map| {
        let key = [Field::Protocol, Field::DestinationPort];
        let (comment, key) = match map {
            PortMap::At(family) => {
                ("ports of one address", [&[Field::Destination(family)], &key[..]].concat())
            }
            PortMap::Any(_) => ("ports of every address", key.to_vec()),
        };
        rule(comment, &[], Action::Dnat(map.family(), key, map.name()))
    })
}

fn postrouting() -> Vec<NftRule> {
    let to_pods = Match::In(Field::OutputInterface, BRIDGES.to_owned());
    let pods = [to_pods.clone(), Match::Marked(FROM_POD)];
    vec![
        rule("pods to ports of their own host", &pods, Action::Masquerade),
        rule("127.0.0.1", &[to_pods, Match::Source(loopback4())], Action::Masquerade),
    ]
}

/// The rules of the table (`None`: missing or dormant) are those of [`ruleset`].
pub fn is_intact(found: Option<&Fingerprints>) -> bool {
    let wanted = ruleset().chains.into_iter().map(|chain| {
        (chain.name, chain.rules.iter().map(|rule| Some(rule.fingerprint())).collect())
    });
    found == Some(&wanted.gather())
}

/// The element for `claim`; `store` is the fingerprint of the store that the claim is in.
pub fn element(claim: &PortClaim, store: u64) -> PortElement {
    let (container_id, ifname) = (claim.container_id.as_str(), claim.ifname.as_str());
    let identity = LinkIdentity { network: &claim.network, container_id, ifname };
    PortElement {
        forward: claim.forward,
        comment: Some(identity.alias(claim.pod.as_deref())),
        mark: Some(PortMark { store, link: identity.host_ifname() }),
    }
}

/// One difference between the ports wanted and those found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPortChange {
    /// The table is missing, or its rules differ.
    Table,
    /// The bridge is missing in the set of bridges.
    Bridge(IfName),
    Add(PortElement),
    /// The element has another destination or owner.
    Replace(PortElement),
    /// The element has no claim.
    Remove(PortElement),
}

/// The changes that turn the elements and bridges found into those of `claims`, all of them of the
/// store with the fingerprint `store`. Elements of other stores, and foreign ones, stay and keep their
/// packets; so do those of `orphans`, the links of pods that run and that the store has lost.
pub fn changes(
    claims: &[PortClaim],
    store: u64,
    (found, bridges): (&[PortElement], &BTreeSet<IfName>),
    orphans: &BTreeSet<IfName>,
) -> Vec<HostPortChange> {
    let own = |found: &&PortElement| found.mark.as_ref().is_some_and(|mark| mark.store == store);
    let by_port: BTreeMap<HostPort, &PortElement> =
        found.iter().map(|found| (found.forward.from, found)).gather();
    let others = Others::of(found, store);
    let wanted: BTreeMap<HostPort, PortElement> =
        claims.iter().map(|claim| (claim.forward.from, element(claim, store))).gather();
    let needed = claims.iter().map(|claim| &claim.bridge);
    let needed: BTreeSet<&IfName> = needed.filter(|bridge| !bridges.contains(*bridge)).gather();
    let mut changes: Vec<HostPortChange> =
        needed.into_iter().cloned().map(HostPortChange::Bridge).collect();
    for (port, element) in &wanted {
        match by_port.get(port) {
            None if others.beside(port).is_some() => {}
            None => changes.push(HostPortChange::Add(element.clone())),
            Some(found) if is_same(element, found) || !own(found) => {}
            Some(_) => changes.push(HostPortChange::Replace(element.clone())),
        }
    }
    let is_orphan =
        |found: &&PortElement| found.mark.as_ref().is_some_and(|mark| orphans.contains(&mark.link));
    let gone = found.iter().filter(own).filter(|found| !wanted.contains_key(&found.forward.from));
    let gone = gone.filter(|found| !is_orphan(found));
    changes.extend(gone.cloned().map(HostPortChange::Remove));
    changes
}

/// The claimed ports whose packets elements of other stores, or foreign ones, get: each with such an element.
pub fn blocked(
    claims: &[PortClaim],
    store: u64,
    found: &[PortElement],
) -> Vec<(PortForward, PortElement)> {
    let own = |found: &&PortElement| found.mark.as_ref().is_some_and(|mark| mark.store == store);
    let present: BTreeSet<HostPort> =
        found.iter().filter(own).map(|found| found.forward.from).gather();
    let others = Others::of(found, store);
    let missing = claims.iter().filter(|claim| !present.contains(&claim.forward.from));
    let blocked = missing
        .filter_map(|claim| Some((claim.forward, others.beside(&claim.forward.from)?.clone())));
    blocked.collect()
}

/// The elements that are not this store's, by protocol and port.
struct Others<'f>(BTreeMap<(Protocol, u16), Vec<&'f PortElement>>);

impl<'f> Others<'f> {
    fn of(found: &'f [PortElement], store: u64) -> Others<'f> {
        let mut others: BTreeMap<_, Vec<&PortElement>> = BTreeMap::new();
        let is_own = |found: &PortElement| found.mark.as_ref().is_some_and(|m| m.store == store);
        for other in found.iter().filter(|found| !is_own(found)) {
            let HostPort { protocol, port, .. } = other.forward.from;
            others.entry((protocol, port)).or_default().push(other);
        }
        Others(others)
    }

    /// One of them that gets packets of `port`, or would lose packets to it.
    fn beside(&self, port: &HostPort) -> Option<&'f PortElement> {
        let same = self.0.get(&(port.protocol, port.port))?;
        same.iter().copied().find(|other| other.forward.from.overlaps(port))
    }
}

/// The removal of those of `found` that have a reserved port, whoever made them.
pub fn removals(reserved: &[ReservedPort], found: &[PortElement]) -> Vec<HostPortChange> {
    let is_reserved =
        |found: &&PortElement| reserved.iter().any(|port| port.covers(&found.forward.from));
    found.iter().filter(is_reserved).cloned().map(HostPortChange::Remove).collect()
}

fn is_same(element: &PortElement, found: &PortElement) -> bool {
    (element.forward, &element.mark) == (found.forward, &found.mark)
}

impl HostPortChange {
    /// The kernel's steps; none for the table itself.
    pub fn steps(&self) -> Vec<PortChange> {
        match self {
            HostPortChange::Table => Vec::new(),
            HostPortChange::Bridge(name) => vec![PortChange::Bridge(name.clone())],
            HostPortChange::Add(element) => vec![PortChange::Add(element.clone())],
            HostPortChange::Replace(element) => {
                vec![PortChange::Remove(element.forward.from), PortChange::Add(element.clone())]
            }
            HostPortChange::Remove(found) => vec![PortChange::Remove(found.forward.from)],
        }
    }
}

/// Why host ports do not lead where `forwards` say: the elements `found` that are missing or wrong.
pub fn mismatches(forwards: &[PortForward], found: &[PortElement]) -> Vec<String> {
    let mismatch =
        |forward: &PortForward| match found.iter().find(|found| found.forward.from == forward.from)
        {
            None => Some(format!("{forward}: missing in nftables table inet {TABLE}")),
            Some(found) if found.forward == *forward => None,
            Some(found) => Some(format!("{forward}: it leads to {}", found.forward.to)),
        };
    forwards.iter().filter_map(mismatch).collect()
}

#[cfg(test)]
mod tests;
