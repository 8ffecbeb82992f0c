//! Carries out what a WireGuard device should be.

use anyhow::Context;
use ipnetwork::IpNetwork;
use nix::errno::Errno;

use crate::agent::applier::Applier;
use crate::agent::reconcile::{Reconcile, sysctls};
use crate::net::{Hint, IfName};
use crate::netlink::link::{self, Link, LinkChange, LinkRef};
use crate::netlink::rtnl::Rtnl;
use crate::netlink::wireguard::{self, KIND, PeerEdit, Wireguard, WireguardInfo};
use crate::netlink::{NetlinkError, address};
use crate::plan::encryption::{
    EncryptionChange, EncryptionDevice, FoundEncryption, PeerChange, changes, device_name,
    device_names,
};
use crate::plan::tunnel::ALIAS;

/// A device that can be used.
pub struct UsableDevice {
    pub name: IfName,
    /// Index; 0 in a dry run that would make it.
    pub index: u32,
    /// `None`: in a dry run, on a host without the device.
    kernel: Option<Wireguard>,
    pub config: WireguardInfo,
}

impl UsableDevice {
    pub fn change_peers(&self, changes: &[PeerChange], applier: &mut Applier) {
        let Some(kernel) = &self.kernel else {
            return applier.apply_each(changes, || Ok::<_, NetlinkError>(Vec::new()));
        };
        applier.apply_each(changes, || kernel.change_peers(&self.name, changes.iter().map(edit)));
    }
}

fn edit(change: &PeerChange) -> PeerEdit<'_> {
    match change {
        PeerChange::Set(_, peer) => PeerEdit::Set(peer),
        PeerChange::Remove(_, key) => PeerEdit::Remove(*key),
    }
}

/// The kernel's WireGuard.
///
/// # Errors
/// It has none.
pub fn open() -> anyhow::Result<Wireguard> {
    Wireguard::open().context("open generic netlink socket")?.context(Hint {
        why: "this kernel has no WireGuard".to_owned(),
        fix: "modprobe wireguard # says what is missing; until it is there, pods of other hosts are not reached"
            .to_owned(),
    })
}

/// Makes the device what it should be; `None` if that failed.
pub fn keep(
    run: &Reconcile<'_>,
    kernel: Wireguard,
    device: &EncryptionDevice,
    found: Option<FoundEncryption>,
    others: &[Link],
    applier: &mut Applier,
) -> anyhow::Result<Option<UsableDevice>> {
    let (rtnl, name) = (&run.kernel.rtnl, device.name.clone());
    let changes = match changes(device, found.as_ref(), others) {
        Ok(changes) => changes,
        Err(foreign) => {
            applier.failed(*foreign);
            return Ok(None);
        }
    };
    if !apply_all(rtnl, Some((&kernel, device)), &changes, applier) {
        return Ok(None);
    }
    if applier.is_dry() && found.is_none() {
        let config = WireguardInfo::default();
        return Ok(Some(UsableDevice { name, index: 0, kernel: None, config }));
    }
    sysctls::keep_tunnel(run, &name, applier);
    let before = found.map(|found| (found.link.index, found.config));
    let (index, config) = match (changes.is_empty(), before) {
        (true, Some((index, Some(config)))) => (index, config),
        _ => (rtnl.link(&name)?.map_or(0, |link| link.index), kernel.device(&name)?),
    };
    Ok(Some(UsableDevice { name, index, kernel: Some(kernel), config }))
}

/// The device of that name.
pub fn found(
    rtnl: &Rtnl,
    kernel: &Wireguard,
    name: &IfName,
) -> anyhow::Result<Option<FoundEncryption>> {
    let Some(link) = rtnl.link(name)? else { return Ok(None) };
    let is_wireguard = link.kind.as_deref() == Some(KIND);
    let config = if is_wireguard { Some(kernel.device(name)?) } else { None };
    let visible = |found: &IpNetwork| match found {
        IpNetwork::V4(_) => true,
        IpNetwork::V6(v6) => !v6.ip().is_unicast_link_local(),
    };
    let addresses = rtnl.addresses(Some(link.index))?.into_iter().map(|found| found.address);
    let addresses = addresses.filter(visible).collect();
    Ok(Some(FoundEncryption { link, config, addresses }))
}

/// Devices under other names than ours.
pub fn renamed(rtnl: &Rtnl) -> Result<Vec<Link>, NetlinkError> {
    let mut links = rtnl.links_of_kind(KIND)?;
    links.retain(|link| !device_names().contains(&link.name));
    Ok(links)
}

/// One after the other; those after a failed one are not tried, and it is false.
pub fn apply_all(
    rtnl: &Rtnl,
    device: Option<(&Wireguard, &EncryptionDevice)>,
    changes: &[EncryptionChange],
    applier: &mut Applier,
) -> bool {
    let before = applier.failures().len();
    changes.iter().all(|change| {
        let name = device.map_or_else(device_name, |(_, device)| device.name.clone());
        applier.apply(&(&name, change), || apply(rtnl, &name, device, change));
        applier.failures().len() == before
    })
}

fn apply(
    rtnl: &Rtnl,
    name: &IfName,
    device: Option<(&Wireguard, &EncryptionDevice)>,
    change: &EncryptionChange,
) -> anyhow::Result<()> {
    let set = |change| vec![link::change(LinkRef::Name(name), &change)];
    let nothing = LinkChange::default();
    let index = || -> anyhow::Result<u32> {
        Ok(rtnl.link(name)?.with_context(|| format!("{name} has just been deleted"))?.index)
    };
    let messages = match change {
        EncryptionChange::Delete(index, _) => {
            vec![link::delete(LinkRef::Index(*index)).tolerating(Errno::ENODEV)]
        }
        EncryptionChange::Create(mtu) => wireguard::add(name, *mtu, ALIAS).into(),
        EncryptionChange::Mark => set(LinkChange { alias: Some(ALIAS.to_owned()), ..nothing }),
        EncryptionChange::Detach => set(LinkChange { master: Some(0), ..nothing }),
        EncryptionChange::SetMtu(mtu) => set(LinkChange { mtu: Some(*mtu), ..nothing }),
        EncryptionChange::Configure(_) => {
            let (kernel, device) = device.context("a device that is only removed")?;
            let configured = kernel.set_device(name, &device.key, device.port);
            return configured.map_err(|error| port_hint(error, device.port));
        }
        EncryptionChange::SetUp => {
            let up = rtnl.apply(&set(LinkChange { up: true, ..nothing }));
            let port = device.map_or(0, |(_, device)| device.port);
            return up.map_err(|error| port_hint(error, port));
        }
        EncryptionChange::RemoveAddress(found) => {
            vec![address::delete(index()?, *found).tolerating(Errno::EADDRNOTAVAIL)]
        }
        EncryptionChange::AddAddress(wanted) => {
            if wanted.is_ipv6() {
                sysctls::allow_ipv6(name)?;
            }
            vec![address::add(index()?, *wanted).tolerating(Errno::EEXIST)]
        }
    };
    Ok(rtnl.apply(&messages)?)
}

fn port_hint(error: NetlinkError, port: u16) -> anyhow::Error {
    if error.errno() != Some(Errno::EADDRINUSE) {
        return error.into();
    }
    let hint = Hint {
        why: format!("another program, or another WireGuard device, has UDP port {port}"),
        fix: "set ENCRYPTION_PORT (every host may have its own)".to_owned(),
    };
    anyhow::Error::from(error).context(hint)
}
