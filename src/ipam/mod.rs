//! Which pod owns which address, and which port of the host.
//!
//! [`pool`] is pure: ranges, and the order in which their addresses are handed out. [`store`] keeps
//! the owners in a folder, one file per address, so that a claim is one exclusive `link(2)` and
//! costs the same at 250 and at 60,000 addresses.
//!
//! ```text
//! <dataDir>/<network>/lock                        held (flock) while anything below changes
//!                     boot                        the boot that the entries belong to
//!                     cursor.<n>                  last address handed out by range set n
//!                     owners/<container>:<ifname> whose what: one entry, JSON
//!                     <address>                   the same file again (a hard link)
//!                     quarantine/                 what could not be read
//! <dataDir>/.calls/                           how the calls of the plugin went
//! <dataDir>/.hostports/<protocol>-<port>/<address>    the entry of who has that port of the host
//! ```

pub mod calls;
mod claims;
pub mod entry;
mod error;
mod free;
pub mod import;
mod layout;
mod lock;
mod look;
pub mod pool;
mod range;
mod reserve;
pub mod store;

pub use claims::{ClaimsView, LockedClaims, PortClaim, PortClaims};
pub use entry::{Owner, RequestedPorts, StoreEntry};
pub use error::StoreError;
pub use look::StoreContents;

pub use pool::RangeSet;
pub use range::{Range, RangeError};
pub use reserve::Reservation;
pub use store::{LockedStore, Store};
