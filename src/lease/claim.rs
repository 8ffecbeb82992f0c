//! Pure. What this host must write so that its subnets are its own.

pub mod leave;
pub mod python;
pub mod refusal;
#[cfg(test)]
mod tests;

use std::time::SystemTime;

use ipnetwork::IpNetwork;

use crate::lease::choose;
use crate::lease::error::LeaseError;
use crate::lease::growth;
use crate::lease::identity::{Attributes, Identity, Lease, Network, node_record};
use crate::lease::records::{Alive, Key, NodeName};
use crate::lease::snapshot::Snapshot;
use crate::lease::transaction::Transaction;
use crate::net::subnet::{self, Pool};
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
    /// The network's pool is narrower than this host's: this must be written first.
    Grow(Transaction),
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
    if let Some(refusal) = refusal::of(found, own) {
        return Step::Refused(refusal);
    }
    match growth::of(found, &own.network) {
        Ok(Some(growth)) => return Step::Grow(growth),
        Ok(None) => {}
        Err(refusal) => return Step::Refused(refusal),
    }
    let mut lease = Lease::default();
    let mut fresh = false;
    for (family, pool) in own.network.pools.entries() {
        let subnet = match standing(found, own, family) {
            Ok(Some(subnet)) => subnet,
            Ok(None) => {
                fresh = true;
                match choose(found, own, pool) {
                    Ok(subnet) => subnet,
                    Err(step) => return step,
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

/// A free subnet of `pool`, or what must be done first.
fn choose(found: &Snapshot, own: &Claimant, pool: &Pool) -> Result<IpNetwork, Step> {
    if !shown(found, own) {
        return Err(Step::ShowLife);
    }
    let ticket = own.ticket.ok_or(Step::Draw)?;
    let chosen = choose::next_free(pool, ticket, taken(found, &own.identity.name))
        .map_err(|full| Step::Refused(refusal::exhausted(found, own, full)))?;
    // A host of the Python agent that draws the number of a slot takes that slot, so no other slot
    // than the drawn one is safe, until the numbers have run past the pool.
    let drawn = u32::try_from(ticket).ok().filter(|ticket| *ticket < pool.slots());
    match drawn {
        Some(slot) if chosen != pool.subnet(slot) && python::exist(found) => Err(Step::Draw),
        _ => Ok(chosen),
    }
}

/// What puts this host's sign of life, which goes with the etcd lease `lease`, if nobody else's
/// appeared since; `None` if another machine's is there.
pub fn show_life(
    found: &Snapshot,
    own: &Claimant,
    since: SystemTime,
    lease: i64,
) -> Option<Transaction> {
    if refusal::held_by_other(found, own).is_some() {
        return None;
    }
    let key = Key::Alive(own.identity.name.clone());
    let text = own.network.key(&key);
    let alive = Alive::new(&own.identity.machine_id, since);
    let mut transaction = Transaction::default();
    transaction.unchanged(&text, found.modified(&own.network.roots, &key));
    transaction.put_with_lease(text, alive.to_json(), lease);
    Some(transaction)
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

/// The subnet of `family` that this host already has a right to.
fn standing(
    found: &Snapshot,
    own: &Claimant,
    family: Family,
) -> Result<Option<IpNetwork>, LeaseError> {
    let name = &own.identity.name;
    if let Some(subnet) = own.keep.get(family).copied() {
        return match owner(found, own, subnet) {
            Some(owner) => Err(LeaseError::SubnetLost { subnet, owner }),
            None => Ok(Some(subnet)),
        };
    }
    let pool = own.network.pools.get(family).map(|pool| pool.network());
    let usable = |subnet: &IpNetwork| {
        pool.is_some_and(|pool| subnet::contains(pool, *subnet))
            && owner(found, own, *subnet).is_none()
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

/// The other host that has a right to (a part of) `subnet`.
///
/// If this host's keys say nothing about the subnet: whoever has it or claims it. If they do: only
/// who has it and claims it too; a claim alone, or a key without a claim, takes it from nobody. Nor
/// does what no host can have.
fn owner(found: &Snapshot, own: &Claimant, subnet: IpNetwork) -> Option<NodeName> {
    let pools = &own.network.pools;
    let own = &own.identity.name;
    let possible = |theirs: IpNetwork| {
        subnet::overlap(theirs, subnet) && pools.iter().any(|pool| choose::possible(pool, theirs))
    };
    let has = |host: &NodeName| subnets_of(found, host).any(possible);
    let ours = subnets_of(found, own).any(|had| had == subnet);
    let mut claims = found.claims.iter();
    let claim = claims.find(|(theirs, claim)| {
        claim.value != *own && possible(**theirs) && (!ours || has(&claim.value))
    });
    if let Some((_, claim)) = claim {
        return Some(claim.value.clone());
    }
    if ours || found.claims.get(&subnet).is_some_and(|claim| claim.value == *own) {
        return None;
    }
    let hosts = found.hosts.iter().map(|(host, stored)| (host, stored.value));
    let told = found
        .nodes
        .iter()
        .flat_map(|(host, node)| node.value.subnets.iter().map(move |subnet| (host, *subnet)));
    let mut had = hosts.chain(told);
    let host = had.find(|(host, theirs)| *host != own && possible(*theirs));
    host.map(|(host, _)| host.clone())
}

/// The subnets that etcd has for a host.
fn subnets_of<'a>(found: &'a Snapshot, host: &NodeName) -> impl Iterator<Item = IpNetwork> + 'a {
    let key = found.hosts.get(host).map(|stored| stored.value);
    let told = found.nodes.get(host).into_iter();
    key.into_iter().chain(told.flat_map(|node| node.value.subnets.iter().copied()))
}

/// What other hosts have or claim.
fn taken<'a>(found: &'a Snapshot, own: &'a NodeName) -> impl Iterator<Item = IpNetwork> + 'a {
    let names = found.hosts.keys().chain(found.nodes.keys());
    let had = names.filter(move |host| *host != own).flat_map(|host| subnets_of(found, host));
    let claims = found.claims.iter().filter(move |(_, claim)| claim.value != *own);
    had.chain(claims.map(|(claimed, _)| *claimed))
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
