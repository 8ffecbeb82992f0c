//! CNI configurations, addresses, routes and sysctls of other programs on this host.

use std::fs;
use std::path::PathBuf;

use ipnetwork::IpNetwork;

use crate::checks::host_checks::{FoundOnHost, SYSCTLS, UNREAD};
use crate::inspect::{Kernel, former_stores, runtimes};
use crate::net::{IfName, PerFamily};
use crate::netlink::NetlinkError;
use crate::netlink::route::Route;
use crate::os::disk_space::{self, FreeSpace};
use crate::os::sysctl;
use crate::settings::Settings;

/// Routes made by hand or by programs without a number of their own: RTPROT_BOOT, RTPROT_STATIC.
const FOREIGN: [u8; 2] = [3, 4];

/// What other programs have on the host, which has `subnets`.
///
/// # Errors
/// The kernel's.
pub fn inspect(
    kernel: &Kernel,
    settings: &Settings,
    subnets: &PerFamily<IpNetwork>,
) -> Result<FoundOnHost, NetlinkError> {
    let rtnl = &kernel.rtnl;
    let bridge = rtnl.link(&settings.bridge)?.map(|link| link.index);
    let foreign = |route: &Route| bridge.is_none() || route.device != bridge;
    let mut routes = Vec::new();
    for protocol in FOREIGN {
        let found = rtnl.routes(protocol)?;
        routes.extend(found.iter().filter(|route| foreign(route)).map(|route| route.destination));
    }
    let translations = kernel.forward.observe_translations()?;
    let mut former_stores = former_stores::inspect(rtnl, settings)?;
    former_stores.extend(former_stores::stranded(rtnl, settings, subnets)?);
    Ok(FoundOnHost {
        configurations: beside(settings),
        addresses: addresses(kernel, settings, bridge)?,
        routes,
        former_stores,
        runtimes: runtimes::inspect(&settings.cni.plugin),
        kube_proxy: translations.kube_proxy,
        masquerades: translations.masquerades,
        disks: disks(settings),
        sysctls: SYSCTLS.map(|key| match sysctl::read(key) {
            Ok(value) => Some(value),
            Err(error) => (!error.is_missing()).then(|| UNREAD.to_owned()),
        }),
    })
}

/// Of what can be inspected.
fn disks(settings: &Settings) -> Vec<(PathBuf, &'static str, FreeSpace)> {
    let state = (&settings.state_dir, "state of the agent");
    let places = [
        (!settings.agentless).then_some(state),
        Some((&settings.cni.ipam_dir, "addresses of pods")),
    ];
    let found = places.into_iter().flatten();
    found
        .filter_map(|(path, what)| Some((path.clone(), what, disk_space::at(path).ok()?)))
        .collect()
}

/// The names of all files in the folder of our CNI configuration.
fn beside(settings: &Settings) -> Vec<String> {
    let folder = settings.cni.config.parent();
    let entries = folder.and_then(|folder| fs::read_dir(folder).ok());
    let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.into_string().ok()).collect()
}

/// Addresses inside a pool, of links that do not bear our mark.
fn addresses(
    kernel: &Kernel,
    settings: &Settings,
    bridge: Option<u32>,
) -> Result<Vec<(IfName, IpNetwork)>, NetlinkError> {
    let pools = settings.pool_networks();
    let mut addresses = Vec::new();
    for found in kernel.rtnl.addresses(None)? {
        let inside = pools.iter().any(|pool| pool.contains(found.address.ip()));
        if !inside || Some(found.index) == bridge {
            continue;
        }
        let link = kernel.rtnl.link_by_index(found.index)?;
        let ours = |alias: &String| alias.starts_with("humanz");
        let foreign = link.filter(|link| !link.alias.as_ref().is_some_and(ours));
        addresses.extend(foreign.map(|link| (link.name, found.address)));
    }
    Ok(addresses)
}
