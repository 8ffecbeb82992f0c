//! Ports of this host that lead to pods, as the kernel has them.

use std::collections::BTreeSet;

use ipnetwork::IpNetwork;

use crate::ipam::{PortClaims, StoreError};
use crate::net::gather::Gather;
use crate::net::{Family, HostPort, IfName};
use crate::netlink::NetlinkError;
use crate::netlink::link::Link;
use crate::netlink::rtnl::Rtnl;
use crate::nft::Nft;
use crate::plan::host_ports::{PortElement, PortMap, PortMark, TABLE, bridge_names, bridges};
use crate::plan::ownership::is_of_pod;
use crate::plan::pod::{LinkIdentity, first_name};

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

/// The elements of other ports that get packets of `ports`, or lose packets to them: a port of one address
/// takes precedence over that of all.
///
/// # Errors
/// [`NetlinkError`].
pub fn beside(nft: &Nft, ports: &BTreeSet<HostPort>) -> Result<Vec<PortElement>, NetlinkError> {
    let (of_all, of_one): (Vec<&HostPort>, Vec<&HostPort>) =
        ports.iter().partition(|port| port.address.is_unspecified());
    let families: BTreeSet<Family> = of_all.iter().map(|port| port.family()).gather();
    let mut beside = Vec::new();
    for map in families.into_iter().map(PortMap::At) {
        let found = nft.elements(TABLE, &map.set())?;
        let found = found.iter().filter_map(|element| map.read(element));
        beside.extend(found.filter(|found| ports.contains(&found.forward.from.of_all())));
    }
    for port in of_one {
        beside.extend(one(nft, &port.of_all())?);
    }
    beside.retain(|found| !ports.contains(&found.forward.from));
    Ok(beside)
}

/// Ports of another store than that with the fingerprint `own` lead to IPv4 addresses of pods at the bridge.
///
/// # Errors
/// [`NetlinkError`].
pub fn others_lead_to(
    nft: &Nft,
    rtnl: &Rtnl,
    own: u64,
    bridge: &IfName,
) -> Result<bool, NetlinkError> {
    let v4 = all(nft)?.into_iter().filter(|found| found.forward.from.family() == Family::V4);
    let marks = v4.filter_map(|found| found.mark).filter(|mark| mark.store != own);
    let links: BTreeSet<IfName> = marks.map(|mark| mark.link).gather();
    if links.is_empty() {
        return Ok(false);
    }
    let Some(bridge) = rtnl.link(bridge)? else { return Ok(false) };
    let pods = rtnl.links(Some(bridge.index))?.into_iter().filter(is_of_pod);
    let mut named = pods.filter_map(|link| first_name(link.alias.as_deref()?));
    Ok(named.any(|name| links.contains(&name)))
}

/// The pod of an element runs: its link is there, under whatever name.
///
/// # Errors
/// [`NetlinkError`].
pub fn pod_runs(rtnl: &Rtnl, mark: &PortMark) -> Result<bool, NetlinkError> {
    if rtnl.link(&mark.link)?.is_some() {
        return Ok(true);
    }
    let is_its = |link: &Link| {
        is_of_pod(link) && link.alias.as_deref().and_then(first_name) == Some(mark.link.clone())
    };
    Ok(rtnl.links(None)?.iter().any(is_its))
}

/// The store of `claims`, whose element this is, has a reservation of its pod.
///
/// # Errors
/// [`StoreError::Io`].
pub fn is_reserved(claims: &PortClaims, element: &PortElement) -> Result<bool, StoreError> {
    let pod = element.comment.as_deref().and_then(LinkIdentity::in_alias);
    let Some(LinkIdentity { network, container_id, ifname }) = pod else { return Ok(false) };
    claims.know(network, container_id, ifname)
}

/// The links of pods that run while the store of `claims`, which was lost, knows nothing of them: they keep
/// their ports.
///
/// # Errors
/// What could not be read.
pub fn orphans(
    rtnl: &Rtnl,
    claims: &PortClaims,
    held: &BTreeSet<HostPort>,
    found: &[PortElement],
) -> anyhow::Result<BTreeSet<IfName>> {
    let mut orphans = BTreeSet::new();
    for element in found.iter().filter(|element| !held.contains(&element.forward.from)) {
        let own = element.mark.as_ref().filter(|mark| mark.store == claims.fingerprint());
        if let Some(mark) = own
            && !is_reserved(claims, element)?
            && pod_runs(rtnl, mark)?
        {
            orphans.insert(mark.link.clone());
        }
    }
    Ok(orphans)
}

/// Those of `found` that lead to an address of `own_subnets` although no pod runs there, and no attachment that the
/// store of `claims` knows: of a store that was lost, or that was another one's before (an edited `IPAM_DIR`). The link is
/// there before its ports are open, so that none of a pod that is about to run is among them. What another plugin attached
/// has no link of ours, and no address of these subnets either.
///
/// # Errors
/// What could not be read.
pub fn left_behind(
    rtnl: &Rtnl,
    claims: &PortClaims,
    found: &[PortElement],
    own_subnets: &[IpNetwork],
) -> anyhow::Result<Vec<PortElement>> {
    let mut left = Vec::new();
    for element in found {
        let address = element.forward.to.ip();
        if let Some(mark) = &element.mark
            && own_subnets.iter().any(|subnet| subnet.contains(address))
            && !(mark.store == claims.fingerprint() && is_reserved(claims, element)?)
            && !pod_runs(rtnl, mark)?
        {
            left.push(element.clone());
        }
    }
    Ok(left)
}

/// The bridges of pods with host ports.
///
/// # Errors
/// [`NetlinkError`].
pub fn bridge_set(nft: &Nft) -> Result<BTreeSet<IfName>, NetlinkError> {
    Ok(bridge_names(nft.elements(TABLE, &bridges())?))
}
