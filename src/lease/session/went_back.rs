//! Pure. etcd was restored from an older snapshot: who serves keeps what it serves.
//!
//! The snapshot may give this host's subnet to one that was removed since. This host, which had the
//! subnet at a later revision, takes it back.

use std::sync::Arc;

use crate::lease::claim::leave;
use crate::lease::error::LeaseError;
use crate::lease::identity::{Lease, node_record};
use crate::lease::records::Key;
use crate::lease::session::machine::SessionMachine;
use crate::lease::snapshot::Snapshot;
use crate::lease::transaction::Transaction;

/// The state before etcd went back.
#[derive(Clone, Debug)]
pub(super) struct WentBack {
    known: Arc<Snapshot>,
    /// Its revision when that was noticed.
    at: i64,
    /// Keys written up to this revision are from before: no host that noticed has written them.
    old: i64,
}

impl SessionMachine {
    /// Notes that etcd is at an earlier revision than that of `known`.
    pub(super) fn note_went_back(&mut self, known: &Arc<Snapshot>, found: &Snapshot) {
        let noted = self.went_back.as_ref().is_some_and(|noted| Arc::ptr_eq(&noted.known, known));
        if noted || found.revision >= known.revision {
            return;
        }
        let id =
            |snapshot: &Snapshot| snapshot.config.as_ref().map(|config| config.value.id.clone());
        // The first host that notices gives the store another id, and its alive key is later than that.
        let marked = found.config.as_ref().filter(|_| id(known) != id(found));
        let old = marked.map_or(found.revision, |config| config.modified);
        self.went_back = Some(WentBack { known: Arc::clone(known), at: found.revision, old });
    }

    /// What is to be reported until etcd has passed the revision it had.
    pub(super) fn report_went_back(&self, found: &Snapshot) -> Option<LeaseError> {
        let WentBack { known, at, .. } = self.went_back.as_ref()?;
        let from = known.revision;
        (found.revision < from).then_some(LeaseError::StoreWentBack { from, to: *at })
    }

    /// Gives this host its subnets back, if another host has one of them only because etcd went back:
    /// that host's keys are from before, and it does not run.
    pub(super) fn take_back(&self, found: &Snapshot, error: &LeaseError) -> Option<Transaction> {
        let LeaseError::SubnetLost { subnet, owner } = error else { return None };
        let WentBack { known, old, .. } = self.went_back.as_ref()?;
        let (own, roots) = (&self.own.identity.name, &self.own.network.roots);
        let had = known.claims.get(subnet).is_some_and(|claim| claim.value == *own);
        let serves = self.lease.as_ref();
        // An alive key from before says nothing until it has expired.
        let runs =
            found.alive.get(owner).is_some_and(|alive| serves.is_none() || alive.modified > *old);
        let keys = leave::all(found, owner);
        let ownership = keys.iter().filter(|key| !matches!(key, Key::Alive(_)));
        let is_old =
            ownership.map(|key| found.modified(roots, key)).all(|modified| modified <= *old);
        if !had || !is_old || runs {
            return None;
        }
        let subnets = serves.map_or(self.own.remembered, |lease| lease.subnets);
        let lease = Lease { subnets };
        let mut transaction = leave::transaction(found, &keys, roots);
        let mut put = |key: Key, value: String| {
            // What is deleted of the other host's was compared already.
            let text = match keys.contains(&key) {
                true => roots.key(&key),
                false => found.unchanged(&mut transaction, roots, &key),
            };
            transaction.writes.retain(|write| write.key() != Some(text.as_str()));
            transaction.put(text, value);
        };
        put(Key::Host(own.clone()), lease.subnets.iter().next()?.to_string());
        for subnet in lease.subnets.iter() {
            put(Key::Claim(*subnet), own.to_string());
        }
        let node = node_record(&self.own.identity, &self.own.attributes, &lease);
        put(Key::Node(own.clone()), node.to_json());
        Some(transaction)
    }
}
