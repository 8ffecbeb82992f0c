//! The guard at a pod's port: put there before the port is up, and removed after it is gone.

use nix::errno::Errno;

use crate::cni::error::{CniError, code};
use crate::net::IfName;
use crate::netlink::NetlinkError;
use crate::nft::Nft;
use crate::plan::guard::{COMMENT, Guard, TABLE, is_whole};
use crate::plugin::failure::{self, OrInternal};

/// Makes the guard of a port that is there.
///
/// # Errors
/// Code 2: this kernel has no guards. Code 999: the kernel refused it.
pub fn set(guard: &Guard) -> Result<(), CniError> {
    let what = format!("guard {}", guard.device);
    let nft = Nft::open().or_internal(&what)?;
    nft.set_device_chains(TABLE, COMMENT, &[&guard.chain()]).map_err(|error| match error.errno() {
        // No family, or no hook at devices.
        Some(Errno::EAFNOSUPPORT | Errno::EOPNOTSUPP) => {
            let why = "podGuard: this kernel has no nftables for devices (CONFIG_NF_TABLES_NETDEV); \
                       to do without the guard, set it to false (POD_GUARD=off)";
            CniError::new(code::UNSUPPORTED_FIELD, format!("{why}: {error}"))
        }
        _ => failure::internal(&what, &error),
    })
}

/// Removes the guards of links that are gone.
///
/// # Errors
/// [`NetlinkError`].
pub fn remove<'a>(links: impl IntoIterator<Item = &'a IfName>) -> Result<(), NetlinkError> {
    let names = links.into_iter().map(IfName::as_str);
    // Closing the socket, at the latest as the process ends, waits until the kernel has freed what was
    // removed: 16 ms.
    Nft::open()?.delete_device_chains(TABLE, names)
}

/// The guard is there as it should be.
///
/// # Errors
/// Code 999: the kernel refused an answer.
pub fn is_there(guard: &Guard) -> Result<bool, CniError> {
    let what = format!("read the guard of {}", guard.device);
    let nft = Nft::open().or_internal(&what)?;
    let found = nft.device_chain(TABLE, &guard.device).or_internal(&what)?;
    Ok(found.is_some_and(|found| is_whole(&guard.chain(), &found)))
}
