//! Keeps the tunnels: their devices before the routes, what the devices know around them.

mod device;

use nix::errno::Errno;

use crate::agent::applier::Applier;
use crate::agent::reconcile::{Reconcile, encryption};
use crate::agent::trigger::Scope;
use crate::inspect::host_state::HostState;
use crate::lease::records::Tunnel;
use crate::net::gather::Gather;
use crate::net::subnet::{gateway, host};
use crate::net::{Family, Object, PerFamily};
use crate::netlink::link::Link;
use crate::netlink::rtnl::Rtnl;
use crate::netlink::{Message, NetlinkError, fdb, neighbour};
use crate::plan::peer_routes::LocalBackend;
use crate::plan::peer_routes::PeerRoutes;
use crate::plan::routes::{NextHop, Routes};
use crate::plan::tunnel::{
    Entries, EntryChange, FoundEntries, TunnelDevice, TunnelPeer, device_name, inner_mtu, missing,
    next_hop, removals, surplus,
};

/// The devices as they are after [`reconcile`], by the family of their outer packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tunnels {
    devices: PerFamily<KeptDevice>,
}

/// A device of ours.
#[derive(Clone, Copy, Debug)]
struct KeptDevice {
    /// 0 in a dry run that would make it.
    index: u32,
    mtu_bytes: u32,
    /// The underlay has a source address: surplus entries may be removed. Without one all stays as
    /// it is.
    usable: bool,
}

/// The end of this host's tunnels, if it is to have some.
pub fn own_end(run: &Reconcile<'_>) -> Option<Tunnel> {
    let wanted = run.settings.has_tunnels() && run.peers.is_some();
    wanted.then(|| Tunnel::of(run.subnets, run.settings.vxlan)).flatten()
}

/// MTU of pods, in bytes: that of the way to the other hosts, less what tunnels add if some of the
/// pods are behind one.
pub fn pod_mtu(run: &Reconcile<'_>, host_state: &HostState, peer_routes: &PeerRoutes) -> u32 {
    let outer = host_state.own.mtu_bytes;
    let through = |underlay: &Family| is_used(run, host_state, peer_routes, *underlay);
    let inner = |underlay| inner_mtu(outer, underlay, run.subnets);
    let tunnels = Family::BOTH.into_iter().filter(through).map(inner);
    let tunnels = tunnels.chain(encryption::mtu(run, host_state, peer_routes));
    run.settings.mtu_bytes.unwrap_or_else(|| tunnels.min().unwrap_or(outer))
}

/// Makes or repairs the devices, and removes those that are not to be. One that has been needed stays:
/// a host that has moved to this segment may still send through it. `None` if they could not be looked at.
pub fn reconcile(
    run: &Reconcile<'_>,
    host_state: &HostState,
    peer_routes: &PeerRoutes,
    applier: &mut Applier,
) -> Option<Tunnels> {
    let rtnl = &run.kernel.rtnl;
    let found = found(rtnl, run.scope == Scope::ALL);
    let found = applier.inspected(Object::named("tunnels"), found)?;
    let mut tunnels = Tunnels::default();
    let Some(end) = own_end(run) else {
        device::apply_all(rtnl, &removals(&found), applier);
        return Some(tunnels);
    };
    for (underlay, local) in host_state.own.addresses.entries() {
        let name = device_name(underlay);
        let is_there = found.iter().any(|link| link.name == name && link.vxlan.is_some());
        if !is_there && !is_used(run, host_state, peer_routes, underlay) {
            continue;
        }
        let inner = inner_mtu(host_state.own.mtu_bytes, underlay, run.subnets);
        let mtu_bytes = run.settings.mtu_bytes.unwrap_or(inner).min(inner);
        let Tunnel { mac, vni, port } = end;
        let addresses = run.subnets.iter().map(|subnet| host(gateway(*subnet))).collect();
        let device = TunnelDevice { name, mac, vni, port, local: *local, mtu_bytes, addresses };
        let usable = host_state.underlay.get(underlay).is_some();
        let index = device::reconcile(run, &device, found.clone(), applier);
        tunnels.devices.set(underlay, index.map(|index| KeptDevice { index, mtu_bytes, usable }));
    }
    Some(tunnels)
}

impl Tunnels {
    /// The routes through the tunnels.
    pub fn routes(&self, run: &Reconcile<'_>, peer_routes: &PeerRoutes) -> Routes {
        let route = |remote: &TunnelPeer| {
            let device = self.devices.get(Family::of(remote.address))?;
            let device = (device.index, device.mtu_bytes);
            Some((remote.subnet, next_hop(remote, device, run.subnets, run.subnets)))
        };
        peer_routes.remotes.iter().filter_map(route).gather()
    }

    /// A route that is not wanted stays: it is kept until its tunnel is usable again.
    pub fn keeps(&self, hop: &NextHop) -> bool {
        self.devices.iter().any(|device| device.index == hop.device && !device.usable)
    }

    /// Adds the entries of the devices, before routes need them.
    pub fn prepare(&self, run: &Reconcile<'_>, peer_routes: &PeerRoutes, applier: &mut Applier) {
        self.change_entries(run, peer_routes, missing, applier);
    }

    /// Takes from the devices what no route needs any more.
    pub fn tidy(&self, run: &Reconcile<'_>, peer_routes: &PeerRoutes, applier: &mut Applier) {
        if run.in_sync {
            let usable = |device: &KeptDevice| device.usable;
            let devices = self.devices;
            let devices =
                PerFamily { v4: devices.v4.filter(usable), v6: devices.v6.filter(usable) };
            Tunnels { devices }.change_entries(run, peer_routes, surplus, applier);
        }
    }

    fn change_entries(
        &self,
        run: &Reconcile<'_>,
        peer_routes: &PeerRoutes,
        plan: impl Fn(&Entries, &FoundEntries, u16) -> Vec<EntryChange>,
        applier: &mut Applier,
    ) {
        let rtnl = &run.kernel.rtnl;
        for (underlay, device) in self.devices.entries() {
            let remotes = peer_routes.remotes.iter();
            let wanted =
                Entries::of(remotes.filter(|remote| Family::of(remote.address) == underlay));
            match entries(rtnl, device.index) {
                Ok(found) => {
                    let changes = plan(&wanted, &found, run.settings.vxlan.port);
                    let message = |change: &EntryChange| entry_message(device.index, change);
                    for change in &changes {
                        if let (EntryChange::SetDestination(to), Some(own)) =
                            (change, run.own_writes)
                        {
                            own.note(device.index, run.settings.vxlan.port, to);
                        }
                    }
                    let messages = || changes.iter().map(message).collect::<Vec<Message>>();
                    applier.apply_each(&changes, || rtnl.apply_each(&messages()));
                }
                Err(error) => {
                    applier.inspect_failed(Object::Tunnel(device_name(underlay)), error);
                }
            }
        }
    }
}

/// Removes the devices of tunnels that bear our mark.
pub fn remove_all(rtnl: &Rtnl, applier: &mut Applier) {
    match found(rtnl, true) {
        Ok(found) => device::apply_all(rtnl, &removals(&found), applier),
        Err(error) => applier.inspect_failed(Object::named("tunnels"), error),
    }
}

/// Outer packets of that family are, or shall be, sent.
fn is_used(
    run: &Reconcile<'_>,
    host_state: &HostState,
    peer_routes: &PeerRoutes,
    underlay: Family,
) -> bool {
    let always = run.settings.backend == LocalBackend::Vxlan && own_end(run).is_some();
    let own = &host_state.own.addresses;
    let has_pods = run.subnets.get(underlay).is_some();
    let alone = own.get(underlay).is_some() && own.iter().count() == 1;
    let sends = |remote: &TunnelPeer| Family::of(remote.address) == underlay;
    always && own.get(underlay).is_some() && (has_pods || alone)
        || peer_routes.remotes.iter().any(sends)
}

/// What bears the names of our devices; and `all` VXLAN devices, also if one of the names is free: one
/// of ours may have been renamed.
fn found(rtnl: &Rtnl, all: bool) -> Result<Vec<Link>, NetlinkError> {
    let mut found = Vec::new();
    for underlay in Family::BOTH {
        found.extend(rtnl.link(&device_name(underlay))?);
    }
    if all {
        let named: Vec<u32> = found.iter().map(|link| link.index).collect();
        let others = rtnl.vxlans()?;
        found.extend(others.into_iter().filter(|link| !named.contains(&link.index)));
    }
    Ok(found)
}

fn entries(rtnl: &Rtnl, device: u32) -> Result<FoundEntries, NetlinkError> {
    if device == 0 {
        return Ok(FoundEntries::default());
    }
    let destinations = rtnl.destinations(device)?;
    Ok(FoundEntries { destinations, neighbours: rtnl.permanent_neighbours(device)? })
}

fn entry_message(device: u32, change: &EntryChange) -> Message {
    match change {
        EntryChange::SetDestination(there) => fdb::replace(device, there),
        EntryChange::RemoveDestination(there) => {
            fdb::delete(device, there).tolerating(Errno::ENOENT)
        }
        EntryChange::SetNeighbour(there) => neighbour::set_permanent(device, there),
        EntryChange::RemoveNeighbour(there) => {
            neighbour::delete(device, there.address).tolerating(Errno::ENOENT)
        }
    }
}
