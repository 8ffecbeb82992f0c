//! Pure. What the claim needs next, until the lease is held.

use crate::lease::claim::{self, Step};
use crate::lease::error::LeaseError;
use crate::lease::identity::Lease;
use crate::lease::session::{Dialogue, End, Pause, Place, Question, repair};
use crate::lease::snapshot::Snapshot;
use crate::lease::transaction::Transaction;

impl Dialogue {
    /// Whatever the claim needs next, given that etcd holds `found`.
    pub(super) fn claim(&mut self, found: Snapshot) -> Result<Question, End> {
        self.own.shown = self.kept.is_some() && self.kept == self.shown_with;
        match claim::next(&found, &self.own) {
            Step::Held(lease) => {
                self.trouble = None;
                self.held(found, lease)
            }
            Step::Refused(error) => {
                let lease = self.withstand(error)?;
                self.held(found, lease)
            }
            Step::Grow(growth) => {
                let widening = |transaction| Place::Widening(found, transaction);
                Ok(self.commit("widen the pool of the network", growth, widening))
            }
            Step::ShowLife => match self.life(&found) {
                Some((life, lease)) => {
                    let showing = |transaction| Place::Showing(found, transaction, lease);
                    Ok(self.commit("write the sign of life", life, showing))
                }
                None => Ok(self.await_lease(found)),
            },
            Step::Draw if self.failed && !self.so_far.waited_for_survivors => {
                self.so_far.waited_for_survivors = true;
                Ok(self.pause(Pause::Grace))
            }
            Step::Draw => {
                self.place = Place::Drawing(found);
                Ok(Question::Draw)
            }
            Step::Write { transaction, lease, fresh } => {
                if fresh {
                    self.chosen = Some(lease);
                }
                let claiming = |transaction| Place::Claiming(found, transaction);
                Ok(self.commit("claim this host's subnet", transaction, claiming))
            }
        }
    }

    /// A transaction was made.
    pub(super) fn written(&mut self, place: Place, revision: i64) -> Result<Question, End> {
        let (mut found, transaction) = match place {
            Place::Founding(found, transaction) | Place::Widening(found, transaction) => {
                (found, transaction)
            }
            Place::Claiming(found, transaction) => {
                self.tell_repair(&found, &transaction);
                (found, transaction)
            }
            Place::Showing(found, transaction, lease) => {
                self.shown_with = Some(lease);
                (found, transaction)
            }
            _ => return Ok(self.read()),
        };
        found.written(&self.own.network.roots, &transaction, revision);
        self.claim(found)
    }

    /// Tells what was put back of a lease that is held.
    fn tell_repair(&self, found: &Snapshot, transaction: &Transaction) {
        let known = self.known.as_ref().filter(|_| self.lease.is_some());
        let roots = &self.own.network.roots;
        if let Some(line) = known.and_then(|known| repair::told(known, found, roots, transaction)) {
            log::warn!("{line}");
        }
    }

    /// Goes on with the lease this host has, if etcd only disagrees about that.
    fn withstand(&mut self, error: LeaseError) -> Result<Lease, End> {
        let about_lease = matches!(
            error,
            LeaseError::SubnetLost { .. }
                | LeaseError::HeldByOther { .. }
                | LeaseError::CannotGrow { .. }
        );
        match self.lease.clone().filter(|_| about_lease) {
            Some(lease) => {
                self.trouble = Some(error);
                Ok(lease)
            }
            None => Err(End::Refused(error)),
        }
    }

    pub(super) fn await_lease(&mut self, found: Snapshot) -> Question {
        self.place = Place::Awaiting(found);
        Question::AwaitLease
    }

    /// What puts the sign of life, and the etcd lease it goes with, if there is one and nobody
    /// else has the name.
    pub(super) fn life(&self, found: &Snapshot) -> Option<(Transaction, i64)> {
        let lease = self.kept?;
        Some((claim::show_life(found, &self.own, self.since, lease)?, lease))
    }
}
