//! Pure. What this host must write so that its subnets are its own.

use std::time::SystemTime;

use ipnetwork::IpNetwork;

use super::choose;
use super::error::LeaseError;
use super::identity::{Attributes, Identity, Lease, Network, node_record};
use super::records::{Alive, Key, NodeName};
use super::snapshot::Snapshot;
use super::transaction::Transaction;
use crate::net::subnet;
use crate::net::{Family, PerFamily};

/// This host's side of the claim.
#[derive(Clone, Debug)]
pub struct Claimant {
    /// Who it is.
    pub identity: Identity,
    /// How the others reach it.
    pub attributes: Attributes,
    /// The network it is configured for.
    pub network: Network,
    /// Subnets that it uses and does not give up, whatever etcd says.
    pub keep: PerFamily<IpNetwork>,
    /// Subnets that it had once: taken again if etcd names none and they are free.
    pub remembered: PerFamily<IpNetwork>,
    /// A number that no other host has, once it was drawn.
    pub ticket: Option<i64>,
    /// Its sign of life was put, with the etcd lease that is kept alive now.
    pub shown: bool,
}

/// The next thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing: etcd says what it must.
    Held(Lease),
    /// This must be written, after which the lease is held.
    Write {
        /// What to write.
        transaction: Transaction,
        /// The lease then.
        lease: Lease,
        /// A subnet of it was chosen just now.
        fresh: bool,
    },
    /// Something must be written, but the sign of life must be put first: of two machines with one
    /// name only one can.
    ShowLife,
    /// A ticket must be drawn.
    Draw,
    /// It cannot be.
    Refused(LeaseError),
}

/// What `own` must do next, given that etcd holds `found` (with the settings of the network).
///
/// A subnet is, in this order: the one this host uses; the one etcd has for it; the one it claims;
/// the one it remembers; a free one. One that another host claims is none of these.
pub fn next(found: &Snapshot, own: &Claimant) -> Step {
    let refusal = outside_pool(found, own)
        .or_else(|| config_refusal(found, &own.network))
        .or_else(|| holder_refusal(found, own));
    if let Some(refusal) = refusal {
        return Step::Refused(refusal);
    }
    let mut lease = Lease::default();
    let mut fresh = false;
    for (family, pool) in own.network.pools.entries() {
        let subnet = match standing(found, own, family) {
            Ok(Some(subnet)) => subnet,
            Ok(None) => {
                if !shown(found, own) {
                    return Step::ShowLife;
                }
                let Some(ticket) = own.ticket else { return Step::Draw };
                fresh = true;
                match choose::next_free(pool, ticket, taken(found, &own.identity.name)) {
                    Ok(subnet) => subnet,
                    Err(full) => return Step::Refused(exhausted(found, own, full)),
                }
            }
            Err(refusal) => return Step::Refused(refusal),
        };
        lease.subnets.set(family, Some(subnet));
    }
    match write(found, own, &lease) {
        Some(_) if !shown(found, own) => Step::ShowLife,
        Some(transaction) => Step::Write { transaction, lease, fresh },
        None => Step::Held(lease),
    }
}

/// What puts this host's sign of life, which goes with the etcd lease `lease`, if nobody else's
/// appeared since.
pub fn show_life(found: &Snapshot, own: &Claimant, since: SystemTime, lease: i64) -> Transaction {
    let key = Key::Alive(own.identity.name.clone());
    let text = own.network.key(&key);
    let alive = Alive::new(&own.identity.machine_id, since);
    let mut transaction = Transaction::default();
    transaction.unchanged(&text, found.modified(&own.network.roots, &key));
    transaction.put_with_lease(text, alive.to_json(), lease);
    transaction
}

fn shown(found: &Snapshot, own: &Claimant) -> bool {
    own.shown && found.alive.contains_key(&own.identity.name)
}

/// What gives `lease` back: deletes this host's keys, if they are as `found`.
pub fn release(found: &Snapshot, own: &Claimant, lease: &Lease) -> Transaction {
    let name = &own.identity.name;
    let mut transaction = Transaction::default();
    let claims = lease.subnets.iter().map(|subnet| Key::Claim(*subnet));
    for key in claims.chain([Key::Host(name.clone()), Key::Node(name.clone())]) {
        let text = own.network.key(&key);
        transaction.unchanged(&text, found.modified(&own.network.roots, &key));
        transaction.delete(text);
    }
    transaction
}

/// Another host, of the Python agent, that has one of the subnets of `lease`.
///
/// It takes its number and writes its key in two steps without looking, so it can take a subnet
/// that this host claimed in between; and it never gives way.
pub fn taken_by_python(found: &Snapshot, own: &NodeName, lease: &Lease) -> Option<NodeName> {
    let others = found.hosts.iter().filter(|(host, _)| *host != own && is_python(found, host));
    let mut overlapping = others.filter(|(_, stored)| {
        lease.subnets.iter().any(|subnet| subnet::overlap(*subnet, stored.value))
    });
    overlapping.next().map(|(host, _)| host.clone())
}

/// Some host runs the Python agent.
pub fn has_python_hosts(found: &Snapshot) -> bool {
    found.hosts.keys().any(|host| is_python(found, host))
}

fn is_python(found: &Snapshot, host: &NodeName) -> bool {
    !found.nodes.contains_key(host)
}

/// The settings of the network in etcd differ from this host's.
pub fn config_refusal(found: &Snapshot, network: &Network) -> Option<LeaseError> {
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
fn holder_refusal(found: &Snapshot, own: &Claimant) -> Option<LeaseError> {
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

/// The subnet of `family` that this host already has a right to.
fn standing(
    found: &Snapshot,
    own: &Claimant,
    family: Family,
) -> Result<Option<IpNetwork>, LeaseError> {
    let name = &own.identity.name;
    if let Some(subnet) = own.keep.get(family).copied() {
        return match owner(found, name, subnet) {
            Some(owner) => Err(LeaseError::SubnetLost { subnet, owner }),
            None => Ok(Some(subnet)),
        };
    }
    let pool = own.network.pools.get(family).map(|pool| pool.network());
    let usable = |subnet: &IpNetwork| {
        pool.is_some_and(|pool| subnet::contains(pool, *subnet))
            && owner(found, name, *subnet).is_none()
    };
    let told = told(found, own, family).map(|(_, subnet)| subnet);
    let claims = found.claims.iter().filter(|(_, claim)| claim.value == *name);
    let claimed = claims.map(|(subnet, _)| *subnet).filter(|s| subnet::family(*s) == family);
    let remembered = own.remembered.get(family).copied();
    Ok(told.into_iter().chain(claimed).chain(remembered).find(usable))
}

/// The subnet of `family` that etcd has for this host, and the key that says so.
fn told(found: &Snapshot, own: &Claimant, family: Family) -> Option<(Key, IpNetwork)> {
    let name = &own.identity.name;
    let host = found.hosts.get(name).map(|stored| stored.value);
    if let Some(subnet) = host.filter(|subnet| subnet::family(*subnet) == family) {
        return Some((Key::Host(name.clone()), subnet));
    }
    let node = found.nodes.get(name)?;
    node.value.subnets.get(family).map(|subnet| (Key::Node(name.clone()), *subnet))
}

/// The other host that has a right to (a part of) `subnet`: who claims it; or whose key says it,
/// unless this host's key says the same and nobody claimed it.
fn owner(found: &Snapshot, own: &NodeName, subnet: IpNetwork) -> Option<NodeName> {
    let mut claims = found.claims.iter();
    let claim = claims.find(|(claimed, by)| by.value != *own && subnet::overlap(**claimed, subnet));
    if let Some((_, by)) = claim {
        return Some(by.value.clone());
    }
    let ours = found.claims.get(&subnet).is_some_and(|claim| claim.value == *own)
        || found.hosts.get(own).is_some_and(|stored| stored.value == subnet);
    let mut hosts = found.hosts.iter();
    let host = hosts.find(|(host, stored)| *host != own && subnet::overlap(stored.value, subnet));
    host.filter(|_| !ours).map(|(host, _)| host.clone())
}

/// What other hosts have or claim.
fn taken<'a>(found: &'a Snapshot, own: &'a NodeName) -> impl Iterator<Item = IpNetwork> + 'a {
    let hosts = found.hosts.iter().filter(move |(host, _)| *host != own);
    let claims = found.claims.iter().filter(move |(_, claim)| claim.value != *own);
    let told = found.nodes.iter().filter(move |(host, _)| *host != own);
    hosts.map(|(_, stored)| stored.value).chain(claims.map(|(claimed, _)| *claimed)).chain(
        told.flat_map(|(_, node)| node.value.subnets.v4.into_iter().chain(node.value.subnets.v6)),
    )
}

fn exhausted(found: &Snapshot, own: &Claimant, full: choose::Full) -> LeaseError {
    let hosts = found.hosts.keys().filter(|host| **host != own.identity.name);
    let gone = |host: &&NodeName| !is_python(found, host) && !found.alive.contains_key(*host);
    let choose::Full { pool, slots, taken } = full;
    LeaseError::Exhausted { pool, slots, taken, dead: hosts.filter(gone).cloned().collect() }
}

/// What makes etcd say that this host holds `lease`; `None` if it does.
///
/// Nothing is written unless this host's keys, its sign of life and the settings of the network are
/// as they were read; and no subnet is claimed if any host or claim changed since.
fn write(found: &Snapshot, own: &Claimant, lease: &Lease) -> Option<Transaction> {
    let name = &own.identity.name;
    let network = &own.network;
    let mut transaction = Transaction::default();
    let mut wanted = Vec::new();
    let text = lease.subnets.iter().next()?;
    let host = found.hosts.get(name).map(|stored| stored.value);
    wanted.push((Key::Host(name.clone()), (host != Some(*text)).then(|| text.to_string())));
    let mut claiming = host != Some(*text);
    for subnet in lease.subnets.iter() {
        let held = found.claims.get(subnet).is_some_and(|claim| claim.value == *name);
        claiming |= !held;
        wanted.push((Key::Claim(*subnet), (!held).then(|| name.to_string())));
    }
    let node = node_record(&own.identity, &own.attributes, lease);
    let same = found.nodes.get(name).is_some_and(|stored| *stored.value == node);
    wanted.push((Key::Node(name.clone()), (!same).then(|| node.to_json())));
    for (key, value) in wanted {
        transaction.unchanged(network.key(&key), found.modified(&network.roots, &key));
        if let Some(value) = value {
            transaction.put(network.key(&key), value);
        }
    }
    for (subnet, claim) in found.claims.iter() {
        if claim.value == *name && !lease.subnets.iter().any(|held| held == subnet) {
            transaction.unchanged(network.key(&Key::Claim(*subnet)), claim.modified);
            transaction.delete(network.key(&Key::Claim(*subnet)));
        }
    }
    for key in [Key::Config, Key::Alive(name.clone())] {
        transaction.unchanged(network.key(&key), found.modified(&network.roots, &key));
    }
    if claiming {
        transaction.range_unchanged(network.roots.hosts_range(), found.revision);
        transaction.range_unchanged(network.roots.claims_range(), found.revision);
    }
    (!transaction.writes.is_empty()).then_some(transaction)
}
