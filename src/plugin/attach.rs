//! A pod's link, addresses and routes: created in two sends.

use std::net::IpAddr;
use std::os::fd::AsRawFd;

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use crate::cni::config::NetConf;
use crate::cni::error::{CniError, code};
use crate::inspect::holders::{self, MacHolder};
use crate::net::{Family, IfName, Mac};
use crate::netlink::link::{self, Link, LinkChange, LinkRef, Veth};
use crate::netlink::link_settings::{self, LinkSettings};
use crate::netlink::neighbour::{self, Neighbour};
use crate::netlink::route::{self, Route};
use crate::netlink::rtnl::Rtnl;
use crate::netlink::{Message, NetlinkError};
use crate::netlink::{address, filter, port_queue, qdisc};
use crate::os::netns::NetNs;
use crate::os::sysctl;
use crate::plan::bandwidth::bucket;
use crate::plan::bridge_ports;
use crate::plan::guard::Guard;
use crate::plan::pod::{PodInterface, paths};
use crate::plan::profiles::PortProfile;
use crate::plugin::claim::already_attached;
use crate::plugin::failure::{self, OrInternal};
use crate::plugin::undo_stack::{OwnLink, UndoStack};
use crate::plugin::wait_oper_up::wait_oper_up;
use crate::plugin::{default_routes, guard, requested_mac, vlans};

/// Where and how an interface is attached, beside what [`PodInterface`] says.
pub struct AttachContext<'a> {
    /// Of the host.
    pub rtnl: &'a Rtnl,
    pub bridge: &'a Link,
    /// Where the pods' neighbour entries are: the bridge, or an interface for the network's VLAN on it.
    pub gateway: &'a Link,
    pub conf: &'a NetConf,
    pub netns: &'a NetNs,
    /// `CNI_NETNS`.
    pub netns_path: &'a str,
    pub host_mac: Mac,
    /// Of the pod's end.
    pub mac: Mac,
    /// Bytes, of both ends.
    pub mtu: u32,
    /// Of the host's end.
    pub alias: String,
    /// The host is the pods' gateway, so it sends to them.
    pub is_gateway: bool,
    /// Without the pod's profile, which the agent may give it while it is asked.
    pub guard: Option<Guard>,
}

/// What was created.
pub struct Attached<'a> {
    /// The host's end.
    pub link: OwnLink<'a>,
    /// The destinations of default routes that were left out because the pod had one.
    pub left_out: Vec<IpNetwork>,
}

/// For EEXIST in the pod.
const ROUTE_EXISTS: &str = "route already exists in the pod; set a different priority or table";

/// Creates what `wanted` says. `admit` is called before the first packet can pass, and gives the pod's profile: the
/// link that is made down waits for it, and so does its guard.
///
/// There must be no link of the host end's name: the messages that follow the one that creates it
/// find it by that name.
///
/// # Errors
/// Code 999: the kernel refused.
pub fn attach<'a>(
    context: &AttachContext<'a>,
    wanted: &PodInterface,
    admit: impl FnOnce() -> Result<Option<PortProfile>, CniError>,
    undo: &mut UndoStack<'a>,
) -> Result<Attached<'a>, CniError> {
    let (rtnl, bridge) = (context.rtnl, context.bridge);
    let admit_while_down = match needs_setup_while_down(context, wanted) {
        true => Some(admit),
        false => admit().map(|_| None)?,
    };
    if context.guard.is_none() {
        guard::clear(&wanted.host_ifname)?;
    }
    let created = rtnl.apply(&veth(context, wanted));
    let what = format!("set up {}", wanted.host_ifname);
    let link = match &created {
        // Refused as a whole: there is nothing to undo.
        Err(NetlinkError::Refused(refused)) if refused.index == 0 => None,
        _ => rtnl.link(&wanted.host_ifname).or_internal(&what)?,
    };
    if let Some(index) = link.as_ref().map(|link| link.index) {
        // Not by name: a later ADD of the same interface makes a link of the same name.
        undo.push(move || {
            rtnl.apply(&[link::delete(LinkRef::Index(index)).tolerating(Errno::ENODEV)])
        });
    }
    created.map_err(|error| veth_refused(context, wanted, &error))?;
    let link = link.ok_or_else(|| CniError::internal(format!("{what}: it disappeared")))?;
    let own = OwnLink { rtnl, index: link.index };
    // Without the host's end nothing passes: an agent that is asked works meanwhile.
    let (pod, left_out) = configure(context, wanted)?;
    if let Some(admit) = admit_while_down {
        let profile = admit()?;
        set_up_host_end(context, profile.as_ref(), wanted, &link)?;
    }
    if context.is_gateway {
        let addresses: Vec<IpAddr> = wanted.addresses.iter().map(|address| address.ip()).collect();
        let forget = forget_neighbours(context.gateway.index, &addresses);
        undo.push(move || if own.is_gone() { Ok(()) } else { rtnl.apply(&forget) });
        set_neighbours(context, &addresses)?;
    }
    wait_oper_up(rtnl, bridge, &pod, wanted)?;
    Ok(Attached { link: own, left_out })
}

/// Writes the pod's MAC into the host's neighbour table, in place of that of an earlier pod with the
/// address.
fn set_neighbours(context: &AttachContext<'_>, addresses: &[IpAddr]) -> Result<(), CniError> {
    let (bridge, mac) = (context.gateway.index, context.mac);
    let set = |address: &IpAddr| match context.guard {
        // Then no other pod can answer for the address.
        Some(_) => neighbour::set_permanent(bridge, &Neighbour { address: *address, mac }),
        None => neighbour::set(bridge, *address, mac),
    };
    let messages: Vec<Message> = addresses.iter().map(set).collect();
    let Err(error) = context.rtnl.apply(&messages) else { return Ok(()) };
    if !is_table_full(&error) {
        return Err(failure::internal("set the pod's neighbour entries", &error));
    }
    // There is no entry of an earlier pod either: that would have been replaced.
    log::warn!(
        "the kernel's neighbour table is full (all network namespaces share it): the pod may be \
         unreachable at first; raise net.ipv4.neigh.default.gc_thresh3 and \
         net.ipv6.neigh.default.gc_thresh3"
    );
    Ok(())
}

/// The neighbour table is full.
fn is_table_full(error: &NetlinkError) -> bool {
    matches!(error, NetlinkError::Refused(refused) if refused.errno == Errno::ENOBUFS)
}

/// The veth pair with its alias, in one send: if killed in between, DEL could not identify the pair
/// as ours.
fn veth(context: &AttachContext<'_>, wanted: &PodInterface) -> [Message; 3] {
    let name = &wanted.host_ifname;
    let veth = Veth {
        host: name,
        host_mac: context.host_mac,
        master: context.bridge.index,
        pod: &wanted.ifname,
        pod_mac: context.mac,
        netns: context.netns.file().as_raw_fd(),
        mtu: context.mtu,
    };
    let host_end = LinkChange {
        up: !needs_setup_while_down(context, wanted),
        alias: Some(context.alias.clone()),
        port: Some(wanted.port),
        ..LinkChange::default()
    };
    [
        link::add_veth(&veth),
        link::change(LinkRef::Name(name), &host_end),
        link::without_link_local(LinkRef::Name(name)),
    ]
}

/// The host's end needs changes that must be made before it is up.
fn needs_setup_while_down(context: &AttachContext<'_>, wanted: &PodInterface) -> bool {
    context.conf.vlans.is_any()
        || wanted.requested.queues.host.is_some()
        || wanted.port.locked
        || wanted.port.fixed
}

/// Guards and limits the host's end, pins the pod's MAC to it, and sets it up. On a link that is up already a
/// limit would take longer, and the first frames would pass unchecked.
fn set_up_host_end(
    context: &AttachContext<'_>,
    profile: Option<&PortProfile>,
    wanted: &PodInterface,
    link: &Link,
) -> Result<(), CniError> {
    let what = format!("set up {}", wanted.host_ifname);
    if wanted.port.locked && link.port.is_none_or(|port| !port.locked) {
        let why = "macspoofchk: this kernel cannot lock a port of a bridge; it needs Linux 5.18";
        return Err(CniError::new(code::UNSUPPORTED_FIELD, why));
    }
    if let Some(guard) = context.guard.clone() {
        guard::set(&guard.with_profile(profile), link.index)?;
    }
    if context.conf.vlans.is_any() {
        vlans::plug(context.rtnl, context.conf, link.index)?;
    }
    if wanted.port.locked || wanted.port.fixed {
        pin(context, wanted, link.index)?;
    }
    let up =
        link::change(LinkRef::Index(link.index), &LinkChange { up: true, ..LinkChange::default() });
    // Since host ports need it, the rules alone keep pods from the host's loopback, and may be flushed.
    let localnet = format!("net/ipv4/conf/{}/route_localnet", context.bridge.name);
    let loopback = sysctl::read(&localnet)
        .is_ok_and(|value| value == "1")
        .then(|| filter::drop_loopback(link.index));
    let messages: Vec<Message> =
        limits(profile, wanted, link).chain(loopback.into_iter().flatten()).chain([up]).collect();
    context.rtnl.apply(&messages).or_internal(&what)
}

/// What holds a pod to the rates at which it may receive: its own one, and that of its profile inside of it.
fn limits(
    profile: Option<&PortProfile>,
    wanted: &PodInterface,
    link: &Link,
) -> impl Iterator<Item = Message> {
    let own = wanted.requested.queues.host.as_ref();
    let by_profile = profile.and_then(|it| it.profile.ingress);
    let by_profile = by_profile.map(|limit| bucket(&limit, link.mtu));
    let inner = by_profile.map(|queue| port_queue::set(link.index, &queue, own.is_some()));
    own.map(|queue| qdisc::replace(link.index, queue)).into_iter().chain(inner)
}

/// Pins the pod's MAC to its port, unless another running pod has it, or the host: then two stores have just given
/// out one address, or somebody asks for the MAC of another.
fn pin(context: &AttachContext<'_>, wanted: &PodInterface, port: u32) -> Result<(), CniError> {
    let (rtnl, bridge, mac) = (context.rtnl, context.bridge.index, context.mac);
    let what = format!("pin {mac} to {}", wanted.host_ifname);
    match rtnl.apply(&[neighbour::pin_new(port, mac)]) {
        Err(error) if error.errno() == Some(Errno::EEXIST) => {}
        outcome => return outcome.or_internal(what),
    }
    match holders::of_mac(rtnl, bridge, mac, Some(port)).or_internal(&what)? {
        // The bridge has only seen it, or an agent has pinned it here, which found the port with its guard and down.
        None | Some(MacHolder::Seen(_)) => {
            rtnl.apply(&[neighbour::pin(port, mac)]).or_internal(what)
        }
        Some(holder) => {
            let of_address = |address: &IpNetwork| Mac::of_address(address.ip()) == mac;
            let is_derived = wanted.addresses.iter().any(of_address);
            Err(requested_mac::taken(mac, &holder, is_derived))
        }
    }
}

/// The messages that remove the host's neighbour entries of `addresses`.
pub fn forget_neighbours(bridge: u32, addresses: &[IpAddr]) -> Vec<Message> {
    let forget = |address: &IpAddr| neighbour::delete(bridge, *address).tolerating(Errno::ENOENT);
    addresses.iter().map(forget).collect()
}

/// Addresses, up, routes: one send in the pod's namespace, and one for default routes. Gives the
/// socket in there, and the destinations of default routes that the pod had already.
fn configure(
    context: &AttachContext<'_>,
    wanted: &PodInterface,
) -> Result<(Rtnl, Vec<IpNetwork>), CniError> {
    let what = format!("set up {} in {}", wanted.ifname, context.netns_path);
    let guarded = context.guard.is_some();
    let entered = context.netns.run(|| {
        if has_ipv6(wanted) {
            keep_ipv6(&wanted.ifname);
        }
        if guarded {
            ignore_routers(&wanted.ifname);
        }
        Rtnl::open()
    });
    let failed = |error: NetlinkError| match error.errno() {
        Some(Errno::EEXIST) => failure::internal(format_args!("{what}: {ROUTE_EXISTS}"), &error),
        _ => failure::internal(&what, &error),
    };
    let pod = entered.or_internal(&what)?.map_err(failed)?;
    let index = pod.link(&wanted.ifname).map_err(failed)?.map(|link| link.index);
    let index = index.ok_or_else(|| CniError::internal(format!("{what}: it disappeared")))?;
    let messages = pod_messages(wanted, index);
    match pod.apply(&messages) {
        Err(error) if error.errno() == Some(Errno::EACCES) && has_ipv6(wanted) => {
            // The runtime has disabled IPv6 in the pod, but the network gives it an address.
            let key = format!("net/ipv6/conf/{}/disable_ipv6", wanted.ifname);
            let enabled = context.netns.run(|| sysctl::write(&key, "0"));
            enabled.or_internal(&what)?.or_internal(&what)?;
            let again = messages.into_iter().map(|message| message.tolerating(Errno::EEXIST));
            pod.apply(&again.collect::<Vec<_>>()).map_err(failed)?;
        }
        outcome => outcome.map_err(failed)?,
    }
    let left_out = default_routes::add(&pod, wanted, index).map_err(failed)?;
    default_routes::add_instead(&pod, wanted, index, &left_out)?;
    Ok((pod, left_out))
}

/// Keeps the kernel from removing IPv6 addresses, unlike IPv4 ones, from a link that is set down for
/// a moment. In the pod's namespace.
fn keep_ipv6(ifname: &IfName) {
    let key = format!("net/ipv6/conf/{ifname}/keep_addr_on_down");
    if let Err(error) = sysctl::write(&key, "1") {
        log::warn!("{error}");
    }
}

/// Lets the pod ignore router advertisements and redirects, as the bridge does. In the pod's namespace.
fn ignore_routers(ifname: &IfName) {
    for key in [
        format!("net/ipv6/conf/{ifname}/accept_ra"),
        format!("net/ipv6/conf/{ifname}/accept_redirects"),
        "net/ipv4/conf/all/accept_redirects".to_owned(),
        format!("net/ipv4/conf/{ifname}/accept_redirects"),
    ] {
        match sysctl::write(&key, "0") {
            // Without IPv6.
            Err(error) if !error.is_missing() => log::warn!("{error}"),
            _ => {}
        }
    }
}

fn pod_messages(wanted: &PodInterface, index: u32) -> Vec<Message> {
    let up = LinkChange { up: true, ..LinkChange::default() };
    let addresses = wanted.addresses.iter().map(|wanted| address::add(index, *wanted));
    let up = link::change(LinkRef::Index(index), &up);
    let on_link = |route: &Route| Route { device: Some(index), ..*route };
    let routes: Vec<Route> = wanted.routes.iter().map(on_link).collect();
    let routes = paths(&routes).into_iter().map(|paths| route::add_paths(&paths));
    let limit = wanted.requested.queues.pod.as_ref().map(|queue| qdisc::replace(index, queue));
    let tune = (wanted.requested.tune != LinkSettings::default())
        .then(|| link_settings::set(index, &wanted.requested.tune));
    addresses.chain(limit).chain(tune).chain([up]).chain(routes.flatten()).collect()
}

fn has_ipv6(wanted: &PodInterface) -> bool {
    wanted.addresses.iter().any(|address| Family::of(address.ip()) == Family::V6)
}

/// The error for a veth that the kernel did not create.
fn veth_refused(
    context: &AttachContext<'_>,
    wanted: &PodInterface,
    error: &NetlinkError,
) -> CniError {
    let (bridge, ifname, netns) = (&context.bridge.name, &wanted.ifname, context.netns_path);
    match error.errno() {
        Some(Errno::EEXIST) => {
            already_attached(format!("interface {ifname} already exists in {netns}"))
        }
        Some(Errno::EXFULL) => {
            CniError::new(code::BRIDGE_FULL, bridge_ports::full(bridge).to_string())
        }
        Some(Errno::EOPNOTSUPP) => {
            failure::internal("create a veth pair; try: modprobe veth", error)
        }
        _ => failure::internal(format_args!("create {ifname} in {netns}"), error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Refused;

    #[test]
    fn only_enobufs_means_a_full_neighbour_table() {
        let refused =
            |errno| Refused { what: "set neighbour".into(), errno, message: None, index: 0 };
        assert!(is_table_full(&refused(Errno::ENOBUFS).into()));
        assert!(!is_table_full(&refused(Errno::EPERM).into()));
    }
}
