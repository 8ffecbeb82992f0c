//! What the kernel does a moment after it said yes.
//!
//! A veth forwards nothing before the link watch has seen that both ends are up, and an IPv6
//! address answers to nobody before the kernel's worker has made it a local one (with or without
//! duplicate address detection). Usually both is done when it is asked for; a runtime that has its
//! result may send a packet at once.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::cni::error::CniError;
use crate::net::{Family, IfName};
use crate::netlink::NetlinkError;
use crate::netlink::rtnl::Rtnl;
use crate::plan::pod::PodInterface;
use crate::plugin::attach::Site;
use crate::plugin::failure;

/// How long to wait at most; the link watch looks once a second. Later is no failure of ours.
const PATIENCE: Duration = Duration::from_secs(1);

/// The pause before asking again.
const PAUSE: Duration = Duration::from_micros(100);

/// Waits until packets pass between the bridge and the pod. `pod`: a socket in its namespace.
///
/// # Errors
/// Code 999: a link is gone, or the kernel could not be asked.
pub fn wait_until_it_works(
    site: &Site<'_>,
    wanted: &PodInterface,
    pod: &Rtnl,
) -> Result<(), CniError> {
    let started = Instant::now();
    wait(started, &wanted.ifname, || works(pod, &wanted.ifname))?;
    wait(started, &wanted.host_ifname, || works(site.rtnl, &wanted.host_ifname))?;
    if !site.bridge.oper_up {
        // This is its first port.
        wait(started, &site.bridge.name, || works(site.rtnl, &site.bridge.name))?;
    }
    let addresses = wanted.addresses.iter().map(|address| address.ip());
    for address in addresses.filter(|address| Family::of(*address) == Family::V6) {
        wait(started, &wanted.ifname, || {
            Ok(pod.lookup_route(address)?.is_some_and(|way| way.local))
        })?;
    }
    Ok(())
}

/// From Linux 6.8 on, to ask for a link makes the link watch look at it (`linkwatch_sync_dev`).
fn works(rtnl: &Rtnl, name: &IfName) -> Result<bool, NetlinkError> {
    Ok(rtnl.link(name)?.is_some_and(|link| link.oper_up))
}

fn wait(
    started: Instant,
    name: &IfName,
    is_ready: impl Fn() -> Result<bool, NetlinkError>,
) -> Result<(), CniError> {
    loop {
        let ready = is_ready();
        let ready = ready.map_err(|error| failure::internal(&format!("look at {name}"), &error))?;
        if ready {
            return Ok(());
        }
        if started.elapsed() >= PATIENCE {
            log::warn!("interface {name} does not work after {} s", PATIENCE.as_secs());
            return Ok(());
        }
        sleep(PAUSE);
    }
}
