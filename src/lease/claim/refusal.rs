//! Pure. Why a host cannot claim a subnet.

use ipnetwork::IpNetwork;

use crate::lease::choose;
use crate::lease::claim::owners::recorded;
use crate::lease::claim::python;
use crate::lease::error::LeaseError;
use crate::lease::identity::{Claimant, Network};
use crate::lease::records::{Key, NodeName};
use crate::lease::right::right;
use crate::lease::snapshot::Snapshot;
use crate::net::subnet;

/// Whether `own` can claim anything.
pub fn check(found: &Snapshot, own: &Claimant) -> Result<(), LeaseError> {
    let refusal = outside_pool(found, own)
        .or_else(|| config(found, &own.network))
        .or_else(|| held_by_other(found, own));
    refusal.map_or(Ok(()), Err)
}

/// The network settings in etcd differ from this host's, and none from before are kept.
pub fn config(found: &Snapshot, network: &Network) -> Option<LeaseError> {
    let key = network.key(&Key::Config);
    if let Some(fault) = found.faults.get(key.as_str()).filter(|_| found.config.is_none()) {
        return Some(LeaseError::ConfigBroken { key, reason: fault.what.clone() });
    }
    let (variable, theirs, ours) = found.config.as_ref()?.value.difference(&network.config(""))?;
    Some(LeaseError::ConfigMismatch { variable, theirs, ours, key })
}

/// A subnet recorded for this host is outside the pool, and the host uses neither it nor another one, nor has it
/// another one by its other keys: somebody overwrote the first. It may use one that lies in a part by which the
/// network's pool grew beyond the limit of this host.
fn outside_pool(found: &Snapshot, own: &Claimant) -> Option<LeaseError> {
    let pools = own.network.pools.entries().filter(|(family, _)| own.keep.get(*family).is_none());
    let mut subnets =
        pools.filter_map(|(family, pool)| Some((recorded(found, own, family)?, pool.network())));
    let ((key, subnet), pool) = subnets.find(|((_, subnet), pool)| {
        let is_inside = |subnet: IpNetwork| subnet::contains(*pool, subnet);
        let has_another = || others(found, own).any(is_inside);
        !is_served(found, own, *subnet) && !is_inside(*subnet) && !has_another()
    })?;
    Some(LeaseError::OutsidePool { subnet, key: own.network.key(&key), pool })
}

/// The subnets that this host claims, and those it remembers and has a right to.
fn others<'a>(found: &'a Snapshot, own: &'a Claimant) -> impl Iterator<Item = IpNetwork> + 'a {
    let name = &own.identity.name;
    let claims = found.claims.iter().filter(move |(_, claim)| claim.value == *name);
    let remembered = own.remembered.iter().copied();
    let remembered = remembered.filter(move |subnet| right(found, name, *subnet).is_some());
    claims.map(|(subnet, _)| *subnet).chain(remembered)
}

/// `subnet` is recorded for this host and claimed by it, and an earlier run of its agent served it.
pub fn is_served(found: &Snapshot, own: &Claimant, subnet: IpNetwork) -> bool {
    let family = subnet::family(subnet);
    let recorded = recorded(found, own, family).map(|(_, subnet)| subnet);
    let claim = found.claims.get(&subnet);
    recorded == Some(subnet)
        && own.remembered.get(family) == Some(&subnet)
        && claim.is_some_and(|claim| claim.value == own.identity.name)
}

/// Another machine uses the name, and its agent runs.
pub fn held_by_other(found: &Snapshot, own: &Claimant) -> Option<LeaseError> {
    let host = own.identity.name.clone();
    let alive = &found.alive.get(&host)?.value;
    let node = found.nodes.get(&host);
    let addresses = node.map(|node| node.value.addresses).unwrap_or_default();
    (*alive.machine_id != own.identity.machine_id).then(|| LeaseError::HeldByOther {
        host,
        machine_id: alive.machine_id.to_string(),
        addresses,
        since: alive.since.to_string(),
    })
}

pub fn exhausted(found: &Snapshot, own: &Claimant, full: choose::Full) -> LeaseError {
    let hosts = found.hosts.keys().filter(|host| **host != own.identity.name);
    let roots = &own.network.roots;
    let dead = |host: &&NodeName| {
        !python::is_python(found, roots, host) && !found.alive.contains_key(*host)
    };
    let choose::Full { pool, slots, taken } = full;
    LeaseError::Exhausted { pool, slots, taken, dead: hosts.filter(dead).cloned().collect() }
}
