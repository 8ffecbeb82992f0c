//! Ports of this host that lead to pods, as the kernel has them.

use std::collections::BTreeSet;

use crate::net::{HostPort, IfName};
use crate::netlink::NetlinkError;
use crate::nft::Nft;
use crate::plan::host_ports::{PortElement, PortMap, TABLE, bridge_names, bridges};

/// Everything that the maps hold; nothing if they are not there.
///
/// # Errors
/// [`NetlinkError`].
pub fn all(nft: &Nft) -> Result<Vec<PortElement>, NetlinkError> {
    let mut ports = Vec::new();
    for map in PortMap::ALL {
        let elements = nft.elements(TABLE, &map.set())?;
        ports.extend(elements.iter().filter_map(|element| map.read(element)));
    }
    Ok(ports)
}

/// The element of `port`, if it is there.
///
/// # Errors
/// [`NetlinkError`].
pub fn one(nft: &Nft, port: &HostPort) -> Result<Option<PortElement>, NetlinkError> {
    let map = PortMap::of(port);
    let element = nft.element(TABLE, &map.set(), &PortMap::key(port))?;
    Ok(element.and_then(|element| map.read(&element)))
}

/// The bridges of pods with host ports.
///
/// # Errors
/// [`NetlinkError`].
pub fn bridge_set(nft: &Nft) -> Result<BTreeSet<IfName>, NetlinkError> {
    Ok(bridge_names(nft.elements(TABLE, &bridges())?))
}
