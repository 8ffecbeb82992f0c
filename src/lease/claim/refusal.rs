//! Pure. What keeps a host from claiming a subnet.

use crate::lease::choose;
use crate::lease::error::LeaseError;
use crate::lease::identity::Network;
use crate::lease::records::{Key, NodeName};
use crate::lease::snapshot::Snapshot;
use crate::net::subnet;

use crate::lease::claim::{Claimant, python, told};

/// Why `own` can claim nothing, if so.
pub fn of(found: &Snapshot, own: &Claimant) -> Option<LeaseError> {
    outside_pool(found, own)
        .or_else(|| config(found, &own.network))
        .or_else(|| held_by_other(found, own))
}

/// The settings of the network in etcd differ from this host's.
pub fn config(found: &Snapshot, network: &Network) -> Option<LeaseError> {
    let key = network.key(&Key::Config);
    if let Some(fault) = found.faults.get(key.as_str()) {
        return Some(LeaseError::ConfigBroken { key, reason: fault.what.clone() });
    }
    let (variable, theirs, ours) = found.config.as_ref()?.value.difference(&network.config(""))?;
    Some(LeaseError::ConfigMismatch { variable, theirs, ours, key })
}

/// A subnet that etcd has for this host is not in the pool, and it does not use another one.
fn outside_pool(found: &Snapshot, own: &Claimant) -> Option<LeaseError> {
    let pools = own.network.pools.entries().filter(|(family, _)| own.keep.get(*family).is_none());
    let mut told =
        pools.filter_map(|(family, pool)| Some((told(found, own, family)?, pool.network())));
    let ((key, subnet), pool) =
        told.find(|((_, subnet), pool)| !subnet::contains(*pool, *subnet))?;
    Some(LeaseError::OutsidePool { subnet, key: own.network.key(&key), pool })
}

/// The name is in use by another machine whose agent runs.
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

/// The pool is full.
pub fn exhausted(found: &Snapshot, own: &Claimant, full: choose::Full) -> LeaseError {
    let hosts = found.hosts.keys().filter(|host| **host != own.identity.name);
    let gone =
        |host: &&NodeName| !python::is_python(found, host) && !found.alive.contains_key(*host);
    let choose::Full { pool, slots, taken } = full;
    LeaseError::Exhausted { pool, slots, taken, dead: hosts.filter(gone).cloned().collect() }
}
