//! Pure. Reports of the connection with etcd or the Kubernetes API to the agent.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use crate::lease::{Lease, LeaseError, Snapshot};
use crate::net::{FailureReason, Problem};

#[derive(Clone, Debug)]
pub enum Update {
    /// The store answers, by this member; a snapshot follows. Repeated for every other member.
    Connected { endpoint: String },
    /// The store does not answer; what was published stays valid. Repeated for every new reason.
    Disconnected { why: FailureReason },
    /// The store answers, but takes no sign of life of this host. `None`: it does again.
    Refused(Option<FailureReason>),
    /// The subnets of this host: before the first snapshot, and again if they change.
    Lease(Lease),
    /// The whole content of the store. Never partial, never before this host's lease, and never
    /// without hosts only because etcd lost its data.
    Snapshot(Arc<Snapshot>),
    /// The store contradicts the lease that this host holds; the host keeps it. `None`: resolved.
    Trouble(Option<LeaseError>),
    /// The state of the files with certificates, key and password, when it changes: problems, present and
    /// soon, and the end of validity of the first certificate in use.
    Files { problems: BTreeSet<Problem>, until: Option<SystemTime> },
    /// This host cannot have a lease. The last update.
    Fatal(LeaseError),
}
