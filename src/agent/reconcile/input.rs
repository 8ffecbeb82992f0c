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

/// One for each family of outer packets and each kind of tunnel: all other hosts send to the same port.
fn tunnels(
    run: &Reconcile<'_>,
    host_state: &HostState,
    peer_routes: &PeerRoutes,
) -> Vec<TunnelTraffic> {
    let Some(uplink) = host_state.uplinks.first() else { return Vec::new() };
    let vxlan = peer_routes.remotes.iter().map(|remote| remote.address);
    let vxlan = vxlan.map(|address| (address, Some(run.settings.vxlan.port)));
    let encryption = run.settings.encryption.map(|encryption| encryption.port);
    let encrypted = peer_routes.encrypted.iter().map(|peer| (peer.address, encryption));
    let tunnel = |(underlay, own): (Family, &IpAddr)| {
        let of_family = |(address, port): (IpAddr, Option<u16>)| {
            (Family::of(address) == underlay).then_some((address, port?))
        };
        let first = [vxlan.clone().find_map(of_family), encrypted.clone().find_map(of_family)];
        let traffic = |(source, udp_port)| TunnelTraffic {
            uplink: uplink.clone(),
            source,
            destination: *own,
            udp_port,
        };
        first.into_iter().flatten().map(traffic).collect::<Vec<_>>()
    };
    host_state.own.addresses.entries().flat_map(tunnel).collect()
}
