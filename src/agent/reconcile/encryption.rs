//! Keeps the WireGuard device: the device before its peers, its peers before the routes to their pods.

use std::num::NonZeroU16;

use anyhow::Context;
use ipnetwork::IpNetwork;
use nix::errno::Errno;

use crate::agent::applier::{Applier, Hint};
use crate::agent::encryption_key;
use crate::agent::reconcile::{Reconcile, sysctls};
use crate::agent::trigger::Scope;
use crate::inspect::host_state::HostState;
use crate::lease::records::WireguardEnd;
use crate::net::subnet::{gateway, host};
use crate::net::{Family, Object, PrivateKey};
use crate::netlink::link::{self, Link, LinkChange, LinkRef};
use crate::netlink::rtnl::Rtnl;
use crate::netlink::wireguard::{self, KIND, PeerEdit, Wireguard, WireguardInfo};
use crate::netlink::{NetlinkError, address};
use crate::plan::encryption::{
    EncryptedPeer, EncryptionChange, EncryptionDevice, FoundEncryption, PeerChange, changes,
    device_name, inner_mtu, missing_peers, next_hop, removals, surplus_peers,
};
use crate::plan::peer_routes::PeerRoutes;
use crate::plan::routes::{NextHop, Routes};
use crate::plan::tunnel::ALIAS;

/// The device as it is after [`reconcile`].
#[derive(Default)]
pub struct Encryption {
    /// Index; 0 in a dry run that would make it.
    index: u32,
    mtu_bytes: u32,
    /// It can be used; else all stays as it is.
    usable: Option<UsableDevice>,
}

struct UsableDevice {
    /// `None`: in a dry run, on a host without the device.
    kernel: Option<Wireguard>,
    config: WireguardInfo,
}

/// What encryption leaves of packets between hosts, in bytes; `None`: they are not encrypted.
pub fn mtu(run: &Reconcile<'_>, host_state: &HostState, peer_routes: &PeerRoutes) -> Option<u32> {
    run.settings.encryption?;
    let own = &host_state.own;
    let first = Family::BOTH.into_iter().find(|family| own.addresses.get(*family).is_some());
    let of_peers = peer_routes.encrypted.iter().map(|peer| Family::of(peer.address));
    let inner = |underlay| inner_mtu(own.mtu_bytes, underlay, run.subnets);
    first.into_iter().chain(of_peers).map(inner).min()
}

/// Makes or repairs the device, or removes it where nothing is encrypted.
pub fn reconcile(
    run: &Reconcile<'_>,
    host_state: &HostState,
    peer_routes: &PeerRoutes,
    applier: &mut Applier,
) -> Encryption {
    let rtnl = &run.kernel.rtnl;
    if run.settings.encryption.is_none() {
        if run.scope == Scope::ALL {
            remove_all(rtnl, applier);
        }
        return Encryption::default();
    }
    let least = inner_mtu(host_state.own.mtu_bytes, Family::V6, run.subnets);
    let mtu = mtu(run, host_state, peer_routes).unwrap_or(least);
    let mtu_bytes = run.settings.mtu_bytes.unwrap_or(mtu).min(mtu);
    let usable = keep_device(run, mtu_bytes, applier).unwrap_or_else(|error| {
        applier.inspection_failed(Object::Tunnel(device_name()), &error);
        None
    });
    let index = rtnl.link(&device_name()).ok().flatten().map_or(0, |link| link.index);
    Encryption { index, mtu_bytes, usable }
}

/// Removes the device.
pub fn remove_all(rtnl: &Rtnl, applier: &mut Applier) {
    match rtnl.link(&device_name()) {
        Ok(found) => {
            let found: Vec<Link> = found.into_iter().collect();
            apply_all(rtnl, None, &removals(&found), applier);
        }
        Err(error) => applier.inspect_failed(Object::Tunnel(device_name()), error),
    }
}

impl Encryption {
    /// Key and port, for the other hosts.
    pub fn end(&self) -> Option<WireguardEnd> {
        let config = &self.usable.as_ref()?.config;
        Some(WireguardEnd { public_key: config.public_key?, port: NonZeroU16::new(config.port)? })
    }

    /// The routes through the device.
    pub fn routes(&self, run: &Reconcile<'_>, peer_routes: &PeerRoutes) -> Routes {
        let device = (self.index, self.mtu_bytes);
        let of_peer = |peer: &EncryptedPeer| {
            let route =
                |to: &IpNetwork| (*to, next_hop(peer, *to, device, run.subnets, run.subnets));
            peer.subnets.iter().map(route).collect::<Vec<_>>()
        };
        let peers = peer_routes.encrypted.iter().filter(|_| self.usable.is_some());
        peers.flat_map(of_peer).collect()
    }

    /// A route that is not wanted stays: the device cannot be looked at, and that is no reason to forget the way.
    pub fn keeps(&self, hop: &NextHop) -> bool {
        self.usable.is_none() && self.index != 0 && hop.device == self.index
    }

    /// Adds what the device must know of other hosts, before routes need it.
    pub fn prepare(&self, peer_routes: &PeerRoutes, applier: &mut Applier) {
        if let Some(usable) = &self.usable {
            let changes = missing_peers(&peer_routes.encrypted, &usable.config.peers);
            usable.change_peers(&changes, applier);
        }
    }

    /// Takes from the device what no route needs any more.
    pub fn tidy(&self, run: &Reconcile<'_>, peer_routes: &PeerRoutes, applier: &mut Applier) {
        if let Some(usable) = self.usable.as_ref().filter(|_| run.in_sync) {
            let changes = surplus_peers(&peer_routes.encrypted, &usable.config.peers);
            usable.change_peers(&changes, applier);
        }
    }
}

impl UsableDevice {
    fn change_peers(&self, changes: &[PeerChange], applier: &mut Applier) {
        let Some(kernel) = &self.kernel else {
            return applier.apply_each(changes, || Ok::<_, NetlinkError>(Vec::new()));
        };
        applier
            .apply_each(changes, || kernel.change_peers(&device_name(), changes.iter().map(edit)));
    }
}

fn edit(change: &PeerChange) -> PeerEdit<'_> {
    match change {
        PeerChange::Set(_, peer) => PeerEdit::Set(peer),
        PeerChange::Remove(_, key) => PeerEdit::Remove(*key),
    }
}

/// Makes the device what it should be; `None` if that failed.
fn keep_device(
    run: &Reconcile<'_>,
    mtu_bytes: u32,
    applier: &mut Applier,
) -> anyhow::Result<Option<UsableDevice>> {
    let (rtnl, name) = (&run.kernel.rtnl, device_name());
    let kernel = Wireguard::open().context("open generic netlink socket")?.context(Hint {
        why: "this kernel has no WireGuard".to_owned(),
        fix: "modprobe wireguard says what is missing; until it is there, pods of other hosts are not \
              reached"
            .to_owned(),
    })?;
    let found = found(rtnl, &kernel)?;
    let before = found.as_ref().and_then(|found| found.config.clone());
    let key = key(run, before.as_ref(), applier)?;
    let port = run.settings.encryption.context("encryption is off")?.port;
    let addresses = run.subnets.iter().map(|subnet| host(gateway(*subnet))).collect();
    let device = EncryptionDevice { name: name.clone(), key, port, mtu_bytes, addresses };
    let others =
        if run.scope == Scope::ALL || found.is_none() { renamed(rtnl)? } else { Vec::new() };
    let changes = match changes(&device, found.as_ref(), &others) {
        Ok(changes) => changes,
        Err(foreign) => {
            applier.failed(*foreign);
            return Ok(None);
        }
    };
    if !apply_all(rtnl, Some((&kernel, &device)), &changes, applier) {
        return Ok(None);
    }
    if applier.is_dry() && found.is_none() {
        return Ok(Some(UsableDevice { kernel: None, config: WireguardInfo::default() }));
    }
    sysctls::keep_tunnel(run, &name, applier);
    let config = match (changes.is_empty(), before) {
        (true, Some(config)) => config,
        _ => kernel.device(&name)?,
    };
    Ok(Some(UsableDevice { kernel: Some(kernel), config }))
}

/// In a dry run without a device any key will do: nothing is written.
fn key(
    run: &Reconcile<'_>,
    before: Option<&WireguardInfo>,
    applier: &Applier,
) -> anyhow::Result<PrivateKey> {
    let in_use = before.and_then(|config| config.private_key.clone());
    if applier.is_dry() {
        return Ok(in_use.unwrap_or_else(|| PrivateKey::of_random([1; 32])));
    }
    encryption_key::read_or_make(&run.settings.state_dir, &run.kernel.machine_id, in_use)
}

fn found(rtnl: &Rtnl, kernel: &Wireguard) -> anyhow::Result<Option<FoundEncryption>> {
    let name = device_name();
    let Some(link) = rtnl.link(&name)? else { return Ok(None) };
    let is_wireguard = link.kind.as_deref() == Some(KIND);
    let config = if is_wireguard { Some(kernel.device(&name)?) } else { None };
    let visible = |found: &IpNetwork| match found {
        IpNetwork::V4(_) => true,
        IpNetwork::V6(v6) => !v6.ip().is_unicast_link_local(),
    };
    let addresses = rtnl.addresses(Some(link.index))?.into_iter().map(|found| found.address);
    let addresses = addresses.filter(visible).collect();
    Ok(Some(FoundEncryption { link, config, addresses }))
}

/// Devices of ours under other names.
fn renamed(rtnl: &Rtnl) -> Result<Vec<Link>, NetlinkError> {
    let mut links = rtnl.links_of_kind(KIND)?;
    links.retain(|link| link.name != device_name());
    Ok(links)
}

/// One after the other; those after a failed one are not tried, and it is false.
fn apply_all(
    rtnl: &Rtnl,
    device: Option<(&Wireguard, &EncryptionDevice)>,
    changes: &[EncryptionChange],
    applier: &mut Applier,
) -> bool {
    let before = applier.failures().len();
    changes.iter().all(|change| {
        applier.apply(change, || apply(rtnl, device, change));
        applier.failures().len() == before
    })
}

fn apply(
    rtnl: &Rtnl,
    device: Option<(&Wireguard, &EncryptionDevice)>,
    change: &EncryptionChange,
) -> anyhow::Result<()> {
    let name = device_name();
    let set = |change| vec![link::change(LinkRef::Name(&name), &change)];
    let nothing = LinkChange::default();
    let index = || -> anyhow::Result<u32> {
        Ok(rtnl.link(&name)?.with_context(|| format!("{name} has just been deleted"))?.index)
    };
    let messages = match change {
        EncryptionChange::Delete(index, _) => {
            vec![link::delete(LinkRef::Index(*index)).tolerating(Errno::ENODEV)]
        }
        EncryptionChange::Create(mtu) => wireguard::add(&name, *mtu, ALIAS).into(),
        EncryptionChange::Mark => set(LinkChange { alias: Some(ALIAS.to_owned()), ..nothing }),
        EncryptionChange::Detach => set(LinkChange { master: Some(0), ..nothing }),
        EncryptionChange::SetMtu(mtu) => set(LinkChange { mtu: Some(*mtu), ..nothing }),
        EncryptionChange::Configure(_) => {
            let (kernel, device) = device.context("a device that is only removed")?;
            let configured = kernel.set_device(&name, &device.key, device.port);
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
                sysctls::allow_ipv6(&name)?;
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
