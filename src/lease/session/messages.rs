//! Pure. Questions and answers.

use std::sync::Arc;

use crate::etcd::EtcdError;
use crate::lease::error::LeaseError;
use crate::lease::identity::{Attributes, Lease, Network};
use crate::lease::snapshot::Snapshot;
use crate::lease::transaction::Transaction;

/// What must be done next.
#[derive(Clone, Debug, PartialEq)]
pub enum Question {
    /// Both roots are to be read: [`Answer::Found`].
    Read,
    /// A transaction is to be made: [`Answer::Committed`].
    Commit {
        /// What for, for errors.
        what: &'static str,
        /// The transaction.
        transaction: Transaction,
    },
    /// A number is to be drawn that nobody else gets: [`Answer::Drawn`].
    Draw,
    /// Time is to pass: [`Answer::Passed`].
    Pause(Pause),
    /// Another etcd lease is to be waited for, but not for ever: [`Answer::Kept`].
    AwaitLease,
    /// Nothing is to be done: etcd says what it must, and is to be watched.
    Follow(Settled),
}

/// How etcd and this host stand when nothing is to be done.
#[derive(Clone, Debug, PartialEq)]
pub struct Settled {
    /// This host's lease, if it changed: to be published first.
    pub lease: Option<Lease>,
    /// To be published; what is watched follows on its revision.
    pub snapshot: Arc<Snapshot>,
}

/// Why time must pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// An etcd that is empty, or has just come back, is left alone, so that a survivor of a loss of
    /// data puts the keys back before a new host takes one of the subnets.
    Grace,
    /// Hosts of the Python agent may be taking the fresh subnet.
    Probation,
    /// So many times in a row another host was quicker.
    LostRace(u32),
}

/// What came of a question.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// What etcd holds, and what this host is by now.
    Found(Box<Found>),
    /// The revision at which the transaction was made; `None` if a condition did not hold.
    Committed(Option<i64>),
    /// The number drawn.
    Drawn(i64),
    /// Time passed.
    Passed,
    /// The etcd lease that is kept alive by now.
    Kept(Option<i64>),
}

/// What etcd holds, and what this host is by now.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Both roots.
    pub snapshot: Snapshot,
    /// The network, as the operator told this host.
    pub told: Network,
    /// How the others reach this host.
    pub attributes: Attributes,
    /// The etcd lease that is kept alive.
    pub kept: Option<i64>,
    /// A mark that no store has, should one be needed.
    pub mark: String,
}

/// Why it cannot go on; the next thing to do then is to begin again.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// etcd did not do what was asked.
    Failed(EtcdError),
    /// This host can have no lease. One that has a lease goes on with that.
    Refused(LeaseError),
}

impl From<EtcdError> for End {
    fn from(error: EtcdError) -> End {
        End::Failed(error)
    }
}
