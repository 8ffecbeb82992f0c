//! Pure. The errors of the store.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnetwork::IpNetwork;

use crate::ipam::entry::StoreEntry;
use crate::net::HostPort;

/// Why the store refused; nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Every address of a range set has an owner. Begins as host-local's message does, which users
    /// search for.
    #[error("no IP addresses available in range set: {set}")]
    Exhausted { set: String },
    /// The attachment has addresses already.
    #[error("{} has been allocated to {}, duplicate allocation is not allowed", list(&.0.addresses), .0.owner_text())]
    Duplicate(Box<StoreEntry>),
    /// The subnet is not, or not alone, this host's.
    #[error("no address of {subnet} is allocated: {why}")]
    Closed { subnet: IpNetwork, why: String },
    /// A requested address has an owner.
    #[error("requested IP address {address} is taken by {owner}")]
    Taken { address: IpAddr, owner: String },
    /// Requested addresses outside the range sets, or a second one for a set.
    #[error("failed to allocate all requested IPs: {} (range sets: {sets}; each gives one address)", list(.addresses))]
    NotInRange { addresses: Vec<IpAddr>, sets: String },
    /// A requested address is a gateway.
    #[error("requested IP {0} is the subnet's gateway")]
    Gateway(IpAddr),
    /// A host port has an owner.
    #[error("host port {port} is taken by {owner}")]
    PortTaken {
        /// The holder's port.
        port: HostPort,
        owner: String,
    },
    /// Another process held the lock for too long.
    #[error("{} is locked by another process for more than {} s", .path.display(), .waited.as_secs())]
    LockTimeout { path: PathBuf, waited: Duration },
    /// The file system refused.
    #[error("{what} {}", .path.display())]
    Io {
        /// A verb: `open`, `link`.
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

fn list(addresses: &[IpAddr]) -> String {
    let texts: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    texts.join(", ")
}
