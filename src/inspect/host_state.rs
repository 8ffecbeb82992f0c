//! What this host is like: its addresses, segments and MTU, as the kernel has them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU16;

use anyhow::Context;

use crate::checks::interface;
use crate::lease::records::{NodeName, WireguardEnd, comparable_group};
use crate::lease::{HostAttributes, Snapshot};
use crate::net::gather::Gather;
use crate::net::{Family, Hint, IfName, PerFamily, subnet};
use crate::netlink::NetlinkError;
use crate::netlink::address::Address;
use crate::netlink::link::Link;
use crate::netlink::rtnl::Rtnl;
use crate::netlink::wireguard::Wireguard;
use crate::plan::peer_routes::Connected;
use crate::plan::{encryption, tunnel};
use crate::settings::Settings;

/// Where kube-proxy has the addresses of services in its mode ipvs.
const SERVICES: &str = "kube-ipvs0";

/// What the other hosts must know of this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeAddresses {
    /// Its address for them.
    pub addresses: PerFamily<IpAddr>,
    /// Bytes that a packet between hosts may have.
    pub mtu_bytes: u32,
    /// MTU of pods and bridge, in bytes.
    pub pod_mtu_bytes: u32,
    /// Its end of encrypted tunnels, once there is one.
    pub encryption: Option<WireguardEnd>,
}

/// This host as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostState {
    /// What the other hosts must know.
    pub own: NodeAddresses,
    /// All its addresses but those of the bridge and of tunnels.
    pub all_addresses: BTreeSet<IpAddr>,
    /// Prefixes on its own segments.
    pub connected: Vec<Connected>,
    /// Those of its addresses for the others that it can send from at this moment.
    pub underlay: PerFamily<IpAddr>,
    /// The interfaces that lead to the other hosts.
    pub uplinks: BTreeSet<IfName>,
    /// Those of them that pass no packets, what is wrong with each, and what helps.
    pub down: Vec<(IfName, &'static str, String)>,
}

impl HostState {
    /// Connections that `before` had may be dead: an address went, another one is used, or packets
    /// as large as were agreed upon no longer arrive.
    pub fn breaks_connections_of(&self, before: &HostState) -> bool {
        self.own.addresses != before.own.addresses
            || self.own.mtu_bytes < before.own.mtu_bytes
            || !self.all_addresses.is_superset(&before.all_addresses)
    }
}

/// Looks at links and addresses. `before` is what the host was: an uplink that is down for a moment
/// takes its IPv6 addresses and the default route with it, and that is no reason to publish
/// that this host has none.
///
/// # Errors
/// The kernel's, and a host whose node address is unknown or lies inside a pool.
pub fn observe(
    rtnl: &Rtnl,
    settings: &Settings,
    before: Option<NodeAddresses>,
) -> anyhow::Result<HostState> {
    let (addresses, links) = global_addresses(rtnl, settings)?;
    let own = own_addresses(rtnl, settings, &addresses, before.unwrap_or_default().addresses)?;
    refuse_inside_pool(settings, &own)?;
    let of_own = devices_of(&own, &addresses);
    let of_own: Vec<&Link> = of_own.iter().filter_map(|index| links.get(index)).collect();
    let down = of_own.iter().filter_map(|link| {
        let (what, fix) = interface::fault(link)?;
        Some((link.name.clone(), what, fix))
    });
    let down = down.collect();
    let uplinks = of_own.iter();
    let uplinks: BTreeMap<IfName, u32> = uplinks.map(|link| (link.name.clone(), link.mtu)).gather();
    let mtu_before = before.map_or(ETHERNET_MTU_BYTES, |before| before.mtu_bytes);
    let mtu_bytes = uplinks.values().copied().min().unwrap_or(mtu_before);
    let is_up = |found: &Address| links.get(&found.index).is_some_and(|link| link.up);
    let connected = |found: &Address| Connected {
        prefix: subnet::masked(found.address),
        device: found.index,
        up: is_up(found),
    };
    let pod_mtu_bytes = settings.mtu_bytes.unwrap_or(mtu_bytes);
    let encryption = match before {
        Some(before) => before.encryption,
        // An agent that starts publishes what the one before did, or others would close the way to its pods.
        None => encryption_in_kernel(settings),
    };
    let mut underlay = own;
    for (family, address) in own.entries() {
        let is_there = |found: &&Address| found.address.ip() == *address && is_up(found);
        underlay.set(family, addresses.iter().find(is_there).map(|found| found.address.ip()));
    }
    Ok(HostState {
        own: NodeAddresses { addresses: own, mtu_bytes, pod_mtu_bytes, encryption },
        underlay,
        all_addresses: addresses.iter().map(|found| found.address.ip()).gather(),
        connected: addresses.iter().map(connected).collect(),
        uplinks: uplinks.into_keys().gather(),
        down,
    })
}

/// The addresses by which pods may reach this host, link-local ones of the `bridge` included. Those of services, which
/// kube-proxy has on a link of its own in its mode ipvs, are not the host's.
///
/// # Errors
/// The kernel's.
pub fn as_seen_by_pods(rtnl: &Rtnl, bridge: &IfName) -> anyhow::Result<BTreeSet<IpAddr>> {
    let index = |name: &IfName| anyhow::Ok(rtnl.link(name)?.map(|link| link.index));
    let (bridge, services) = (index(bridge)?, index(&SERVICES.parse()?)?);
    let mut addresses = rtnl.addresses(None).context("list addresses")?;
    addresses.retain(|Address { index, address, .. }| {
        Some(*index) != services && (Some(*index) == bridge || is_global(address.ip()))
    });
    Ok(addresses.iter().map(|found| found.address.ip()).gather())
}

/// Its global addresses but those of the bridge and of tunnels, and links by their index, those of these among them.
fn global_addresses(
    rtnl: &Rtnl,
    settings: &Settings,
) -> anyhow::Result<(Vec<Address>, BTreeMap<u32, Link>)> {
    let bridge = rtnl.link(&settings.bridge).context("look at the bridge")?.map(|link| link.index);
    let mut addresses = rtnl.addresses(None).context("list addresses")?;
    addresses.retain(|found| Some(found.index) != bridge && is_global(found.address.ip()));
    let links = links_of(rtnl, &addresses).context("look at the links with addresses")?;
    let of_tunnel = |found: &Address| links.get(&found.index).is_some_and(tunnel::is_marked);
    addresses.retain(|found| !of_tunnel(found));
    Ok((addresses, links))
}

/// The InternalIPs of this host's node that it really has, outside the pools of `settings`: on a host with several
/// interfaces the default route may lead elsewhere.
pub fn internal_addresses(
    rtnl: &Rtnl,
    settings: &Settings,
    found: &Snapshot,
    own: &NodeName,
) -> PerFamily<IpAddr> {
    let here = rtnl.addresses(None).unwrap_or_default();
    let wanted = found.nodes.get(own).map(|node| node.value.addresses).unwrap_or_default();
    let mut present = PerFamily::default();
    for (family, address) in wanted.entries() {
        let is_here = here.iter().any(|found| found.address.ip() == *address);
        let pool = settings.pools.get(family).map(|pool| pool.network());
        if is_here && !pool.is_some_and(|pool| pool.contains(*address)) {
            present.set(family, Some(*address));
        }
    }
    present
}

/// The attributes that this host publishes. Source: `settings`, and its own addresses and MTU.
pub fn attributes(settings: &Settings, own: NodeAddresses) -> HostAttributes {
    let policy = settings.policy.as_ref();
    HostAttributes {
        addresses: own.addresses,
        backend: settings.backend.into(),
        tunnel: settings.has_tunnels().then_some(settings.vxlan),
        wireguard: own.encryption,
        mtu: own.mtu_bytes,
        policy_group: policy.map(|it| comparable_group(it.group.as_ref())).unwrap_or_default(),
    }
}

/// The ends of the devices that an earlier agent made. Only with a second device a key was being changed, here or
/// on another host: there, no host uses what this publishes of it.
fn encryption_in_kernel(settings: &Settings) -> Option<WireguardEnd> {
    let rotation_port = NonZeroU16::new(settings.encryption?.rotation_port());
    let kernel = Wireguard::open().ok()??;
    let [first, second] = encryption::device_names();
    let device = kernel.device(&first).ok()?;
    let next = kernel.device(&second).ok().and_then(|second| second.public_key);
    let (public_key, port) = (device.public_key?, NonZeroU16::new(device.port)?);
    Some(WireguardEnd { public_key, port, rotation_port, next })
}

/// What a pod gets on a host whose own interface is unknown. Source: RFC 894.
const ETHERNET_MTU_BYTES: u32 = 1500;

/// Addresses that no host has, to ask for the default route: the IPv4 dummy address (RFC 7600) and
/// the IPv6 discard prefix (RFC 6666).
const UNUSED: PerFamily<IpAddr> = PerFamily {
    v4: Some(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 0, 8))),
    v6: Some(IpAddr::V6(std::net::Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1))),
};

/// The address for the others, for each family that has a pool: as set, else the source address
/// of the default route, else the only address there is, else the one it had. A host that has none
/// of those families at all can have tunnels over the other one.
fn own_addresses(
    rtnl: &Rtnl,
    settings: &Settings,
    found: &[Address],
    before: PerFamily<IpAddr>,
) -> anyhow::Result<PerFamily<IpAddr>> {
    let mut own = settings.node_addresses;
    let has_pool = |family: &Family| settings.pools.get(*family).is_some();
    let with_pool = Family::BOTH.into_iter().filter(has_pool);
    let none = !found.iter().any(|found| has_pool(&Family::of(found.address.ip())));
    let also = Family::BOTH.into_iter().filter(|family| {
        let has_tunnels = settings.has_tunnels() || settings.encryption.is_some();
        !has_pool(family) && none && own.is_empty() && has_tunnels
    });
    for family in with_pool.chain(also.collect::<Vec<_>>()) {
        if own.get(family).is_none() {
            let of_family = found.iter().map(|found| found.address.ip());
            let of_family: BTreeSet<IpAddr> =
                of_family.filter(|address| Family::of(*address) == family).gather();
            let default = source_of_default_route(rtnl, family, &of_family)?;
            let had = before.get(family).copied();
            let has = had.filter(|had| of_family.contains(had));
            own.set(family, default.or(has).or_else(|| only(&of_family)).or(had));
        }
    }
    if own.is_empty() && settings.has_others() {
        let found: Vec<_> = found.iter().map(|found| found.address.to_string()).collect();
        let why = format!(
            "cannot determine this host's node address: there is no default route, and not exactly one address ({})",
            found.join(", ")
        );
        return Err(Hint { why, fix: "set NODE_IP".to_owned() }.into());
    }
    Ok(own)
}

fn source_of_default_route(
    rtnl: &Rtnl,
    family: Family,
    candidates: &BTreeSet<IpAddr>,
) -> anyhow::Result<Option<IpAddr>> {
    let Some(unused) = UNUSED.get(family) else { return Ok(None) };
    let route = rtnl
        .lookup_route(*unused)
        .with_context(|| format!("look up the {family} default route"))?;
    Ok(route.and_then(|route| route.source).filter(|source| candidates.contains(source)))
}

fn only(addresses: &BTreeSet<IpAddr>) -> Option<IpAddr> {
    addresses.first().copied().filter(|_| addresses.len() == 1)
}

fn refuse_inside_pool(settings: &Settings, own: &PerFamily<IpAddr>) -> anyhow::Result<()> {
    for (family, address) in own.entries() {
        let pool = settings.pools.get(family).map(|pool| pool.network());
        if let Some(pool) = pool.filter(|pool| pool.contains(*address)) {
            let why = format!("this host's address {address} lies inside the pod pool {pool}");
            let fix = "choose another IP_SUBNET (IPV6_SUBNET) for the cluster, or set NODE_IP";
            return Err(Hint { why, fix: fix.to_owned() }.into());
        }
    }
    Ok(())
}

/// The links that have one of `addresses`, by index.
fn links_of(rtnl: &Rtnl, addresses: &[Address]) -> Result<BTreeMap<u32, Link>, NetlinkError> {
    let indexes: BTreeSet<u32> = addresses.iter().map(|found| found.index).gather();
    let mut links = BTreeMap::new();
    for index in indexes {
        links.extend(rtnl.link_by_index(index)?.map(|link| (index, link)));
    }
    Ok(links)
}

fn devices_of(own: &PerFamily<IpAddr>, addresses: &[Address]) -> BTreeSet<u32> {
    let is_own = |found: &&Address| own.iter().any(|own| *own == found.address.ip());
    addresses.iter().filter(is_own).map(|found| found.index).gather()
}

/// Can be an address for other hosts: no loopback, no link-local.
fn is_global(address: IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !address.is_loopback() && !link_local
}
