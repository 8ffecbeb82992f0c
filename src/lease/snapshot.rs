//! Pure. The parsed content of etcd at one revision.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use crate::lease::records::{
    Alive, ClusterConfig, Contender, Key, KeyClaim, NodeName, NodeRecord, RecordError, Roots,
    claim_value, host_value, wireguard_value,
};
use crate::lease::transaction::{Transaction, Write};
use crate::net::problem::{LISTED_FIRST, capped};
use crate::net::shell::word;
use crate::net::shown::shown;
use crate::net::{Object, Problem, ProblemKind};

/// Malformed keys that are kept; further ones are ignored without a fault.
const MOST_FAULTS: usize = 1000;

/// Characters of a malformed key that are kept.
const KEY_SHOWN: usize = 200;

/// Faults that become problems.
const PROBLEMS: usize = 50;

/// Both key ranges at one revision. A copy shares its parts with the original until one is changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub revision: i64,
    pub config: Option<Stored<ClusterConfig>>,
    /// The subnet of each host of the network.
    pub hosts: Arc<BTreeMap<NodeName, Stored<IpNetwork>>>,
    /// The record of each host; a host without one runs the Python agent.
    pub nodes: Arc<BTreeMap<NodeName, Stored<Arc<NodeRecord>>>>,
    pub claims: Arc<BTreeMap<IpNetwork, Stored<NodeName>>>,
    /// The hosts whose agents run.
    pub alive: Arc<BTreeMap<NodeName, Stored<Arc<Alive>>>>,
    /// Agents that found the names of their hosts in use.
    pub contenders: Arc<BTreeMap<NodeName, Stored<Arc<Contender>>>>,
    /// The WireGuard key that each host claims.
    pub wireguard_keys: Arc<BTreeMap<NodeName, Stored<KeyClaim>>>,
    /// Keys without a valid record, by key.
    pub faults: Arc<BTreeMap<Box<str>, IgnoredKey>>,
    /// Hosts whose node record went while their subnet stayed: those do not run the Python agent.
    pub without_record: Arc<BTreeSet<NodeName>>,
    /// Whose keys these are; `None`: not noted.
    pub cluster: Option<EtcdCluster>,
}

/// An etcd cluster as it was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EtcdCluster {
    /// The id that its members derive from how it was founded.
    pub id: u64,
    /// Hash of the configured addresses: other addresses are meant to lead to another cluster.
    pub addresses: u64,
}

/// A value and its revisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored<T> {
    pub value: T,
    /// Revision of the key's creation; 0 for a record that is only remembered after the store lost its
    /// data.
    pub created: i64,
    /// Revision of the last change; 0 as for `created`.
    pub modified: i64,
}

/// A key that is ignored, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnoredKey {
    pub store: RecordStore,
    pub key: Box<str>,
    pub what: RecordError,
    pub created: i64,
    pub modified: i64,
}

/// The source of the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordStore {
    Etcd,
    Kubernetes,
}

/// A key and value as read from etcd.
#[derive(Clone, Copy, Debug)]
pub struct Raw<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
    pub created: i64,
    pub modified: i64,
}

impl Snapshot {
    /// Applies a put. An invalid value removes the record and becomes a fault.
    pub fn put(&mut self, roots: &Roots, raw: Raw<'_>) {
        self.revision = self.revision.max(raw.modified);
        let parsed = roots.parse(raw.key);
        let text = key_text(&parsed, raw.key);
        let what = match parsed {
            Ok(None) => return,
            Ok(Some(key)) => match self.insert(&key, raw) {
                Ok(()) => {
                    discard(&mut self.faults, &text);
                    return;
                }
                Err(what) => {
                    self.remove(&key);
                    what
                }
            },
            Err(_) if self.faults.len() >= MOST_FAULTS && !self.faults.contains_key(&text) => {
                return;
            }
            Err(what) => what,
        };
        let Raw { created, modified, .. } = raw;
        self.add_fault(IgnoredKey { store: RecordStore::Etcd, key: text, what, created, modified });
    }

    pub fn add_fault(&mut self, fault: IgnoredKey) {
        Arc::make_mut(&mut self.faults).insert(fault.key.clone(), fault);
    }

    /// Applies a delete at `revision`.
    pub fn delete(&mut self, roots: &Roots, key: &[u8], revision: i64) {
        self.revision = self.revision.max(revision);
        let parsed = roots.parse(key);
        let text = key_text(&parsed, key);
        if let Ok(Some(key)) = parsed {
            self.remove(&key);
        }
        discard(&mut self.faults, &text);
    }

    /// Applies a transaction that was committed at `revision`. Other writes up to then are unknown: the
    /// revision of the snapshot stays.
    pub fn written(&mut self, roots: &Roots, transaction: &Transaction, revision: i64) {
        let known = self.revision;
        for write in &transaction.writes {
            match write {
                Write::Put { key, value, .. } => {
                    let (key, value) = (key.as_bytes(), value.as_bytes());
                    let created = match roots.parse(key) {
                        Ok(Some(parsed)) => self.revisions(roots, &parsed).0,
                        _ => 0,
                    };
                    let created = if created == 0 { revision } else { created };
                    self.put(roots, Raw { key, value, created, modified: revision });
                }
                Write::Delete { key } => self.delete(roots, key.as_bytes(), revision),
                Write::Try(_) => {}
            }
        }
        self.revision = known;
    }

    /// The faults, of many of them the first.
    pub fn problems(&self) -> Vec<Problem> {
        let problems = self.faults.values().map(IgnoredKey::problem);
        capped(problems, PROBLEMS, ProblemKind::EtcdRecord, "further keys in etcd", LISTED_FIRST)
    }

    /// Equal to `other` but for the revision and what this host noted.
    pub fn says_the_same(&self, other: &Snapshot) -> bool {
        // Equal because shared costs nothing; a copy shares everything.
        let Snapshot { revision, cluster, ref without_record, .. } = *other;
        let without_record = Arc::clone(without_record);
        *other == Snapshot { revision, cluster, without_record, ..self.clone() }
    }

    /// Revision of the last change of `key`, valid or not; 0 if it does not exist.
    pub fn modified(&self, roots: &Roots, key: &Key) -> i64 {
        self.revisions(roots, key).1
    }

    /// Adds to `transaction` the condition that `key` is as in this snapshot; gives the key's text.
    pub fn unchanged(&self, transaction: &mut Transaction, roots: &Roots, key: &Key) -> String {
        let text = roots.key(key);
        transaction.unchanged(&text, self.modified(roots, key));
        text
    }

    /// Revisions of the creation and last change of `key`; 0 if it does not exist.
    pub fn revisions(&self, roots: &Roots, key: &Key) -> (i64, i64) {
        let valid = match key {
            Key::Config => self.config.as_ref().map(Stored::revisions),
            Key::Host(name) => self.hosts.get(name).map(Stored::revisions),
            Key::Node(name) => self.nodes.get(name).map(Stored::revisions),
            Key::Claim(subnet) => self.claims.get(subnet).map(Stored::revisions),
            Key::Alive(name) => self.alive.get(name).map(Stored::revisions),
            Key::Contender(name) => self.contenders.get(name).map(Stored::revisions),
            Key::WireguardKey(name) => self.wireguard_keys.get(name).map(Stored::revisions),
        };
        let fault = || self.faults.get(roots.key(key).as_str());
        valid.or_else(|| fault().map(|fault| (fault.created, fault.modified))).unwrap_or_default()
    }

    fn insert(&mut self, key: &Key, raw: Raw<'_>) -> Result<(), RecordError> {
        match key {
            Key::Config => self.config = Some(raw.stored(ClusterConfig::parse(raw.value)?)),
            Key::Host(name) => {
                let stored = raw.stored(host_value(raw.value)?);
                Arc::make_mut(&mut self.hosts).insert(name.clone(), stored);
            }
            Key::Node(name) => {
                let stored = raw.stored(Arc::new(NodeRecord::parse(raw.value)?));
                Arc::make_mut(&mut self.nodes).insert(name.clone(), stored);
            }
            Key::Claim(subnet) => {
                let stored = raw.stored(claim_value(raw.value)?);
                Arc::make_mut(&mut self.claims).insert(*subnet, stored);
            }
            Key::Alive(name) => {
                let stored = raw.stored(Arc::new(Alive::parse(raw.value)?));
                Arc::make_mut(&mut self.alive).insert(name.clone(), stored);
            }
            Key::Contender(name) => {
                let stored = raw.stored(Arc::new(Contender::parse(raw.value)?));
                Arc::make_mut(&mut self.contenders).insert(name.clone(), stored);
            }
            Key::WireguardKey(name) => {
                let mut stored = raw.stored(wireguard_value(raw.value)?);
                let claims = Arc::make_mut(&mut self.wireguard_keys);
                // One that is remembered from before a loss of data, and is back.
                if claims.get(name).is_some_and(|old| old.created == 0 && old.value == stored.value)
                {
                    stored.created = 0;
                }
                claims.insert(name.clone(), stored);
            }
        }
        Ok(())
    }

    fn remove(&mut self, key: &Key) {
        match key {
            Key::Config => self.config = None,
            Key::Host(name) => discard(&mut self.hosts, name),
            Key::Node(name) => discard(&mut self.nodes, name),
            Key::Claim(subnet) => discard(&mut self.claims, subnet),
            Key::Alive(name) => discard(&mut self.alive, name),
            Key::Contender(name) => discard(&mut self.contenders, name),
            Key::WireguardKey(name) => discard(&mut self.wireguard_keys, name),
        }
    }
}

impl<T> Stored<T> {
    fn revisions(&self) -> (i64, i64) {
        (self.created, self.modified)
    }
}

impl Raw<'_> {
    fn stored<T>(&self, value: T) -> Stored<T> {
        Stored { value, created: self.created, modified: self.modified }
    }
}

impl fmt::Display for IgnoredKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = match self.store {
            RecordStore::Etcd => "etcd key",
            RecordStore::Kubernetes => "Kubernetes node",
        };
        write!(f, "{store} {:?}: {}", self.key, self.what)
    }
}

impl IgnoredKey {
    pub fn problem(&self) -> Problem {
        let (subject, fix) = match self.store {
            RecordStore::Etcd => (
                Object::Key(self.key.to_string()),
                format!("etcdctl get {} # look at it, then delete or repair it", word(&self.key)),
            ),
            RecordStore::Kubernetes => (
                Object::named(format!("Kubernetes node {}", self.key)),
                format!("kubectl get node {} -o yaml", self.key),
            ),
        };
        Problem::new(ProblemKind::EtcdRecord, subject, self.to_string()).with_fix(fix)
    }
}

/// The text by which the fault of a key is known: a key that is none of humanz's may be long, or no text.
fn key_text(parsed: &Result<Option<Key>, RecordError>, key: &[u8]) -> Box<str> {
    let text = String::from_utf8_lossy(key);
    match parsed {
        Ok(_) => text.into(),
        Err(_) => shown(&text, KEY_SHOWN).into(),
    }
}

/// Removes `key`; a shared map is copied only if it has the key.
fn discard<K: Ord + Clone, V: Clone>(map: &mut Arc<BTreeMap<K, V>>, key: &K) {
    if map.contains_key(key) {
        Arc::make_mut(map).remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roots() -> Roots {
        Roots { hosts: "/h".to_owned(), counter: "/c".to_owned(), humanz: "/z".to_owned() }
    }

    fn put(snapshot: &mut Snapshot, key: &str, value: &str, revision: i64) {
        let raw = Raw {
            key: key.as_bytes(),
            value: value.as_bytes(),
            created: revision,
            modified: revision,
        };
        snapshot.put(&roots(), raw);
    }

    #[test]
    fn a_bad_value_removes_the_record_and_a_good_one_the_fault() {
        let mut snapshot = Snapshot::default();
        put(&mut snapshot, "/h/a", "10.0.1.0/24", 3);
        assert_eq!(snapshot.hosts["a"].value.to_string(), "10.0.1.0/24");
        put(&mut snapshot, "/h/a", "garbage", 4);
        assert!(snapshot.hosts.is_empty());
        assert_eq!(
            snapshot.faults["/h/a"].to_string(),
            r#"etcd key "/h/a": "garbage" is not a subnet (address/length, as in 10.244.0.0/16)"#
        );
        assert_eq!(snapshot.modified(&roots(), &Key::Host("a".parse().unwrap())), 4);
        put(&mut snapshot, "/h/a", "10.0.2.0/24", 5);
        assert!(snapshot.faults.is_empty());
        assert_eq!(snapshot.revision, 5);
    }

    #[test]
    fn a_deleted_key_removes_its_fault() {
        let mut snapshot = Snapshot::default();
        put(&mut snapshot, "/h/a b", "10.0.1.0/24", 3);
        assert_eq!(snapshot.faults.len(), 1);
        snapshot.delete(&roots(), b"/h/a b", 4);
        assert!(snapshot.faults.is_empty());
    }

    #[test]
    fn long_and_many_keys_stay_short_and_few() {
        let mut snapshot = Snapshot::default();
        let long = format!("/h/{}", "x".repeat(1 << 20));
        put(&mut snapshot, &long, "10.0.1.0/24", 3);
        let fault = snapshot.faults.values().next().unwrap();
        assert!(fault.to_string().len() < 600, "{fault}");
        assert!(fault.problem().to_string().len() < 1000);
        snapshot.delete(&roots(), long.as_bytes(), 4);
        assert!(snapshot.faults.is_empty());
        for number in 0..3000 {
            put(&mut snapshot, &format!("/h/\u{1b}[2J {number}"), "x", 5);
        }
        assert_eq!(snapshot.faults.len(), 1000);
        let problems = snapshot.problems();
        assert_eq!(problems.len(), 51);
        assert!(problems[50].what.contains("950 more"), "{}", problems[50]);
        assert!(problems.iter().all(|problem| !problem.to_string().contains('\u{1b}')));
        put(&mut snapshot, "/h/h1", "garbage", 6);
        assert!(snapshot.faults.contains_key("/h/h1"), "a repair depends on its revision");
    }

    #[test]
    fn keys_of_others_are_ignored() {
        let mut snapshot = Snapshot::default();
        put(&mut snapshot, "/c", "", 3);
        put(&mut snapshot, "/z/networks/blue", "{", 4);
        assert_eq!(snapshot, Snapshot { revision: 4, ..Snapshot::default() });
    }

    #[test]
    fn own_writes_are_applied_without_changing_the_revision() {
        let mut snapshot = Snapshot::default();
        put(&mut snapshot, "/h/a", "10.0.1.0/24", 3);
        put(&mut snapshot, "/h/b", "10.0.2.0/24", 4);
        let mut transaction = Transaction::default();
        transaction.put("/h/a", "10.0.9.0/24").put("/h/c", "10.0.3.0/24").delete("/h/b");
        snapshot.written(&roots(), &transaction, 8);
        assert_eq!(snapshot.revision, 4);
        let revisions: Vec<_> =
            snapshot.hosts.values().map(|stored| (stored.created, stored.modified)).collect();
        assert_eq!(revisions, [(3, 8), (8, 8)]);
        assert!(!snapshot.hosts.contains_key("b"));
    }

    #[test]
    fn a_copy_does_not_change_with_the_original() {
        let mut snapshot = Snapshot::default();
        put(&mut snapshot, "/h/a", "10.0.1.0/24", 3);
        let copy = snapshot.clone();
        put(&mut snapshot, "/h/b", "10.0.2.0/24", 4);
        snapshot.delete(&roots(), b"/h/a", 5);
        assert_eq!(copy.hosts.len(), 1);
        assert!(copy.hosts.contains_key("a"));
    }
}
