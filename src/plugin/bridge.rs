//! The bridge of the pods: looked up, and without an agent created and repaired.

use std::fs;

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use crate::checks::service_manager::LOOK;
use crate::cni::config::NetConf;
use crate::cni::error::CniError;
use crate::net::{Family, IfName, Mac, subnet};
use crate::netlink::Message;
use crate::netlink::address;
use crate::netlink::link::{self, Link, LinkRef};
use crate::netlink::rtnl::Rtnl;
use crate::os::sysctl;
use crate::plan::Describe;
use crate::plan::bridge::{Bridge, BridgeChange, FoundBridge, changes};
use crate::plan::guard::guard_sysctls;
use crate::plugin::failure::{self, OrInternal};

/// MTU of a bridge created here, unless the configuration gives another: Ethernet's.
const MTU: u32 = 1500;

/// The kind of a MAC derived from a bridge's name (`0a:5b:…`), for one without a gateway.
const MAC: u8 = 0x5b;

/// The alias of a bridge created here.
const ALIAS: &str = "humanz bridge";

/// The network's bridge, up and with every one of `gateways`. Where the configuration allows it
/// (`createBridge`, no agent on this host), what is missing is created.
///
/// # Errors
/// Code 11: missing or not ready yet, and it is the agent's. Code 7: the name belongs to something
/// else. Code 999: the kernel refused.
pub fn ensure(rtnl: &Rtnl, conf: &NetConf, gateways: &[IpNetwork]) -> Result<Link, CniError> {
    let gateways = if conf.is_gateway { gateways } else { &[] };
    let mut found = find(rtnl, conf)?;
    if !conf.create_bridge {
        return of_agent(rtnl, conf, gateways, found);
    }
    if found.is_none() {
        found = create(rtnl, conf, gateways)?;
    }
    let found = found.ok_or_else(|| {
        CniError::try_again(format!("bridge {} was removed while it was set up", conf.bridge))
    })?;
    pin_mac(rtnl, &found)?;
    repair(rtnl, conf, gateways, &found)?;
    enable_forwarding(gateways)?;
    if conf.guard.is_on {
        set_guard_sysctls(&conf.bridge);
    }
    Ok(found)
}

/// humanz created the bridge, with a MAC: that of another may follow its ports.
pub fn is_ours(found: &Link) -> bool {
    found.alias.as_deref() == Some(ALIAS)
}

/// Why the bridge cannot serve pods; `None` if it can.
///
/// # Errors
/// Code 999: the kernel refused an answer.
pub fn why_unusable(
    rtnl: &Rtnl,
    conf: &NetConf,
    gateways: &[IpNetwork],
    found: &Link,
) -> Result<Option<String>, CniError> {
    let name = &conf.bridge;
    if found.kind.as_deref() != Some("bridge") {
        return Ok(Some(format!("interface {name} is not a bridge")));
    }
    if !found.up {
        return Ok(Some(format!("bridge {name} is down")));
    }
    if gateways.is_empty() {
        return Ok(None);
    }
    let present = addresses(rtnl, found)?;
    let missing = gateways.iter().find(|gateway| !present.contains(gateway));
    Ok(missing.map(|gateway| format!("bridge {name} has no address {gateway}")))
}

/// The link of the bridge's name.
///
/// # Errors
/// Code 999: the kernel refused an answer.
pub fn find(rtnl: &Rtnl, conf: &NetConf) -> Result<Option<Link>, CniError> {
    rtnl.link(&conf.bridge).or_internal(format_args!("look at bridge {}", conf.bridge))
}

/// The bridge as the agent set it up.
fn of_agent(
    rtnl: &Rtnl,
    conf: &NetConf,
    gateways: &[IpNetwork],
    found: Option<Link>,
) -> Result<Link, CniError> {
    let reason = match &found {
        None => Some(format!("bridge {} not found", conf.bridge)),
        Some(found) => why_unusable(rtnl, conf, gateways, found)?,
    };
    match (found, reason) {
        (Some(found), None) => Ok(found),
        (_, reason) => Err(CniError::try_again(format!(
            "{}: is humanz-agent running on this host? ({LOOK})",
            reason.unwrap_or_default()
        ))),
    }
}

/// Creates the bridge; another process may have been faster.
fn create(rtnl: &Rtnl, conf: &NetConf, gateways: &[IpNetwork]) -> Result<Option<Link>, CniError> {
    let name = &conf.bridge;
    let gateway = gateways.first().map(|gateway| Mac::of_address(gateway.ip()));
    let mac = gateway.unwrap_or_else(|| Mac::derived(MAC, &[name.as_str()]));
    let mtu = conf.mtu.unwrap_or(MTU);
    match rtnl.apply(&link::add_bridge(name, mac, mtu, ALIAS)) {
        Ok(()) => log::info!("added bridge {name} (mac {mac}, mtu {mtu})"),
        Err(error) if error.errno() == Some(Errno::EEXIST) => {}
        Err(error) => return Err(failure::internal(format_args!("create bridge {name}"), &error)),
    }
    find(rtnl, conf)
}

/// Repairs an existing bridge, whoever created it. It keeps its MAC, its MTU and every address.
fn repair(
    rtnl: &Rtnl,
    conf: &NetConf,
    gateways: &[IpNetwork],
    found: &Link,
) -> Result<(), CniError> {
    let name = &conf.bridge;
    let present = FoundBridge {
        name: name.clone(),
        kind: found.kind.clone(),
        mac: found.mac,
        mtu: found.mtu,
        up: found.up,
        // A foreign bridge may need its spanning tree.
        delays_ports: found.delays_ports && is_ours(found),
        addresses: addresses(rtnl, found)?,
    };
    let wanted = Bridge {
        name: name.clone(),
        mac: found.mac.unwrap_or(Mac([0; 6])),
        mtu: found.mtu,
        addresses: gateways.to_vec(),
        pools: Vec::new(),
    };
    let changes = changes(&wanted, Some(&present)).map_err(|error| {
        CniError::config(format!("{error}; or set another bridge in the configuration"))
    })?;
    let messages: Vec<Message> =
        changes.iter().filter_map(|change| message(change, found.index)).collect();
    if messages.is_empty() {
        return Ok(());
    }
    for change in &changes {
        log::info!("{}", change.line().past());
    }
    rtnl.apply(&messages).or_internal(format_args!("set up bridge {name}"))
}

/// One step of the plan; the others do not occur for a bridge that keeps what it has.
fn message(change: &BridgeChange, index: u32) -> Option<Message> {
    let up = link::LinkChange { up: true, ..link::LinkChange::default() };
    match change {
        BridgeChange::SetUp(_) => Some(link::change(LinkRef::Index(index), &up)),
        BridgeChange::StopDelays(name) => Some(link::stop_delays(name)),
        BridgeChange::AddAddress(_, wanted) => {
            Some(address::add(index, *wanted).tolerating(Errno::EEXIST))
        }
        _ => None,
    }
}

/// A bridge whose MAC was not set takes that of one of its ports, and another as soon as that port goes:
/// the other pods send to the former one until their neighbour entries expire. It keeps what it has.
fn pin_mac(rtnl: &Rtnl, found: &Link) -> Result<(), CniError> {
    let Some(mac) = found.mac.filter(|_| !is_ours(found) && follows_ports(found)) else {
        return Ok(());
    };
    let pinned = link::LinkChange { mac: Some(mac), ..link::LinkChange::default() };
    let what = format_args!("set a fixed MAC on bridge {}", found.name);
    rtnl.apply(&[link::change(LinkRef::Index(found.index), &pinned)]).or_internal(what)?;
    log::info!("bridge {} keeps its MAC {mac}", found.name);
    Ok(())
}

/// The MAC of the bridge is none that somebody has set; if that cannot be seen, it has no running port yet.
fn follows_ports(found: &Link) -> bool {
    /// NET_ADDR_SET of linux/netdevice.h.
    const SET: &str = "3";
    let read = |key: &str| fs::read_to_string(format!("/sys/class/net/{}/{key}", found.name));
    // /sys may be that of another network namespace.
    let is_this = read("ifindex").is_ok_and(|index| index.trim() == found.index.to_string());
    match read("addr_assign_type") {
        Ok(kind) if is_this => kind.trim() != SET,
        _ => !found.oper_up,
    }
}

fn addresses(rtnl: &Rtnl, bridge: &Link) -> Result<Vec<IpNetwork>, CniError> {
    let found = rtnl.addresses(Some(bridge.index));
    let found = found.or_internal(format_args!("list the addresses of bridge {}", bridge.name))?;
    Ok(found.into_iter().map(|found| found.address).collect())
}

/// The bridge (or an interface for one of its VLANs) listens to no router, and does not send its pods to each
/// other.
pub fn set_guard_sysctls(bridge: &IfName) {
    for (key, value) in guard_sysctls(bridge) {
        match sysctl::read(&key) {
            Ok(found) if found == value => {}
            // Without IPv6.
            Err(error) if error.is_missing() => {}
            _ => {
                if let Err(error) = sysctl::write(&key, value) {
                    log::warn!("{error}");
                }
            }
        }
    }
}

/// A gateway forwards.
///
/// # Errors
/// Code 999: the sysctl cannot be read or written.
pub fn enable_forwarding(gateways: &[IpNetwork]) -> Result<(), CniError> {
    for (family, key) in
        [(Family::V4, "net/ipv4/ip_forward"), (Family::V6, "net/ipv6/conf/all/forwarding")]
    {
        if !gateways.iter().any(|gateway| subnet::family(*gateway) == family) {
            continue;
        }
        // Written only if necessary: /proc/sys may be read-only.
        let what = format_args!("enable {family} forwarding");
        if sysctl::read(key).or_internal(what)? != "1" {
            sysctl::write(key, "1").or_internal(what)?;
        }
    }
    Ok(())
}
