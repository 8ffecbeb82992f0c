//! Keeps the guards at the ports of this host's pods, and what goes with them: pinned MACs, and
//! settings of the bridge.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use anyhow::Context;

use crate::agent::applier::Applier;
use crate::agent::reconcile::{Reconcile, store_unusable, sysctls};
use crate::inspect::guards::{FoundGuards, Unread};
use crate::inspect::{Kernel, pods};
use crate::net::gather::Gather;
use crate::net::{IfName, Object, Problem, ProblemKind};
use crate::netlink::NetlinkError;
use crate::netlink::link::{self, Link, LinkChange, LinkRef, PortFlags};
use crate::netlink::neighbour::{self, Neighbour};
use crate::plan::guard::{
    Guard, GuardChange, GuardTable, LEFTOVERS, PodPort, TABLE, all_sets, changes, left, leftovers,
    ports,
};
use crate::plan::pod::is_of_network;
use crate::plan::profiles::PortProfiles;
use crate::settings::Settings;

/// All of them, for problems.
const GUARDS: &str = "guards of pods";

/// The guards as they were wanted when they were compared with store and bridge, with the indexes of
/// their devices.
#[derive(Debug, Default)]
pub struct CachedGuards(Vec<(Guard, u32)>);

/// Repairs the guards; gives what is wrong and cannot be repaired. With `everything`, what they shall be
/// is found out anew, with `profiles`; else only if one differs from what it was, or is missing.
pub fn reconcile(
    run: &Reconcile<'_>,
    everything: bool,
    profiles: &PortProfiles,
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
        true => repair(run, &bridge, profiles, cache, applier),
        false => match touched(run, &bridge, cache, applier) {
            Ok(true) => repair(run, &bridge, profiles, cache, applier),
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

/// A port of ours lacks its guard, or has another than it had; or has one at all, and shall have none.
fn touched(
    run: &Reconcile<'_>,
    bridge: &Link,
    cache: &CachedGuards,
    applier: &mut Applier,
) -> Result<bool, NetlinkError> {
    let Kernel { rtnl, nft, .. } = run.kernel;
    let found = nft.frames(TABLE, &all_sets())?.unwrap_or_default();
    let links = rtnl.links(None)?;
    if left(&found, &names(&links)) >= LEFTOVERS {
        sweep(run, applier);
    }
    let network = run.settings.cni.name.as_str();
    let unwanted = unwanted(&links, network, run.settings.guard.is_on);
    // A port that is not up yet belongs to an ADD.
    let is_port = |link: &&Link| {
        link.up
            && link.master == Some(bridge.index)
            && is_of_network(link.alias.as_deref(), network)
    };
    let ports: BTreeSet<u32> = links.iter().filter(is_port).map(|link| link.index).gather();
    let known = cache.0.iter().filter(|(_, index)| ports.contains(index));
    let cached: BTreeSet<u32> = known.clone().map(|(_, index)| *index).gather();
    // What the plugin has made since.
    let lacks_guard = |link: &Link| {
        let chain = found.chains.get(link.name.as_str());
        chain.is_none_or(|chain| !chain.is_base || chain.rules.len() != 1)
    };
    let mut new =
        links.iter().filter(|link| ports.contains(&link.index) && !cached.contains(&link.index));
    let is_lacking = run.settings.guard.is_on && new.any(lacks_guard);
    Ok(is_lacking || !changes(known, &unwanted, Some(&found)).is_empty())
}

/// Removes what pods have left of their guards, of whatever network. That is no repair: DEL leaves it.
fn sweep(run: &Reconcile<'_>, applier: &mut Applier) {
    let Kernel { rtnl, nft, .. } = run.kernel;
    if applier.is_dry() {
        return;
    }
    let plan = || match nft.frames(TABLE, &all_sets())? {
        Some(found) => Ok(leftovers(&found, &names(&rtnl.links(None)?))),
        None => Ok(Vec::new()),
    };
    match nft.edit_frames_as_seen(TABLE, plan) {
        Ok(0) => {}
        Ok(_) => log::debug!("removed guard rules of deleted pods"),
        Err(error) => applier.inspect_failed(Object::named(GUARDS), error),
    }
}

fn names(links: &[Link]) -> BTreeMap<u32, IfName> {
    links.iter().map(|link| (link.index, link.name.clone())).gather()
}

/// Removes the guards of our network, and the table if no other network has any.
pub fn remove(kernel: &Kernel, settings: &Settings, applier: &mut Applier) {
    let found = kernel
        .nft
        .frames(TABLE, &all_sets())
        .and_then(|found| Ok((found, kernel.rtnl.links(None)?)));
    let (found, links) = match found {
        Ok((Some(found), links)) => (found, links),
        Ok((None, _)) => return,
        Err(error) => return applier.inspect_failed(Object::named(GUARDS), error),
    };
    let unwanted = unwanted(&links, &settings.cni.name, false);
    let is_foreign = |link: &Link| {
        found.chains.contains_key(link.name.as_str()) && !unwanted.contains_key(link.name.as_str())
    };
    if !links.iter().any(is_foreign) {
        return applier.apply(&GuardTable, || kernel.nft.delete_frames(TABLE));
    }
    for change in changes([].iter(), &unwanted, Some(&found)) {
        applier.apply(&change, || apply(kernel, &change, &links));
    }
}

/// Compares every guard, and makes those that differ anew.
fn repair(
    run: &Reconcile<'_>,
    bridge: &Link,
    profiles: &PortProfiles,
    cache: &mut CachedGuards,
    applier: &mut Applier,
) -> anyhow::Result<Vec<Problem>> {
    let Kernel { rtnl, nft, .. } = run.kernel;
    let (settings, network) = (run.settings, run.settings.cni.name.as_str());
    let store = pods::store(settings, network)?;
    let found = match FoundGuards::observe(rtnl, nft, bridge, &store) {
        Err(Unread::Store(error)) => return Err(error).with_context(|| store_unusable(settings)),
        found => found?,
    };
    let links = &found.links;
    let (ports, unknown) = ports(network, bridge, &found.ports());
    let is_on = settings.guard.is_on;
    let guard = |port: &PodPort<'_>| {
        let guard = port.guard(&settings.guard.allowed, settings.guard.routes);
        guard.with_profile(profiles.get(&port.link.name))
    };
    // As they shall be, not as they are then: somebody may change one while others are repaired.
    cache.0 = match is_on {
        true => ports.iter().map(|port| (guard(port), port.link.index)).collect(),
        false => Vec::new(),
    };
    let mut wanted = port_changes(&ports, bridge, is_on);
    wanted.extend(changes(cache.0.iter(), &unwanted(links, network, is_on), found.frames.as_ref()));
    for change in wanted {
        applier.apply(&change, || apply(run.kernel, &change, links));
    }
    sweep(run, applier);
    let problem = |link: &&Link| no_guard(link, settings);
    Ok(unknown.iter().filter(|_| is_on).map(problem).collect())
}

/// MACs and neighbours of the ports: fixed where guards are on.
fn port_changes(ports: &[PodPort<'_>], bridge: &Link, is_on: bool) -> Vec<GuardChange> {
    let fixes = ports.iter().filter(|port| port.is_fixed != is_on).map(|port| {
        GuardChange::Fix(port.link.name.clone(), port.link.index, is_on.then_some(port.mac))
    });
    let neighbours = ports.iter().filter(|_| is_on).flat_map(|port| {
        let set = |address: &IpAddr| {
            let neighbour = Neighbour { address: *address, mac: port.mac };
            GuardChange::SetNeighbour(port.link.name.clone(), bridge.index, neighbour)
        };
        port.unset.iter().map(set)
    });
    fixes.chain(neighbours).collect()
}

fn no_guard(link: &Link, settings: &Settings) -> Problem {
    let what = format!(
        "the pod behind {} has no guard: its addresses are not in the store in {} (IPAM_DIR)",
        link.name,
        settings.cni.ipam_dir.display()
    );
    let subject = Object::Guard(link.name.to_string());
    Problem::new(ProblemKind::Unguarded, subject, what)
        .with_fix(format!("ip link show {} # its alias has the pod: recreate that", link.name))
}

/// Names and indexes of links that shall have no guard: those of our network, if guards are off.
fn unwanted(links: &[Link], network: &str, is_on: bool) -> BTreeMap<String, u32> {
    let is_unwanted = |link: &&Link| !is_on && is_of_network(link.alias.as_deref(), network);
    links.iter().filter(is_unwanted).map(|link| (link.name.to_string(), link.index)).gather()
}

fn apply(kernel: &Kernel, change: &GuardChange, links: &[Link]) -> Result<(), NetlinkError> {
    match change {
        GuardChange::Shared(edits)
        | GuardChange::Add(_, edits)
        | GuardChange::Replace(_, edits)
        | GuardChange::Remove(_, edits) => kernel.nft.edit_frames(TABLE, edits),
        GuardChange::SetNeighbour(_, bridge, neighbour) => {
            kernel.rtnl.apply(&[neighbour::set_permanent(*bridge, neighbour)])
        }
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
