//! The stores of host-local of pod networks whose pods are on the bridge.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use ipnetwork::IpNetwork;

use crate::checks::host_checks::FormerStore;
use crate::inspect::pods::{self, Life};
use crate::ipam::import::TAKEN_OVER;
use crate::net::PerFamily;
use crate::net::gather::Gather;
use crate::netlink::rtnl::Rtnl;
use crate::netlink::{NetlinkError, link::Link};
use crate::plan::ownership::is_of_pod;
use crate::settings::{Settings, Source};

/// Where host-local has a folder for each network.
pub const NETWORKS: &str = "/var/lib/cni/networks";

/// None where only pods of humanz are plugged in.
///
/// # Errors
/// The kernel's.
pub fn inspect(rtnl: &Rtnl, settings: &Settings) -> Result<Vec<FormerStore>, NetlinkError> {
    let cni = &settings.cni;
    let bridge = rtnl.link(&settings.bridge)?;
    let is_former = |link: &Link| link.kind.as_deref() == Some("veth") && !is_of_pod(link);
    let ports = bridge.map(|bridge| rtnl.links(Some(bridge.index))).transpose()?;
    if cni.ipam_dir == Path::new(NETWORKS) || !ports.unwrap_or_default().iter().any(is_former) {
        return Ok(Vec::new());
    }
    // Of a store that cannot be read it is unknown what was imported; that is a problem of its own.
    let contents = pods::store(settings, &cni.name).and_then(|store| Ok(store.contents()?));
    let Ok(contents) = contents else { return Ok(Vec::new()) };
    let folders = fs::read_dir(NETWORKS).into_iter().flatten().flatten();
    let stores = folders.map(|entry| {
        let is_imported = entry.file_name() == cni.name.as_str();
        let mut addresses = not_imported(&entry.path(), &contents.taken);
        let taken_over = contents.entries.iter().filter(|it| is_imported && it.is_taken_over());
        addresses.extend(taken_over.flat_map(|it| it.addresses.iter().copied()));
        FormerStore {
            folder: entry.path(),
            is_imported,
            addresses: addresses.into_iter().collect(),
        }
    });
    Ok(stores.filter(|store| !store.addresses.is_empty()).collect())
}

/// The pods of this host outside `subnets`: it had another one when they came. In etcd there are networks of tenants as
/// well, outside the pool of the hosts' subnets. Without such an address no file is read.
///
/// # Errors
/// The kernel's.
pub fn stranded(
    rtnl: &Rtnl,
    settings: &Settings,
    subnets: &PerFamily<IpNetwork>,
) -> Result<Option<FormerStore>, NetlinkError> {
    let name = &settings.cni.name;
    let Ok(store) = pods::store(settings, name) else { return Ok(None) };
    let pools = settings.pool_networks();
    let has = |all: &PerFamily<IpNetwork>, address| all.iter().any(|it| it.contains(address));
    let is_etcd = matches!(settings.source, Source::Etcd { .. });
    let is_outside =
        |address: &IpAddr| !has(subnets, *address) && (!is_etcd || has(&pools, *address));
    if !not_imported(store.dir(), &BTreeSet::new()).iter().any(is_outside) {
        return Ok(None);
    }
    let links = rtnl.links(None)?.into_iter().map(|link| link.name).gather();
    let entries = store.contents().map(|contents| contents.entries).unwrap_or_default();
    let attached = entries.iter().filter(|it| Life::of(it, name, &links) == Life::Attached);
    let addresses = attached.flat_map(|it| &it.addresses).copied().filter(is_outside).collect();
    Ok(Some(FormerStore { folder: store.dir().to_owned(), is_imported: true, addresses }))
}

/// What is in `folder`, and neither imported in whole nor `known`.
fn not_imported(folder: &Path, known: &BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
    let imported = fs::read_to_string(folder.join(TAKEN_OVER)).unwrap_or_default();
    let names = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter(|name| imported.lines().all(|line| line != name))
        .filter_map(|name| name.parse().ok())
        .filter(|address| !known.contains(address))
        .gather()
}
