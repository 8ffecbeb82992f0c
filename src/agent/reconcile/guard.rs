//! Keeps the guards at the ports of this host's pods, and what goes with them: pinned MACs, and
//! settings of the bridge.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;

use crate::agent::applier::Applier;
use crate::agent::reconcile::{Reconcile, ipam_dir_hint, sysctls};
use crate::inspect::{Kernel, pods};
use crate::net::{Object, Problem, ProblemKind};
use crate::netlink::link::{self, Link, LinkChange, LinkRef, PortFlags};
use crate::netlink::{NetlinkError, neighbour};
use crate::nft::frame::DeviceChain;
use crate::plan::guard::{
    COMMENT, FoundPorts, Guard, GuardChange, LEFTOVERS, PodPort, TABLE, changes, ports,
};
use crate::plan::pod::{BridgePort, is_of_network};
use crate::plan::{Describe, Line};
use crate::settings::Settings;

/// All of them, for problems.
const GUARDS: &str = "guards of pods";

/// What the guards were when all of them were compared: enough to see that nobody has touched them.
#[derive(Debug, Default)]
pub struct CachedGuards {
    /// Rules of each chain.
    sizes: BTreeMap<String, u32>,
}

/// Repairs the guards; gives what is wrong and cannot be repaired. With `everything`, each guard is
/// compared whole; else only if a chain has lost or gained rules.
pub fn reconcile(
    run: &Reconcile<'_>,
    everything: bool,
    cache: &mut CachedGuards,
    applier: &mut Applier,
) -> Vec<Problem> {
    let Kernel { rtnl, .. } = run.kernel;
    let bridge = match rtnl.link(&run.settings.bridge) {
        Ok(Some(bridge)) => bridge,
        // In a dry run, or it was reported.
        Ok(None) => return Vec::new(),
        Err(error) => {
            applier.inspect_failed(Object::Bridge(run.settings.bridge.clone()), error);
            return Vec::new();
        }
    };
    sysctls::keep_guard(run, applier);
    let compared = match everything {
        true => repair(run, &bridge, cache, applier),
        false => match touched(run, &bridge, cache, applier) {
            Ok(true) => repair(run, &bridge, cache, applier),
            Ok(false) => return Vec::new(),
            // While links come and go, more events follow; the next full check reports what stays.
            Err(error) => {
                log::debug!("look at guards: {error}");
                return Vec::new();
            }
        },
    };
    compared.unwrap_or_else(|error| {
        applier.inspection_failed(Object::named(GUARDS), &error);
        Vec::new()
    })
}

/// A port of ours lacks its guard, or has one that is larger or smaller than it was; or has one at all,
/// and shall have none.
fn touched(
    run: &Reconcile<'_>,
    bridge: &Link,
    cache: &mut CachedGuards,
    applier: &mut Applier,
) -> Result<bool, NetlinkError> {
    let Kernel { rtnl, nft, .. } = run.kernel;
    let links = rtnl.links(None)?;
    let sizes = nft.device_chain_sizes(TABLE)?;
    let names: BTreeSet<&str> = links.iter().map(|link| link.name.as_str()).collect();
    if sizes.keys().filter(|name| !names.contains(name.as_str())).count() >= LEFTOVERS {
        sweep(run, applier);
    }
    let is_on = run.settings.guard.is_on;
    let is_touched = |link: &Link| match sizes.get(link.name.as_str()) {
        None => is_on,
        Some(_) if !is_on => true,
        Some(size) => {
            *size == 0 || cache.sizes.get(link.name.as_str()).is_some_and(|known| known != size)
        }
    };
    let of_network = |link: &&Link| {
        link.master == Some(bridge.index)
            && is_of_network(link.alias.as_deref(), &run.settings.cni.name)
    };
    // A port that is not up yet belongs to an ADD.
    let touched = links.iter().filter(of_network).filter(|link| link.up).any(is_touched);
    // What the plugin has made since.
    for (name, size) in sizes {
        cache.sizes.entry(name).or_insert(size);
    }
    Ok(touched)
}

/// Removes the guards that pods have left, of whatever network. That is no repair: DEL leaves them.
fn sweep(run: &Reconcile<'_>, applier: &mut Applier) {
    let Kernel { rtnl, nft, .. } = run.kernel;
    if applier.is_dry() {
        return;
    }
    let links = || Ok(rtnl.links(None)?.into_iter().map(|link| link.name).collect());
    match nft.sweep_device_chains(TABLE, links) {
        Ok(0) => {}
        Ok(count) => log::debug!("removed {count} guards of pods that are gone"),
        Err(error) => applier.inspect_failed(Object::named(GUARDS), error),
    }
}

/// Removes the guards of our network, and the table if nobody else has any.
pub fn remove(kernel: &Kernel, settings: &Settings, applier: &mut Applier) {
    let found =
        kernel.nft.device_chains(TABLE).and_then(|chains| Ok((chains, kernel.rtnl.links(None)?)));
    let (chains, links) = match found {
        Ok((Some(chains), links)) => (chains, links),
        Ok((None, _)) => return,
        Err(error) => return applier.inspect_failed(Object::named(GUARDS), error),
    };
    let unwanted = unwanted(&links, &settings.cni.name, false);
    let is_foreign = |link: &Link| {
        chains.contains_key(link.name.as_str()) && !unwanted.contains(link.name.as_str())
    };
    if !links.iter().any(is_foreign) {
        return applier.apply(&GuardTable, || kernel.nft.delete_device_table(TABLE));
    }
    for change in changes(&[], &unwanted, Some(&chains)) {
        applier.apply(&change, || apply(kernel, &change, &links));
    }
}

/// The table with the guards of all networks.
pub struct GuardTable;

impl Describe for GuardTable {
    fn line(&self) -> Line {
        Line::removed(Object::named(format!("nft table netdev {TABLE}")))
    }
}

/// Compares every guard, and makes those that differ anew.
fn repair(
    run: &Reconcile<'_>,
    bridge: &Link,
    cache: &mut CachedGuards,
    applier: &mut Applier,
) -> anyhow::Result<Vec<Problem>> {
    let Kernel { rtnl, nft, .. } = run.kernel;
    let (settings, network) = (run.settings, run.settings.cni.name.as_str());
    let chains = nft.device_chains(TABLE)?;
    let links = rtnl.links(None)?;
    let store = pods::store(settings, network).map_err(|exit| anyhow::anyhow!(exit.why))?;
    let contents = store.contents().with_context(|| ipam_dir_hint(settings))?;
    let (pinned, neighbours) = (rtnl.pinned(bridge.index)?, rtnl.neighbours(bridge.index)?);
    let found = FoundPorts {
        links: &links,
        entries: &contents.entries,
        pinned: &pinned,
        neighbours: &neighbours,
    };
    let (ports, unknown) = ports(network, bridge, &found);
    let is_on = settings.guard.is_on;
    let wanted: Vec<DeviceChain> = match is_on {
        true => ports.iter().map(|port| guard(settings, port).chain()).collect(),
        false => Vec::new(),
    };
    // As they shall be, not as they are then: somebody may change one while others are repaired.
    let size = |chain: &DeviceChain| (chain.device.to_string(), chain.rules.len() as u32);
    cache.sizes = wanted.iter().map(size).collect();
    let fixes = ports.iter().filter(|port| port.is_fixed != is_on).map(|port| {
        GuardChange::Fix(port.link.name.clone(), port.link.index, is_on.then_some(port.mac))
    });
    sweep(run, applier);
    let chain_changes = changes(&wanted, &unwanted(&links, network, is_on), chains.as_ref());
    for change in fixes.chain(chain_changes).collect::<Vec<_>>() {
        applier.apply(&change, || apply(run.kernel, &change, &links));
    }
    let problem = |link: &&Link| {
        let what = format!(
            "the pod behind {} has no guard: its addresses are not in the store in {} (IPAM_DIR)",
            link.name,
            settings.cni.ipam_dir.display()
        );
        let subject = Object::Guard(link.name.to_string());
        Problem::new(ProblemKind::Unguarded, subject, what).with_fix("restart the pod")
    };
    Ok(unknown.iter().filter(|_| is_on).map(problem).collect())
}

/// The names of chains that shall go while their links stay: those of our network, if guards are off.
fn unwanted(links: &[Link], network: &str, is_on: bool) -> BTreeSet<String> {
    let is_unwanted = |link: &&Link| !is_on && is_of_network(link.alias.as_deref(), network);
    links.iter().filter(is_unwanted).map(|link| link.name.to_string()).collect()
}

fn guard(settings: &Settings, port: &PodPort<'_>) -> Guard {
    let isolated = BridgePort::of_alias(port.link.alias.as_deref().unwrap_or_default()).isolated;
    Guard {
        device: port.link.name.clone(),
        mac: port.mac,
        addresses: port.addresses.clone(),
        allowed: settings.guard.allowed.clone(),
        routed_by: port.link.mac.filter(|_| settings.guard.routes && !isolated),
    }
}

fn apply(kernel: &Kernel, change: &GuardChange, links: &[Link]) -> Result<(), NetlinkError> {
    match change {
        GuardChange::Add(chain) | GuardChange::Replace(chain) => {
            kernel.nft.set_device_chains(TABLE, COMMENT, &[chain])
        }
        GuardChange::Remove(name) => kernel.nft.delete_device_chain(TABLE, name),
        GuardChange::Fix(_, index, mac) => {
            let link = links.iter().find(|link| link.index == *index);
            let Some(flags) = link.and_then(|link| link.port) else { return Ok(()) };
            let port = Some(PortFlags { fixed: mac.is_some(), ..flags });
            let which = LinkRef::Index(*index);
            let change = link::change(which, &LinkChange { port, ..LinkChange::default() });
            let pin = mac.map(|mac| neighbour::pin(*index, mac));
            kernel.rtnl.apply(&pin.into_iter().chain([change]).collect::<Vec<_>>())
        }
    }
}
