//! The guard at a pod's port: put there before the port is up. When the port goes the guard guards
//! nothing any more; what is left of it is removed later, of many ports at once.

use std::collections::BTreeMap;

use nix::errno::Errno;

use crate::cni::config::NetConf;
use crate::cni::error::{CniError, code};
use crate::inspect::guards::FoundGuards;
use crate::inspect::port_profiles;
use crate::ipam::Store;
use crate::net::IfName;
use crate::net::gather::Gather;
use crate::netlink::NetlinkError;
use crate::netlink::fdb;
use crate::netlink::link::Link;
use crate::netlink::rtnl::Rtnl;
use crate::nft::Nft;
use crate::nft::frame::FoundFrameChain;
use crate::nft::frame::edit::FrameEdit;
use crate::plan::guard::{
    COMMENT, Guard, GuardChange, PodPort, TABLE, all_sets, changes, leftovers, of_device, ports,
    shared_edits,
};
use crate::plan::local_macs::{LostMac, lost};
use crate::plugin::failure::{self, OrInternal};

/// Makes the guard of a port that is there, with this index; of the first pod also what all of them
/// share.
///
/// # Errors
/// Code 2: this kernel has no guards. Code 999: the kernel refused it.
pub fn set(guard: &Guard, index: u32) -> Result<(), CniError> {
    let what = format!("guard {}", guard.device);
    let nft = Nft::open().or_internal(&what)?;
    let table = [FrameEdit::Table(COMMENT.to_owned())];
    let edits = guard.edits(index, &Default::default());
    let made = match nft.edit_frames(TABLE, &[&table, &edits[..]].concat()) {
        // A table that is dormant wakes, which newer kernels refuse together with a chain at a device.
        // All else in one transaction: what no pod uses yet somebody may remove.
        Err(error) if matches!(error.errno(), Some(Errno::ENOENT | Errno::EINVAL)) => {
            let all = [shared_edits(&guard.shared()), edits].concat();
            nft.edit_frames(TABLE, &table).and_then(|()| nft.edit_frames(TABLE, &all))
        }
        // Of another port that had this index, or of an agent that saw this one unfinished.
        Err(error) if error.errno() == Some(Errno::EEXIST) => {
            let found = nft.frames(TABLE, &all_sets()).or_internal(&what)?.unwrap_or_default();
            nft.edit_frames(TABLE, &guard.edits(index, &of_device(&found, index)))
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
        Ok(leftovers(&found, &links.gather()))
    };
    nft.edit_frames_as_seen(TABLE, plan).map(drop)
}

/// Before an ADD with this guard, on a host without an agent, which looks itself: if the rules that it leads
/// to are not as they should be, makes them anew, and then [`restore`]. Gives how many changes that took; what
/// fails is logged.
pub fn ensure_shared(rtnl: &Rtnl, guard: &Guard, conf: &NetConf, store: &Store) -> usize {
    if !conf.create_bridge {
        return 0;
    }
    let chain = guard.shared_chain();
    let is_whole = |nft: &Nft| {
        let rules = nft.frame_rules(TABLE, &chain.name)?;
        let found = FoundFrameChain { rules, ..FoundFrameChain::default() };
        Ok::<bool, NetlinkError>(chain.is_whole(Some(&found)))
    };
    // Without nftables [`set`] says so.
    let Ok(nft) = Nft::open() else { return 0 };
    if is_whole(&nft).unwrap_or(true) {
        return 0;
    }
    match nft.edit_frames(TABLE, &shared_edits(&guard.shared())) {
        // Another pod's guard, which an agent may be repairing at the same time, is no reason to refuse this pod.
        Ok(()) => restore(rtnl, conf, store).unwrap_or_else(|error| {
            log::warn!("restore the guards of running pods: {error:?}");
            0
        }),
        Err(error) => {
            log::debug!("make what guards share: {error}");
            0
        }
    }
}

/// Makes the guards of the network's running pods as they should be, as an agent would. Gives how many
/// changes that took.
///
/// # Errors
/// Code 999: the kernel refused, or the store cannot be read.
pub fn restore(rtnl: &Rtnl, conf: &NetConf, store: &Store) -> Result<usize, CniError> {
    let what = "restore the guards of running pods";
    if !conf.guard.is_on || !conf.create_bridge {
        return Ok(0);
    }
    let Some(bridge) = rtnl.link(&conf.bridge).or_internal(what)? else { return Ok(0) };
    let nft = Nft::open().or_internal(what)?;
    let found = FoundGuards::observe(rtnl, &nft, &bridge, store).or_internal(what)?;
    let (ports, _) = ports(conf.name.as_str(), &bridge, &found.ports());
    let routes = conf.guard.routes && conf.is_gateway;
    let profiles = conf.policy.map(|_| port_profiles::read(&conf.data_dir)).unwrap_or_default();
    let guard = |port: &PodPort<'_>| {
        let guard = port.guard(&conf.guard.allowed, routes);
        guard.with_profile(profiles.get(&port.link.name))
    };
    let wanted: Vec<(Guard, u32)> =
        ports.iter().map(|port| (guard(port), port.link.index)).collect();
    let mut made = restore_macs(rtnl, &bridge)?;
    for change in changes(wanted.iter(), &BTreeMap::new(), found.frames.as_ref()) {
        let (device, edits) = match &change {
            GuardChange::Shared(edits) => (None, edits),
            GuardChange::Add(device, edits) | GuardChange::Replace(device, edits) => {
                (Some(device), edits)
            }
            _ => continue,
        };
        let went = || device.is_some_and(|device| matches!(rtnl.link(device), Ok(None)));
        match nft.edit_frames(TABLE, edits) {
            Err(_) if went() => {}
            outcome => outcome.or_internal(what)?,
        }
        made += 1;
    }
    Ok(made)
}

/// Lets the host take in again what the bridge sends elsewhere of the frames for its own MAC and those of pods' ports. Gives
/// how many of those there were.
fn restore_macs(rtnl: &Rtnl, bridge: &Link) -> Result<usize, CniError> {
    let what = "look at the MACs of a bridge";
    let links = rtnl.links(None).or_internal(what)?;
    let lost = lost(bridge.index, &links, &rtnl.bridge_entries(bridge.index).or_internal(what)?);
    let set = |lost: &LostMac| {
        let set = fdb::set_local(lost.index, lost.mac, lost.is_bridge);
        set.tolerating(Errno::ENODEV).tolerating(Errno::EOPNOTSUPP)
    };
    rtnl.apply(&lost.iter().map(set).collect::<Vec<_>>())
        .or_internal("restore MACs of a bridge")?;
    Ok(lost.len())
}

/// The guard is there as it should be, if `index` is that of its port. What it costs does not depend on
/// how many pods there are, so that ADD does not look for elements that let more pass: GC and the agent do.
///
/// # Errors
/// Code 999: the kernel refused an answer.
pub fn is_there(guard: &Guard, index: u32) -> Result<bool, CniError> {
    let what = format!("read the guard of {}", guard.device);
    let mut wanted = guard.shared();
    wanted.chains.push(guard.chain());
    let mut elements = guard.elements(index);
    for set in &mut wanted.sets {
        set.elements = elements.remove(&set.name).unwrap_or_default();
    }
    let nft = Nft::open().or_internal(&what)?;
    nft.has_frames(TABLE, &wanted).or_internal(&what)
}
