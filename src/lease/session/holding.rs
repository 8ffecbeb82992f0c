//! Pure. The lease is held: what is left to do before it is published.

use std::sync::Arc;

use crate::etcd::EtcdError;
use crate::lease::claim::{self, python};
use crate::lease::identity::Lease;
use crate::lease::restore;
use crate::lease::session::{Answer, Dialogue, End, Pause, Place, Question, Settled};
use crate::lease::snapshot::Snapshot;
use crate::lease::transaction::Transaction;

impl Dialogue {
    /// The lease is held. A subnet that this host chose and has not used yet is given back if a host
    /// of the Python agent took it too, and looked at once more if it was chosen just now.
    pub(super) fn held(&mut self, found: Snapshot, lease: Lease) -> Result<Question, End> {
        if let Some(other) = python::taken_by(&found, &self.own, &lease) {
            log::warn!("host {other} of the Python agent took this host's number: taking another");
            self.own.ticket = None;
            let release = claim::release(&found, &self.own, &lease);
            return Ok(self.commit("give a subnet back", release, |_| Place::Start));
        }
        let chosen = self.chosen.take();
        let unused = self.lease.is_none() && self.own.remembered != lease.subnets;
        if unused && chosen.as_ref() == Some(&lease) && python::exist(&found) {
            return Ok(self.pause(Pause::Probation));
        }
        if self.own.shown && found.alive.contains_key(&self.own.identity.name) {
            return Ok(self.settle(found, lease));
        }
        Ok(self.complete(found, lease))
    }

    /// Puts the sign of life, but does not depend on it.
    fn complete(&mut self, found: Snapshot, lease: Lease) -> Question {
        match self.life(&found) {
            Some((life, _)) => {
                let completing = |life| Place::Completing(found, lease, Some(life));
                self.commit("write the sign of life", life, completing)
            }
            None if self.kept.is_none() => {
                self.place = Place::Completing(found, lease, None);
                Question::AwaitLease
            }
            None => self.settle(found, lease),
        }
    }

    /// The sign of life was put, or not. If etcd was not reached, it is tried again; if it refused, all
    /// else goes on.
    pub(super) fn completed(
        &mut self,
        mut found: Snapshot,
        lease: Lease,
        life: Option<Transaction>,
        answer: Result<Answer, EtcdError>,
    ) -> Result<Question, End> {
        match (life, answer) {
            (Some(life), Ok(Answer::Committed(Some(revision)))) => {
                self.shown_with = self.kept;
                found.written(&self.own.network.roots, &life, revision);
            }
            (None, Ok(Answer::Kept(kept @ Some(_)))) => {
                self.kept = kept;
                return Ok(self.complete(found, lease));
            }
            (Some(_), Ok(Answer::Committed(None))) => return Ok(self.read()),
            (_, Err(error @ EtcdError::Unreachable(_))) => return Err(error.into()),
            (_, Err(error)) => log::warn!("{error}"),
            _ => {}
        }
        Ok(self.settle(found, lease))
    }

    fn settle(&mut self, found: Snapshot, lease: Lease) -> Question {
        let (own, network) = (&self.own.identity.name, &self.own.network);
        let complete = match &mut self.absent {
            Some(absent) => {
                *absent = restore::still_absent(absent, &found);
                restore::remembering(absent, found, own, network)
            }
            None => found,
        };
        let snapshot = Arc::new(complete);
        self.known = Some(Arc::clone(&snapshot));
        self.own.keep = lease.subnets;
        self.failed = false;
        let changed = self.lease.as_ref() != Some(&lease);
        self.lease = Some(lease.clone());
        Question::Follow(Settled { lease: changed.then_some(lease), snapshot })
    }
}
