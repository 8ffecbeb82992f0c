//! Pure. How long a new host waits on an empty etcd, and how long the others may not look at it.
//!
//! The keys may all be deleted just when a survivor begins to rest; it has put them back before the new host
//! takes its subnet, because it rests for so much shorter than the new host waits.

use std::time::Duration;

/// Wait before a new host writes to an empty etcd.
pub const GRACE: Duration = Duration::from_secs(2);

/// What is left of it for a survivor: to get what it missed, to read everything, and to put it back.
pub const PUT_BACK: Duration = Duration::from_millis(500);

/// The longest time for which a host that follows etcd may not notice a change.
pub const LONGEST_REST: Duration = GRACE.saturating_sub(PUT_BACK);
