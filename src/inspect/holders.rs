//! The addresses that running pods have by the kernel, whatever the stores say: a store may be lost, and
//! several may give out one subnet.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::net::gather::Gather;
use crate::net::{IfName, Mac};
use crate::netlink::NetlinkError;
use crate::netlink::fdb::{BridgeEntry, EntryKind};
use crate::netlink::rtnl::Rtnl;
use crate::plan::ownership::is_of_pod;

/// Where pods are plugged in, by the numbers of its links.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub bridge: u32,
    /// Has the gateways' addresses and the pods' neighbour entries: the bridge, or an interface for a VLAN on it.
    pub gateway: u32,
}

/// The first of `addresses` that a pod's port of the bridge has, with the alias of that port.
///
/// # Errors
/// [`NetlinkError`].
pub fn first(
    rtnl: &Rtnl,
    Segment { bridge, gateway }: Segment,
    addresses: &[IpAddr],
) -> Result<Option<(IpAddr, String)>, NetlinkError> {
    for address in addresses {
        let Some(found) = rtnl.neighbour(gateway, *address)? else { continue };
        let port = found.mac.map(|mac| rtnl.port_of(bridge, mac)).transpose()?.flatten();
        if let Some((port, _)) = port
            && let Some(alias) = pod(rtnl, port)?
        {
            return Ok(Some((*address, alias)));
        }
    }
    Ok(None)
}

/// A pod is plugged into the bridge, whatever its address.
///
/// # Errors
/// [`NetlinkError`].
pub fn any(rtnl: &Rtnl, bridge: u32) -> Result<bool, NetlinkError> {
    Ok(rtnl.links(Some(bridge))?.iter().any(is_of_pod))
}

/// Every address that a pod's port of the bridge has, with the alias of that port.
///
/// # Errors
/// [`NetlinkError`].
pub fn all(
    rtnl: &Rtnl,
    Segment { bridge, gateway }: Segment,
) -> Result<BTreeMap<IpAddr, String>, NetlinkError> {
    let aliases: BTreeMap<u32, String> = rtnl
        .links(Some(bridge))?
        .into_iter()
        .filter(is_of_pod)
        .filter_map(|link| Some((link.index, link.alias?)))
        .gather();
    let ports: BTreeMap<Mac, u32> = rtnl.learned(bridge)?.into_iter().gather();
    let neighbours = rtnl.neighbours(gateway)?.into_iter();
    let held = neighbours.filter_map(|neighbour| {
        let alias = aliases.get(ports.get(&neighbour.mac?)?)?;
        Some((neighbour.address, alias.clone()))
    });
    Ok(held.gather())
}

/// Who has a MAC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MacHolder {
    /// The pod whose port has this alias.
    Pod(String),
    /// This host: it is the MAC of that link.
    Host(IfName),
    /// Somebody behind this port of the bridge, to which it is pinned.
    Pinned(IfName),
    /// Somebody behind this port of the bridge, who has sent from there.
    Seen(IfName),
}

/// Who has `mac` on the bridge, in whichever VLAN; what the port of the index `own` has does not count.
///
/// # Errors
/// [`NetlinkError`].
pub fn of_mac(
    rtnl: &Rtnl,
    bridge: u32,
    mac: Mac,
    own: Option<u32>,
) -> Result<Option<MacHolder>, NetlinkError> {
    let entries = rtnl.bridge_entries(bridge)?.into_iter().filter(|entry| entry.mac == mac);
    let mut seen = None;
    for BridgeEntry { link, kind, .. } in entries {
        if own == Some(link) && kind != EntryKind::Local {
            continue;
        }
        let Some(link) = rtnl.link_by_index(link)? else { continue };
        let pod = link.alias.clone().filter(|_| is_of_pod(&link));
        match (kind, pod) {
            (EntryKind::Local, _) => return Ok(Some(MacHolder::Host(link.name))),
            (EntryKind::Pinned, Some(pod)) => return Ok(Some(MacHolder::Pod(pod))),
            (EntryKind::Pinned, None) => return Ok(Some(MacHolder::Pinned(link.name))),
            (EntryKind::Learned, _) => seen = Some(MacHolder::Seen(link.name)),
        }
    }
    Ok(seen)
}

fn pod(rtnl: &Rtnl, port: u32) -> Result<Option<String>, NetlinkError> {
    let link = rtnl.link_by_index(port)?;
    Ok(link.filter(is_of_pod).and_then(|link| link.alias))
}
