//! Pure. The other hosts of the network, with invalid and conflicting data left out.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::lease::choose;
use crate::lease::key_owners;
use crate::lease::records::{Backend, NO_GROUP, NodeName, NodeRecord, Tunnel, WireguardEnd};
use crate::lease::right::{Evidence, Right};
use crate::lease::snapshot::{Snapshot, Stored};
use crate::net::problem::capped;
use crate::net::subnet::{self, Pool};
use crate::net::{Family, PerFamily, Problem, ProblemKind, PublicKey};

pub use fault::PeerFault;

mod fault;

/// Another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its pod subnets: at least one, inside the pool, without overlaps.
    pub subnets: PerFamily<IpNetwork>,
    /// Its blocks of tenants' networks, as [`crate::lease::blocks`] has decided.
    pub blocks: Vec<IpNetwork>,
    /// Its node addresses. None for a host of the Python agent: its name must be resolved.
    pub addresses: PerFamily<IpAddr>,
    pub backend: Backend,
    pub tunnel: Option<Tunnel>,
    /// Its key is no other host's.
    pub wireguard: Option<WireguardEnd>,
    /// Longest packet to it in bytes, as it published.
    pub mtu: Option<u32>,
    /// It has a subnet but no node record: a host of the Python agent.
    pub python: bool,
    /// Its agent runs. For display; no route depends on it.
    pub alive: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peers {
    pub by_name: BTreeMap<NodeName, Peer>,
    pub faults: Vec<PeerFault>,
}

/// Hosts with another group that are listed; further ones are counted.
const GROUPS: usize = 8;

/// Faults that become problems.
const PROBLEMS: usize = 50;

impl Peers {
    /// Gives each host its `blocks`.
    pub fn set_blocks(&mut self, blocks: &BTreeMap<NodeName, Vec<IpNetwork>>) {
        for (host, peer) in &mut self.by_name {
            peer.blocks = blocks.get(host).cloned().unwrap_or_default();
        }
    }

    /// The faults, of many of them the first.
    pub fn problems(&self) -> Vec<Problem> {
        let problems = self.faults.iter().map(PeerFault::problem);
        let all = "humanz-agent nodes ls # lists all";
        capped(problems, PROBLEMS, ProblemKind::OtherHost, "further records of hosts", all)
    }
}

/// The hosts of `snapshot` other than `own`, and what was ignored.
///
/// `own_subnets`: the subnets this host uses; no other host can have them. `pools`: the pool of each
/// family in use. Where two other hosts overlap, the one with the better [`Right`] wins: the same one on
/// every host. A fault affects only its host.
pub fn peers(
    snapshot: &Snapshot,
    own: &NodeName,
    own_subnets: &PerFamily<IpNetwork>,
    pools: &PerFamily<Pool>,
) -> Peers {
    let own_addresses = snapshot.nodes.get(own).map(|node| node.value.addresses);
    let mut candidates = candidates(snapshot, own);
    let given = snapshot.nodes.get(own).map(|node| node.value.subnets).unwrap_or_default();
    candidates.retain(|it| !is_unused(it.subnet, &given, pools));
    let (accepted, mut faults) = judge(&candidates, own, own_subnets, pools);
    faults.extend(foreign_claims(&candidates, &accepted));
    let mut by_name = accepted_peers(&candidates, &accepted);
    for (host, peer) in &mut by_name {
        for family in Family::BOTH {
            let Some(address) = peer.addresses.get(family).copied() else { continue };
            if let Err(reason) = next_hop(address, pools, &own_addresses.unwrap_or_default()) {
                peer.addresses.set(family, None);
                faults.push(PeerFault::Address { host: host.clone(), address, reason });
            }
        }
    }
    let mut by_name: BTreeMap<_, _> = by_name.into_iter().collect();
    faults.extend(shared_addresses(&by_name, snapshot));
    faults.extend(shared_keys(&mut by_name, own, snapshot));
    faults.extend(other_groups(&by_name, own, snapshot));
    Peers { by_name, faults }
}

fn accepted_peers(candidates: &[Candidate<'_>], accepted: &[bool]) -> Vec<(NodeName, Peer)> {
    let mut by_name: Vec<(NodeName, Peer)> = Vec::with_capacity(candidates.len());
    for (candidate, _) in candidates.iter().zip(accepted).filter(|(_, accepted)| **accepted) {
        if by_name.last().is_none_or(|(host, _)| host != candidate.host) {
            by_name.push((candidate.host.clone(), Peer::of(candidate)));
        }
        if let Some((_, peer)) = by_name.last_mut() {
            peer.subnets.set(subnet::family(candidate.subnet), Some(candidate.subnet));
        }
    }
    by_name
}

/// Claims of accepted subnets that name another host than the owner.
fn foreign_claims<'a>(
    candidates: &'a [Candidate<'a>],
    accepted: &'a [bool],
) -> impl Iterator<Item = PeerFault> + 'a {
    let owned = candidates.iter().zip(accepted).filter(|(_, accepted)| **accepted);
    owned.filter_map(|(candidate, _)| {
        let claim = candidate.claim.filter(|claim| claim.value != *candidate.host)?;
        Some(PeerFault::Claim {
            subnet: candidate.subnet,
            claimant: claim.value.clone(),
            modified: claim.modified,
            owner: candidate.host.clone(),
            since: candidate.right.since,
        })
    })
}

/// Addresses that two hosts have.
fn shared_addresses(by_name: &BTreeMap<NodeName, Peer>, found: &Snapshot) -> Vec<PeerFault> {
    let mut owners: HashMap<IpAddr, &NodeName> = HashMap::with_capacity(by_name.len());
    let mut faults = Vec::new();
    let modified = |host: &NodeName| found.nodes.get(host).map_or(0, |node| node.modified);
    for (host, peer) in by_name {
        for address in peer.addresses.iter().copied() {
            let Some(first) = owners.insert(address, host) else { continue };
            let (host, other) =
                if modified(first) > modified(host) { (first, host) } else { (host, first) };
            owners.insert(address, other);
            let alive = found.alive.contains_key(other);
            let (host, other) = (host.clone(), other.clone());
            faults.push(PeerFault::SharedAddress { host, address, other, alive });
        }
    }
    faults
}

/// Takes keys from all hosts but their owners: a key that is two hosts' would lead the packets for one to the
/// other.
fn shared_keys(
    by_name: &mut BTreeMap<NodeName, Peer>,
    own: &NodeName,
    found: &Snapshot,
) -> Vec<PeerFault> {
    let owners = key_owners::owners(found);
    let of_peers = by_name.iter().filter_map(|(host, peer)| Some((host, peer.wireguard?)));
    let of_own = found.nodes.get(own).and_then(|node| Some((own, node.value.wireguard?)));
    let published = of_peers.chain(of_own);
    let published = published.flat_map(|(host, end)| end.keys().map(move |key| (host, key)));
    let claimed = found.wireguard_keys.iter();
    let claimed = claimed.flat_map(|(host, claim)| claim.value.keys().map(move |key| (host, key)));
    let uses: BTreeSet<(PublicKey, NodeName)> = published
        .chain(claimed)
        .filter(|(host, key)| owners.get(key) != Some(host))
        .map(|(host, key)| (key, host.clone()))
        .collect();
    let mut faults = Vec::new();
    for (key, host) in uses {
        let Some(owner) = owners.get(&key).map(|owner| (*owner).clone()) else { continue };
        // This host cannot send to its own key.
        let refused = if host == *own { &owner } else { &host };
        if let Some(peer) = by_name.get_mut(refused) {
            peer.wireguard = peer.wireguard.and_then(|end| without(end, key));
        }
        let alive = found.alive.contains_key(&owner);
        let is_own = of_own.is_some_and(|(_, end)| end.keys().any(|own| own == key));
        faults.push(PeerFault::SharedKey { host, owner, alive, is_own });
    }
    let is_claimed = |end: WireguardEnd| {
        let claim = found.wireguard_keys.get(own);
        claim.is_some_and(|claim| claim.value.covers(end))
    };
    if of_own.is_some_and(|(_, end)| !is_claimed(end)) {
        faults.push(PeerFault::UnclaimedKey { own: own.clone() });
    }
    faults
}

/// The hosts that put pods into another group than this one does, where nothing else says it.
fn other_groups(
    by_name: &BTreeMap<NodeName, Peer>,
    own: &NodeName,
    found: &Snapshot,
) -> Option<PeerFault> {
    let here = &*found.nodes.get(own)?.value.policy_group;
    let shown = |group: &str| if group == NO_GROUP { "not set" } else { group }.to_owned();
    let mut nodes = beside(&found.nodes);
    // Of one that is gone the record says what was.
    let alive = by_name.iter().filter(|(_, peer)| peer.alive);
    let of_hosts = alive.filter_map(|(host, _)| Some((host, &*nodes(host)?.value.policy_group)));
    let mut others = of_hosts.filter(|(_, group)| !group.is_empty() && *group != here);
    let on = |(host, group): (&NodeName, &str)| format!("{} on host {host}", shown(group));
    let listed: Vec<String> = others.by_ref().take(GROUPS).map(on).collect();
    if here.is_empty() || listed.is_empty() {
        return None;
    }
    let others = match others.count() {
        0 => listed.join(", "),
        more => format!("{} (and on {more} more)", listed.join(", ")),
    };
    Some(PeerFault::Group { here: shown(here), others })
}

/// What is left of an end without a key that is another host's: one that changes keys has two.
fn without(end: WireguardEnd, refused: PublicKey) -> Option<WireguardEnd> {
    let next = end.next.filter(|next| *next != refused);
    if end.public_key != refused {
        return Some(WireguardEnd { next, ..end });
    }
    next.map(|key| WireguardEnd { public_key: key, next, ..end })
}

impl Peer {
    /// Where its pods have their addresses.
    pub fn pod_subnets(&self) -> impl Iterator<Item = IpNetwork> + Clone {
        self.subnets.iter().chain(&self.blocks).copied()
    }

    fn of(candidate: &Candidate<'_>) -> Peer {
        let node = candidate.node;
        Peer {
            subnets: PerFamily::default(),
            blocks: Vec::new(),
            addresses: node.map_or_else(PerFamily::default, |node| node.addresses),
            backend: node.map_or_else(Backend::default, |node| node.backend.clone()),
            tunnel: node.and_then(|node| node.tunnel),
            wireguard: node.and_then(|node| node.wireguard),
            mtu: node.and_then(|node| node.known_mtu()),
            python: node.is_none(),
            alive: candidate.alive,
        }
    }
}

/// A subnet of a host.
struct Candidate<'a> {
    host: &'a NodeName,
    subnet: IpNetwork,
    node: Option<&'a NodeRecord>,
    /// The claim of the subnet, whichever host it names.
    claim: Option<&'a Stored<NodeName>>,
    right: Right,
    alive: bool,
}

/// All subnets of other hosts, by host.
fn candidates<'a>(snapshot: &'a Snapshot, own: &NodeName) -> Vec<Candidate<'a>> {
    let mut candidates = Vec::with_capacity(snapshot.hosts.len());
    let (mut nodes, mut alive) = (beside(&snapshot.nodes), beside(&snapshot.alive));
    for (host, stored) in snapshot.hosts.iter().filter(|(host, _)| *host != own) {
        let node = nodes(host);
        let alive = alive(host).is_some();
        for subnet in wanted(stored, node.map(|node| &*node.value)) {
            let claim = snapshot.claims.get(&subnet);
            let evidence = Evidence { host: Some(stored), node, claim };
            let Some(right) = evidence.right(host, subnet) else { continue };
            let node = node.map(|node| &*node.value);
            candidates.push(Candidate { host, subnet, node, claim, right, alive });
        }
    }
    candidates
}

/// Looks up names in ascending order, without a search for each.
fn beside<'a, V>(map: &'a BTreeMap<NodeName, V>) -> impl FnMut(&NodeName) -> Option<&'a V> {
    let mut rest = map.iter().peekable();
    move |name| {
        while rest.next_if(|(other, _)| *other < name).is_some() {}
        rest.next_if(|(other, _)| *other == name).map(|(_, value)| value)
    }
}

/// Which of the candidates are accepted, and why others are not; those with the better right first.
fn judge(
    candidates: &[Candidate<'_>],
    own: &NodeName,
    own_subnets: &PerFamily<IpNetwork>,
    pools: &PerFamily<Pool>,
) -> (Vec<bool>, Vec<PeerFault>) {
    let mut owners = Owners::default();
    for subnet in own_subnets.iter() {
        owners.by_first.insert(subnet.network(), (*subnet, own.clone()));
    }
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    // Stable: of two with the same right the first by name.
    order.sort_by_key(|place| candidates[*place].right);
    let mut accepted = vec![false; candidates.len()];
    let mut faults = Vec::new();
    for place in order {
        match accept(&candidates[place], own, pools, &mut owners) {
            Ok(()) => accepted[place] = true,
            Err(fault) => faults.push(fault),
        }
    }
    (accepted, faults)
}

/// The subnets of a host: the one of its host key, and the one of the other family in its record.
fn wanted(
    stored: &Stored<IpNetwork>,
    node: Option<&NodeRecord>,
) -> impl Iterator<Item = IpNetwork> {
    let family = subnet::family(stored.value);
    let recorded = node.map(|node| node.subnets).unwrap_or_default();
    let others = Family::BOTH.into_iter().filter(move |other| *other != family);
    std::iter::once(stored.value)
        .chain(others.filter_map(move |other| recorded.get(other).copied()))
}

/// Nodes of a dual-stack cluster have subnets of both families, also where pods get addresses of one alone: the node of
/// this host has those `given`.
fn is_unused(subnet: IpNetwork, given: &PerFamily<IpNetwork>, pools: &PerFamily<Pool>) -> bool {
    let family = subnet::family(subnet);
    given.get(family).is_some() && pools.get(family).is_none()
}

fn accept(
    candidate: &Candidate<'_>,
    own: &NodeName,
    pools: &PerFamily<Pool>,
    owners: &mut Owners,
) -> Result<(), PeerFault> {
    let (host, subnet) = (candidate.host.clone(), candidate.subnet);
    let pool = pools.get(subnet::family(subnet));
    if !pool.is_some_and(|pool| choose::possible(pool, subnet)) {
        let pool = pool.map_or_else(|| "(none)".to_owned(), |pool| pool.network().to_string());
        return Err(PeerFault::OutsidePool { host, subnet, pool });
    }
    if let Some((theirs, owner)) = owners.overlapping(subnet) {
        let ours = owner == *own;
        return Err(PeerFault::Overlap { host, subnet, owner, theirs, ours });
    }
    owners.by_first.insert(subnet.network(), (subnet, host));
    Ok(())
}

/// Subnets that do not overlap, by first address, with their owners.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Owners {
    pub(super) by_first: BTreeMap<IpAddr, (IpNetwork, NodeName)>,
}

impl Owners {
    /// One that overlaps `subnet`: of those that start at or before its last address the latest
    /// one reaches furthest, because they do not overlap each other.
    pub(super) fn overlapping(&self, subnet: IpNetwork) -> Option<(IpNetwork, NodeName)> {
        let up_to_last = self.by_first.range(..=subnet::last(subnet));
        let (_, (theirs, owner)) = up_to_last.last()?;
        subnet::overlap(*theirs, subnet).then(|| (*theirs, owner.clone()))
    }

    /// All that overlap `range`, in the order of their addresses: at most one of them starts before it.
    pub(super) fn touching(&self, range: IpNetwork) -> impl Iterator<Item = IpNetwork> {
        let before = self.by_first.range(..range.network()).next_back();
        let within = self.by_first.range(range.network()..=subnet::last(range));
        let all = before.into_iter().chain(within).map(|(_, (theirs, _))| *theirs);
        all.filter(move |theirs| subnet::overlap(*theirs, range))
    }
}

/// Whether `address` can be the next hop to another host.
fn next_hop(
    address: IpAddr,
    pools: &PerFamily<Pool>,
    own: &PerFamily<IpAddr>,
) -> Result<(), &'static str> {
    let family = Family::of(address);
    if own.get(family) == Some(&address) {
        return Err("it is this host's own; is NODE_IP right on both hosts?");
    }
    if pools.get(family).is_some_and(|pool| pool.network().contains(address)) {
        return Err("it lies inside the pool of pod addresses");
    }
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if link_local || address.is_unspecified() || address.is_loopback() || address.is_multicast() {
        return Err("it is not an address by which other hosts reach a host");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
