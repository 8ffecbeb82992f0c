//! The owners of addresses and host ports.
//!
//! [`pool`] is pure: ranges, and the order in which their addresses are allocated. [`store`] keeps the
//! owners in a folder, one file per address: a claim is one exclusive `link(2)` and costs the same at
//! 250 and at 60,000 addresses.
//!
//! ```text
//! <dataDir>/<network>/lock                        held (flock) while anything below changes
//!                     boot                        the boot that the entries belong to
//!                     closed                      subnets that are not this host's any more
//!                     cursor.<n>                  last address allocated from range set n of each network, the
//!                                                 latest first
//!                     owners/<container>:<ifname> one entry, JSON
//!                     <address>                   the same file again (a hard link)
//!                     ended/                      entries whose attachments have ended, to be released
//!                     swept/                      free addresses that no connection is left of
//!                     quarantine/                 invalid files
//! <dataDir>/.calls/                           counters of the plugin's calls
//! <dataDir>/.hostports/<protocol>-<port>/<address>    the entry of the port's owner
//! ```

mod boot;
pub mod calls;
mod claims;
mod closed;
mod contents;
mod ended;
pub mod entry;
mod error;
mod free;
pub mod import;
mod layout;
mod lock;
pub mod pool;
mod range;
mod reserve;
mod sources;
pub mod store;
mod swept;

pub use claims::{ClaimsView, LockedClaims, PortClaim, PortClaims};
pub use closed::Closed;
pub use contents::{ReadEntries, StoreContents, StoreFault};
pub use ended::SeenEntry;
pub use entry::{Owner, RequestedPorts, StoreEntry, TEST_CONTAINER};
pub use error::StoreError;

pub use pool::RangeSet;
pub use range::{Range, RangeError};
pub use reserve::Reservation;
pub use store::{LockedStore, Store};
