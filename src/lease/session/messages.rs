//! Pure. Commands and events of the session state machine.

use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::lease::error::LeaseError;
use crate::lease::etcd_error::EtcdError;
use crate::lease::identity::{HostAttributes, Lease, Network};
use crate::lease::snapshot::Snapshot;
use crate::lease::transaction::Transaction;
use crate::net::PerFamily;

/// What the caller does next; each has an [`Event`] as its result.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Read both key ranges: [`Event::Found`].
    Read,
    /// Read the host keys only: [`Event::FoundHosts`].
    ReadHosts,
    /// Commit `transaction`: [`Event::Committed`]. `what`: its purpose, for errors.
    Commit { what: &'static str, transaction: Transaction },
    /// Allocate a number that no other host gets: [`Event::TicketAllocated`].
    AllocateTicket,
    /// Wait: [`Event::Elapsed`].
    Pause(Pause),
    /// Wait, with a limit, for another etcd lease: [`Event::LeaseKept`].
    AwaitLease,
    /// Nothing to do: publish, and watch etcd from this revision.
    Follow(Settled),
}

/// The state to publish when there is nothing to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Settled {
    /// This host's lease, if it changed; published first.
    pub lease: Option<Lease>,
    /// The watch begins after its revision.
    pub snapshot: Arc<Snapshot>,
    /// Revisions since then, as far as this host saw: how much the hosts write at this time.
    pub behind: i64,
}

/// Reason for a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Before writing to an etcd that is empty or has just come back: after a loss of data a
    /// survivor puts the keys back before a new host takes one of the subnets.
    Grace,
    /// Hosts of the Python agent may be taking the fresh subnet.
    Probation,
    /// Another agent with this host's name and machine id shows meanwhile that it lives. In the same boot
    /// it is almost always the one that was killed before this one. `waits`: windows that are over. The wait
    /// ends when its alive key is gone or changes after the revision `modified`.
    Answer { same_boot: bool, waits: u32, modified: i64 },
    /// This many times in a row another host was first.
    LostRace(u32),
}

/// The result of a [`Command`].
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Found(Box<Found>),
    /// Nothing but host keys.
    FoundHosts(Box<Snapshot>),
    /// The revision of the transaction; `None` if a condition did not hold.
    Committed(Option<i64>),
    TicketAllocated(i64),
    Elapsed,
    /// The etcd lease that is kept alive now.
    LeaseKept(Option<i64>),
}

/// The content of etcd, and the current state of this host.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Both key ranges.
    pub snapshot: Snapshot,
    /// The network as configured on this host.
    pub configured: Network,
    pub attributes: HostAttributes,
    /// Subnets in which no pod of this host runs and none will start.
    pub vacated: PerFamily<IpNetwork>,
    /// The etcd lease that is kept alive.
    pub etcd_lease: Option<i64>,
    /// A random identifier, for a store that needs a new one.
    pub new_store_id: String,
}

/// Why the machine stopped; it continues with `begin`.
#[derive(Clone, Debug, PartialEq)]
pub enum SessionExit {
    /// etcd failed.
    Failed(EtcdError),
    /// This host can have no lease. If it already has one, it keeps that.
    Refused(LeaseError),
}

impl From<EtcdError> for SessionExit {
    fn from(error: EtcdError) -> SessionExit {
        SessionExit::Failed(error)
    }
}
