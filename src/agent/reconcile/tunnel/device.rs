//! Keeps the device of a tunnel.

use anyhow::Context;
use ipnetwork::IpNetwork;
use nix::errno::Errno;

use crate::agent::applier::Applier;
use crate::agent::reconcile::Reconcile;
use crate::agent::reconcile::sysctls;
use crate::net::{Family, Hint, IfName, Object};
use crate::netlink::link::{self, Link, LinkRef};
use crate::netlink::rtnl::Rtnl;
use crate::netlink::vxlan::{self, NewVxlan};
use crate::netlink::{Message, NetlinkError, address};
use crate::plan::tunnel::{ALIAS, TunnelChange, TunnelDevice, changes};

/// Index of the device once it is as it should be, or at least can be used.
pub(super) fn reconcile(
    run: &Reconcile<'_>,
    device: &TunnelDevice,
    mut found: Vec<Link>,
    applier: &mut Applier,
) -> Option<u32> {
    let rtnl = &run.kernel.rtnl;
    if !found.iter().any(|link| link.name == device.name) {
        let known: Vec<u32> = found.iter().map(|link| link.index).collect();
        let others = rtnl.vxlans().unwrap_or_default().into_iter();
        found.extend(others.filter(|link| !known.contains(&link.index)));
    }
    let addresses = addresses(rtnl, device, &found).unwrap_or_default();
    match changes(device, &found, &addresses) {
        Ok(changes) => apply_all(rtnl, &changes, applier),
        Err(foreign) => {
            applier.failed(*foreign);
            return None;
        }
    }
    match rtnl.link(&device.name) {
        Ok(Some(link)) if link.up && link.vxlan.is_some() => {
            sysctls::keep_tunnel(run, &device.name, applier);
            Some(link.index)
        }
        Ok(_) => applier.is_dry().then_some(0),
        Err(error) => {
            applier.inspect_failed(Object::Tunnel(device.name.clone()), error);
            None
        }
    }
}

/// The addresses that others could see on the device.
fn addresses(rtnl: &Rtnl, device: &TunnelDevice, found: &[Link]) -> Option<Vec<IpNetwork>> {
    let link = found.iter().find(|link| link.name == device.name)?;
    let addresses = rtnl.addresses(Some(link.index)).ok()?;
    let visible = |address: &IpNetwork| match address {
        IpNetwork::V4(_) => true,
        IpNetwork::V6(v6) => !v6.ip().is_unicast_link_local(),
    };
    Some(addresses.into_iter().map(|found| found.address).filter(visible).collect())
}

/// One after the other; those after a failed one are not tried.
pub(super) fn apply_all(rtnl: &Rtnl, changes: &[TunnelChange], applier: &mut Applier) {
    let before = applier.failures().len();
    for change in changes {
        applier.apply(change, || apply(rtnl, change));
        if applier.failures().len() > before {
            return;
        }
    }
}

fn apply(rtnl: &Rtnl, change: &TunnelChange) -> anyhow::Result<()> {
    let outcome = rtnl.apply(&messages(rtnl, change)?);
    let device = match change {
        TunnelChange::Create(device) | TunnelChange::SetUp(device) => Some(device),
        _ => None,
    };
    let advice = outcome.as_ref().err().zip(device).and_then(|(error, device)| hint(error, device));
    match advice {
        Some(advice) => outcome.context(advice),
        None => Ok(outcome?),
    }
}

fn messages(rtnl: &Rtnl, change: &TunnelChange) -> anyhow::Result<Vec<Message>> {
    let set = |name, change| link::change(LinkRef::Name(name), &change);
    let nothing = link::LinkChange::default();
    Ok(vec![match change {
        TunnelChange::Create(device) => {
            let TunnelDevice { name, mac, vni, port, local, mtu_bytes, .. } = device;
            let (mac, vni, port, local, mtu) = (*mac, *vni, *port, *local, *mtu_bytes);
            return Ok(vxlan::add(&NewVxlan { name, mac, vni, port, local, mtu, alias: ALIAS }));
        }
        TunnelChange::Delete(index, _) => {
            link::delete(LinkRef::Index(*index)).tolerating(Errno::ENODEV)
        }
        TunnelChange::Mark(name) => {
            set(name, link::LinkChange { alias: Some(ALIAS.to_owned()), ..nothing })
        }
        TunnelChange::Detach(name) => set(name, link::LinkChange { master: Some(0), ..nothing }),
        TunnelChange::Set(name, local) => vxlan::change(name, *local),
        TunnelChange::SetMac(name, mac) => {
            set(name, link::LinkChange { mac: Some(*mac), ..nothing })
        }
        TunnelChange::SetMtu(name, mtu) => {
            set(name, link::LinkChange { mtu: Some(*mtu), ..nothing })
        }
        TunnelChange::SetUp(device) => vxlan::set_up(&device.name),
        TunnelChange::RemoveAddress(name, found) => {
            address::delete(index(rtnl, name)?, *found).tolerating(Errno::EADDRNOTAVAIL)
        }
        TunnelChange::AddAddress(name, wanted) => {
            if wanted.is_ipv6() {
                sysctls::allow_ipv6(name)?;
            }
            address::add(index(rtnl, name)?, *wanted).tolerating(Errno::EEXIST)
        }
    }])
}

fn index(rtnl: &Rtnl, name: &IfName) -> anyhow::Result<u32> {
    let link = rtnl.link(name)?;
    link.map(|link| link.index).with_context(|| format!("tunnel {name} has just been deleted"))
}

/// What to do about a device that cannot be made.
fn hint(error: &NetlinkError, device: &TunnelDevice) -> Option<Hint> {
    const ANOTHER_PORT: &str = "set VXLAN_PORT (every host may have its own)";
    let TunnelDevice { vni, port, .. } = device;
    let (why, fix) = match error.errno()? {
        Errno::EADDRINUSE => (
            format!("another program, or another kind of VXLAN device, has UDP port {port}"),
            ANOTHER_PORT.to_owned(),
        ),
        Errno::EEXIST => (
            format!("another VXLAN device has VNI {vni} on UDP port {port}"),
            format!("remove it, or {ANOTHER_PORT}"),
        ),
        Errno::EOPNOTSUPP => (
            "this kernel makes no VXLAN devices".to_owned(),
            "modprobe vxlan # or set BACKEND=direct".to_owned(),
        ),
        Errno::EAFNOSUPPORT => {
            let family = Family::of(device.local);
            (format!("this kernel has no {family}"), format!("enable {family}, or remove its pool"))
        }
        _ => return None,
    };
    Some(Hint { why, fix })
}
