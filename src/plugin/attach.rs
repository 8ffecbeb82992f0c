//! A pod's link, addresses and routes: made in two sends, and taken away again on failure.

use std::net::IpAddr;
use std::os::fd::AsRawFd;

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use crate::cni::error::{CniError, code};
use crate::net::{Family, IfName, Mac};
use crate::netlink::link::{self, Change, Link, Veth, Which};
use crate::netlink::link_settings::{self, Tune};
use crate::netlink::route::{self, Route};
use crate::netlink::rtnl::Rtnl;
use crate::netlink::{Message, NetlinkError};
use crate::netlink::{address, neighbour, qdisc};
use crate::os::netns::NetNs;
use crate::os::sysctl;
use crate::plan::bridge_ports;
use crate::plan::pod::{PodInterface, paths};
use crate::plugin::failure;
use crate::plugin::wait_oper_up::wait_until_it_works;

/// What an attachment is made of beside what [`PodInterface`] says.
pub struct Site<'a> {
    /// The host's namespace.
    pub rtnl: &'a Rtnl,
    /// The bridge.
    pub bridge: &'a Link,
    /// The pod's namespace.
    pub netns: &'a NetNs,
    /// Its path as the runtime calls it.
    pub netns_path: &'a str,
    /// The MAC of the host's end.
    pub host_mac: Mac,
    /// The MAC of the pod's end.
    pub mac: Mac,
    /// Bytes, of both ends.
    pub mtu: u32,
    /// The alias of the host's end.
    pub alias: String,
    /// The host is the pods' gateway, so it talks to them.
    pub is_gateway: bool,
}

/// Why the kernel says that there is one already.
const TWICE: &str = "the pod has what is asked for; give the route a priority or a table";

/// A link that goes when this is dropped, unless [`Attached::keep`] was called.
#[must_use = "an attachment that is dropped is undone"]
pub struct Attached<'a> {
    /// Destinations of default routes that gave way to what the pod had.
    pub left_out: Vec<IpNetwork>,
    rtnl: &'a Rtnl,
    name: IfName,
    bridge: u32,
    neighbours: Vec<IpAddr>,
    kept: bool,
}

impl Attached<'_> {
    /// It stays until DEL.
    pub fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let mut messages = vec![link::delete(Which::Name(&self.name)).tolerating(Errno::ENODEV)];
        messages.extend(forget(self.bridge, &self.neighbours));
        if let Err(error) = self.rtnl.apply(&messages) {
            log::error!("undo: {error}");
        }
    }
}

/// Makes what `wanted` says.
///
/// The caller has seen that there is no link of the host's name: the messages that follow the one
/// that makes it find it by that name.
///
/// # Errors
/// Code 999 with the kernel's words; nothing of it is left then.
pub fn attach<'a>(site: &Site<'a>, wanted: &PodInterface) -> Result<Attached<'a>, CniError> {
    let mut attached = Attached {
        left_out: Vec::new(),
        rtnl: site.rtnl,
        name: wanted.host_ifname.clone(),
        bridge: site.bridge.index,
        neighbours: Vec::new(),
        kept: false,
    };
    if let Err(error) = site.rtnl.apply(&veth(site, wanted)) {
        let refused = veth_refused(site, wanted, &error);
        // Refused as a whole: there is nothing to undo.
        if matches!(&error, NetlinkError::Refused(refused) if refused.index == 0) {
            attached.kept = true;
        }
        return Err(refused);
    }
    if is_late(wanted) {
        finish_late(site, wanted)?;
    }
    let (pod, left_out) = configure(site, wanted)?;
    attached.left_out = left_out;
    if site.is_gateway {
        let addresses = wanted.addresses.iter().map(|address| address.ip());
        attached.neighbours = addresses.collect();
        tell_mac(site, &attached.neighbours)?;
    }
    wait_until_it_works(site, wanted, &pod)?;
    Ok(attached)
}

/// Tells the host the pod's MAC, in place of the one that an earlier pod had with the address.
fn tell_mac(site: &Site<'_>, addresses: &[IpAddr]) -> Result<(), CniError> {
    let known = addresses.iter();
    let known = known.map(|address| neighbour::set(site.bridge.index, *address, site.mac));
    let Err(error) = site.rtnl.apply(&known.collect::<Vec<_>>()) else { return Ok(()) };
    if !has_no_room(&error) {
        return Err(failure::internal("tell the host the pod's MAC", &error));
    }
    // Then no earlier one is remembered either: that would have been replaced.
    log::warn!(
        "the kernel's neighbour table is full (all network namespaces share it): the pod may be \
         unreachable at first; raise net.ipv4.neigh.default.gc_thresh3 and \
         net.ipv6.neigh.default.gc_thresh3"
    );
    Ok(())
}

/// There are as many neighbours as the kernel may remember.
fn has_no_room(error: &NetlinkError) -> bool {
    matches!(error, NetlinkError::Refused(refused) if refused.errno == Errno::ENOBUFS)
}

/// The pair with its mark, for one send: killed between them, DEL would not know the pair for ours.
fn veth(site: &Site<'_>, wanted: &PodInterface) -> [Message; 3] {
    let name = &wanted.host_ifname;
    let veth = Veth {
        host: name,
        host_mac: site.host_mac,
        master: site.bridge.index,
        pod: &wanted.ifname,
        pod_mac: site.mac,
        netns: site.netns.file().as_raw_fd(),
        mtu: site.mtu,
    };
    let host_end = Change {
        up: !is_late(wanted),
        alias: Some(site.alias.clone()),
        port: Some(wanted.port),
        ..Change::default()
    };
    [
        link::add_veth(&veth),
        link::change(Which::Name(name), &host_end),
        link::without_link_local(Which::Name(name)),
    ]
}

/// Something must be done to the host's end while it is still down.
fn is_late(wanted: &PodInterface) -> bool {
    wanted.asked.queues.host.is_some() || wanted.port.locked
}

/// Limits the host's end, ties the pod's MAC to it, and sets it up. On a link that is up already a
/// limit would take longer, and the first frames would come unchecked.
fn finish_late(site: &Site<'_>, wanted: &PodInterface) -> Result<(), CniError> {
    let what = format!("set up {}", wanted.host_ifname);
    let failed = |error| failure::internal(&what, &error);
    let link = site.rtnl.link(&wanted.host_ifname).map_err(failed)?;
    let link = link.ok_or_else(|| CniError::internal(format!("{what}: it went away")))?;
    if wanted.port.locked && link.port.is_none_or(|port| !port.locked) {
        let why = "macspoofchk: this kernel cannot lock a port of a bridge; it needs Linux 5.18";
        return Err(CniError::new(code::UNSUPPORTED_FIELD, why));
    }
    let limit = wanted.asked.queues.host.as_ref().map(|queue| qdisc::replace(link.index, queue));
    let pin = wanted.port.locked.then(|| neighbour::pin(link.index, site.mac));
    let up = link::change(Which::Index(link.index), &Change { up: true, ..Change::default() });
    let messages: Vec<Message> = limit.into_iter().chain(pin).chain([up]).collect();
    site.rtnl.apply(&messages).map_err(failed)
}

/// The messages by which the host forgets the MACs of `addresses`.
pub fn forget(bridge: u32, addresses: &[IpAddr]) -> Vec<Message> {
    let forget = |address: &IpAddr| neighbour::delete(bridge, *address).tolerating(Errno::ENOENT);
    addresses.iter().map(forget).collect()
}

/// Addresses, up, routes: one send in the pod's namespace, and one for default routes that may have
/// to give way. Gives the socket in there, and which of them did.
fn configure(site: &Site<'_>, wanted: &PodInterface) -> Result<(Rtnl, Vec<IpNetwork>), CniError> {
    let what = format!("set up {} in {}", wanted.ifname, site.netns_path);
    let entered = site.netns.run(|| {
        if has_ipv6(wanted) {
            keep_ipv6(&wanted.ifname);
        }
        Rtnl::open()
    });
    let entered = entered.map_err(|error| failure::internal(&what, &error))?;
    let failed = |error: NetlinkError| match error.errno() {
        Some(Errno::EEXIST) => failure::internal(&format!("{what}: {TWICE}"), &error),
        _ => failure::internal(&what, &error),
    };
    let pod = entered.map_err(failed)?;
    let index = pod.link(&wanted.ifname).map_err(failed)?.map(|link| link.index);
    let index = index.ok_or_else(|| CniError::internal(format!("{what}: it went away")))?;
    let messages = pod_messages(wanted, index);
    match pod.apply(&messages) {
        Err(error) if error.errno() == Some(Errno::EACCES) && has_ipv6(wanted) => {
            // The runtime has switched IPv6 off in the pod, but the network gives it an address.
            let key = format!("net/ipv6/conf/{}/disable_ipv6", wanted.ifname);
            let on = site.netns.run(|| sysctl::write(&key, "0"));
            let on = on.map_err(|error| failure::internal(&what, &error))?;
            on.map_err(|error| failure::internal(&what, &error))?;
            let again = messages.into_iter().map(|message| message.tolerating(Errno::EEXIST));
            pod.apply(&again.collect::<Vec<_>>()).map_err(failed)?;
        }
        outcome => outcome.map_err(failed)?,
    }
    let left_out = add_defaults(&pod, wanted, index).map_err(failed)?;
    Ok((pod, left_out))
}

/// Adds the default routes; gives the destinations to which there is one.
fn add_defaults(
    pod: &Rtnl,
    wanted: &PodInterface,
    index: u32,
) -> Result<Vec<IpNetwork>, NetlinkError> {
    let own = |route: &Route| route::add(&Route { device: Some(index), ..*route });
    let outcomes = pod.apply_each(&wanted.defaults.iter().map(own).collect::<Vec<_>>())?;
    let mut left_out = Vec::new();
    for (route, outcome) in wanted.defaults.iter().zip(outcomes) {
        match outcome {
            Err(error) if error.errno() == Some(Errno::EEXIST) => left_out.push(route.destination),
            outcome => outcome?,
        }
    }
    Ok(left_out)
}

/// The kernel takes IPv6 addresses, unlike IPv4 ones, from a link that somebody sets down for a
/// moment, unless it is told not to. In the pod's namespace.
fn keep_ipv6(ifname: &IfName) {
    let key = format!("net/ipv6/conf/{ifname}/keep_addr_on_down");
    if let Err(error) = sysctl::write(&key, "1") {
        log::warn!("{error}");
    }
}

fn pod_messages(wanted: &PodInterface, index: u32) -> Vec<Message> {
    let up = Change { up: true, ..Change::default() };
    let addresses = wanted.addresses.iter().map(|wanted| address::add(index, *wanted));
    let up = link::change(Which::Index(index), &up);
    let on_link = |way: &Route| Route { device: Some(index), ..*way };
    let routes: Vec<Route> = wanted.routes.iter().map(on_link).collect();
    let routes = paths(&routes).into_iter().map(|ways| route::add_paths(&ways));
    let limit = wanted.asked.queues.pod.as_ref().map(|queue| qdisc::replace(index, queue));
    let tune = (wanted.asked.tune != Tune::default())
        .then(|| link_settings::set(index, &wanted.asked.tune));
    addresses.chain(limit).chain(tune).chain([up]).chain(routes.flatten()).collect()
}

fn has_ipv6(wanted: &PodInterface) -> bool {
    wanted.addresses.iter().any(|address| Family::of(address.ip()) == Family::V6)
}

/// Why the kernel did not make the veth.
fn veth_refused(site: &Site<'_>, wanted: &PodInterface, error: &NetlinkError) -> CniError {
    let (bridge, ifname, netns) = (&site.bridge.name, &wanted.ifname, site.netns_path);
    match error.errno() {
        Some(Errno::EEXIST) => crate::plugin::claim::already_attached(format!(
            "interface {ifname} already exists in {netns}"
        )),
        Some(Errno::EXFULL) => {
            CniError::new(code::BRIDGE_FULL, bridge_ports::full(bridge).to_string())
        }
        Some(Errno::EOPNOTSUPP) => {
            failure::internal("create a veth pair; try: modprobe veth", error)
        }
        _ => failure::internal(&format!("create {ifname} in {netns}"), error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Refused;

    #[test]
    fn a_full_table_is_told_from_other_refusals() {
        let refused =
            |errno| Refused { what: "set neighbour".into(), errno, message: None, index: 0 };
        assert!(has_no_room(&refused(Errno::ENOBUFS).into()));
        assert!(!has_no_room(&refused(Errno::EPERM).into()));
    }
}
