//! Pure. Whether etcd lost its data, and what a survivor puts back.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::choose;
use super::identity::Network;
use super::records::{Ancestor, ClusterConfig, Key, NodeName, Roots};
use super::snapshot::{Snapshot, Stored};
use super::transaction::{Transaction, Write};
use crate::net::subnet;

/// What `found` has to do with the store that `known` was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continuity {
    /// It is the same store.
    Same,
    /// It lost its data and was rebuilt by somebody who knew at least as much.
    Rebuilt,
    /// It lost data that `known` has: wiped, restored from a backup, or another store.
    Lost,
}

/// What `found` has to do with the store that `known` was read from.
///
/// The store is recognised by the random mark in its settings, and by its revision, which never
/// goes back.
pub fn continuity(known: &Snapshot, found: &Snapshot) -> Continuity {
    let Some(before) = &known.config else { return Continuity::Same };
    let Some(now) = &found.config else { return Continuity::Lost };
    if now.value.id == before.value.id {
        return if found.revision < known.revision { Continuity::Lost } else { Continuity::Same };
    }
    let knew_more =
        |ancestor: &Ancestor| ancestor.id == before.value.id && ancestor.revision >= known.revision;
    if now.value.rebuilt_from.iter().any(knew_more) {
        Continuity::Rebuilt
    } else {
        Continuity::Lost
    }
}

/// What puts back the hosts that `known` has and `found` has not: batches that fit into one etcd
/// transaction each, made one by one.
///
/// A host is put back whole, if neither it nor anybody else on its subnets has appeared meanwhile:
/// several survivors may do this at once.
pub fn transactions<'a>(
    known: &'a Snapshot,
    found: &'a Snapshot,
    network: &'a Network,
) -> impl Iterator<Item = Transaction> + 'a {
    let lost = remains(known).into_iter();
    let mut lost = lost.filter(|(host, remains)| may_return(host, remains, found, network));
    std::iter::from_fn(move || {
        let mut batch = Transaction::default();
        let mut bytes = 0;
        while batch.writes.len() < BATCH_HOSTS && bytes < BATCH_BYTES {
            let Some((host, remains)) = lost.next() else { break };
            let attempt = put_back(host, &remains, known, &network.roots);
            bytes += size(&attempt);
            batch.writes.push(Write::Try(attempt));
        }
        (!batch.writes.is_empty()).then_some(batch)
    })
}

/// What marks the store as rebuilt from `known`: settings with the new mark `id`, if they are still
/// as `found`.
pub fn mark(
    known: &Snapshot,
    found: &Snapshot,
    ours: &ClusterConfig,
    id: &str,
    roots: &Roots,
) -> Transaction {
    let before = known.config.as_ref().map(|stored| &stored.value);
    let now = found.config.as_ref().map(|stored| &stored.value);
    let mut settings = now.or(before).unwrap_or(ours).clone();
    if let Some(before) = before {
        let ancestor = Ancestor { id: before.id.clone(), revision: known.revision };
        settings = settings.rebuilt(id, ancestor);
    }
    let key = roots.key(&Key::Config);
    let mut transaction = Transaction::default();
    let modified = found.modified(roots, &Key::Config);
    transaction.unchanged(&key, modified).put(key, settings.to_json());
    transaction
}

/// `found`, with the other hosts of `known` that it lacks: for a store into which this host may not
/// write them. What is only remembered has revision 0.
pub fn remembering(
    known: &Snapshot,
    mut found: Snapshot,
    own: &NodeName,
    network: &Network,
) -> Snapshot {
    for (host, remains) in remains(known).iter().filter(|(host, _)| **host != own) {
        if !may_return(host, remains, &found, network) {
            continue;
        }
        let revision = found.revision;
        for (key, value) in values(host, remains, known) {
            let (key, value) = (network.key(&key), value.into_bytes());
            let raw = super::snapshot::Raw {
                key: key.as_bytes(),
                value: &value,
                created: 0,
                modified: 0,
            };
            found.put(&network.roots, raw);
        }
        found.revision = revision;
    }
    found
}

/// `known` without the hosts that `found` has: they need not be remembered any more.
pub fn still_absent(known: &Snapshot, found: &Snapshot) -> Snapshot {
    let absent = |host: &NodeName| !found.hosts.contains_key(host);
    let mut rest = known.clone();
    Arc::make_mut(&mut rest.hosts).retain(|host, _| absent(host));
    Arc::make_mut(&mut rest.nodes).retain(|host, _| absent(host));
    Arc::make_mut(&mut rest.claims).retain(|_, claim| absent(&claim.value));
    rest
}

/// Most hosts in one transaction: etcd allows 128 operations, nested ones included.
const BATCH_HOSTS: usize = 100;

/// A batch is sent when it is larger: etcd takes 1.5 MiB.
const BATCH_BYTES: usize = 512 * 1024;

/// What is left of a host: the subnets that it had or claimed.
#[derive(Default)]
struct Remains {
    subnets: Vec<IpNetwork>,
}

/// Every host that has a key or a claim.
fn remains(known: &Snapshot) -> BTreeMap<&NodeName, Remains> {
    let mut hosts: BTreeMap<&NodeName, Remains> = BTreeMap::new();
    for (subnet, claim) in known.claims.iter() {
        hosts.entry(&claim.value).or_default().subnets.push(*subnet);
    }
    for (host, Stored { value: subnet, .. }) in known.hosts.iter() {
        let remains = hosts.entry(host).or_default();
        if !remains.subnets.contains(subnet) {
            remains.subnets.push(*subnet);
        }
    }
    hosts
}

/// The host is not there, and nobody is on its subnets.
fn may_return(host: &NodeName, remains: &Remains, found: &Snapshot, network: &Network) -> bool {
    let absent = !found.hosts.contains_key(host) && !found.nodes.contains_key(host);
    let possible =
        |other: &IpNetwork| network.pools.iter().any(|pool| choose::possible(pool, *other));
    let free = |subnet: &IpNetwork| {
        let taken = found.claims.keys().chain(found.hosts.values().map(|stored| &stored.value));
        !taken.filter(|other| possible(other)).any(|other| subnet::overlap(*other, *subnet))
    };
    absent && remains.subnets.iter().all(free)
}

/// The keys and values of a host.
fn values(host: &NodeName, remains: &Remains, known: &Snapshot) -> Vec<(Key, String)> {
    let mut values = Vec::new();
    if let Some(stored) = known.hosts.get(host) {
        values.push((Key::Host(host.clone()), stored.value.to_string()));
    }
    if let Some(stored) = known.nodes.get(host) {
        values.push((Key::Node(host.clone()), stored.value.to_json()));
    }
    for subnet in remains.subnets.iter().filter(|subnet| known.claims.contains_key(subnet)) {
        values.push((Key::Claim(*subnet), host.to_string()));
    }
    values
}

fn put_back(host: &NodeName, remains: &Remains, known: &Snapshot, roots: &Roots) -> Transaction {
    let mut transaction = Transaction::default();
    for key in [Key::Host(host.clone()), Key::Node(host.clone())] {
        transaction.unchanged(roots.key(&key), 0);
    }
    for subnet in &remains.subnets {
        transaction.unchanged(roots.key(&Key::Claim(*subnet)), 0);
    }
    for (key, value) in values(host, remains, known) {
        transaction.put(roots.key(&key), value);
    }
    transaction
}

fn size(transaction: &Transaction) -> usize {
    let bytes = |write: &Write| match write {
        Write::Put { key, value, .. } => key.len() + value.len(),
        Write::Delete { key } => key.len(),
        Write::Try(_) => 0,
    };
    transaction.writes.iter().map(bytes).sum()
}

#[cfg(test)]
mod tests;
