//! Inspects what other programs have on the host; changes nothing of it.

use std::fs;

use ipnetwork::IpNetwork;

use crate::agent::applier::Applier;
use crate::agent::reconcile::Pass;
use crate::checks::host_checks::{FoundOnHost, Needs, SYSCTLS, problems};
use crate::net::{IfName, Object, Problem};
use crate::netlink::NetlinkError;
use crate::netlink::route::Route;
use crate::os::sysctl;

/// Routes made by hand or by programs without a number of their own: RTPROT_BOOT, RTPROT_STATIC.
const FOREIGN: [u8; 2] = [3, 4];

/// What keeps packets from pods.
pub fn look(pass: &Pass<'_>, applier: &mut Applier) -> Vec<Problem> {
    match found(pass) {
        Ok(found) => problems(&needs(pass), &found),
        Err(error) => {
            applier.inspect_failed(Object::named("links and routes of other programs"), error);
            Vec::new()
        }
    }
}

fn needs(pass: &Pass<'_>) -> Needs {
    let path = &pass.settings.cni.config;
    Needs {
        configuration: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        pools: pass.settings.pool_networks(),
        subnets: *pass.subnets,
        forwarding_is_others: !pass.settings.manage_sysctl,
    }
}

fn found(pass: &Pass<'_>) -> Result<FoundOnHost, NetlinkError> {
    let rtnl = &pass.world.rtnl;
    let bridge = rtnl.link(&pass.settings.bridge)?.map(|link| link.index);
    let foreign = |route: &Route| bridge.is_none() || route.device != bridge;
    let mut routes = Vec::new();
    for protocol in FOREIGN {
        let found = rtnl.routes(protocol)?;
        routes.extend(found.iter().filter(|route| foreign(route)).map(|route| route.destination));
    }
    Ok(FoundOnHost {
        configurations: beside(pass),
        addresses: addresses(pass, bridge)?,
        routes,
        kube_proxy: pass.world.forward.sees_kube_proxy()?,
        sysctls: SYSCTLS.map(|key| sysctl::read(key).ok()),
    })
}

/// The names of all files in the folder of our CNI configuration.
fn beside(pass: &Pass<'_>) -> Vec<String> {
    let folder = pass.settings.cni.config.parent();
    let entries = folder.and_then(|folder| fs::read_dir(folder).ok());
    let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.into_string().ok()).collect()
}

/// Addresses inside a pool, of links that do not bear our mark.
fn addresses(
    pass: &Pass<'_>,
    bridge: Option<u32>,
) -> Result<Vec<(IfName, IpNetwork)>, NetlinkError> {
    let pools = pass.settings.pool_networks();
    let mut addresses = Vec::new();
    for found in pass.world.rtnl.addresses(None)? {
        let inside = pools.iter().any(|pool| pool.contains(found.address.ip()));
        if !inside || Some(found.index) == bridge {
            continue;
        }
        let link = pass.world.rtnl.link_by_index(found.index)?;
        let ours = |alias: &String| alias.starts_with("humanz");
        let foreign = link.filter(|link| !link.alias.as_ref().is_some_and(ours));
        addresses.extend(foreign.map(|link| (link.name, found.address)));
    }
    Ok(addresses)
}
