//! Pure. etcd lost its data: what this host knew is put back, one transaction after the other.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::etcd::EtcdError;
use crate::lease::identity::Network;
use crate::lease::restore;
use crate::lease::session::{Answer, Dialogue, End, Place, Question};
use crate::lease::snapshot::Snapshot;
use crate::lease::transaction::Transaction;

/// What is still to be put back.
#[derive(Clone, Debug)]
pub struct Lost {
    known: Arc<Snapshot>,
    batches: VecDeque<Transaction>,
    mark: Transaction,
    /// The store has settings of the network.
    has_settings: bool,
    /// The mark is being written: the last transaction.
    marking: bool,
}

impl Lost {
    /// What `known` has and `found` has not; the store gets the mark `id`.
    pub fn new(known: Arc<Snapshot>, found: Snapshot, network: &Network, id: &str) -> Lost {
        log::warn!("etcd lost its data: putting back what it had at revision {}", known.revision);
        let batches = restore::transactions(&known, &found, network).collect();
        let mark = restore::mark(&known, &found, &network.config(""), id, &network.roots);
        let has_settings = found.config.is_some();
        Lost { known, batches, mark, has_settings, marking: false }
    }
}

impl Dialogue {
    /// The next transaction that puts something back; the last one marks the store as rebuilt.
    pub(super) fn ask_back(&mut self, mut lost: Box<Lost>) -> Question {
        let (what, transaction) = match lost.batches.pop_front() {
            Some(batch) => ("put back lost hosts", batch),
            None => {
                lost.marking = true;
                ("mark etcd as rebuilt", lost.mark.clone())
            }
        };
        self.commit(what, transaction, |_| Place::PuttingBack(lost))
    }

    /// One of them was made, or refused.
    pub(super) fn put_back(
        &mut self,
        mut lost: Box<Lost>,
        answer: Result<Answer, EtcdError>,
    ) -> Result<Question, End> {
        match answer {
            Ok(_) if lost.marking => Ok(self.read()),
            Ok(_) => Ok(self.ask_back(lost)),
            Err(EtcdError::Denied(why)) if !lost.marking => {
                log::warn!("{why}; this host remembers the others until they return");
                self.absent = Some(Snapshot::clone(&lost.known));
                lost.batches.clear();
                Ok(self.ask_back(lost))
            }
            Err(EtcdError::Denied(why)) if lost.has_settings => {
                log::warn!("{why}");
                self.known = None;
                Ok(self.read())
            }
            Err(error) => Err(error.into()),
        }
    }
}
