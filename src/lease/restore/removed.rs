//! Pure. Hosts that had been removed and that an older snapshot of etcd brought back, with subnets that
//! others had got meanwhile.

use std::collections::BTreeSet;

use crate::lease::claim::leave;
use crate::lease::records::{Key, NodeName, Roots};
use crate::lease::snapshot::Snapshot;

/// etcd went back to an earlier revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rollback {
    /// Keys changed up to this revision are from before.
    pub old: i64,
    /// This agent followed etcd until then: an alive key from before says nothing until it has expired. One
    /// that starts does not know how long ago that was.
    pub is_recent: bool,
}

impl Rollback {
    /// `host`, which has keys in `found`, had been removed when etcd was as `known`, and has not come back since.
    pub fn brought_back(
        self,
        known: &Snapshot,
        found: &Snapshot,
        host: &NodeName,
        roots: &Roots,
    ) -> bool {
        let knew = known.hosts.contains_key(host) || known.nodes.contains_key(host);
        let is_old = |key: &Key| found.modified(roots, key) <= self.old;
        !knew && ownership(found, host).iter().all(is_old) && !self.runs(found, host)
    }

    /// The agent of `host` runs, as far as its alive key shows.
    pub fn runs(self, found: &Snapshot, host: &NodeName) -> bool {
        found.alive.get(host).is_some_and(|alive| !self.is_recent || alive.modified > self.old)
    }

    /// `hosts`, if each of them was [brought back](Self::brought_back).
    pub fn all_brought_back(
        self,
        known: &Snapshot,
        found: &Snapshot,
        hosts: BTreeSet<&NodeName>,
        roots: &Roots,
    ) -> Option<Vec<NodeName>> {
        let were = hosts.iter().all(|host| self.brought_back(known, found, host, roots));
        were.then(|| hosts.into_iter().cloned().collect())
    }
}

/// The keys by which `host` has its subnets.
pub fn ownership(found: &Snapshot, host: &NodeName) -> Vec<Key> {
    let keys = leave::all(found, host).into_iter();
    keys.filter(|key| !matches!(key, Key::Alive(_))).collect()
}
