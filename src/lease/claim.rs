//! Pure. What a host writes to own its subnets.

pub mod leave;
pub mod owners;
pub mod python;
pub mod refusal;
#[cfg(test)]
mod tests;

use std::time::SystemTime;

use ipnetwork::IpNetwork;

use crate::lease::choose;
use crate::lease::claim::owners::{owner, recorded, taken};
use crate::lease::error::LeaseError;
use crate::lease::growth;
use crate::lease::identity::{Claimant, Lease, node_record};
use crate::lease::key_owners;
use crate::lease::records::{Alive, Key};
use crate::lease::right::right;
use crate::lease::snapshot::Snapshot;
use crate::lease::transaction::Transaction;
use crate::net::Family;
use crate::net::subnet::{self, Pool};

/// Most surplus claims that one transaction deletes: etcd allows 128 operations and as many conditions.
const MOST_SURPLUS: usize = 50;

/// The next step of a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing to write: all keys are right.
    Held(Lease),
    /// Write this; afterwards `lease` is held. `fresh`: a subnet of it was chosen just now.
    Write {
        transaction: Transaction,
        lease: Lease,
        fresh: bool,
    },
    /// The network's pool is narrower than this host's: write this first.
    Grow(Transaction),
    /// Put the alive key before anything else: of two machines with one name only one can.
    PutAlive,
    /// Claim the WireGuard key before the record publishes it.
    ClaimKey(Transaction),
    AllocateTicket,
    Refused(LeaseError),
}

/// The next step of `own`, given that etcd holds `found` (with the network settings).
///
/// The subnet of each family is the first of: the one this host uses; the one it remembers, if a key of it
/// still has it; the one of its keys with the best right; the one it remembers; a free one. Never one
/// that another host owns: a host that has pods in such a subnet is refused until they are gone.
pub fn next(found: &Snapshot, own: &Claimant) -> Step {
    step(found, own).unwrap_or_else(Step::Refused)
}

fn step(found: &Snapshot, own: &Claimant) -> Result<Step, LeaseError> {
    refusal::check(found, own)?;
    let growth = growth::of(found, &own.network);
    if let Some(growth) = growth.map_err(|refused| any_lost(found, own).unwrap_or(refused))? {
        return Ok(Step::Grow(growth));
    }
    let is_alive = own.alive && found.alive.contains_key(&own.identity.name);
    let mut lease = Lease::default();
    let mut fresh = false;
    for (family, pool) in own.network.pools.entries() {
        let subnet = match standing(found, own, family)? {
            Some(subnet) => subnet,
            None if !is_alive => return Ok(Step::PutAlive),
            None => {
                fresh = true;
                let chosen = choose(found, own, pool);
                let chosen = chosen.map_err(|full| lost(found, own, family).unwrap_or(full))?;
                let Some(subnet) = chosen else {
                    return Ok(Step::AllocateTicket);
                };
                subnet
            }
        };
        lease.subnets.set(family, Some(subnet));
    }
    Ok(match (key_owners::claim(found, own), write(found, own, &lease)) {
        (None, None) => Step::Held(lease),
        _ if !is_alive => Step::PutAlive,
        (Some(transaction), _) => Step::ClaimKey(transaction),
        (None, Some(transaction)) => Step::Write { transaction, lease, fresh },
    })
}

/// The subnet of `family` that this host used belongs to another one. Without pods in it, too: a host
/// that can have no other subnet must not start pods in that one.
fn lost(found: &Snapshot, own: &Claimant, family: Family) -> Option<LeaseError> {
    let subnet = *own.keep.get(family).or(own.remembered.get(family))?;
    owner(found, own, subnet).map(|owner| LeaseError::SubnetLost { subnet, owner })
}

fn any_lost(found: &Snapshot, own: &Claimant) -> Option<LeaseError> {
    own.network.pools.entries().find_map(|(family, _)| lost(found, own, family))
}

/// Each family of the network has a free subnet besides those of `lease`.
pub fn has_others_free(found: &Snapshot, own: &Claimant, lease: &Lease) -> bool {
    let taken = || taken(found, own).chain(lease.subnets.iter().copied());
    let is_free = |pool| choose::next_free(pool, own.ticket.unwrap_or(1), taken()).is_ok();
    own.network.pools.iter().all(is_free)
}

/// A free subnet of `pool`; `None` if another ticket is needed first.
fn choose(found: &Snapshot, own: &Claimant, pool: &Pool) -> Result<Option<IpNetwork>, LeaseError> {
    let Some(ticket) = own.ticket else { return Ok(None) };
    let chosen = choose::next_free(pool, ticket, taken(found, own))
        .map_err(|full| refusal::exhausted(found, own, full))?;
    // A host of the Python agent takes the slot of its number without looking, so only the slot of
    // the ticket is safe, until the numbers have run past the pool.
    let slot = u32::try_from(ticket).ok().filter(|ticket| *ticket < pool.slots());
    let is_safe = slot.is_none_or(|slot| chosen == pool.subnet(slot))
        || !python::any(found, &own.network.roots);
    Ok(is_safe.then_some(chosen))
}

/// Puts this host's alive key with the etcd lease `lease`, if the key is as `found`; `None` if it is
/// another machine's. `since`: start of the agent. `answers`: the instance of an agent that asked.
pub fn put_alive(
    found: &Snapshot,
    own: &Claimant,
    since: SystemTime,
    lease: i64,
    answers: Option<Box<str>>,
) -> Option<Transaction> {
    if refusal::held_by_other(found, own).is_some() {
        return None;
    }
    let alive = Alive::new(&own.identity.machine_id, since).of(&own.instance, answers);
    let key = Key::Alive(own.identity.name.clone());
    let mut transaction = Transaction::default();
    let text = found.unchanged(&mut transaction, &own.network.roots, &key);
    transaction.put_with_lease(text, alive.to_json(), lease);
    Some(transaction)
}

/// Gives `lease` back: deletes this host's keys, if they are as `found`.
pub fn release(found: &Snapshot, own: &Claimant, lease: &Lease) -> Transaction {
    let name = &own.identity.name;
    let claims = lease.subnets.iter().map(|subnet| Key::Claim(*subnet));
    let keys = claims.chain([Key::Host(name.clone()), Key::Node(name.clone())]);
    leave::transaction(found, &keys.collect::<Vec<_>>(), &own.network.roots)
}

/// The subnet of `family` that this host already owns.
fn standing(
    found: &Snapshot,
    own: &Claimant,
    family: Family,
) -> Result<Option<IpNetwork>, LeaseError> {
    let name = &own.identity.name;
    let kept = own.keep.get(family);
    if let Some(subnet) = kept.or(own.remembered.get(family)).copied() {
        match owner(found, own, subnet) {
            Some(owner) if own.vacated.get(family) != Some(&subnet) => {
                return Err(LeaseError::SubnetLost { subnet, owner });
            }
            None if kept.is_some() => return Ok(Some(subnet)),
            _ => {}
        }
    }
    let pool = own.network.pools.get(family).map(|pool| pool.network());
    let remembered = own.remembered.get(family).copied();
    let recorded = recorded(found, own, family).map(|(_, subnet)| subnet);
    let usable = |subnet: &IpNetwork| {
        let is_served = refusal::is_served(found, own, *subnet);
        (is_served || pool.is_some_and(|pool| subnet::contains(pool, *subnet)))
            && owner(found, own, *subnet).is_none()
    };
    let claims = found.claims.iter().filter(|(_, claim)| claim.value == *name);
    let claimed = claims.map(|(subnet, _)| *subnet).filter(|s| subnet::family(*s) == family);
    let mut keys: Vec<IpNetwork> = recorded.into_iter().chain(claimed).collect();
    // A key that was overwritten while the agent did not run has the later right.
    keys.sort_by_key(|subnet| right(found, name, *subnet));
    let still_ours = remembered.filter(|subnet| right(found, name, *subnet).is_some());
    Ok(still_ours.into_iter().chain(keys).chain(remembered).find(usable))
}

/// Writes the keys by which this host holds `lease`; `None` if all of them are right.
///
/// A claim in the name of this host whose subnet another host has was overwritten: that host puts it back, and its
/// creation is the proof of whose it is.
///
/// Conditions: this host's keys, its claims, its alive key and the network settings are as `found`; if
/// the subnet is new to the host, no other host key has its value: hosts of the Python agent have no claims. Other
/// hosts may claim other subnets at the same time.
fn write(found: &Snapshot, own: &Claimant, lease: &Lease) -> Option<Transaction> {
    let name = &own.identity.name;
    let roots = &own.network.roots;
    let first = lease.subnets.iter().next()?;
    let host = found.hosts.get(name).is_some_and(|stored| stored.value == *first);
    let mut wanted = vec![(Key::Host(name.clone()), (!host).then(|| first.to_string()))];
    for subnet in lease.subnets.iter() {
        let held = found.claims.get(subnet).is_some_and(|claim| claim.value == *name);
        wanted.push((Key::Claim(*subnet), (!held).then(|| name.to_string())));
    }
    let node = node_record(&own.identity, &own.attributes, lease);
    let same = found.nodes.get(name).is_some_and(|stored| *stored.value == node);
    wanted.push((Key::Node(name.clone()), (!same).then(|| node.to_json())));
    let mut transaction = Transaction::default();
    for (key, value) in wanted {
        let text = found.unchanged(&mut transaction, roots, &key);
        if let Some(value) = value {
            transaction.put(text, value);
        }
    }
    let surplus = found.claims.iter().filter(|(subnet, claim)| {
        let is_held = lease.subnets.iter().any(|held| held == *subnet);
        claim.value == *name && !is_held && !owners::is_of_another(found, name, **subnet)
    });
    let most = if own.leaves_claims { 0 } else { MOST_SURPLUS };
    for (subnet, _) in surplus.take(most) {
        let text = found.unchanged(&mut transaction, roots, &Key::Claim(*subnet));
        transaction.delete(text);
    }
    for key in [Key::Config, Key::Alive(name.clone())] {
        found.unchanged(&mut transaction, roots, &key);
    }
    // A subnet that is its own by right does not depend on what others write into their keys.
    let is_new = !host && right(found, name, *first).is_none();
    // With a number after the first one, other hosts claim at this moment: the range has keys when the claim
    // arrives, or the claim is tried again.
    let is_first =
        found.hosts.is_empty() && (own.has_raced || own.ticket.is_none_or(|ticket| ticket == 1));
    if is_new && is_first {
        transaction.range_unchanged(roots.hosts_range(), found.revision);
    } else if is_new {
        transaction.none_has(roots.hosts_range(), first.to_string());
    }
    (!transaction.writes.is_empty()).then_some(transaction)
}
