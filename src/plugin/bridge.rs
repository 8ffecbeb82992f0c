//! The bridge that pods are plugged into: looked at, and without an agent made and repaired.

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use crate::cni::config::NetConf;
use crate::cni::error::CniError;
use crate::net::{Family, Mac, subnet};
use crate::netlink::address;
use crate::netlink::link::{self, Link, LinkRef};
use crate::netlink::rtnl::Rtnl;
use crate::netlink::{Message, NetlinkError};
use crate::os::sysctl;
use crate::plan::Describe;
use crate::plan::bridge::{Bridge, BridgeChange, FoundBridge, changes};
use crate::plugin::failure;

/// MTU of a bridge made here, unless the configuration says another: Ethernet's.
const MTU: u32 = 1500;

/// The kind of a MAC derived from a bridge's name (`0a:5b:…`), for one without a gateway.
const MAC: u8 = 0x5b;

/// The alias of a bridge made here.
const ALIAS: &str = "humanz bridge";

/// The network's bridge, up and with every one of `gateways`. Where the configuration allows it
/// (`createBridge`, no agent on this host), what is missing is made.
///
/// # Errors
/// Code 11: not there, or not ready yet, and it is the agent who makes it. Code 7: the name belongs
/// to something else. Code 999: the kernel refused.
pub fn ready(rtnl: &Rtnl, conf: &NetConf, gateways: &[IpNetwork]) -> Result<Link, CniError> {
    let gateways = if conf.is_gateway { gateways } else { &[] };
    let mut found = look(rtnl, conf)?;
    if !conf.create_bridge {
        return prepared(rtnl, conf, gateways, found);
    }
    if found.is_none() {
        found = create(rtnl, conf, gateways)?;
    }
    let found = found.ok_or_else(|| vanished(conf))?;
    repair(rtnl, conf, gateways, &found)?;
    forward(gateways)?;
    Ok(found)
}

/// humanz made the bridge, so that its MAC stays: that of another may follow its ports.
pub fn is_ours(found: &Link) -> bool {
    found.alias.as_deref() == Some(ALIAS)
}

/// What keeps the bridge from serving pods; `None` if nothing does.
///
/// # Errors
/// Code 999: the kernel could not be asked.
pub fn fault(
    rtnl: &Rtnl,
    conf: &NetConf,
    gateways: &[IpNetwork],
    found: &Link,
) -> Result<Option<String>, CniError> {
    let name = &conf.bridge;
    if found.kind.as_deref() != Some("bridge") {
        return Ok(Some(format!("interface {name} is no bridge")));
    }
    if !found.up {
        return Ok(Some(format!("bridge {name} is down")));
    }
    if gateways.is_empty() {
        return Ok(None);
    }
    let there = addresses(rtnl, found)?;
    let missing = gateways.iter().find(|gateway| !there.contains(gateway));
    Ok(missing.map(|gateway| format!("bridge {name} has no address {gateway}")))
}

/// The link of the bridge's name.
///
/// # Errors
/// Code 999: the kernel could not be asked.
pub fn look(rtnl: &Rtnl, conf: &NetConf) -> Result<Option<Link>, CniError> {
    rtnl.link(&conf.bridge)
        .map_err(|error| failure::internal(&format!("look at bridge {}", conf.bridge), &error))
}

/// The bridge as the agent made it.
fn prepared(
    rtnl: &Rtnl,
    conf: &NetConf,
    gateways: &[IpNetwork],
    found: Option<Link>,
) -> Result<Link, CniError> {
    let help = "is humanz-agent running on this host? (systemctl status humanz-agent)";
    let found = found
        .ok_or_else(|| CniError::try_again(format!("bridge {} not found: {help}", conf.bridge)))?;
    match fault(rtnl, conf, gateways, &found)? {
        Some(fault) => Err(CniError::try_again(format!("{fault}: {help}"))),
        None => Ok(found),
    }
}

/// Makes the bridge; another process may have been quicker.
fn create(rtnl: &Rtnl, conf: &NetConf, gateways: &[IpNetwork]) -> Result<Option<Link>, CniError> {
    let name = &conf.bridge;
    let gateway = gateways.first().map(|gateway| Mac::of_address(gateway.ip()));
    let mac = gateway.unwrap_or_else(|| Mac::derived(MAC, &[name.as_str()]));
    let mtu = conf.mtu.unwrap_or(MTU);
    match rtnl.apply(&link::add_bridge(name, mac, mtu, ALIAS)) {
        Ok(()) => log::info!("added bridge {name} (mac {mac}, mtu {mtu})"),
        Err(error) if error.errno() == Some(Errno::EEXIST) => {}
        Err(error) => return Err(failure::internal(&format!("create bridge {name}"), &error)),
    }
    look(rtnl, conf)
}

/// Puts right what is not as it should be on a bridge that is there, whoever made it. Its MAC and
/// MTU are its own, and no address of it is taken away.
fn repair(
    rtnl: &Rtnl,
    conf: &NetConf,
    gateways: &[IpNetwork],
    found: &Link,
) -> Result<(), CniError> {
    let name = &conf.bridge;
    let there = FoundBridge {
        kind: found.kind.clone(),
        mac: found.mac,
        mtu: found.mtu,
        up: found.up,
        // Somebody else's spanning tree keeps somebody else's loops open.
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
    let changes = changes(&wanted, Some(&there)).map_err(|error| {
        CniError::config(format!("{error}; or name another one as bridge in the configuration"))
    })?;
    let messages: Vec<Message> =
        changes.iter().filter_map(|change| message(change, found.index)).collect();
    if messages.is_empty() {
        return Ok(());
    }
    for change in &changes {
        log::info!("{}", change.line().past());
    }
    let failed = |error: NetlinkError| failure::internal(&format!("set up bridge {name}"), &error);
    rtnl.apply(&messages).map_err(failed)
}

/// One step of the plan; the others do not arise for a bridge that keeps what it has.
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

fn addresses(rtnl: &Rtnl, bridge: &Link) -> Result<Vec<IpNetwork>, CniError> {
    let found = rtnl.addresses(Some(bridge.index)).map_err(|error| {
        failure::internal(&format!("list the addresses of bridge {}", bridge.name), &error)
    })?;
    Ok(found.into_iter().map(|found| found.address).collect())
}

/// A gateway forwards.
fn forward(gateways: &[IpNetwork]) -> Result<(), CniError> {
    for (family, key) in
        [(Family::V4, "net/ipv4/ip_forward"), (Family::V6, "net/ipv6/conf/all/forwarding")]
    {
        if !gateways.iter().any(|gateway| subnet::family(*gateway) == family) {
            continue;
        }
        // Written only if it must be: /proc/sys may be read-only, and right.
        let failed = |error| failure::internal(&format!("turn {family} forwarding on"), &error);
        if sysctl::read(key).map_err(failed)? != "1" {
            sysctl::write(key, "1").map_err(failed)?;
        }
    }
    Ok(())
}

fn vanished(conf: &NetConf) -> CniError {
    CniError::try_again(format!("bridge {} was removed while it was made", conf.bridge))
}
