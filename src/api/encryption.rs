//! What the kernel knows of the hosts that packets are encrypted to.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::agent::snapshot::AgentSnapshot;
use crate::checks::encryption::Handshakes;
use crate::net::PublicKey;
use crate::net::gather::Gather;
use crate::netlink::wireguard::{Wireguard, WireguardPeer};
use crate::plan::encryption::{EncryptedPeer, device_names};
use crate::settings::Settings;

/// By key; none where nothing is encrypted, or the kernel does not say.
pub fn peers(settings: &Settings) -> BTreeMap<PublicKey, WireguardPeer> {
    if settings.encryption.is_none() {
        return BTreeMap::new();
    }
    let Ok(Some(kernel)) = Wireguard::open() else { return BTreeMap::new() };
    let devices = device_names().into_iter().filter_map(|name| kernel.device(&name).ok());
    let mut found: BTreeMap<PublicKey, WireguardPeer> = BTreeMap::new();
    for peer in devices.flat_map(|device| device.peers) {
        // While a key is changed both devices may know one.
        let both = found.entry(peer.key).or_insert_with(|| WireguardPeer {
            received_bytes: 0,
            sent_bytes: 0,
            ..peer.clone()
        });
        both.last_handshake = both.last_handshake.max(peer.last_handshake);
        both.received_bytes += peer.received_bytes;
        both.sent_bytes += peer.sent_bytes;
    }
    found
}

/// Handshakes with the hosts that packets are encrypted to, by key.
pub fn handshakes(snapshot: &AgentSnapshot) -> BTreeMap<PublicKey, Handshakes> {
    let found = peers(&snapshot.settings);
    let encrypted = snapshot.peer_routes.iter().flat_map(|routes| &routes.encrypted);
    let of = |peer: &EncryptedPeer| {
        let known = found.get(&peer.key)?;
        let to = known.endpoint.unwrap_or_else(|| SocketAddr::new(peer.address, peer.port));
        let preshared = known.preshared.is_some();
        Some((peer.key, Handshakes { to, age: handshake_age(known), preshared }))
    };
    encrypted.filter_map(of).gather()
}

/// How long ago the last handshake was.
pub fn handshake_age(peer: &WireguardPeer) -> Option<Duration> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Some(now.saturating_sub(peer.last_handshake?))
}
