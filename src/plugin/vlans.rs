//! The VLANs of a network: the bridge keeps them apart, the pod's port is in its own, and the gateways'
//! addresses are on an interface for it.

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use crate::cni::config::NetConf;
use crate::cni::error::{CniError, code};
use crate::net::IfName;
use crate::netlink::bridge_vlan::{self, VlanDevice};
use crate::netlink::link::{self, Link, LinkChange, LinkRef};
use crate::netlink::rtnl::Rtnl;
use crate::netlink::{Message, NetlinkError, address};
use crate::plan::pod::{PodDifference, ShownVlans, VlanChange, vlan_changes, wanted_vlans};
use crate::plugin::bridge;
use crate::plugin::failure::{self, OrInternal};

/// The alias of an interface for a VLAN.
const ALIAS: &str = "humanz vlan";

/// Has the bridge keep VLANs apart, before a port is plugged in; gives the interface with the gateways'
/// addresses, which without VLANs is the bridge.
///
/// # Errors
/// Code 2: this kernel has no such bridges. Code 7: the bridge or the interface is somebody else's.
pub fn ensure(
    rtnl: &Rtnl,
    conf: &NetConf,
    bridge: &Link,
    gateways: &[IpNetwork],
) -> Result<Link, CniError> {
    if conf.vlans.is_any() {
        ensure_filtering(rtnl, bridge)?;
    }
    let (Some(name), Some(vlan)) = (&conf.vlans.gateway, conf.vlans.access) else {
        return Ok(bridge.clone());
    };
    let device = VlanDevice { lower: bridge.index, vlan };
    let link = ensure_device(rtnl, name, bridge, device)?;
    let what = format_args!("set up {name}");
    let present = rtnl.addresses(Some(link.index)).or_internal(what)?;
    let is_there = |gateway: &&IpNetwork| present.iter().any(|found| found.address == **gateway);
    let missing = gateways.iter().filter(|gateway| !is_there(gateway));
    let add = |gateway: &IpNetwork| address::add(link.index, *gateway).tolerating(Errno::EEXIST);
    let up = LinkChange { up: true, ..LinkChange::default() };
    let up = (!link.up).then(|| link::change(LinkRef::Index(link.index), &up));
    let join = bridge_vlan::add_bridge(bridge.index, vlan);
    let messages: Vec<Message> = [join].into_iter().chain(up).chain(missing.map(add)).collect();
    rtnl.apply(&messages).or_internal(what)?;
    bridge::enable_forwarding(gateways)?;
    if conf.guard.is_on {
        bridge::set_guard_sysctls(name);
    }
    Ok(link)
}

/// On a bridge of somebody else the ports of others might lose what they have.
fn ensure_filtering(rtnl: &Rtnl, bridge: &Link) -> Result<(), CniError> {
    let name = &bridge.name;
    if rtnl.filters_vlans(bridge.index).or_internal(format_args!("look at bridge {name}"))? {
        return Ok(());
    }
    if !bridge::is_ours(bridge) {
        return Err(CniError::config(format!(
            "bridge {name} does not keep VLANs apart, and is not humanz's: ip link set {name} type \
             bridge vlan_filtering 1"
        )));
    }
    let set = rtnl.apply(&[bridge_vlan::filter(bridge.index)]);
    set.map_err(|error| refused(&error, "keep VLANs apart (CONFIG_BRIDGE_VLAN_FILTERING)"))?;
    log::info!("bridge {name} keeps VLANs apart");
    Ok(())
}

fn ensure_device(
    rtnl: &Rtnl,
    name: &IfName,
    bridge: &Link,
    wanted: VlanDevice,
) -> Result<Link, CniError> {
    let what = format_args!("look at {name}");
    if rtnl.link(name).or_internal(what)?.is_none() {
        match rtnl.apply(&bridge_vlan::add_device(name, bridge.index, wanted.vlan, ALIAS)) {
            Ok(()) => log::info!("added {name} for the gateways of VLAN {}", wanted.vlan),
            // Another ADD was faster.
            Err(error) if error.errno() == Some(Errno::EEXIST) => {}
            Err(error) => return Err(refused(&error, "have VLAN devices (module 8021q)")),
        }
    }
    let link = rtnl.link(name).or_internal(what)?;
    let link =
        link.ok_or_else(|| CniError::try_again(format!("{name} was removed while it was set up")))?;
    if rtnl.vlan_device(link.index).or_internal(what)? == Some(wanted) {
        return Ok(link);
    }
    Err(CniError::config(format!(
        "interface {name} is not VLAN {} of bridge {}; remove or rename it",
        wanted.vlan, bridge.name
    )))
}

/// The kernel refused: it has not what VLANs need, or something else is wrong.
fn refused(error: &NetlinkError, need: &str) -> CniError {
    match error.errno() {
        Some(Errno::EOPNOTSUPP) => {
            let why = format!("vlan, vlanTrunk: this kernel's bridges cannot {need}: {error}");
            CniError::new(code::UNSUPPORTED_FIELD, why)
        }
        _ => failure::internal(format_args!("VLANs of a bridge"), error),
    }
}

/// Puts the port of that number, which is still down, into the network's VLANs and out of others.
///
/// # Errors
/// Code 999: the kernel refused.
pub fn plug(rtnl: &Rtnl, conf: &NetConf, port: u32) -> Result<(), CniError> {
    let what = "put the pod's port into its VLANs";
    let found = rtnl.port_vlans(port).or_internal(what)?;
    let message = |change: &VlanChange| match change {
        VlanChange::Add(range, membership) => bridge_vlan::add(port, range, *membership),
        VlanChange::Remove(range) => bridge_vlan::remove(port, range),
    };
    let changes = vlan_changes(&wanted_vlans(&conf.vlans, &found), &found);
    rtnl.apply(&changes.iter().map(message).collect::<Vec<_>>()).or_internal(what)
}

/// What is not as [`ensure`] and [`plug`] made it, of the port `port`.
///
/// # Errors
/// Code 999: the kernel refused an answer.
pub fn differences(
    rtnl: &Rtnl,
    conf: &NetConf,
    bridge: &Link,
    port: &Link,
) -> Result<Vec<PodDifference>, CniError> {
    const HOST: &str = "on the host";
    let what = "look at the VLANs of the pod's port";
    let mut differences = Vec::new();
    if !conf.vlans.is_any() {
        return Ok(differences);
    }
    if !rtnl.filters_vlans(bridge.index).or_internal(what)? {
        differences.push(PodDifference::VlansMixed(bridge.name.clone()));
    }
    let found = rtnl.port_vlans(port.index).or_internal(what)?;
    let wanted = wanted_vlans(&conf.vlans, &found);
    if wanted != found {
        let [wanted, found] = [&wanted, &found].map(|vlans| ShownVlans(vlans).to_string());
        differences.push(PodDifference::WrongVlans(port.name.clone(), wanted, found));
    }
    if let Some(name) = &conf.vlans.gateway {
        match rtnl.link(name).or_internal(what)? {
            None => differences.push(PodDifference::NoLink(HOST, name.clone())),
            Some(link) if !link.up => {
                differences.push(PodDifference::Down(HOST, name.clone()));
            }
            Some(_) => {}
        }
    }
    Ok(differences)
}
