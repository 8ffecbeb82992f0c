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
    let found = run.kernel.forward.observe_input(&families);
    let found = applier.inspected(Object::named("input chains"), found);
    let problems = |found| tunnels.iter().flat_map(|tunnel| problems(tunnel, &found)).collect();
    found.map(problems).unwrap_or_default()
}

/// One for each family of outer packets and each port: all other hosts send to the same ones.
fn tunnels(
    run: &Reconcile<'_>,
    host_state: &HostState,
    peer_routes: &PeerRoutes,
) -> Vec<TunnelTraffic> {
    let Some(uplink) = host_state.uplinks.first() else { return Vec::new() };
    let vxlan: Vec<IpAddr> = peer_routes.remotes.iter().map(|remote| remote.address).collect();
    let encrypted: Vec<IpAddr> = peer_routes.encrypted.iter().map(|peer| peer.address).collect();
    let ports = run.settings.encryption.iter().flat_map(|encryption| {
        // Nothing comes to the second one before keys are changed.
        let second = encryption.rotate.map(|_| encryption.rotation_port());
        [Some(encryption.port), second].into_iter().flatten()
    });
    let encrypted = ports.map(|port| (&encrypted, port));
    let kinds: Vec<(&Vec<IpAddr>, u16)> =
        [(&vxlan, run.settings.vxlan.port)].into_iter().chain(encrypted).collect();
    let tunnel = |(underlay, own): (Family, &IpAddr)| {
        let traffic = |(sources, udp_port): &(&Vec<IpAddr>, u16)| {
            let source = sources.iter().find(|source| Family::of(**source) == underlay)?;
            Some(TunnelTraffic {
                uplink: uplink.clone(),
                source: *source,
                destination: *own,
                udp_port: *udp_port,
            })
        };
        kinds.iter().filter_map(traffic).collect::<Vec<_>>()
    };
    host_state.own.addresses.entries().flat_map(tunnel).collect()
}
