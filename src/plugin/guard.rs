//! The guard at a pod's port: put there before the port is up. When the port goes the guard guards
//! nothing any more; what is left of it is removed later, of many ports at once.

use nix::errno::Errno;

use crate::cni::error::{CniError, code};
use crate::net::IfName;
use crate::netlink::NetlinkError;
use crate::netlink::rtnl::Rtnl;
use crate::nft::Nft;
use crate::nft::frame::edit::FrameEdit;
use crate::plan::guard::{Guard, TABLE, all_sets, has_chains, leftovers, shared_edits};
use crate::plugin::failure::{self, OrInternal};

/// Makes the guard of a port that is there, with this index; of the first pod also what all of them
/// share.
///
/// # Errors
/// Code 2: this kernel has no guards. Code 999: the kernel refused it.
pub fn set(guard: &Guard, index: u32) -> Result<(), CniError> {
    let what = format!("guard {}", guard.device);
    let nft = Nft::open().or_internal(&what)?;
    let edits = guard.edits(index, &Default::default());
    let made = match nft.edit_frames(TABLE, &edits) {
        Err(error) if error.errno() == Some(Errno::ENOENT) => {
            let all: Vec<FrameEdit> =
                shared_edits(&guard.shared()).into_iter().chain(edits).collect();
            nft.edit_frames(TABLE, &all)
        }
        outcome => outcome,
    };
    made.map_err(|error| match error.errno() {
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
    match nft.device_chain_names(TABLE) {
        Ok(names) if names.contains(link.as_str()) => {
            match nft.edit_frames(TABLE, &[FrameEdit::RemoveChain(link.to_string())]) {
                Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(()),
                outcome => outcome.or_internal(what),
            }
        }
        _ => Ok(()),
    }
}

/// DEL of this link also removes what earlier ones have left of their guards, on a host without an agent:
/// one link in 256. To remove one's own each time would cost every DEL 16 ms: closing a netfilter
/// socket, at the latest as the process ends, waits until the kernel has freed what was removed.
pub fn sweeps(link: &IfName) -> bool {
    link.as_str().ends_with("00")
}

/// Removes what links that are gone have left of their guards, of whatever network.
///
/// # Errors
/// [`NetlinkError`].
pub fn sweep(rtnl: &Rtnl) -> Result<(), NetlinkError> {
    let nft = Nft::open()?;
    let plan = || {
        let Some(found) = nft.frames(TABLE, &all_sets())? else { return Ok(Vec::new()) };
        let links = rtnl.links(None)?.into_iter().map(|link| (link.index, link.name));
        Ok(leftovers(&found, &links.collect()))
    };
    nft.edit_frames_as_seen(TABLE, plan).map(drop)
}

/// The guard is there as it should be, if `index` is that of its port.
///
/// # Errors
/// Code 999: the kernel refused an answer.
pub fn is_there(guard: &Guard, index: u32) -> Result<bool, CniError> {
    let what = format!("read the guard of {}", guard.device);
    let nft = Nft::open().or_internal(&what)?;
    let found = nft.frames(TABLE, &[]).or_internal(&what)?;
    if !found.is_some_and(|found| has_chains(guard, &found)) {
        return Ok(false);
    }
    let elements = guard.elements(index);
    for (set, elements) in
        guard.shared().sets.iter().filter_map(|set| Some((set, elements.get(&set.name)?)))
    {
        if !nft.has_elements(TABLE, set, elements).or_internal(&what)? {
            return Ok(false);
        }
    }
    Ok(true)
}
