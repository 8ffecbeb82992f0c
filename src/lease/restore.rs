//! Pure. Whether etcd lost its data, and the keys that a survivor puts back.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::lease::choose;
use crate::lease::claim::owners::unclaimed;
use crate::lease::identity::Network;
use crate::lease::records::{Ancestor, ClusterConfig, Key, NodeName, Roots};
use crate::lease::snapshot::{Raw, Snapshot, Stored};
use crate::lease::transaction::{Transaction, Write};
use crate::net::subnet;

/// How the store `found` was read from relates to that of an earlier snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continuity {
    /// The same store.
    Same,
    /// The store lost its data and was rebuilt from a snapshot at least as new.
    Rebuilt,
    /// The store lost data of the earlier snapshot: wiped, restored from a backup, or another store.
    Lost,
}

/// How the store of `found` relates to the store of `known`: by the random id in the network settings,
/// and by the revision, which never decreases. Settings with the same id that were created anew are those of a
/// request from before the loss that arrived after it.
pub fn continuity(known: &Snapshot, found: &Snapshot) -> Continuity {
    let Some(before) = &known.config else { return Continuity::Same };
    let Some(now) = &found.config else { return Continuity::Lost };
    if now.value.id == before.value.id {
        let is_remembered = now.created == 0 || before.created == 0;
        let is_older = found.revision < known.revision;
        let is_same = !is_older && (is_remembered || now.created == before.created);
        return if is_same { Continuity::Same } else { Continuity::Lost };
    }
    let knew_more =
        |ancestor: &Ancestor| ancestor.id == before.value.id && ancestor.revision >= known.revision;
    if now.value.rebuilt_from.iter().any(knew_more) {
        Continuity::Rebuilt
    } else {
        Continuity::Lost
    }
}

/// The keys that are still to be put back, one transaction at a time.
#[derive(Clone, Debug)]
pub struct Restoration {
    pub known: Arc<Snapshot>,
    pub batches: VecDeque<Transaction>,
    /// The last transaction: [`mark`]s the store as rebuilt.
    pub mark: Transaction,
    /// The store has network settings.
    pub has_settings: bool,
    /// The last transaction is under way.
    pub marking: bool,
    /// Keys of hosts that were there when etcd was read.
    found: Vec<String>,
    /// What must be there for the next transaction, else etcd has lost its data again: `found`, then a key of
    /// each host that the last one put back.
    present: Vec<String>,
}

impl Restoration {
    /// Puts back the hosts that `known` has and `found` lacks; the store gets the id `new_store_id`.
    pub fn new(
        known: Arc<Snapshot>,
        found: &Snapshot,
        network: &Network,
        new_store_id: &str,
    ) -> Restoration {
        let batches = transactions(&known, found, network).collect();
        let mark = mark(&known, found, &network.config(""), new_store_id, &network.roots);
        let has_settings = found.config.is_some();
        // Survivors put back the first ones first.
        let there = found.hosts.keys().rev().take(BATCH_HOSTS);
        let found: Vec<_> = there.map(|host| network.key(&Key::Host(host.clone()))).collect();
        let present = found.clone();
        Restoration { known, batches, mark, has_settings, marking: false, found, present }
    }

    /// This host may not put back others: only the mark is left.
    pub fn only_mark(&mut self) {
        self.batches.clear();
        self.present = self.found.clone();
    }

    /// The next transaction: it does nothing without the hosts that the one before
    /// it found or put back.
    pub fn next_transaction(&mut self) -> Transaction {
        let batch = self.batches.pop_front();
        self.marking = batch.is_none();
        let mut transaction = batch.unwrap_or_else(|| self.mark.clone());
        let there = std::mem::replace(&mut self.present, first_keys(&transaction));
        for key in there {
            transaction.exists(key);
        }
        transaction
    }
}

/// A key that each nested transaction puts.
fn first_keys(batch: &Transaction) -> Vec<String> {
    let first = |write: &Write| match write {
        Write::Try(Transaction { writes, .. }) => writes.iter().find_map(|write| match write {
            Write::Put { key, .. } => Some(key.clone()),
            Write::Delete { .. } | Write::Try(_) => None,
        }),
        Write::Put { .. } | Write::Delete { .. } => None,
    };
    batch.writes.iter().filter_map(first).collect()
}

/// Puts back the hosts that `known` has and `found` lacks: batches of the size of one etcd transaction.
///
/// The keys of one host are put back together, unless it has another subnet meanwhile or another host
/// has one of its subnets: several survivors may do this at once.
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

/// Marks the store as rebuilt from `known`, if its settings are still as `found`. They get the new
/// `id`, unless their id differs from that of `known` already: every change of it makes all hosts
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
    let mut transaction = Transaction::default();
    let key = found.unchanged(&mut transaction, roots, &Key::Config);
    transaction.put(key, settings.to_json());
    transaction
}

/// `found`, with the other hosts of `known` that it lacks: for a store into which this host may not
/// write them. Keys that are only remembered have revision 0.
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

/// `known` without the hosts that `found` has.
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

/// The subnets that a host had or claimed.
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

/// The keys and values of a host that `found` lacks; none if [`has_moved`].
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
    if !missing.is_empty() && has_moved(host, remains, found, network) {
        missing.clear();
    }
    missing
}

/// The host has another subnet now, or another host has one of its subnets.
fn has_moved(host: &NodeName, remains: &Remains, found: &Snapshot, network: &Network) -> bool {
    let possible = |subnet| network.pools.iter().any(|pool| choose::possible(pool, subnet));
    let overlap = |subnet| remains.subnets.iter().any(|ours| subnet::overlap(*ours, subnet));
    let claims = found.claims.iter().map(|(subnet, claim)| (&claim.value, *subnet));
    let claims = claims.filter(|(_, subnet)| possible(*subnet));
    let mut others = claims.chain(unclaimed(found, &network.pools)).filter(|(by, _)| *by != host);
    let moved = |stored: &Stored<IpNetwork>| !remains.subnets.contains(&stored.value);
    found.hosts.get(host).is_some_and(moved) || others.any(|(_, subnet)| overlap(subnet))
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
        found.unchanged(&mut transaction, roots, &key);
    }
    for (key, value) in missing {
        transaction.put(key, value);
    }
    transaction
}

#[cfg(test)]
mod tests;
