//! Keeps the table of tunnels: which VXLAN packets this host takes in, and which its pods cannot send.

use std::sync::Arc;

use crate::agent::applier::Applier;
use crate::agent::reconcile::{Reconcile, own_table, tunnel};
use crate::inspect::Kernel;
use crate::inspect::host_state::HostState;
use crate::lease::Peers;
use crate::net::Object;
use crate::nft::{CachedTable, Ruleset};
use crate::plan::firewall::changes;
use crate::plan::firewall::tunnels::{TUNNELS_TABLE, TunnelEnd, TunnelFilter, ruleset};

/// The table as it was found last, and what it is compared with.
#[derive(Debug, Default)]
pub struct CachedFilter {
    found: CachedTable,
    wanted: Option<(Arc<Peers>, TunnelFilter, Ruleset)>,
}

/// Repairs differences. Before the other hosts are known all stays as it is.
pub fn reconcile(
    run: &Reconcile<'_>,
    host_state: &HostState,
    cache: &mut CachedFilter,
    applier: &mut Applier,
) {
    let Some(peers) = run.peers else { return };
    let CachedFilter { found, wanted } = cache;
    let wanted = filter(run, host_state).map(|filter| wanted_table(wanted, peers, filter));
    let nft = &run.kernel.nft;
    let present = found.observe(nft, TUNNELS_TABLE);
    let present = applier.inspected(Object::Table(TUNNELS_TABLE.to_owned()), present);
    let Some(present) = present else { return };
    let kept = match (wanted, present) {
        (Some(wanted), Some(present)) if !run.in_sync => {
            Some(own_table::keeping_hosts(wanted, present))
        }
        _ => None,
    };
    let wanted = kept.as_ref().or(wanted);
    let changes = changes(wanted, present);
    own_table::put_right(nft, TUNNELS_TABLE, wanted, &changes, found, applier);
}

/// Removes the table, if it is there.
pub fn remove(kernel: &Kernel, applier: &mut Applier) {
    own_table::remove(&kernel.nft, TUNNELS_TABLE, applier);
}

/// The settings of the table without the other hosts; `None`: this host has no tunnels.
fn filter(run: &Reconcile<'_>, host_state: &HostState) -> Option<TunnelFilter> {
    let end = tunnel::own_end(run)?;
    Some(TunnelFilter {
        bridge: run.settings.bridge.clone(),
        vni: end.vni,
        port: end.port,
        own: host_state.own.addresses,
        pod_subnets: *run.subnets,
        blocks: run.networks.blocks.clone(),
        pools: run.settings.pools,
        peers: Vec::new(),
    })
}

/// The table for these peers, made anew only if something of it is new.
fn wanted_table<'a>(
    cached: &'a mut Option<(Arc<Peers>, TunnelFilter, Ruleset)>,
    peers: &Arc<Peers>,
    filter: TunnelFilter,
) -> &'a Ruleset {
    let is_of = |(of, settings, _): &(Arc<Peers>, TunnelFilter, Ruleset)| {
        Arc::ptr_eq(of, peers) && *settings == filter
    };
    if !cached.as_ref().is_some_and(is_of) {
        let whole = TunnelFilter { peers: ends(peers), ..filter.clone() };
        *cached = Some((Arc::clone(peers), filter, ruleset(&whole)));
    }
    let (.., ruleset) = cached.as_ref().expect("it was just made");
    ruleset
}

fn ends(peers: &Peers) -> Vec<TunnelEnd> {
    let end = |peer: &crate::lease::peers::Peer| {
        let (addresses, pod_subnets) = (peer.addresses, peer.subnets);
        let blocks = peer.blocks.clone();
        peer.tunnel.map(|tunnel| TunnelEnd { addresses, port: tunnel.port, pod_subnets, blocks })
    };
    peers.by_name.values().filter_map(end).collect()
}
