//! DEL: detaches a pod. It needs neither the pod's namespace nor the result of ADD; what is
//! already gone is no failure.

use std::net::IpAddr;

use nix::errno::Errno;

use crate::cni::error::CniError;
use crate::cni::request::Del;
use crate::ipam::{Store, StoreEntry};
use crate::netlink::link::{self, LinkRef};
use crate::netlink::rtnl::Rtnl;
use crate::plan::pod::LinkIdentity;
use crate::plugin::attach::forget_neighbours;
use crate::plugin::failure::{Failures, OrInternal};
use crate::plugin::invocation::CallContext;
use crate::plugin::store::lock_if_any;
use crate::plugin::{conntrack, further, guard, host_ports, store};

/// Removes the further interfaces of the pod, and then the one that the runtime names.
///
/// # Errors
/// Every real failure of an interface, in one error; the one whose entry lists the others goes last.
pub fn del(del: &Del, call: &mut CallContext<'_>) -> Result<(), CniError> {
    call.line.fact("ignored", del.ignored.join("; "));
    let mut released = Vec::new();
    let mut all = further::dels(del).into_iter().chain([del.clone()]);
    let outcome = all.try_for_each(|del| detach(&del, &mut released));
    let texts: Vec<String> = released.iter().map(IpAddr::to_string).collect();
    call.line.fact("ips", texts.join(","));
    outcome
}

/// Closes the pod's ports, removes the link, then the host's neighbour entries of its addresses,
/// then the reservation, which is added to `released`. The guard stays behind without its link, for a sweep.
///
/// # Errors
/// Every real failure, in one error; the other steps were done.
pub fn detach(del: &Del, released: &mut Vec<IpAddr>) -> Result<(), CniError> {
    let identity = LinkIdentity::of(&del.conf.name, &del.attachment);
    let rtnl = Rtnl::open().or_internal("open rtnetlink socket")?;
    let mut failures = Failures::default();
    let store = failures.note(store::open(&del.conf));
    let entry = store.as_ref().and_then(|store| failures.note(entry(store, del)).flatten());
    if let (Some(store), Some(entry)) = (&store, &entry) {
        failures.note(host_ports::close(store, &[entry]));
    }
    let ports = entry.as_ref().map(host_ports::requested);
    let reserved = match (entry, &store) {
        (Some(entry), _) => entry.addresses,
        (None, Some(store)) => failures.note(previous_addresses(store, del)).unwrap_or_default(),
        (None, None) => Vec::new(),
    };
    let index = |name| rtnl.link(name).ok().flatten().map(|link| link.index);
    let bridge = match failures.note(remove_link(&rtnl, &identity)) {
        Some(Some(bridge)) => Some(bridge),
        // The link may still exist: its address must not be reserved for another pod.
        None => return failures.into_result(),
        Some(None) => index(&del.conf.bridge),
    };
    if del.conf.create_bridge
        && guard::sweeps(&identity.host_ifname())
        && let Err(error) = guard::sweep(&rtnl)
    {
        // They are of other pods, and another DEL, or GC, removes them.
        log::warn!("guards of removed interfaces are left: {error}");
    }
    conntrack::forget(&reserved, ports.as_deref());
    let gateway = del.conf.vlans.gateway.as_ref().and_then(index);
    for device in bridge.into_iter().chain(gateway) {
        let forgotten = rtnl.apply(&forget_neighbours(device, &reserved));
        failures.note(forgotten.or_internal("remove the pod's neighbour entries"));
    }
    let own = store.and_then(|store| failures.note(release(&store, del, &reserved)));
    released.extend(own.unwrap_or_default());
    failures.into_result()
}

/// Removes the veth pair; gives the index of the bridge that its host end was a port of.
fn remove_link(rtnl: &Rtnl, identity: &LinkIdentity<'_>) -> Result<Option<u32>, CniError> {
    let name = identity.host_ifname();
    let what = format_args!("remove interface {name}");
    let Some(found) = rtnl.link(&name).or_internal(what)? else { return Ok(None) };
    if !identity.owns(found.alias.as_deref()) {
        log::warn!("interface {name} was not removed: its alias does not name this container");
        return Ok(None);
    }
    let delete = link::delete(LinkRef::Index(found.index)).tolerating(Errno::ENODEV);
    rtnl.apply(&[delete]).or_internal(what)?;
    Ok(found.master)
}

/// The pod's reservation.
fn entry(store: &Store, del: &Del) -> Result<Option<StoreEntry>, CniError> {
    let Some(locked) = lock_if_any(store)? else { return Ok(None) };
    let (container_id, ifname) = (&del.attachment.container_id, &del.attachment.ifname);
    Ok(locked.entry(container_id.as_str(), ifname.as_str())?)
}

/// The addresses in `prevResult` that no other pod has by now: for stores of older plugins, which kept no
/// owners, and for a lost one.
fn previous_addresses(store: &Store, del: &Del) -> Result<Vec<IpAddr>, CniError> {
    let ips = del.conf.prev_result.iter().flat_map(|result| &result.ips);
    let addresses = ips.map(|ip| ip.address.ip()).collect();
    match lock_if_any(store)? {
        Some(locked) => {
            let (container_id, ifname) = (&del.attachment.container_id, &del.attachment.ifname);
            Ok(locked.without_others(container_id.as_str(), ifname.as_str(), addresses)?)
        }
        None => Ok(addresses),
    }
}

fn release(store: &Store, del: &Del, reserved: &[IpAddr]) -> Result<Vec<IpAddr>, CniError> {
    let Some(locked) = lock_if_any(store)? else { return Ok(Vec::new()) };
    let (container_id, ifname) = (&del.attachment.container_id, &del.attachment.ifname);
    let released = locked.release(container_id.as_str(), ifname.as_str())?;
    if !released.is_empty() {
        return Ok(released);
    }
    Ok(locked.release_unowned(reserved)?)
}
