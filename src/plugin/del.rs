//! DEL: detaches a pod. It needs neither the pod's namespace nor the result of ADD; what is
//! already gone is no failure.

use std::net::IpAddr;

use nix::errno::Errno;

use crate::cni::error::CniError;
use crate::cni::request::Del;
use crate::netlink::link::{self, LinkRef};
use crate::netlink::rtnl::Rtnl;
use crate::plan::pod::LinkIdentity;
use crate::plugin::attach::forget_neighbours;
use crate::plugin::failure::{Failures, OrInternal};
use crate::plugin::invocation::CallContext;
use crate::plugin::release::Release;
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
    let mut release = store.as_ref().map(|store| Release::new(store, del));
    let entry = release.as_mut().and_then(|release| failures.note(release.entry()).flatten());
    let closed = release.as_mut().and_then(|release| failures.note(release.close_ports()));
    let ports = entry.as_ref().map(host_ports::requested);
    let reserved = match (entry, &release) {
        (Some(entry), _) => entry.addresses,
        (None, Some(release)) => failures.note(release.previous_addresses()).unwrap_or_default(),
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
    let led_to = closed.iter().flatten().map(|forward| forward.to.ip());
    let former: Vec<IpAddr> = reserved.iter().copied().chain(led_to).collect();
    let is_swept = conntrack::forget(&former, ports.as_deref());
    let gateway = del.conf.vlans.gateway.as_ref().and_then(index);
    for device in bridge.into_iter().chain(gateway) {
        let forgotten = rtnl.apply(&forget_neighbours(device, &reserved));
        failures.note(forgotten.or_internal("remove the pod's neighbour entries"));
    }
    let own = release.and_then(|release| failures.note(release.run(&reserved, is_swept)));
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
