//! The guard at a pod's port: put there before the port is up. When the port goes the guard guards
//! nothing any more; what is left of it is removed later, of many ports at once.

use nix::errno::Errno;

use crate::cni::error::{CniError, code};
use crate::net::IfName;
use crate::netlink::NetlinkError;
use crate::netlink::rtnl::Rtnl;
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

/// Removes what a guarded attachment of the same name has left: a port without a guard is to have none.
///
/// # Errors
/// Code 999: the kernel refused.
pub fn clear(link: &IfName) -> Result<(), CniError> {
    let what = format!("remove the guard that {link} had");
    // Without nftables there is none.
    let Ok(nft) = Nft::open() else { return Ok(()) };
    match nft.device_chain(TABLE, link) {
        Ok(Some(_)) => nft.delete_device_chain(TABLE, link.as_str()).or_internal(what),
        _ => Ok(()),
    }
}

/// DEL of this link also removes the guards that earlier ones have left, on a host without an agent:
/// one link in 256. To remove one's own each time would cost every DEL 16 ms: closing a netfilter
/// socket, at the latest as the process ends, waits until the kernel has freed what was removed.
pub fn sweeps(link: &IfName) -> bool {
    link.as_str().ends_with("00")
}

/// Removes the guards of links that are gone, of whatever network.
///
/// # Errors
/// [`NetlinkError`].
pub fn sweep(rtnl: &Rtnl) -> Result<(), NetlinkError> {
    let links = || Ok(rtnl.links(None)?.into_iter().map(|link| link.name).collect());
    Nft::open()?.sweep_device_chains(TABLE, links).map(drop)
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
