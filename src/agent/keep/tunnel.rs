//! Keeps the tunnels: their devices before the routes, what the devices know around them.

use anyhow::Context;
use ipnetwork::IpNetwork;
use nix::errno::Errno;

use crate::agent::host::Facts;
use crate::agent::keep::{Pass, sysctls};
use crate::agent::reach::Ways;
use crate::agent::report::Report;
use crate::agent::settings::Backend;
use crate::agent::wake::Look;
use crate::lease::records::Tunnel;
use crate::linux::link::{self, Link, Which};
use crate::linux::netlink::{Message, NetlinkError};
use crate::linux::rtnl::Rtnl;
use crate::linux::vxlan::{self, NewVxlan};
use crate::linux::{address, fdb, neighbour};
use crate::net::subnet::{gateway, host};
use crate::net::{Family, IfName, PerFamily};
use crate::plan::routes::{NextHop, Routes};
use crate::plan::tunnel::{
    ALIAS, Device, DeviceChange, Entries, EntryChange, Found, Remote, changes, device_name,
    inner_mtu, missing, next_hop, removals, surplus,
};

/// The devices as they are after [`keep`], by the family of their outer packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tunnels {
    devices: PerFamily<Kept>,
}

/// A device of ours.
#[derive(Clone, Copy, Debug)]
struct Kept {
    /// 0 in a dry run that would make it.
    index: u32,
    mtu_bytes: u32,
    /// Packets can be sent: what is not wanted may go. While this host has no address to send from,
    /// all stays as it is.
    usable: bool,
}

/// The end of this host's tunnels, if it is to have some.
pub fn own_end(pass: &Pass<'_>) -> Option<Tunnel> {
    let wanted = pass.settings.backend != Backend::Direct && pass.peers.is_some();
    wanted.then(|| Tunnel::of(pass.subnets, pass.settings.vxlan)).flatten()
}

/// MTU of pods, in bytes: that of the way to the other hosts, less what tunnels add if some of the
/// pods are behind one.
pub fn pod_mtu(pass: &Pass<'_>, facts: &Facts, ways: &Ways) -> u32 {
    let outer = facts.own.mtu_bytes;
    let through = |underlay: &Family| is_used(pass, facts, ways, *underlay);
    let inner = |underlay| inner_mtu(outer, underlay, pass.subnets);
    let tunnels = Family::BOTH.into_iter().filter(through).map(inner);
    pass.settings.mtu_bytes.unwrap_or_else(|| tunnels.min().unwrap_or(outer))
}

/// Makes or repairs the devices, and removes those that are not to be. One that has been needed stays:
/// a host that has just come nearer may still be sending.
pub fn keep(pass: &Pass<'_>, facts: &Facts, ways: &Ways, report: &mut Report) -> Tunnels {
    let rtnl = &pass.world.rtnl;
    let found = match found(rtnl, pass.look == Look::ALL) {
        Ok(found) => found,
        Err(error) => {
            report.failed(format!("look at the tunnels: {error}"));
            return Tunnels::default();
        }
    };
    let mut tunnels = Tunnels::default();
    let Some(end) = own_end(pass) else {
        apply_all(rtnl, &removals(&found), report);
        return tunnels;
    };
    for (underlay, local) in facts.own.addresses.entries() {
        let name = device_name(underlay);
        let is_there = found.iter().any(|link| link.name == name && link.vxlan.is_some());
        if !is_there && !is_used(pass, facts, ways, underlay) {
            continue;
        }
        let inner = inner_mtu(facts.own.mtu_bytes, underlay, pass.subnets);
        let mtu_bytes = pass.settings.mtu_bytes.unwrap_or(inner).min(inner);
        let Tunnel { mac, vni, port } = end;
        let addresses = pass.subnets.iter().map(|subnet| host(gateway(*subnet))).collect();
        let device = Device { name, mac, vni, port, local: *local, mtu_bytes, addresses };
        let usable = facts.underlay.get(underlay).is_some();
        let index = keep_device(pass, &device, found.clone(), report);
        tunnels.devices.set(underlay, index.map(|index| Kept { index, mtu_bytes, usable }));
    }
    tunnels
}

impl Tunnels {
    /// The routes through the tunnels.
    pub fn routes(&self, pass: &Pass<'_>, ways: &Ways) -> Routes {
        let route = |remote: &Remote| {
            let device = self.devices.get(Family::of(remote.address))?;
            let device = (device.index, device.mtu_bytes);
            Some((remote.subnet, next_hop(remote, device, pass.subnets, pass.subnets)))
        };
        ways.remotes.iter().filter_map(route).collect()
    }

    /// A route that is not wanted stays: nothing can be sent through its tunnel at this moment, and
    /// that is no reason to forget the way.
    pub fn keeps(&self, hop: &NextHop) -> bool {
        self.devices.iter().any(|device| device.index == hop.device && !device.usable)
    }

    /// Tells the devices where to send, before routes need it.
    pub fn prepare(&self, pass: &Pass<'_>, ways: &Ways, report: &mut Report) {
        self.change_entries(pass, ways, missing, report);
    }

    /// Takes from the devices what no route needs any more.
    pub fn tidy(&self, pass: &Pass<'_>, ways: &Ways, report: &mut Report) {
        if pass.in_sync {
            let usable = |device: &Kept| device.usable;
            let devices = self.devices;
            let devices =
                PerFamily { v4: devices.v4.filter(usable), v6: devices.v6.filter(usable) };
            Tunnels { devices }.change_entries(pass, ways, surplus, report);
        }
    }

    fn change_entries(
        &self,
        pass: &Pass<'_>,
        ways: &Ways,
        plan: impl Fn(&Entries, &Found, u16) -> Vec<EntryChange>,
        report: &mut Report,
    ) {
        let rtnl = &pass.world.rtnl;
        for (underlay, device) in self.devices.entries() {
            let remotes = ways.remotes.iter();
            let wanted =
                Entries::of(remotes.filter(|remote| Family::of(remote.address) == underlay));
            match entries(rtnl, device.index) {
                Ok(found) => {
                    let changes = plan(&wanted, &found, pass.settings.vxlan.port);
                    let message = |change: &EntryChange| entry_message(device.index, change);
                    let messages = || changes.iter().map(message).collect::<Vec<Message>>();
                    report.apply_each(&changes, || rtnl.apply_each(&messages()));
                }
                Err(error) => {
                    let name = device_name(underlay);
                    report.failed(format!("look at what tunnel {name} knows: {error}"));
                }
            }
        }
    }
}

/// Removes the devices of tunnels that bear our mark.
pub fn remove_all(rtnl: &Rtnl, report: &mut Report) {
    match found(rtnl, true) {
        Ok(found) => apply_all(rtnl, &removals(&found), report),
        Err(error) => report.failed(format!("look at the tunnels: {error}")),
    }
}

/// Outer packets of that family are, or shall be, sent.
fn is_used(pass: &Pass<'_>, facts: &Facts, ways: &Ways, underlay: Family) -> bool {
    let always = pass.settings.backend == Backend::Vxlan && own_end(pass).is_some();
    let own = &facts.own.addresses;
    let has_pods = pass.subnets.get(underlay).is_some();
    let alone = own.get(underlay).is_some() && own.iter().count() == 1;
    let sends = |remote: &Remote| Family::of(remote.address) == underlay;
    always && own.get(underlay).is_some() && (has_pods || alone) || ways.remotes.iter().any(sends)
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

/// Index of the device once it is as it should be, or at least can be used.
fn keep_device(
    pass: &Pass<'_>,
    device: &Device,
    mut found: Vec<Link>,
    report: &mut Report,
) -> Option<u32> {
    let rtnl = &pass.world.rtnl;
    if !found.iter().any(|link| link.name == device.name) {
        found.extend(rtnl.vxlans().unwrap_or_default());
    }
    let addresses = addresses(rtnl, device, &found).unwrap_or_default();
    match changes(device, &found, &addresses) {
        Ok(changes) => apply_all(rtnl, &changes, report),
        Err(foreign) => {
            report.failed(foreign);
            return None;
        }
    }
    match rtnl.link(&device.name) {
        Ok(Some(link)) if link.up && link.vxlan.is_some() => {
            sysctls::keep_tunnel(pass, &device.name, report);
            Some(link.index)
        }
        Ok(_) => report.is_dry().then_some(0),
        Err(error) => {
            report.failed(format!("look at tunnel {}: {error}", device.name));
            None
        }
    }
}

/// The addresses that others could see on the device.
fn addresses(rtnl: &Rtnl, device: &Device, found: &[Link]) -> Option<Vec<IpNetwork>> {
    let link = found.iter().find(|link| link.name == device.name)?;
    let addresses = rtnl.addresses(Some(link.index)).ok()?;
    let is_link_local = |address: &IpNetwork| matches!(address, IpNetwork::V6(v6) if v6.ip().is_unicast_link_local());
    let addresses = addresses.into_iter().map(|found| found.address);
    Some(addresses.filter(|address| !is_link_local(address)).collect())
}

/// One after the other; those after a failed one are not tried.
fn apply_all(rtnl: &Rtnl, changes: &[DeviceChange], report: &mut Report) {
    let before = report.failures().len();
    for change in changes {
        report.apply(change, || apply(rtnl, change));
        if report.failures().len() > before {
            return;
        }
    }
}

fn apply(rtnl: &Rtnl, change: &DeviceChange) -> anyhow::Result<()> {
    let set = |name, change| vec![link::change(Which::Name(name), &change)];
    let nothing = link::Change::default();
    let (messages, device) = match change {
        DeviceChange::Delete(index, _) => {
            (vec![link::delete(Which::Index(*index)).tolerating(Errno::ENODEV)], None)
        }
        DeviceChange::Create(device) => {
            let Device { name, mac, vni, port, local, mtu_bytes, .. } = device;
            let (mac, vni, port, local, mtu) = (*mac, *vni, *port, *local, *mtu_bytes);
            (vxlan::add(&NewVxlan { name, mac, vni, port, local, mtu, alias: ALIAS }), Some(device))
        }
        DeviceChange::Mark(name) => {
            (set(name, link::Change { alias: Some(ALIAS.to_owned()), ..nothing }), None)
        }
        DeviceChange::Set(name, local) => (vec![vxlan::change(name, *local)], None),
        DeviceChange::SetMac(name, mac) => {
            (set(name, link::Change { mac: Some(*mac), ..nothing }), None)
        }
        DeviceChange::SetMtu(name, mtu) => {
            (set(name, link::Change { mtu: Some(*mtu), ..nothing }), None)
        }
        DeviceChange::SetUp(device) => (vec![vxlan::set_up(&device.name)], Some(device)),
        DeviceChange::RemoveAddress(name, found) => {
            let delete = address::delete(index(rtnl, name)?, *found);
            (vec![delete.tolerating(Errno::EADDRNOTAVAIL)], None)
        }
        DeviceChange::AddAddress(name, wanted) => {
            if wanted.is_ipv6() {
                sysctls::allow_ipv6(name)?;
            }
            let add = address::add(index(rtnl, name)?, *wanted);
            (vec![add.tolerating(Errno::EEXIST)], None)
        }
    };
    let outcome = rtnl.apply(&messages);
    let advice = outcome.as_ref().err().zip(device).and_then(|(error, device)| hint(error, device));
    match advice {
        Some(advice) => outcome.context(advice),
        None => Ok(outcome?),
    }
}

fn index(rtnl: &Rtnl, name: &IfName) -> anyhow::Result<u32> {
    let link = rtnl.link(name)?;
    link.map(|link| link.index).with_context(|| format!("tunnel {name} has just been deleted"))
}

/// What to do about a device that cannot be made.
fn hint(error: &NetlinkError, device: &Device) -> Option<String> {
    let Device { vni, port, .. } = device;
    match error.errno()? {
        Errno::EADDRINUSE => Some(format!(
            "another program, or another kind of VXLAN device, has UDP port {port}: set VXLAN_PORT (every host may have its own)"
        )),
        Errno::EEXIST => Some(format!(
            "another VXLAN device has VNI {vni} on UDP port {port}: remove it, or set VXLAN_PORT (every host may have its own)"
        )),
        Errno::EOPNOTSUPP => Some(
            "this kernel makes no VXLAN devices: modprobe vxlan, or set BACKEND=direct".to_owned(),
        ),
        Errno::EAFNOSUPPORT => Some(format!("this kernel has no {}", Family::of(device.local))),
        _ => None,
    }
}

fn entries(rtnl: &Rtnl, device: u32) -> Result<Found, NetlinkError> {
    if device == 0 {
        return Ok(Found::default());
    }
    let destinations = rtnl.destinations(device)?;
    Ok(Found { destinations, neighbours: rtnl.permanent_neighbours(device)? })
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
