//! Keeps the WireGuard device, and a second one while a host changes its key: devices before their peers, peers
//! before the routes to their pods.

use std::num::NonZeroU16;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use ipnetwork::IpNetwork;

use crate::agent::applier::Applier;
use crate::agent::encryption_key::{self, HostKeys};
use crate::agent::reconcile::Reconcile;
use crate::agent::reconcile::encryption_device::{self, UsableDevice};
use crate::agent::trigger::Scope;
use crate::inspect::host_state::HostState;
use crate::inspect::preshared_secret;
use crate::lease::records::WireguardEnd;
use crate::net::subnet::{gateway, host};
use crate::net::{Family, IfName, Object, PresharedSecret, PrivateKey, Problem};
use crate::netlink::link::Link;
use crate::netlink::rtnl::Rtnl;
use crate::netlink::wireguard::WireguardPeer;
use crate::plan::encryption::{
    EncryptedPeer, EncryptionDevice, Preshared, Sessions, Stage, device_name, device_names,
    inner_mtu, missing_peers, next_hop, on_second, removals, surplus_peers, uses_second,
    with_keys_in_use,
};
use crate::plan::peer_routes::PeerRoutes;
use crate::plan::routes::{NextHop, Routes};

/// The devices as they are after [`reconcile`].
#[derive(Default)]
pub struct Encryption {
    mtu_bytes: u32,
    /// This host's keys; `None` in a dry run, or they cannot be read.
    pub keys: Option<HostKeys>,
    /// What makes the pre-shared keys, if there are any.
    secret: Option<PresharedSecret>,
    /// Why it cannot be read: until it can be, no peer gets other keys, and this host none.
    pub fault: Option<Problem>,
    /// The other hosts, where their saved keys may be older than those of the kernel.
    saved: Option<Vec<EncryptedPeer>>,
    /// One that cannot be used stays as it is.
    devices: [DeviceSlot; 2],
    /// The peers of the second one.
    seconds: Vec<EncryptedPeer>,
    pub sessions: Sessions,
}

/// One of the two.
#[derive(Default)]
struct DeviceSlot {
    /// 0: there is none.
    index: u32,
    usable: Option<UsableDevice>,
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

/// Makes or repairs the devices, or removes them where nothing is encrypted.
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
    let mut encryption = Encryption { mtu_bytes, ..Encryption::default() };
    match run.settings.psk_file.as_deref().map(preshared_secret::read).transpose() {
        Ok(secret) => encryption.secret = secret,
        Err(fault) => encryption.fault = Some(fault),
    }
    if let Err(error) = encryption.keep_devices(run, peer_routes, applier) {
        applier.inspection_failed(Object::Tunnel(device_name()), &error);
    }
    for (device, name) in encryption.devices.iter_mut().zip(device_names()) {
        let index = device.usable.as_ref().map(|usable| usable.index);
        let in_kernel = || rtnl.link(&name).ok().flatten().map_or(0, |link| link.index);
        device.index = index.unwrap_or_else(in_kernel);
    }
    encryption
}

/// Removes the devices.
pub fn remove_all(rtnl: &Rtnl, applier: &mut Applier) {
    device_names().iter().for_each(|name| remove(rtnl, name, applier));
}

fn remove(rtnl: &Rtnl, name: &IfName, applier: &mut Applier) {
    match rtnl.link(name) {
        Ok(found) => {
            let found: Vec<Link> = found.into_iter().collect();
            encryption_device::apply_all(rtnl, None, &removals(&found), applier);
        }
        Err(error) => applier.inspect_failed(Object::Tunnel(name.clone()), error),
    }
}

impl Encryption {
    /// Keys and ports, for the other hosts.
    pub fn end(&self, run: &Reconcile<'_>) -> Option<WireguardEnd> {
        let config = &self.devices[0].usable.as_ref()?.config;
        let second = self.devices[1].usable.as_ref().and_then(|device| device.config.public_key);
        Some(WireguardEnd {
            public_key: config.public_key?,
            port: NonZeroU16::new(config.port)?,
            rotation_port: NonZeroU16::new(run.settings.encryption?.rotation_port()),
            next: second.filter(|_| self.stage() != Stage::Steady),
        })
    }

    /// All devices that should be there are, with what their peers need.
    pub fn is_whole(&self) -> bool {
        let wanted = if self.needs_second() { 2 } else { 1 };
        self.fault.is_none() && self.devices[..wanted].iter().all(|device| device.usable.is_some())
    }

    pub fn stage(&self) -> Stage {
        self.keys.as_ref().map_or(Stage::Steady, HostKeys::stage)
    }

    /// The routes through the devices.
    pub fn routes(&self, run: &Reconcile<'_>, peer_routes: &PeerRoutes) -> Routes {
        let of_peer = |peer: &EncryptedPeer| {
            let second = uses_second(self.stage(), peer, &self.sessions);
            let device = (self.devices[usize::from(second)].index, self.mtu_bytes);
            let route =
                |to: &IpNetwork| (*to, next_hop(peer, *to, device, run.subnets, run.subnets));
            peer.subnets.iter().map(route).collect::<Vec<_>>()
        };
        let is_usable = self.devices[0].usable.is_some();
        let peers = self.peers(peer_routes).iter().filter(|_| is_usable);
        peers.flat_map(of_peer).collect()
    }

    /// A route that is not wanted stays: the device cannot be looked at, and that is no reason to forget the way.
    pub fn keeps(&self, hop: &NextHop) -> bool {
        let is_lost = |device: &DeviceSlot| device.usable.is_none() && device.index != 0;
        self.devices.iter().any(|device| is_lost(device) && hop.device == device.index)
    }

    /// Adds what the devices must know of other hosts, before routes need it.
    pub fn prepare(&self, peer_routes: &PeerRoutes, applier: &mut Applier) {
        if self.fault.is_some() {
            return;
        }
        for (device, wanted) in self.usable(peer_routes) {
            let secret = self.secret.as_ref();
            let keys = Preshared { secret, own: device.config.public_key };
            device.change_peers(&missing_peers(wanted, keys, &device.config.peers), applier);
        }
    }

    /// Takes from the devices what no route needs any more, and the second one with it.
    pub fn tidy(&self, run: &Reconcile<'_>, peer_routes: &PeerRoutes, applier: &mut Applier) {
        if !run.in_sync || self.devices[0].usable.is_none() {
            return;
        }
        for (device, wanted) in self.usable(peer_routes) {
            device.change_peers(&surplus_peers(wanted, &device.config.peers), applier);
        }
        let [_, second] = device_names();
        if self.keys.is_some() && !self.needs_second() && self.devices[1].index != 0 {
            remove(&run.kernel.rtnl, &second, applier);
        }
    }

    fn usable<'a>(
        &'a self,
        peer_routes: &'a PeerRoutes,
    ) -> impl Iterator<Item = (&'a UsableDevice, &'a [EncryptedPeer])> {
        let wanted = [self.peers(peer_routes), &self.seconds[..]];
        let usable = self.devices.iter().map(|device| device.usable.as_ref());
        usable.zip(wanted).filter_map(|(device, wanted)| Some((device?, wanted)))
    }

    fn peers<'a>(&'a self, peer_routes: &'a PeerRoutes) -> &'a [EncryptedPeer] {
        self.saved.as_deref().unwrap_or(&peer_routes.encrypted)
    }

    fn needs_second(&self) -> bool {
        self.stage() != Stage::Steady || !self.seconds.is_empty()
    }

    /// Both devices. `in_use`: the key of the first one in the kernel.
    fn wanted_devices(
        &self,
        run: &Reconcile<'_>,
        in_use: Option<PrivateKey>,
    ) -> anyhow::Result<[EncryptionDevice; 2]> {
        let key = self.keys.as_ref().map(|keys| keys.first.clone()).or(in_use);
        // In a dry run without a device any key will do: nothing is written.
        let key = key.unwrap_or_else(|| PrivateKey::of_random([1; 32]));
        let settings = run.settings.encryption.context("encryption is off")?;
        let device = |name, key, port| EncryptionDevice {
            name,
            key,
            port,
            mtu_bytes: self.mtu_bytes,
            addresses: run.subnets.iter().map(|subnet| host(gateway(*subnet))).collect(),
        };
        let [first, second] = device_names();
        let next = self.keys.as_ref().and_then(|keys| keys.second.clone());
        let next = next.unwrap_or_else(|| key.clone());
        Ok([device(first, key, settings.port), device(second, next, settings.rotation_port())])
    }

    fn keep_devices(
        &mut self,
        run: &Reconcile<'_>,
        peer_routes: &PeerRoutes,
        applier: &mut Applier,
    ) -> anyhow::Result<()> {
        let (rtnl, [first, _]) = (&run.kernel.rtnl, device_names());
        let kernel = encryption_device::open()?;
        let found = encryption_device::found(rtnl, &kernel, &first)?;
        let in_use = found.as_ref().and_then(|found| found.config.as_ref()?.private_key.clone());
        let others = if run.scope == Scope::ALL || found.is_none() {
            encryption_device::renamed(rtnl)?
        } else {
            Vec::new()
        };
        self.keys = keys(run, in_use.as_ref(), applier)?;
        let [of_first, of_second] = self.wanted_devices(run, in_use)?;
        self.devices[0].usable =
            encryption_device::keep(run, kernel, &of_first, found, &others, applier)?;
        let now = since_1970();
        if let Some(first) = self.devices[0].usable.as_ref().filter(|_| !run.in_sync) {
            self.saved = Some(with_keys_in_use(&peer_routes.encrypted, &first.config.peers, now));
        }
        self.seconds = on_second(self.peers(peer_routes), self.stage());
        if self.needs_second() && self.devices[0].usable.is_some() {
            let kernel = encryption_device::open()?;
            let found = encryption_device::found(rtnl, &kernel, &of_second.name)?;
            self.devices[1].usable =
                encryption_device::keep(run, kernel, &of_second, found, &[], applier)?;
        }
        let peers = |device: &DeviceSlot| -> Vec<WireguardPeer> {
            device.usable.as_ref().map(|usable| usable.config.peers.clone()).unwrap_or_default()
        };
        let [of_first, of_second] = self.devices.each_ref().map(peers);
        self.sessions = Sessions::of([&of_first, &of_second], now);
        Ok(())
    }
}

/// This host's keys. `in_use`: that of the first device. In a dry run none are made.
fn keys(
    run: &Reconcile<'_>,
    in_use: Option<&PrivateKey>,
    applier: &Applier,
) -> anyhow::Result<Option<HostKeys>> {
    let (folder, machine_id) = (&run.settings.state_dir, &run.kernel.machine_id);
    if applier.is_dry() {
        return Ok(encryption_key::read(folder, machine_id).ok().flatten());
    }
    encryption_key::read_or_make(folder, machine_id, in_use.cloned()).map(Some)
}

/// Now, as the kernel dates handshakes.
fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
