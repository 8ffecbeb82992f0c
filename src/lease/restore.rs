//! Pure. Whether etcd lost its data, and what a survivor puts back.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::lease::choose;
use crate::lease::identity::Network;
use crate::lease::records::{Ancestor, ClusterConfig, Key, NodeName, Roots};
use crate::lease::snapshot::{Raw, Snapshot, Stored};
use crate::lease::transaction::{Transaction, Write};
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
/// What is missing of a host is put back together, if it has not got another subnet meanwhile and
/// nobody else is on its subnets: several survivors may do this at once.
pub fn transactions<'a>(
    known: &'a Snapshot,
    found: &'a Snapshot,
    network: &'a Network,
) -> impl Iterator<Item = Transaction> + 'a {
    let mut lost = remains(known).into_iter();
    std::iter::from_fn(move || {
        let mut batch = Transaction::default();
        let mut bytes = 0;
        while batch.writes.len() < BATCH_HOSTS && bytes < BATCH_BYTES {
            let Some((host, remains)) = lost.next() else { break };
            let missing = missing(host, &remains, known, found, network);
            if !missing.is_empty() {
                bytes += missing.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
                let attempt = put_back(host, &remains, missing, found, &network.roots);
                batch.writes.push(Write::Try(attempt));
            }
        }
        (!batch.writes.is_empty()).then_some(batch)
    })
}

/// What marks the store as rebuilt from `known`, if its settings are still as `found`. They get the
/// new mark `id`, unless they have another than `known` already: every change of it makes all hosts
/// read again.
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
        let changed = now.filter(|now| now.id != before.id).map(|now| &*now.id);
        settings = settings.rebuilt(changed.unwrap_or(id), ancestor);
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
        let revision = found.revision;
        for (key, value) in missing(host, remains, known, &found, network) {
            let (key, value) = (key.as_bytes(), value.as_bytes());
            found.put(&network.roots, Raw { key, value, created: 0, modified: 0 });
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

/// The keys and values of a host that `found` has not; none if the host has got another subnet, or
/// somebody else one of its subnets.
fn missing(
    host: &NodeName,
    remains: &Remains,
    known: &Snapshot,
    found: &Snapshot,
    network: &Network,
) -> Vec<(String, String)> {
    let mut missing = Vec::new();
    let mut add = |key: Key, value: &dyn Fn() -> String| {
        if found.modified(&network.roots, &key) == 0 {
            missing.push((network.key(&key), value()));
        }
    };
    if let Some(stored) = known.hosts.get(host) {
        add(Key::Host(host.clone()), &|| stored.value.to_string());
    }
    if let Some(stored) = known.nodes.get(host) {
        add(Key::Node(host.clone()), &|| stored.value.to_json());
    }
    for subnet in remains.subnets.iter().filter(|subnet| known.claims.contains_key(subnet)) {
        add(Key::Claim(*subnet), &|| host.to_string());
    }
    if !missing.is_empty() && has_lost_its_place(host, remains, found, network) {
        missing.clear();
    }
    missing
}

/// The host has got another subnet, or somebody else one of its subnets.
fn has_lost_its_place(
    host: &NodeName,
    remains: &Remains,
    found: &Snapshot,
    network: &Network,
) -> bool {
    let possible = |subnet| network.pools.iter().any(|pool| choose::possible(pool, subnet));
    let overlap = |subnet| remains.subnets.iter().any(|ours| subnet::overlap(*ours, subnet));
    let claims = found.claims.iter().map(|(subnet, claim)| (*subnet, &claim.value));
    let hosts = found.hosts.iter().map(|(host, stored)| (stored.value, host));
    let moved = |stored: &Stored<IpNetwork>| !remains.subnets.contains(&stored.value);
    found.hosts.get(host).is_some_and(moved)
        || claims.chain(hosts).any(|(subnet, by)| by != host && overlap(subnet) && possible(subnet))
}

/// Puts `missing`, if the host's key and record and all claims of its subnets are as `found`.
fn put_back(
    host: &NodeName,
    remains: &Remains,
    missing: Vec<(String, String)>,
    found: &Snapshot,
    roots: &Roots,
) -> Transaction {
    let mut transaction = Transaction::default();
    let claims = remains.subnets.iter().map(|subnet| Key::Claim(*subnet));
    for key in [Key::Host(host.clone()), Key::Node(host.clone())].into_iter().chain(claims) {
        transaction.unchanged(roots.key(&key), found.modified(roots, &key));
    }
    for (key, value) in missing {
        transaction.put(key, value);
    }
    transaction
}

#[cfg(test)]
mod tests;
