//! DEL: unplugs a pod. It needs neither its namespace nor what ADD answered; what is gone already
//! is no failure.

use std::net::IpAddr;

use nix::errno::Errno;

use crate::cni::error::CniError;
use crate::cni::request::Del;
use crate::ipam::{LockedStore, Store, StoreEntry, StoreError};
use crate::netlink::link::{self, LinkRef};
use crate::netlink::rtnl::Rtnl;
use crate::plan::pod::LinkIdentity;
use crate::plugin::attach::forget;
use crate::plugin::claim::{self, LOCK_WAIT};
use crate::plugin::failure::{self, Problems};
use crate::plugin::invocation::CallContext;
use crate::plugin::{conntrack, host_ports, identity};

/// Closes the pod's ports, removes the link, then what the host remembers of its addresses, then
/// the reservation.
///
/// # Errors
/// Every real failure, in one error; the rest was done.
pub fn del(del: &Del, call: &mut CallContext<'_>) -> Result<(), CniError> {
    call.line.fact("ignored", del.ignored.join("; "));
    let identity = identity(&del.conf.name, &del.attachment);
    let rtnl = Rtnl::open().map_err(|error| failure::internal("talk to the kernel", &error))?;
    let mut problems = Problems::default();
    let store = problems.note(claim::store(&del.conf));
    let entry = store.as_ref().and_then(|store| problems.note(entry(store, del)).flatten());
    if let (Some(store), Some(entry)) = (&store, &entry) {
        problems.note(host_ports::close(store, &[entry]));
    }
    let ports = entry.as_ref().map(host_ports::asked);
    let reserved = entry.map_or_else(|| answered(del), |entry| entry.addresses);
    let bridge = match problems.note(remove_link(&rtnl, &identity)) {
        Some(Some(bridge)) => Some(bridge),
        // The link may still be there, and the address must not go to another while it is.
        None => return problems.into_result(),
        Some(None) => rtnl.link(&del.conf.bridge).ok().flatten().map(|bridge| bridge.index),
    };
    conntrack::forget(&reserved, ports.as_deref());
    if let Some(bridge) = bridge {
        let forgotten = rtnl.apply(&forget(bridge, &reserved));
        problems.note(forgotten.map_err(|error| failure::internal("forget the pod's MAC", &error)));
    }
    let released = store.and_then(|store| problems.note(release(&store, del, &reserved)));
    let released = released.unwrap_or_default();
    let texts: Vec<String> = released.iter().map(IpAddr::to_string).collect();
    call.line.fact("ips", texts.join(","));
    problems.into_result()
}

/// Removes the host's end, and the pod's with it; gives the index of the bridge it was a port of.
fn remove_link(rtnl: &Rtnl, identity: &LinkIdentity<'_>) -> Result<Option<u32>, CniError> {
    let name = identity.host_ifname();
    let failed = |error| failure::internal(&format!("remove interface {name}"), &error);
    let Some(found) = rtnl.link(&name).map_err(failed)? else { return Ok(None) };
    if !identity.owns(found.alias.as_deref()) {
        log::warn!("interface {name} was left: its alias does not name this container");
        return Ok(None);
    }
    let delete = link::delete(LinkRef::Index(found.index)).tolerating(Errno::ENODEV);
    rtnl.apply(&[delete]).map_err(failed)?;
    Ok(found.master)
}

/// What is reserved for the pod.
fn entry(store: &Store, del: &Del) -> Result<Option<StoreEntry>, CniError> {
    let Some(locked) = locked(store)? else { return Ok(None) };
    let entry = locked.entry(del.attachment.container_id.as_str(), del.attachment.ifname.as_str());
    entry.map_err(|error| failure::of_store(&error))
}

/// Where an earlier plugin kept no owners: the addresses that ADD answered.
fn answered(del: &Del) -> Vec<IpAddr> {
    let ips = del.conf.prev_result.iter().flat_map(|result| &result.ips);
    ips.map(|ip| ip.address.ip()).collect()
}

fn release(store: &Store, del: &Del, reserved: &[IpAddr]) -> Result<Vec<IpAddr>, CniError> {
    let Some(locked) = locked(store)? else { return Ok(Vec::new()) };
    let (container_id, ifname) = (&del.attachment.container_id, &del.attachment.ifname);
    let released = locked.release(container_id.as_str(), ifname.as_str());
    let released = released.map_err(|error| failure::of_store(&error))?;
    if !released.is_empty() {
        return Ok(released);
    }
    locked.release_unowned(reserved).map_err(|error| failure::of_store(&error))
}

/// The store, locked; `None` if there is none and none can be made, so that nothing is reserved.
pub fn locked(store: &Store) -> Result<Option<LockedStore<'_>>, CniError> {
    if store.is_nowhere() {
        return Ok(None);
    }
    match store.lock(LOCK_WAIT) {
        Ok(locked) => Ok(Some(locked)),
        Err(StoreError::Io { .. }) if !store.dir().exists() => Ok(None),
        Err(error) => Err(failure::of_store(&error)),
    }
}
