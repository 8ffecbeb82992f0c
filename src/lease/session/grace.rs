//! Pure. How long a new host waits on an empty etcd, what of that is left for the others, and how long those wait for
//! what one of them puts back.
//!
//! The keys may all be deleted while a survivor rests its watch: the deletion of the settings ends its rest, and it
//! has put the keys back before the new host takes its subnet.

use std::time::Duration;

/// Wait before a new host writes to an empty etcd.
pub const GRACE: Duration = Duration::from_secs(2);

/// How long etcd may be silent meanwhile: what is left is for a survivor, to get what it missed, to read
/// everything, and to put it back.
pub const PUT_BACK: Duration = Duration::from_millis(500);

/// How long a record that a living host lost still counts: that puts it back at once, and what leads to its pods must
/// not go and come again, least of all a tunnel that has to be set up anew.
pub const OWNER_PUTS_BACK: Duration = Duration::from_secs(1);
