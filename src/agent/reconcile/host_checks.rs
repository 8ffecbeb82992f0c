//! Inspects what other programs have on the host; changes nothing of it.

use std::fs;

use ipnetwork::IpNetwork;

use crate::agent::applier::Applier;
use crate::agent::reconcile::Reconcile;
use crate::checks::host_checks::{FoundOnHost, Needs, SYSCTLS, problems};
use crate::net::{IfName, Object, Problem};
use crate::netlink::NetlinkError;
use crate::netlink::route::Route;
use crate::os::sysctl;

/// Routes made by hand or by programs without a number of their own: RTPROT_BOOT, RTPROT_STATIC.
const FOREIGN: [u8; 2] = [3, 4];

/// What keeps packets from pods.
pub fn look(run: &Reconcile<'_>, applier: &mut Applier) -> Vec<Problem> {
    match found(run) {
        Ok(found) => problems(&needs(run), &found),
        Err(error) => {
            applier.inspect_failed(Object::named("links and routes of other programs"), error);
            Vec::new()
        }
    }
}

fn needs(run: &Reconcile<'_>) -> Needs {
    let path = &run.settings.cni.config;
    Needs {
        configuration: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        pools: run.settings.pool_networks(),
        subnets: *run.subnets,
        forwarding_is_others: !run.settings.manage_sysctl,
    }
}

fn found(run: &Reconcile<'_>) -> Result<FoundOnHost, NetlinkError> {
    let rtnl = &run.kernel.rtnl;
    let bridge = rtnl.link(&run.settings.bridge)?.map(|link| link.index);
    let foreign = |route: &Route| bridge.is_none() || route.device != bridge;
    let mut routes = Vec::new();
    for protocol in FOREIGN {
        let found = rtnl.routes(protocol)?;
        routes.extend(found.iter().filter(|route| foreign(route)).map(|route| route.destination));
    }
    Ok(FoundOnHost {
        configurations: beside(run),
        addresses: addresses(run, bridge)?,
        routes,
        kube_proxy: run.kernel.forward.sees_kube_proxy()?,
        sysctls: SYSCTLS.map(|key| sysctl::read(key).ok()),
    })
}

/// The names of all files in the folder of our CNI configuration.
fn beside(run: &Reconcile<'_>) -> Vec<String> {
    let folder = run.settings.cni.config.parent();
    let entries = folder.and_then(|folder| fs::read_dir(folder).ok());
    let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.into_string().ok()).collect()
}

/// Addresses inside a pool, of links that do not bear our mark.
fn addresses(
    run: &Reconcile<'_>,
    bridge: Option<u32>,
) -> Result<Vec<(IfName, IpNetwork)>, NetlinkError> {
    let pools = run.settings.pool_networks();
    let mut addresses = Vec::new();
    for found in run.kernel.rtnl.addresses(None)? {
        let inside = pools.iter().any(|pool| pool.contains(found.address.ip()));
        if !inside || Some(found.index) == bridge {
            continue;
        }
        let link = run.kernel.rtnl.link_by_index(found.index)?;
        let ours = |alias: &String| alias.starts_with("humanz");
        let foreign = link.filter(|link| !link.alias.as_ref().is_some_and(ours));
        addresses.extend(foreign.map(|link| (link.name, found.address)));
    }
    Ok(addresses)
}
