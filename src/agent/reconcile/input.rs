//! Looks whether other people's firewalls let the tunnels of other hosts in.

use std::net::IpAddr;

use crate::agent::applier::Applier;
use crate::agent::reconcile::Reconcile;
use crate::checks::forward::input::{TunnelTraffic, problems};
use crate::inspect::host_state::HostState;
use crate::net::{Family, Object, Problem};
use crate::plan::peer_routes::PeerRoutes;

/// What keeps tunnels out, if there are any. Nothing is changed: which ports of this host are open is
/// its owner's to say.
pub fn check(
    run: &Reconcile<'_>,
    host_state: &HostState,
    peer_routes: &PeerRoutes,
    applier: &mut Applier,
) -> Vec<Problem> {
    let tunnels = tunnels(run, host_state, peer_routes);
    let families: Vec<Family> =
        tunnels.iter().map(|tunnel| Family::of(tunnel.destination)).collect();
    if families.is_empty() {
        return Vec::new();
    }
    match run.kernel.forward.observe_input(&families) {
        Ok(found) => tunnels.iter().flat_map(|tunnel| problems(tunnel, &found)).collect(),
        Err(error) => {
            applier.inspect_failed(Object::named("input chains"), error);
            Vec::new()
        }
    }
}

/// One for each family of outer packets: all other hosts send to the same port.
fn tunnels(
    run: &Reconcile<'_>,
    host_state: &HostState,
    peer_routes: &PeerRoutes,
) -> Vec<TunnelTraffic> {
    let uplink = host_state.uplinks.first();
    let tunnel = |(underlay, own): (Family, &IpAddr)| {
        let mut remotes = peer_routes.remotes.iter().map(|remote| remote.address);
        Some(TunnelTraffic {
            uplink: uplink?.clone(),
            source: remotes.find(|address| Family::of(*address) == underlay)?,
            destination: *own,
            udp_port: run.settings.vxlan.port,
        })
    };
    host_state.own.addresses.entries().filter_map(tunnel).collect()
}
