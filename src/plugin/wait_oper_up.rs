//! Waits for what the kernel finishes a moment after it acknowledged.
//!
//! A veth forwards nothing before the link watch has seen both ends up, and an IPv6 address
//! answers no host before the kernel's worker has made it local (with or without duplicate address
//! detection). Usually both is done at the first look; a runtime may send a packet as soon as it
//! has the result.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::cni::error::CniError;
use crate::net::{Family, IfName};
use crate::netlink::NetlinkError;
use crate::netlink::link::Link;
use crate::netlink::rtnl::Rtnl;
use crate::plan::pod::PodInterface;
use crate::plugin::call_time;
use crate::plugin::failure::OrInternal;

/// How long to wait at most; the link watch runs once a second. Going on later is no failure.
const LIMIT: Duration = Duration::from_secs(1);

/// The pause before the next look.
const PAUSE: Duration = Duration::from_micros(100);

/// Waits until packets pass between `bridge` and the pod. `host`, `pod`: sockets in both
/// namespaces.
///
/// # Errors
/// Code 999: the kernel refused an answer.
pub fn wait_oper_up(
    host: &Rtnl,
    bridge: &Link,
    pod: &Rtnl,
    wanted: &PodInterface,
) -> Result<(), CniError> {
    let limit = (Instant::now(), call_time::left(LIMIT));
    let oper_up = |rtnl: &Rtnl, name: &IfName| wait(limit, name, || is_oper_up(rtnl, name));
    oper_up(pod, &wanted.ifname)?;
    oper_up(host, &wanted.host_ifname)?;
    if !bridge.oper_up {
        // This is its first port.
        oper_up(host, &bridge.name)?;
    }
    let addresses = wanted.addresses.iter().map(|address| address.ip());
    for address in addresses.filter(|address| Family::of(*address) == Family::V6) {
        let is_local = || Ok(pod.lookup_route(address)?.is_some_and(|route| route.local));
        wait(limit, &wanted.ifname, is_local)?;
    }
    Ok(())
}

/// From Linux 6.8 on, RTM_GETLINK makes the link watch look at the link (`linkwatch_sync_dev`).
fn is_oper_up(rtnl: &Rtnl, name: &IfName) -> Result<bool, NetlinkError> {
    Ok(rtnl.link(name)?.is_some_and(|link| link.oper_up))
}

fn wait(
    (started, limit): (Instant, Duration),
    name: &IfName,
    is_ready: impl Fn() -> Result<bool, NetlinkError>,
) -> Result<(), CniError> {
    while !is_ready().or_internal(format_args!("look at {name}"))? {
        if started.elapsed() >= limit {
            log::warn!("interface {name} is not operationally up after {:.1?}", started.elapsed());
            break;
        }
        sleep(PAUSE);
    }
    Ok(())
}
