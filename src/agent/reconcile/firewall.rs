//! Keeps our nftables table, and a way for pods through the forward chains of others.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::agent::applier::Applier;
use crate::agent::reconcile::Reconcile;
use crate::agent::reconcile::{flowtable, host_ports, input, own_table, tunnel, tunnel_filter};
use crate::checks::forward::{self, Traffic};
use crate::inspect::Kernel;
use crate::inspect::host_state::HostState;
use crate::net::gather::Gather;
use crate::net::{Family, IfName, Object, Problem, subnet};
use crate::nft::base_chains::RuleEdit;
use crate::nft::{CachedTable, Ruleset};
use crate::os::sysctl;
use crate::plan::Line;
use crate::plan::firewall::{
    AGENT_TABLE, FirewallSpec, TableChange, TableDifference, changes, ruleset, standalone_table,
};
use crate::plan::peer_routes::PeerRoutes;
use crate::plan::{encryption, tunnel::device_name};
use crate::settings::{Settings, Source};

/// Repairs differences; gives what firewalls of other programs do to pod traffic.
pub fn reconcile(
    run: &Reconcile<'_>,
    host_state: &HostState,
    peer_routes: &PeerRoutes,
    table: &mut CachedTable,
    applier: &mut Applier,
) -> Vec<Problem> {
    let is_read = run.in_sync && run.networks.in_sync;
    let complete = is_read && peer_routes.unresolved().is_empty();
    keep_table(run, ruleset(&spec(run, host_state, peer_routes)), complete, table, applier);
    let mut problems: Vec<Problem> =
        flowtable::reconcile(run, host_state, applier).into_iter().collect();
    let families: Vec<Family> = run.subnets.entries().map(|(family, _)| family).collect();
    let found = run.kernel.forward.observe(&families);
    let found = applier.inspected(Object::named("forward chains"), found);
    let Some(found) = found else { return problems };
    let traffic = Traffic {
        bridge: run.settings.bridge.clone(),
        uplink: host_state.uplinks.first().cloned(),
        pods_come_by: pods_come_by(host_state, peer_routes),
        subnets: *run.subnets,
        pools: run.settings.pool_networks(),
        bridged: if routes_own(run.settings) { Family::BOTH.to_vec() } else { bridged() },
    };
    let plan = forward::plan(&traffic, others(run), &found);
    problems.extend(plan.problems);
    match run.settings.manage_forward {
        true => apply_edits(run.kernel, &plan.edits, applier),
        false => {
            let why = run.settings.why_left_alone("MANAGE_FORWARD=false");
            let left = plan.edits.iter().filter_map(|edit| forward::not_inserted(edit, why));
            problems.extend(left);
        }
    }
    problems.extend(input::check(run, host_state, peer_routes, applier));
    problems
}

/// The pod subnets of the other hosts, with the names of those: host by host.
fn others<'a>(run: &Reconcile<'a>) -> impl Iterator<Item = (&'a str, IpNetwork)> + Clone {
    let hosts = run.peers.into_iter().flat_map(|peers| peers.by_name.iter());
    hosts.flat_map(|(name, peer)| peer.pod_subnets().map(move |subnet| (name.as_str(), subnet)))
}

/// The interfaces that packets of other hosts' pods come by.
fn pods_come_by(host_state: &HostState, peer_routes: &PeerRoutes) -> Vec<IfName> {
    let used = |underlay: &Family| {
        peer_routes.remotes.iter().any(|remote| Family::of(remote.address) == *underlay)
    };
    let tunnels = Family::BOTH.into_iter().filter(used).map(device_name);
    let uplink = host_state.uplinks.first().cloned();
    let direct = uplink.filter(|_| !peer_routes.direct.is_empty() || !peer_routes.is_tunneled());
    let encrypted = (!peer_routes.encrypted.is_empty()).then(encryption::device_names);
    direct.into_iter().chain(tunnels).chain(encrypted.into_iter().flatten()).collect()
}

/// Removes our tables, and our rules in the chains of others.
pub fn remove_all(kernel: &Kernel, settings: &Settings, applier: &mut Applier) {
    let table = Line::removed(Object::Table(AGENT_TABLE.to_owned()));
    applier.apply(&table, || kernel.nft.delete(AGENT_TABLE));
    flowtable::remove(kernel, applier);
    tunnel_filter::remove(kernel, applier);
    host_ports::remove(kernel, settings, applier);
    leave_foreign(kernel, settings, applier);
}

/// Removes our rules in the chains of others.
pub fn leave_foreign(kernel: &Kernel, settings: &Settings, applier: &mut Applier) {
    let found = kernel.forward.observe(&Family::BOTH);
    if let Some(found) = applier.inspected(Object::named("forward chains"), found) {
        apply_edits(kernel, &forward::removals(&settings.bridge, &found), applier);
    }
}

fn keep_table(
    run: &Reconcile<'_>,
    wanted: Option<Ruleset>,
    complete: bool,
    known: &mut CachedTable,
    applier: &mut Applier,
) {
    let nft = &run.kernel.nft;
    let found = known.observe(nft, AGENT_TABLE);
    let found = applier.inspected(Object::Table(AGENT_TABLE.to_owned()), found);
    let Some(found) = found else { return };
    let mut changes = changes(wanted.as_ref(), found);
    if !complete {
        changes.retain_mut(keeps_hosts);
    }
    own_table::put_right(nft, AGENT_TABLE, wanted.as_ref(), &changes, known, applier);
    // By which the plugin masqueraded what its pods send to other hosts', too, before there was an agent.
    if wanted.is_some() {
        own_table::remove(nft, &standalone_table(run.settings.cni.name.as_str()), applier);
    }
}

/// Leaves the addresses of hosts in the table that are perhaps only not known yet; false if nothing
/// else would change.
fn keeps_hosts(change: &mut TableChange) -> bool {
    let TableDifference::Elements(elements) = &mut change.difference else { return true };
    if elements.shape.intervals {
        return true;
    }
    elements.removed.clear();
    !elements.added.is_empty()
}

fn spec(run: &Reconcile<'_>, host_state: &HostState, peer_routes: &PeerRoutes) -> FirewallSpec {
    let settings = run.settings;
    let hosts = run.peers.into_iter().flat_map(|peers| peers.by_name.iter());
    let published = hosts.flat_map(|(name, peer)| match run.resolved.get(name) {
        Some(resolved) if peer.python => resolved.iter().copied().collect::<Vec<IpAddr>>(),
        _ => peer.addresses.iter().copied().collect(),
    });
    let near = published.filter(|address| !peer_routes.tunnel_only_nodes.contains(address));
    FirewallSpec {
        table: AGENT_TABLE.to_owned(),
        bridge: settings.bridge.clone(),
        pod_subnets: run.subnets.iter().copied().chain(run.networks.masqueraded()).collect(),
        pools: run.pools().collect(),
        has_others: !matches!(settings.source, Source::Static(_)),
        non_masq_cidrs: settings.non_masquerade.iter().copied().map(subnet::masked).collect(),
        node_addresses: near.chain(host_state.all_addresses.iter().copied()).gather(),
        masquerade: settings.masquerade,
        tunnel_vni: tunnel::own_end(run).map(|end| end.vni),
        encrypts: settings.encryption.is_some(),
        own_addresses: host_state.all_addresses.clone(),
        tunnel_addresses: run.subnets.iter().map(|it| subnet::gateway(*it)).collect(),
        accept_forward: settings.manage_forward,
    }
}

/// The host routes what its pods send to each other, by the bridge and back.
fn routes_own(settings: &Settings) -> bool {
    settings.guard.is_on && settings.guard.routes
}

/// The families whose packets from pod to pod on one bridge are shown to firewalls.
fn bridged() -> Vec<Family> {
    let key = |family: &Family| match family {
        Family::V4 => "net/bridge/bridge-nf-call-iptables",
        Family::V6 => "net/bridge/bridge-nf-call-ip6tables",
    };
    let on = |family: &Family| sysctl::read(key(family)).is_ok_and(|value| value == "1");
    Family::BOTH.into_iter().filter(on).collect()
}

fn apply_edits(kernel: &Kernel, edits: &[RuleEdit], applier: &mut Applier) {
    for edit in edits {
        applier.apply(edit, || kernel.forward.apply(edit));
    }
}
