//! Pure. etcd was restored from an older snapshot: a serving host keeps what it serves.
//!
//! The snapshot may give this host's subnet to one that was removed since. This host, which had the
//! subnet at a later revision, takes it back.

use std::sync::Arc;

use crate::lease::claim::leave;
use crate::lease::error::LeaseError;
use crate::lease::restore::removed::{Rollback, ownership};
use crate::lease::session::machine::{SessionMachine, WentBack};
use crate::lease::session::messages::{Command, SessionExit};
use crate::lease::snapshot::Snapshot;
use crate::lease::transaction::Transaction;

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
        self.went_back =
            Some(WentBack { known: Arc::clone(known), at: found.revision, old, is_denied: false });
    }

    /// The step back from `known`.
    pub(super) fn rollback(&self, known: &Arc<Snapshot>) -> Option<Rollback> {
        let noted = self.went_back.as_ref().filter(|noted| Arc::ptr_eq(&noted.known, known))?;
        Some(Rollback { old: noted.old, is_recent: self.lease.is_some() })
    }

    /// What is to be reported until etcd has passed the revision it had.
    pub(super) fn report_went_back(&self, found: &Snapshot) -> Option<LeaseError> {
        let WentBack { known, at, .. } = self.went_back.as_ref()?;
        let from = known.revision;
        (found.revision < from).then_some(LeaseError::StoreWentBack { from, to: *at })
    }

    /// Deletes the keys of another host that has this host's subnet only because etcd went back: they are
    /// from before, and the host does not run. This host then claims its subnet as a lost one.
    pub(super) fn take_back(&self, found: &Snapshot, error: &LeaseError) -> Option<Transaction> {
        let LeaseError::SubnetLost { subnet, owner } = error else { return None };
        let WentBack { known, old, is_denied, .. } = self.went_back.as_ref()?;
        let (own, roots) = (&self.own.identity.name, &self.own.network.roots);
        let had = known.claims.get(subnet).is_some_and(|claim| claim.value == *own);
        let runs = Rollback { old: *old, is_recent: self.lease.is_some() }.runs(found, owner);
        let keys = ownership(found, owner);
        let is_old = keys.iter().all(|key| found.modified(roots, key) <= *old);
        (had && is_old && !runs && !is_denied).then(|| leave::transaction(found, &keys, roots))
    }

    /// This host may not delete the keys of another one: an operator must.
    pub(super) fn cannot_take_back(
        &mut self,
        found: Snapshot,
        why: String,
    ) -> Result<Command, SessionExit> {
        self.warnings.push(why);
        if let Some(went_back) = &mut self.went_back {
            went_back.is_denied = true;
        }
        self.claim(found)
    }
}
