//! Pure. The state of the session state machine.

use std::sync::Arc;
use std::time::SystemTime;

use crate::lease::error::LeaseError;
use crate::lease::identity::{Claimant, Lease};
use crate::lease::restore::Restoration;
use crate::lease::restore::absent::Absent;
use crate::lease::session::messages::{Command, Pause};
use crate::lease::snapshot::Snapshot;
use crate::lease::transaction::Transaction;

/// Obtains and keeps the lease of one host.
#[derive(Clone, Debug)]
pub struct SessionMachine {
    pub(super) own: Claimant,
    /// Start of the agent.
    pub(super) since: SystemTime,
    /// The snapshot published last, or saved by an earlier run.
    pub(super) last_known: Option<Arc<Snapshot>>,
    /// Hosts that were lost with the data of etcd and that this host may not put back.
    pub(super) absent: Option<Absent>,
    pub(super) lease: Option<Lease>,
    pub(super) trouble: Option<LeaseError>,
    /// What an agent that was first answered this one.
    pub(super) superseded: Option<LeaseError>,
    pub(super) asked: Option<LivenessCheck>,
    /// This host may not put the contender key.
    pub(super) cannot_ask: bool,
    /// Why this host may not claim its WireGuard key, as logged.
    pub(super) cannot_claim_key: Option<String>,
    /// etcd was restored from an older snapshot.
    pub(super) went_back: Option<WentBack>,
    /// The etcd lease that is kept alive.
    pub(super) etcd_lease: Option<i64>,
    /// The etcd lease with which the alive key was put.
    pub(super) alive_lease: Option<i64>,
    /// The lease chosen last. It may be claimed even if no event confirmed it, and a host of the
    /// Python agent may be taking it.
    pub(super) chosen: Option<Lease>,
    pub(super) new_store_id: String,
    /// etcd failed before: it may have come back with the data of a backup.
    pub(super) failed: bool,
    pub(super) progress: Progress,
    pub(super) state: State,
    pub(super) warnings: Vec<String>,
}

/// Progress since the last `begin`.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    /// The pause before writing to an empty etcd is over.
    pub waited: bool,
    /// The pause before choosing a subnet, after etcd failed, is over.
    pub waited_for_survivors: bool,
    /// How often another host was first.
    pub races: u32,
    /// Revision of the last transaction.
    pub revision: i64,
}

/// What another agent with this host's name was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LivenessCheck {
    pub(super) instance: Box<str>,
    /// Revision of the alive key then: an answer changes it.
    pub(super) modified: i64,
    /// How many windows for an answer are over.
    pub(super) waits: u32,
}

/// The state before etcd went back.
#[derive(Clone, Debug)]
pub(super) struct WentBack {
    pub(super) known: Arc<Snapshot>,
    /// Its revision when that was noticed.
    pub(super) at: i64,
    /// Keys written up to this revision are from before: no host that noticed has written them.
    pub(super) old: i64,
    /// This host may not delete the keys of another one.
    pub(super) is_denied: bool,
}

/// Which command is under way.
#[derive(Clone, Debug)]
pub(super) enum State {
    /// None, or one whose result does not matter: the next command is a read.
    Idle,
    Reading,
    Restoring(Box<Restoration>),
    /// Writing the network settings, or a wider pool.
    Configuring(Snapshot, Transaction),
    /// Putting the alive key with this etcd lease.
    PuttingAlive(Snapshot, Transaction, i64),
    AwaitingLease(Snapshot),
    /// Deleting the keys of a host that an older snapshot of etcd brought back.
    TakingBack(Snapshot),
    /// Putting the contender key.
    Asking(Snapshot),
    AwaitingAnswer,
    /// Waiting whether a host of the Python agent takes the fresh subnet, then reading the host keys.
    Probation(Snapshot, Lease),
    /// Putting the alive key because another agent asked.
    Answering(Snapshot, Transaction),
    Allocating(Snapshot),
    Claiming(Snapshot, Transaction),
    ClaimingKey(Snapshot, Transaction),
    /// Putting the alive key when all else is done: nothing depends on it.
    Completing(Snapshot, Lease, Option<Transaction>),
}

impl SessionMachine {
    pub(super) fn of(
        own: Claimant,
        last_known: Option<Arc<Snapshot>>,
        since: SystemTime,
    ) -> SessionMachine {
        SessionMachine {
            absent: last_known.as_deref().and_then(Absent::of_saved),
            own,
            since,
            last_known,
            lease: None,
            trouble: None,
            superseded: None,
            asked: None,
            cannot_ask: false,
            cannot_claim_key: None,
            went_back: None,
            etcd_lease: None,
            alive_lease: None,
            chosen: None,
            new_store_id: String::new(),
            failed: false,
            progress: Progress::default(),
            state: State::Idle,
            warnings: Vec::new(),
        }
    }

    pub(super) fn read(&mut self) -> Command {
        self.state = State::Reading;
        Command::Read
    }

    pub(super) fn pause(&mut self, pause: Pause) -> Command {
        self.state = State::Idle;
        Command::Pause(pause)
    }

    pub(super) fn await_lease(&mut self, found: Snapshot) -> Command {
        self.state = State::AwaitingLease(found);
        Command::AwaitLease
    }

    pub(super) fn commit(
        &mut self,
        what: &'static str,
        transaction: Transaction,
        state: impl FnOnce(Transaction) -> State,
    ) -> Command {
        self.state = state(transaction.clone());
        Command::Commit { what, transaction }
    }
}
