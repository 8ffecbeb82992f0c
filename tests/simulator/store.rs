//! A model of etcd: keys with revisions, transactions, leases, compaction, loss of data.

use std::collections::BTreeMap;

use humanz::lease::Snapshot;
use humanz::lease::blocks::FoundBlocks;
use humanz::lease::records::{Key, NodeName, Roots};
use humanz::lease::snapshot::Raw;
use humanz::lease::transaction::{Condition, Transaction, Write};

/// A key as etcd keeps it.
#[derive(Clone, Debug)]
pub struct Stored {
    pub value: String,
    pub created: i64,
    pub modified: i64,
    pub lease: i64,
}

/// All of etcd. A copy is a backup.
#[derive(Clone, Debug)]
pub struct Store {
    pub roots: Roots,
    pub keys: BTreeMap<String, Stored>,
    pub revision: i64,
    /// Versions of the counter's key.
    pub counter: i64,
    /// The etcd leases that are alive.
    pub leases: Vec<i64>,
    /// Watches from before this revision are refused.
    pub compacted: i64,
    /// Keys of blocks, as agents read them, and all their changes: the revision, and that of the creation or none.
    pub blocks: FoundBlocks,
    pub block_log: Vec<(i64, String, Option<i64>)>,
    /// The same as `keys`, as agents read it.
    parsed: Snapshot,
}

/// Why a transaction was not looked at.
#[derive(Debug, PartialEq, Eq)]
pub struct NoLease;

impl Store {
    pub fn new(roots: Roots) -> Store {
        Store {
            roots,
            keys: BTreeMap::new(),
            revision: 1,
            counter: 0,
            leases: Vec::new(),
            compacted: 0,
            blocks: FoundBlocks::default(),
            block_log: Vec::new(),
            parsed: Snapshot::default(),
        }
    }

    /// Both roots as of now.
    pub fn read(&self) -> Snapshot {
        Snapshot { revision: self.revision, ..self.parsed.clone() }
    }

    /// What a watch makes of the snapshot `known`, which may have keys that etcd lacks, and lack others.
    pub fn mirror(&self, known: Option<&Snapshot>) -> Snapshot {
        let is_remembered = |known: &&Snapshot| known.hosts.values().any(|host| host.created == 0);
        let Some(known) = known.filter(is_remembered) else { return self.read() };
        let mut mirror = known.clone();
        for key in keys(known) {
            let text = self.roots.key(&key);
            if known.modified(&self.roots, &key) > 0 && !self.keys.contains_key(&text) {
                mirror.delete(&self.roots, text.as_bytes(), self.revision);
            }
        }
        for (key, stored) in self.keys.iter().filter(|(_, s)| s.modified > known.revision) {
            let Stored { value, created, modified, .. } = stored;
            let (key, value) = (key.as_bytes(), value.as_bytes());
            mirror.put(&self.roots, Raw { key, value, created: *created, modified: *modified });
        }
        Snapshot { revision: self.revision, ..mirror }
    }

    /// The writes of a transaction, or `None` if a condition of its own does not hold.
    /// Conditions of inner ones see the state before, as in etcd.
    pub fn judge<'a>(&self, transaction: &'a Transaction) -> Option<Vec<&'a Write>> {
        if !transaction.conditions.iter().all(|condition| self.holds(condition)) {
            return None;
        }
        let mut writes = Vec::new();
        for write in &transaction.writes {
            match write {
                Write::Try(inner) => writes.extend(self.judge(inner).unwrap_or_default()),
                write => writes.push(write),
            }
        }
        Some(writes)
    }

    /// Makes a transaction; `None` if a condition did not hold, else its revision.
    pub fn commit(&mut self, transaction: &Transaction) -> Result<Option<i64>, NoLease> {
        let Some(writes) = self.judge(transaction) else { return Ok(None) };
        let gone = |write: &&&Write| matches!(write, Write::Put { lease, .. } if *lease != 0 && !self.leases.contains(lease));
        if writes.iter().any(|write| gone(&write)) {
            return Err(NoLease);
        }
        let revision = self.revision + 1;
        let mut changed = false;
        for write in writes {
            match write {
                Write::Put { key, value, lease } => {
                    self.put(key, value, *lease, revision);
                    changed = true;
                }
                Write::Delete { key } => changed |= self.delete(key, revision),
                Write::Try(_) => {}
            }
        }
        self.revision += i64::from(changed);
        Ok(Some(self.revision))
    }

    /// Puts a key without a condition.
    pub fn put_now(&mut self, key: &str, value: &str) {
        self.revision += 1;
        self.put(key, value, 0, self.revision);
    }

    /// Puts the counter's key; gives its version.
    pub fn count(&mut self) -> i64 {
        self.revision += 1;
        self.counter += 1;
        self.counter
    }

    /// Ends an etcd lease, and with it its keys.
    pub fn end_lease(&mut self, lease: i64) {
        self.leases.retain(|alive| *alive != lease);
        let keys = self.keys.iter().filter(|(_, stored)| stored.lease == lease);
        let keys: Vec<String> = keys.map(|(key, _)| key.clone()).collect();
        self.delete_now(&keys);
    }

    /// Deletes keys without a condition, each at a revision of its own.
    pub fn delete_now(&mut self, keys: &[String]) {
        for key in keys {
            let revision = self.revision + 1;
            self.revision += i64::from(self.delete(key, revision));
        }
    }

    /// Revision at which the settings of the network were written; 0: there are none.
    pub fn config_modified(&self) -> i64 {
        self.keys.get(&self.roots.key(&Key::Config)).map_or(0, |stored| stored.modified)
    }

    fn is_block(&self, key: &str) -> bool {
        key.starts_with(&self.roots.blocks_range())
    }

    fn holds(&self, condition: &Condition) -> bool {
        match condition {
            Condition::Unchanged { key, modified } => {
                self.keys.get(key).map_or(0, |stored| stored.modified) == *modified
            }
            Condition::Created { key, created } => {
                self.keys.get(key).is_some_and(|stored| stored.created == *created)
            }
            Condition::Exists { key } => self.keys.contains_key(key),
            Condition::RangeUnchanged { prefix, since } => {
                let below = self.keys.range(prefix.clone()..);
                let mut below = below.take_while(|(key, _)| key.starts_with(prefix));
                below.all(|(_, stored)| stored.modified <= *since)
            }
            Condition::NoneHas { prefix, value } => {
                let below = self.keys.range(prefix.clone()..);
                let mut below = below.take_while(|(key, _)| key.starts_with(prefix)).peekable();
                below.peek().is_some() && below.all(|(_, stored)| stored.value != *value)
            }
        }
    }

    fn put(&mut self, key: &str, value: &str, lease: i64, revision: i64) {
        let created = self.keys.get(key).map_or(revision, |stored| stored.created);
        let stored = Stored { value: value.to_owned(), created, modified: revision, lease };
        self.keys.insert(key.to_owned(), stored);
        if self.is_block(key) {
            self.blocks.put(&self.roots, key.as_bytes(), created);
            self.block_log.push((revision, key.to_owned(), Some(created)));
        }
        let (key, value) = (key.as_bytes(), value.as_bytes());
        self.parsed.put(&self.roots, Raw { key, value, created, modified: revision });
    }

    fn delete(&mut self, key: &str, revision: i64) -> bool {
        self.parsed.delete(&self.roots, key.as_bytes(), revision);
        if self.is_block(key) {
            self.blocks.delete(&self.roots, key.as_bytes());
            self.block_log.push((revision, key.to_owned(), None));
        }
        self.keys.remove(key).is_some()
    }
}

/// All keys of a snapshot.
fn keys(known: &Snapshot) -> impl Iterator<Item = Key> {
    let names = |names: Vec<&NodeName>, key: fn(NodeName) -> Key| {
        names.into_iter().cloned().map(key).collect::<Vec<_>>()
    };
    let hosts = names(known.hosts.keys().collect(), Key::Host);
    let nodes = names(known.nodes.keys().collect(), Key::Node);
    let alive = names(known.alive.keys().collect(), Key::Alive);
    let wireguard = names(known.wireguard_keys.keys().collect(), Key::WireguardKey);
    let contenders = names(known.contenders.keys().collect(), Key::Contender);
    let claims: Vec<_> = known.claims.keys().copied().map(Key::Claim).collect();
    hosts.into_iter().chain(nodes).chain(alive).chain(contenders).chain(wireguard).chain(claims)
}
