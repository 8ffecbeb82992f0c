//! What this host is like: its addresses, segments and MTU, as the kernel has them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Context, bail};

use crate::agent::reach::Connected;
use crate::agent::settings::{Settings, Source};
use crate::linux::address::Address;
use crate::linux::rtnl::Rtnl;
use crate::net::{Family, IfName, PerFamily, subnet};

/// This host as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its address for the other hosts.
    pub addresses: PerFamily<IpAddr>,
    /// All its addresses but those of the bridge.
    pub all_addresses: BTreeSet<IpAddr>,
    /// Prefixes on its own segments.
    pub connected: Vec<Connected>,
    /// The interfaces that lead to the other hosts.
    pub uplinks: BTreeSet<IfName>,
    /// MTU of pods and bridge, in bytes.
    pub mtu_bytes: u32,
}

/// Looks at links and addresses.
///
/// # Errors
/// The kernel's, and a host whose own address cannot be told or lies inside a pool.
pub fn observe(rtnl: &Rtnl, settings: &Settings) -> anyhow::Result<Facts> {
    let bridge = rtnl.link(&settings.bridge).context("look at the bridge")?.map(|link| link.index);
    let mut addresses = rtnl.addresses(None).context("list addresses")?;
    addresses.retain(|found| Some(found.index) != bridge && is_global(found.address.ip()));
    let own = own_addresses(rtnl, settings, &addresses)?;
    refuse_inside_pool(settings, &own)?;
    let mut uplinks = BTreeSet::new();
    let mut mtu_bytes = u32::MAX;
    for index in devices_of(&own, &addresses) {
        if let Some(link) = rtnl.link_by_index(index).context("look at an uplink")? {
            mtu_bytes = mtu_bytes.min(link.mtu);
            uplinks.insert(link.name);
        }
    }
    if uplinks.is_empty() {
        mtu_bytes = ETHERNET_MTU_BYTES;
    }
    let connected =
        |found: &Address| Connected { prefix: subnet::masked(found.address), device: found.index };
    Ok(Facts {
        addresses: own,
        all_addresses: addresses.iter().map(|found| found.address.ip()).collect(),
        connected: addresses.iter().map(connected).collect(),
        uplinks,
        mtu_bytes: settings.mtu_bytes.unwrap_or(mtu_bytes),
    })
}

/// What a pod gets on a host whose own interface is unknown. Source: RFC 894.
const ETHERNET_MTU_BYTES: u32 = 1500;

/// Addresses that nobody has, to ask for the default route: the IPv4 dummy address (RFC 7600) and
/// the IPv6 discard prefix (RFC 6666).
const NOBODY: PerFamily<IpAddr> = PerFamily {
    v4: Some(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 0, 8))),
    v6: Some(IpAddr::V6(std::net::Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1))),
};

/// The address for the others, for each family that has a pool: as set, else the source address
/// of the default route, else the only address there is.
fn own_addresses(
    rtnl: &Rtnl,
    settings: &Settings,
    found: &[Address],
) -> anyhow::Result<PerFamily<IpAddr>> {
    let mut own = settings.node_addresses;
    for (family, _) in settings.pools.entries() {
        if own.get(family).is_none() {
            let of_family = found.iter().map(|found| found.address.ip());
            let of_family: BTreeSet<IpAddr> =
                of_family.filter(|address| Family::of(*address) == family).collect();
            own.set(
                family,
                source_of_default_route(rtnl, family, &of_family)?.or_else(|| only(&of_family)),
            );
        }
    }
    if own.is_empty() && matches!(settings.source, Source::Etcd { .. }) {
        bail!(
            "this host's address for the others cannot be told: there is no default route, and there is not exactly one address ({}); set NODE_IP",
            found.iter().map(|found| found.address.to_string()).collect::<Vec<_>>().join(", ")
        );
    }
    Ok(own)
}

fn source_of_default_route(
    rtnl: &Rtnl,
    family: Family,
    candidates: &BTreeSet<IpAddr>,
) -> anyhow::Result<Option<IpAddr>> {
    let Some(nobody) = NOBODY.get(family) else { return Ok(None) };
    let route = rtnl.way(*nobody).with_context(|| format!("ask for the {family} default route"))?;
    Ok(route.and_then(|route| route.source).filter(|source| candidates.contains(source)))
}

fn only(addresses: &BTreeSet<IpAddr>) -> Option<IpAddr> {
    addresses.first().copied().filter(|_| addresses.len() == 1)
}

fn refuse_inside_pool(settings: &Settings, own: &PerFamily<IpAddr>) -> anyhow::Result<()> {
    for (family, address) in own.entries() {
        let pool = settings.pools.get(family).map(|pool| pool.network());
        if let Some(pool) = pool.filter(|pool| pool.contains(*address)) {
            bail!(
                "this host's address {address} lies inside the pod pool {pool}: choose another IP_SUBNET (IPV6_SUBNET) for the cluster, or set NODE_IP"
            );
        }
    }
    Ok(())
}

fn devices_of(own: &PerFamily<IpAddr>, addresses: &[Address]) -> BTreeSet<u32> {
    let is_own = |found: &&Address| own.iter().any(|own| *own == found.address.ip());
    addresses.iter().filter(is_own).map(|found| found.index).collect()
}

/// Can be an address for other hosts: no loopback, no link-local.
fn is_global(address: IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !address.is_loopback() && !link_local
}
