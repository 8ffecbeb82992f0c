//! Pure. Whether etcd lost its data, and the keys that a survivor puts back.

pub mod absent;
pub mod removed;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::lease::choose;
use crate::lease::claim::owners::unclaimed;
use crate::lease::identity::Network;
use crate::lease::key_owners;
use crate::lease::records::{Ancestor, ClusterConfig, Key, NodeName, Roots};
use crate::lease::restore::removed::{Rollback, ownership};
use crate::lease::snapshot::{Snapshot, Stored};
use crate::lease::transaction::{Transaction, Write};
use crate::net::gather::Gather;
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

/// What a survivor of a loss of data compares.
#[derive(Clone, Copy, Debug)]
pub struct Loss<'a> {
    pub known: &'a Snapshot,
    pub found: &'a Snapshot,
    pub network: &'a Network,
    /// etcd is at an earlier revision than that of `known`.
    pub rollback: Option<Rollback>,
}

/// The keys that are still to be put back, one transaction at a time.
#[derive(Clone, Debug)]
pub struct Restoration {
    pub known: Arc<Snapshot>,
    pub batches: VecDeque<Transaction>,
    /// The last transaction: [`mark`]s the store as rebuilt.
    pub mark: Transaction,
    /// Instead of `mark`, if this host may not put back all others.
    note: Transaction,
    /// The store has network settings.
    pub has_settings: bool,
    /// … with another id than those of `known`.
    pub is_noted: bool,
    /// Hosts that had been removed and are back, with those whose subnets they have.
    pub brought_back: Vec<(NodeName, NodeName)>,
    /// The last transaction is under way.
    pub marking: bool,
    /// Hosts are still lost after it: this one may not put them back, or others that may live have their subnets.
    pub is_partial: bool,
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
        rollback: Option<Rollback>,
        new_store_id: &str,
    ) -> Restoration {
        let loss = Loss { known: &known, found, network, rollback };
        let Batches { transactions, brought_back, is_partial } = batches(loss);
        let (ours, roots) = (network.config(""), &network.roots);
        let note = note(&known, found, &ours, new_store_id, roots);
        let mark = match is_partial {
            true => note.clone(),
            false => mark(&known, found, &ours, new_store_id, roots),
        };
        let id = |snapshot: &Snapshot| Some(snapshot.config.as_ref()?.value.id.clone());
        let has_settings = found.config.is_some();
        let is_noted = has_settings && id(found) != id(&known);
        // Survivors put back the first ones first.
        let there = found.hosts.keys().rev().take(BATCH_HOSTS);
        let found: Vec<_> = there.map(|host| network.key(&Key::Host(host.clone()))).collect();
        let present = found.clone();
        Restoration {
            known,
            batches: transactions.into(),
            brought_back,
            mark,
            note,
            has_settings,
            is_noted,
            marking: false,
            is_partial,
            found,
            present,
        }
    }

    /// This host may not put back others: it only gives the store another id.
    pub fn only_note(&mut self) {
        self.is_partial = true;
        self.mark = self.note.clone();
        self.batches.clear();
        self.present = self.found.clone();
    }

    /// There is nothing more to do: all hosts know of the loss, and look for themselves.
    pub fn is_over(&self) -> bool {
        self.is_partial && self.is_noted && self.batches.is_empty()
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

/// What puts back the hosts that etcd lacks.
pub struct Batches {
    pub transactions: Vec<Transaction>,
    /// Hosts that had been removed and are back, with those whose subnets they have.
    pub brought_back: Vec<(NodeName, NodeName)>,
    /// Hosts are left out.
    pub is_partial: bool,
}

/// Puts back the hosts that `known` has and `found` lacks: batches of the size of one etcd transaction.
///
/// The keys of one host are put back together, unless it has another subnet meanwhile or another host
/// has one of its subnets: several survivors may do this at once. A host with a subnet of one that was removed and
/// is back has a batch of its own, which deletes the keys of that one.
pub fn batches(loss: Loss<'_>) -> Batches {
    let (mut transactions, mut brought_back, mut is_partial) = (Vec::new(), Vec::new(), false);
    let (mut batch, mut bytes) = (Transaction::default(), 0);
    for (host, remains) in remains(loss.known) {
        let Some(missing) = loss.missing(host, &remains) else {
            is_partial |= loss.is_held_up(host, &remains);
            continue;
        };
        let attempt = Write::Try(loss.put_back(host, &remains, &missing));
        if !missing.instead_of.is_empty() {
            let pairs = missing.instead_of.into_iter().map(|removed| (removed, host.clone()));
            brought_back.extend(pairs);
            transactions.push(Transaction { writes: vec![attempt], ..Transaction::default() });
            continue;
        }
        let keys = missing.keys.iter();
        bytes += keys.map(|(key, value)| key.len() + value.len()).sum::<usize>();
        batch.writes.push(attempt);
        if batch.writes.len() == BATCH_HOSTS || bytes >= BATCH_BYTES {
            transactions.push(std::mem::take(&mut batch));
            bytes = 0;
        }
    }
    transactions.extend(Some(batch).filter(|batch| !batch.writes.is_empty()));
    Batches { transactions, brought_back, is_partial }
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
    let mut settings = settings(known, found, ours).clone();
    if let Some(before) = known.config.as_ref().map(|stored| &stored.value) {
        let ancestor = Ancestor { id: before.id.clone(), revision: known.revision };
        let now = found.config.as_ref().map(|stored| &stored.value);
        let changed = now.filter(|now| now.id != before.id).map(|now| &*now.id);
        settings = settings.rebuilt(changed.unwrap_or(id), ancestor);
    }
    put_settings(found, &settings, roots)
}

/// The store gets the new `id`, if its settings are still as `found`: every host reads again, and puts back
/// what it may. An empty store has nothing of those from which the former one was rebuilt.
fn note(
    known: &Snapshot,
    found: &Snapshot,
    ours: &ClusterConfig,
    id: &str,
    roots: &Roots,
) -> Transaction {
    let mut settings = settings(known, found, ours).clone();
    settings.id = id.into();
    if found.config.is_none() {
        settings.rebuilt_from.clear();
    }
    put_settings(found, &settings, roots)
}

fn settings<'a>(
    known: &'a Snapshot,
    found: &'a Snapshot,
    ours: &'a ClusterConfig,
) -> &'a ClusterConfig {
    let stored = found.config.as_ref().or(known.config.as_ref());
    stored.map_or(ours, |stored| &stored.value)
}

fn put_settings(found: &Snapshot, settings: &ClusterConfig, roots: &Roots) -> Transaction {
    let mut transaction = Transaction::default();
    let key = found.unchanged(&mut transaction, roots, &Key::Config);
    transaction.put(key, settings.to_json());
    transaction
}

/// Most hosts in one transaction: etcd allows 128 operations, nested ones included.
const BATCH_HOSTS: usize = 100;

/// A batch is sent when it is larger: etcd takes 1.5 MiB.
const BATCH_BYTES: usize = 512 * 1024;

/// The subnets that a host had or claimed.
#[derive(Default)]
struct Remains {
    subnets: Vec<IpNetwork>,
    /// It claimed a WireGuard key that was no other host's.
    owns_key: bool,
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
    // A claim that comes later than the owner's would be as old as that.
    for host in key_owners::claimants(known) {
        hosts.entry(host).and_modify(|remains| remains.owns_key = true);
    }
    hosts
}

/// What etcd lacks of a host.
struct Missing {
    /// Keys and values.
    keys: Vec<(String, String)>,
    /// Hosts that were removed and are back, with its subnets.
    instead_of: Vec<NodeName>,
}

impl Loss<'_> {
    /// What is missing of a host; none if it has another subnet now, or another host has one of its subnets.
    fn missing(self, host: &NodeName, remains: &Remains) -> Option<Missing> {
        let Loss { known, found, network, .. } = self;
        let is_absent = |key: &Key| found.modified(&network.roots, key) == 0;
        let keys = keys_of(known, host, remains);
        if !keys.iter().any(is_absent) {
            return None;
        }
        let instead_of = self.occupants_brought_back(host, remains)?;
        let is_theirs = |key: &Key| match key {
            Key::Claim(subnet) => {
                found.claims.get(subnet).is_some_and(|claim| instead_of.contains(&claim.value))
            }
            _ => false,
        };
        let keys = keys.into_iter().filter(|key| is_absent(key) || is_theirs(key));
        let keys = keys.map(|key| (network.key(&key), value(known, &key))).collect();
        Some(Missing { keys, instead_of })
    }

    /// It is not put back as long as an alive key from before may be of a host that lives.
    fn is_held_up(self, host: &NodeName, remains: &Remains) -> bool {
        let rollback = self.rollback.filter(|rollback| !rollback.is_recent);
        let recent = rollback.map(|rollback| Rollback { is_recent: true, ..rollback });
        recent.is_some() && Loss { rollback: recent, ..self }.missing(host, remains).is_some()
    }

    /// The hosts that have subnets of `host`, if all of them were removed and are back; `None` if one was not, or
    /// the host has another subnet itself.
    fn occupants_brought_back(self, host: &NodeName, remains: &Remains) -> Option<Vec<NodeName>> {
        let moved = |stored: &Stored<IpNetwork>| !remains.subnets.contains(&stored.value);
        if self.found.hosts.get(host).is_some_and(moved) {
            return None;
        }
        let occupants = self.occupants(host, remains);
        if occupants.is_empty() {
            return Some(Vec::new());
        }
        let Loss { known, found, network, .. } = self;
        self.rollback?.all_brought_back(known, found, occupants, &network.roots)
    }

    /// The other hosts that have one of the subnets of `host`.
    fn occupants(&self, host: &NodeName, remains: &Remains) -> BTreeSet<&NodeName> {
        let Loss { found, network, .. } = self;
        let possible = |subnet| network.pools.iter().any(|pool| choose::possible(pool, subnet));
        let overlap = |subnet| remains.subnets.iter().any(|ours| subnet::overlap(*ours, subnet));
        let claims = found.claims.iter().map(|(subnet, claim)| (&claim.value, *subnet));
        let claims = claims.filter(|(_, subnet)| possible(*subnet));
        let others = claims.chain(unclaimed(found, &network.pools)).filter(|(by, _)| *by != host);
        others.filter(|(_, subnet)| overlap(*subnet)).map(|(by, _)| by).gather()
    }

    /// Puts `missing`, if the host's key and record and all claims of its subnets are as `found`, and so are the keys
    /// of those that have them.
    fn put_back(self, host: &NodeName, remains: &Remains, missing: &Missing) -> Transaction {
        let Loss { found, network: Network { roots, .. }, .. } = self;
        let mut transaction = Transaction::default();
        let claims = remains.subnets.iter().map(|subnet| Key::Claim(*subnet));
        let own = [Key::Host, Key::Node, Key::WireguardKey].map(|key| key(host.clone()));
        let own = own.into_iter().chain(claims);
        let own: Vec<Key> = own.collect();
        for key in &own {
            found.unchanged(&mut transaction, roots, key);
        }
        for removed in &missing.instead_of {
            found.unchanged(&mut transaction, roots, &Key::Alive(removed.clone()));
            for key in ownership(found, removed).into_iter().filter(|key| !own.contains(key)) {
                let text = found.unchanged(&mut transaction, roots, &key);
                transaction.delete(text);
            }
        }
        for (key, value) in &missing.keys {
            transaction.put(key, value);
        }
        transaction
    }
}

/// The keys of a host in `known`: host key, record, claims, claim of its WireGuard key.
fn keys_of(known: &Snapshot, host: &NodeName, remains: &Remains) -> Vec<Key> {
    let key = known.hosts.contains_key(host).then(|| Key::Host(host.clone()));
    let node = known.nodes.contains_key(host).then(|| Key::Node(host.clone()));
    let claims = remains.subnets.iter().filter(|subnet| known.claims.contains_key(subnet));
    let claims = claims.map(|subnet| Key::Claim(*subnet));
    let wireguard = remains.owns_key.then(|| Key::WireguardKey(host.clone()));
    key.into_iter().chain(node).chain(claims).chain(wireguard).collect()
}

/// The value of one of the [`keys_of`] a host.
fn value(known: &Snapshot, key: &Key) -> String {
    match key {
        Key::Host(host) => known.hosts[host].value.to_string(),
        Key::Node(host) => known.nodes[host].value.to_json(),
        Key::Claim(subnet) => known.claims[subnet].value.to_string(),
        Key::WireguardKey(host) => known.wireguard_keys[host].value.to_string(),
        Key::Config | Key::Alive(_) | Key::Contender(_) => String::new(),
    }
}

#[cfg(test)]
mod tests;
