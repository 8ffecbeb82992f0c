//! Pure. Which host owns which subnet, by the keys in etcd.

use ipnetwork::IpNetwork;

use crate::lease::choose;
use crate::lease::identity::Claimant;
use crate::lease::records::{Key, NodeName, NodeRecord};
use crate::lease::right::right;
use crate::lease::snapshot::Snapshot;
use crate::net::subnet::{self, Pool};
use crate::net::{Family, PerFamily};

/// The subnet of `family` recorded for this host, and the key that holds it.
pub fn recorded(found: &Snapshot, own: &Claimant, family: Family) -> Option<(Key, IpNetwork)> {
    let name = &own.identity.name;
    let host = found.hosts.get(name).map(|stored| stored.value);
    if let Some(subnet) = host.filter(|subnet| subnet::family(*subnet) == family) {
        return Some((Key::Host(name.clone()), subnet));
    }
    let node = found.nodes.get(name)?;
    node.value.subnets.get(family).map(|subnet| (Key::Node(name.clone()), *subnet))
}

/// The other host that owns `subnet` or a part of it.
///
/// If none of this host's keys holds the subnet: any host that has or claims it. If one does (a claim alone,
/// which others may have written over, too): a host that has it by an earlier [right], and claims it, if this host
/// uses or remembers it; neither a claim alone nor a later write takes it away. Subnets that
/// [no host can have](choose::possible) do not count.
pub fn owner(found: &Snapshot, own: &Claimant, subnet: IpNetwork) -> Option<NodeName> {
    let pools = &own.network.pools;
    let is_used = own.keep.iter().chain(own.remembered.iter()).any(|used| *used == subnet);
    let own = &own.identity.name;
    let possible = |theirs: IpNetwork| {
        subnet::overlap(theirs, subnet) && pools.iter().any(|pool| choose::possible(pool, theirs))
    };
    let ours = right(found, own, subnet);
    let precedes = |host: &NodeName, theirs: IpNetwork| {
        ours.is_none_or(|ours| right(found, host, theirs).is_some_and(|theirs| theirs < ours))
    };
    let had = |host: &NodeName| subnets_of(found, host).find(|theirs| possible(*theirs));
    let has_better = |host: &NodeName| had(host).is_some_and(|theirs| precedes(host, theirs));
    let mut claims = found.claims.iter();
    let claim = claims.find(|(theirs, claim)| {
        claim.value != *own && possible(**theirs) && (ours.is_none() || has_better(&claim.value))
    });
    if let Some((_, claim)) = claim {
        return Some(claim.value.clone());
    }
    // What proved its right may be gone: a key overwritten with garbage shows no creation.
    if ours.is_some() && is_used {
        return None;
    }
    // The same subnet takes no more slots than it has, however many those are.
    let counts = |theirs: IpNetwork| theirs == subnet || is_slot(pools, theirs);
    let mut had = recorded_subnets(found).filter(|(host, theirs)| {
        *host != own && possible(*theirs) && counts(*theirs) && precedes(host, *theirs)
    });
    had.next().map(|(host, _)| host.clone())
}

/// The subnets recorded for a host.
fn subnets_of<'a>(found: &'a Snapshot, host: &NodeName) -> impl Iterator<Item = IpNetwork> + 'a {
    let key = found.hosts.get(host).map(|stored| stored.value);
    let recorded = found.nodes.get(host).into_iter();
    key.into_iter().chain(recorded.flat_map(|node| node.value.subnets.iter().copied()))
}

/// Another host than `own` has `subnet` in its host key or its node record.
pub fn is_of_another(found: &Snapshot, own: &NodeName, subnet: IpNetwork) -> bool {
    let key = found.hosts.iter().filter(|(_, stored)| stored.value == subnet).map(|(host, _)| host);
    let has = |node: &NodeRecord| node.subnets.iter().any(|had| *had == subnet);
    let node = found.nodes.iter().filter(|(_, stored)| has(&stored.value)).map(|(host, _)| host);
    key.chain(node).any(|host| host != own)
}

/// The hosts and the subnets in their keys that count without a claim: those that lie in
/// one slot. A host writes these keys itself, and a wider subnet would take many slots from the others.
pub fn unclaimed<'a>(
    found: &'a Snapshot,
    pools: &'a PerFamily<Pool>,
) -> impl Iterator<Item = (&'a NodeName, IpNetwork)> {
    recorded_subnets(found).filter(|(_, subnet)| is_slot(pools, *subnet))
}

/// The subnets recorded for all hosts.
fn recorded_subnets(found: &Snapshot) -> impl Iterator<Item = (&NodeName, IpNetwork)> {
    let hosts = found.hosts.iter().map(|(host, stored)| (host, stored.value));
    let recorded = found
        .nodes
        .iter()
        .flat_map(|(host, node)| node.value.subnets.iter().map(move |subnet| (host, *subnet)));
    hosts.chain(recorded)
}

/// `subnet` lies in one slot of a pool.
pub fn is_slot(pools: &PerFamily<Pool>, subnet: IpNetwork) -> bool {
    let pool = pools.get(subnet::family(subnet));
    let pool = pool.filter(|pool| choose::possible(pool, subnet));
    pool.and_then(|pool| pool.slots_of(subnet)).is_some_and(|(first, last)| first == last)
}

/// What other hosts have or claim.
pub fn taken<'a>(found: &'a Snapshot, own: &'a Claimant) -> impl Iterator<Item = IpNetwork> + 'a {
    let name = &own.identity.name;
    let had = unclaimed(found, &own.network.pools).filter(move |(host, _)| *host != name);
    let claims = found.claims.iter().filter(move |(_, claim)| claim.value != *name);
    had.map(|(_, subnet)| subnet).chain(claims.map(|(claimed, _)| *claimed))
}
