//! Keeps the ports of the host that lead to pods: those that the plugin claimed, and no others.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context;
use ipnetwork::IpNetwork;

use crate::agent::applier::Applier;
use crate::agent::reconcile::{Reconcile, store_unusable};
use crate::agent::trigger::Scope;
use crate::inspect::{Kernel, host_ports};
use crate::ipam::{PortClaim, PortClaims, StoreEntry, StoreError};
use crate::net::gather::Gather;
use crate::net::{
    Family, HostPort, IfName, Object, PortForward, Problem, ProblemKind, Protocol, ReservedPort,
};
use crate::netlink::{NetlinkError, conntrack};
use crate::nft::{ElementChange, Nft};
use crate::os::{identity, sysctl};
use crate::plan::Line;
use crate::plan::host_ports::{
    HostPortChange, PortElement, TABLE, blocked, changes, element, element_changes, is_intact,
    removals, ruleset,
};
use crate::settings::Settings;

/// How long plugins are waited for, which hold the claims for a millisecond.
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// Repairs differences on the host with the addresses `own`; gives the ports that lead elsewhere and stay. Looks without
/// the lock first: plugins would wait for it.
pub fn reconcile(
    run: &Reconcile<'_>,
    own: &BTreeSet<IpAddr>,
    applier: &mut Applier,
) -> Vec<Problem> {
    let Some(claims) = any_claims(run.settings, applier) else { return Vec::new() };
    let held = claims.read().held().with_context(|| store_unusable(run.settings));
    let reserved = run.settings.reserved_ports(own);
    let pending = held.and_then(|held| {
        let held = allowed(held, &reserved);
        Ok((pending(run, &claims, &held, &reserved)?, held))
    });
    let (Pending { changes, blocked }, held) = match pending {
        Ok(pending) => pending,
        Err(error) => {
            inspect_failed(&error, applier);
            return Vec::new();
        }
    };
    let problems = blocked.iter().map(|(port, other)| problem(port, other)).collect();
    if applier.is_dry() {
        applier.apply_together(&changes, || Ok::<(), NetlinkError>(()));
        return problems;
    }
    if !changes.is_empty()
        && let Err(error) = repair(run, &claims, &reserved, applier)
    {
        inspect_failed(&error, applier);
    }
    if claims.exist() {
        keep_loopback(run, &held, applier);
    }
    problems
}

/// Removes the elements of our store, and the table if there are no others.
pub fn remove(kernel: &Kernel, settings: &Settings, applier: &mut Applier) {
    let Some(claims) = claims(settings, applier) else { return };
    let found = match host_ports::all(&kernel.nft) {
        Ok(found) => found,
        Err(error) => return inspect_failed(&error.into(), applier),
    };
    let none = BTreeSet::new();
    let changes = changes(&[], claims.fingerprint(), (&found, &none), &none);
    if changes.len() == found.len() {
        let table = Line::removed(Object::Table(TABLE.to_owned()));
        return applier.apply(&table, || kernel.nft.delete(TABLE));
    }
    applier.apply_together(&changes, || kernel.nft.change_elements(TABLE, &steps(&changes)));
}

/// Closes the ports of attachments that have `ended` while another process held the lock of the claims, as far as it
/// is free now.
pub fn close_ended(run: &Reconcile<'_>, ended: &[StoreEntry], applier: &mut Applier) {
    match close_all(run.kernel, run.settings, ended, Duration::ZERO, applier) {
        // `status` shows what waits.
        Ok(()) | Err(StoreError::LockTimeout { .. }) => {}
        Err(error) => inspect_failed(&error.into(), applier),
    }
}

/// Closes the ports of `ended`, forgets their flows over UDP, and then releases the claims: without them the addresses go
/// to the next pods. Waits for the lock of the claims at most `wait`. What the kernel refuses is a failure in `applier`,
/// and then nothing is released.
///
/// # Errors
/// [`StoreError`].
pub fn close_all(
    kernel: &Kernel,
    settings: &Settings,
    ended: &[StoreEntry],
    wait: Duration,
    applier: &mut Applier,
) -> Result<(), StoreError> {
    if ended.iter().all(|entry| entry.ports.is_none()) {
        return Ok(());
    }
    let Some(claims) = claims(settings, applier) else { return Ok(()) };
    let locked = claims.lock(wait)?;
    let mut own: Vec<PortElement> = Vec::new();
    for entry in ended {
        own.extend(locked.own(entry)?.iter().map(|claim| element(claim, claims.fingerprint())));
    }
    if let Err(error) = close_own(&kernel.nft, &own, applier) {
        inspect_failed(&error.into(), applier);
        return Ok(());
    }
    forget_flows(ended);
    ended.iter().try_for_each(|entry| locked.release(entry))
}

fn close_own(nft: &Nft, own: &[PortElement], applier: &mut Applier) -> Result<(), NetlinkError> {
    let is_own = |found: &PortElement| {
        own.iter().any(|own| own.forward.from == found.forward.from && own.mark == found.mark)
    };
    let found = host_ports::all(nft)?;
    let closed: Vec<_> = found.into_iter().filter(is_own).map(HostPortChange::Remove).collect();
    match closed.is_empty() {
        true => Ok(()),
        false => applier.attempt(&closed, || nft.change_elements(TABLE, &steps(&closed))),
    }
}

/// Forgets the flows over UDP of pods that have ended: they would reach who gets their addresses.
pub fn forget_flows(ended: &[StoreEntry]) {
    let addresses: Vec<IpAddr> = ended.iter().flat_map(|entry| entry.addresses.clone()).collect();
    if !matches!(conntrack::has_flows(), Ok(false))
        && let Err(error) = conntrack::flush_udp(&addresses)
    {
        log::warn!("{:#}", anyhow::Error::from(error));
    }
}

/// Makes `changes`, and forgets the flows over UDP through ports that were closed: open ones began them.
fn change(nft: &Nft, changes: &[HostPortChange], applier: &mut Applier) {
    let closed = changes.iter().filter_map(|change| match change {
        HostPortChange::Remove(found) | HostPortChange::Replace(found) => Some(found.forward.from),
        _ => None,
    });
    let closed: Vec<HostPort> = closed.filter(|port| port.protocol == Protocol::Udp).collect();
    applier.apply_together(changes, || {
        nft.change_elements(TABLE, &steps(changes))?;
        if let Err(error) = conntrack::flush_udp_ports(&closed) {
            log::warn!("{:#}", anyhow::Error::from(error));
        }
        Ok::<(), NetlinkError>(())
    });
}

/// Removes the elements of our store that lead to the pod behind `link`, whether it runs or not.
pub fn close(kernel: &Kernel, settings: &Settings, link: &IfName, applier: &mut Applier) {
    let Some(claims) = claims(settings, applier) else { return };
    let found = match host_ports::all(&kernel.nft) {
        Ok(found) => found,
        Err(error) => return inspect_failed(&error.into(), applier),
    };
    let leads_there = |found: &PortElement| {
        let mark = found.mark.as_ref();
        mark.is_some_and(|mark| mark.store == claims.fingerprint() && mark.link == *link)
    };
    let closed = found.into_iter().filter(leads_there).map(HostPortChange::Remove);
    let closed: Vec<HostPortChange> = closed.collect();
    if !closed.is_empty() {
        change(&kernel.nft, &closed, applier);
    }
}

/// The claims of this host's networks, if there ever were any.
fn claims(settings: &Settings, applier: &mut Applier) -> Option<PortClaims> {
    any_claims(settings, applier).filter(PortClaims::exist)
}

/// Also where there are none, or none any more.
fn any_claims(settings: &Settings, applier: &mut Applier) -> Option<PortClaims> {
    match identity::boot_id() {
        Ok(boot_id) => Some(PortClaims::open(&settings.cni.ipam_dir, &boot_id)),
        Err(error) => {
            inspect_failed(&error.into(), applier);
            None
        }
    }
}

fn inspect_failed(error: &anyhow::Error, applier: &mut Applier) {
    applier.inspection_failed(Object::named("host ports"), error);
}

/// The claims without those of ports that the host itself uses: an older plugin knows none of these.
fn allowed(mut held: Vec<PortClaim>, reserved: &[ReservedPort]) -> Vec<PortClaim> {
    held.retain(|claim| !reserved.iter().any(|port| port.covers(&claim.forward.from)));
    held
}

/// What differs from what is held.
#[derive(Default)]
struct Pending {
    changes: Vec<HostPortChange>,
    /// What stays as it is: [`host_ports::blocked`](crate::plan::host_ports::blocked).
    blocked: Vec<(PortForward, PortElement)>,
}

fn pending(
    run: &Reconcile<'_>,
    claims: &PortClaims,
    held: &[PortClaim],
    reserved: &[ReservedPort],
) -> anyhow::Result<Pending> {
    let Kernel { nft, rtnl, .. } = run.kernel;
    let fingerprints = nft.fingerprints(TABLE)?;
    if held.is_empty() && fingerprints.is_none() {
        return Ok(Pending::default());
    }
    let (found, bridges) = (host_ports::all(nft)?, host_ports::bridge_set(nft)?);
    let store = claims.fingerprint();
    let mut pending = Vec::new();
    // Without claims the table is another store's.
    if claims.exist() {
        pending.extend((!is_intact(fingerprints.as_ref())).then_some(HostPortChange::Table));
        let ports = held.iter().map(|claim| claim.forward.from).gather();
        let orphans = host_ports::orphans(rtnl, claims, &ports, &found)?;
        pending.extend(changes(held, store, (&found, &bridges), &orphans));
    }
    let subnets: Vec<IpNetwork> = run.pod_subnets().collect();
    let left = host_ports::left_behind(rtnl, claims, &found, &subnets)?;
    let left = left.into_iter().map(HostPortChange::Remove);
    for removal in removals(reserved, &found).into_iter().chain(left) {
        if !pending.contains(&removal) {
            pending.push(removal);
        }
    }
    Ok(Pending { changes: pending, blocked: blocked(held, store, &found) })
}

fn problem(port: &PortForward, other: &PortElement) -> Problem {
    let owner = other.comment.as_deref().unwrap_or("an element without a mark of humanz");
    let what = format!("{port}: its packets go to {} of {owner}", other.forward);
    let fix = format!(
        "nft list table inet {TABLE} # delete one of both pods, or, if the other one is gone, its element"
    );
    Problem::new(ProblemKind::HostPort, Object::HostPort(*port), what).with_fix(fix)
}

/// Looks again with the lock, if there is one, and makes the changes that are needed then.
fn repair(
    run: &Reconcile<'_>,
    claims: &PortClaims,
    reserved: &[ReservedPort],
    applier: &mut Applier,
) -> anyhow::Result<()> {
    let nft = &run.kernel.nft;
    let locked = claims.exist().then(|| claims.lock(LOCK_WAIT)).transpose()?;
    let held = match &locked {
        None => Vec::new(),
        Some(locked) => {
            locked.sweep()?;
            allowed(locked.held()?, reserved)
        }
    };
    let mut changes = pending(run, claims, &held, reserved)?.changes;
    if changes.first() == Some(&HostPortChange::Table) {
        applier.apply(&HostPortChange::Table, || nft.ensure(&ruleset()));
        changes = pending(run, claims, &held, reserved)?.changes;
    }
    if !changes.is_empty() {
        change(nft, &changes, applier);
    }
    Ok(())
}

fn steps(changes: &[HostPortChange]) -> Vec<ElementChange> {
    element_changes(&changes.iter().flat_map(HostPortChange::steps).collect::<Vec<_>>())
}

/// A bridge that was made anew does not let the host reach pods from 127.0.0.1.
fn keep_loopback(run: &Reconcile<'_>, held: &[PortClaim], applier: &mut Applier) {
    if !run.settings.manage_sysctl {
        return;
    }
    let v4 = held.iter().filter(|claim| claim.forward.from.family() == Family::V4);
    let bridges: BTreeSet<&IfName> = v4.map(|claim| &claim.bridge).gather();
    let own = &run.settings.bridge;
    let key = format!("net/ipv4/conf/{own}/route_localnet");
    let is_on = sysctl::read(&key).is_ok_and(|value| value == "1");
    if !bridges.contains(own) && is_on && !is_of_others(run, own, applier) {
        let line = Line::changed(Object::Loopback(own.clone())).with(" = 0");
        applier.apply(&line, || sysctl::write(&key, "0"));
    }
    for bridge in bridges {
        let key = format!("net/ipv4/conf/{bridge}/route_localnet");
        match sysctl::read(&key) {
            // An older release set it without the filter.
            Ok(value) if value == "1" && run.scope == Scope::ALL => {
                if let Err(error) = allow_loopback(run, bridge, &key) {
                    applier.inspect_failed(Object::Loopback(bridge.clone()), format!("{error:#}"));
                }
            }
            Ok(value) if value == "1" => {}
            Ok(_) => {
                let line = Line::changed(Object::Loopback(bridge.clone())).with(" = 1");
                applier.apply(&line, || allow_loopback(run, bridge, &key));
            }
            // There is no such bridge: another network's, or ours in a moment.
            Err(error) if error.is_missing() => {}
            Err(error) => applier.inspect_failed(Object::Sysctl(key), error),
        }
    }
}

/// Ports of another store lead to pods at the bridge, or it is not known.
fn is_of_others(run: &Reconcile<'_>, bridge: &IfName, applier: &mut Applier) -> bool {
    let Some(claims) = claims(run.settings, applier) else { return true };
    let (nft, rtnl) = (&run.kernel.nft, &run.kernel.rtnl);
    host_ports::others_lead_to(nft, rtnl, claims.fingerprint(), bridge).unwrap_or_else(|error| {
        inspect_failed(&error.into(), applier);
        true
    })
}

/// Pods shall not reach 127.0.0.0/8 of the host by it, whoever flushes nftables.
fn allow_loopback(run: &Reconcile<'_>, bridge: &IfName, key: &str) -> anyhow::Result<()> {
    let rtnl = &run.kernel.rtnl;
    let link = rtnl.link(bridge)?.ok_or_else(|| anyhow::anyhow!("there is no bridge {bridge}"))?;
    rtnl.drop_loopback_at_ports(link.index)?;
    sysctl::write(key, "1")?;
    // An ADD that came between looked at the sysctl before.
    Ok(rtnl.drop_loopback_at_ports(link.index)?)
}
