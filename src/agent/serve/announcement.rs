//! Pure. What the service manager knows of a start.

use std::time::{Duration, Instant};

/// A start that takes longer is announced as finished. What waits for the unit may be what the agent waits for: the
/// kubelet of a control plane starts etcd. Whether pods can start is said by `humanz-agent ready`, and before the
/// host is served no runtime finds a CNI configuration.
const PATIENCE: Duration = Duration::from_secs(5);

/// What it knows.
#[derive(Debug)]
pub struct Announcement {
    /// When the start has taken long enough; `None`: it is over.
    pub(super) due: Option<Instant>,
    /// The last status.
    pub(super) said: String,
}

impl Announcement {
    pub fn new(now: Instant) -> Announcement {
        Announcement { due: Some(now + PATIENCE), said: String::new() }
    }
}
