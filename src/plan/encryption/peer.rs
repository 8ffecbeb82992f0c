//! Pure. Other hosts behind the WireGuard device: what it must know of them, and the routes to their pods.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipnetwork::IpNetwork;

use crate::lease::records::NodeName;
use crate::net::gather::Gather;
use crate::net::{
    Family, IfName, Mac, PerFamily, PresharedKey, PresharedSecret, PublicKey, subnet,
};
use crate::netlink::wireguard::{KEEPALIVE_SECS, NewWireguardPeer, WireguardPeer};
use crate::plan::routes::NextHop;
use crate::plan::tunnel::less_overhead;

/// Another host that packets are encrypted to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncryptedPeer {
    pub key: PublicKey,
    /// Where it is reached; its family is that of the outer packets.
    pub address: IpAddr,
    /// All its node addresses.
    pub addresses: PerFamily<IpAddr>,
    /// UDP port of its device.
    pub port: u16,
    /// That of its second device; `None`: a version that has none.
    pub rotation_port: Option<u16>,
    /// The key of its second device, while it changes keys.
    pub next: Option<PublicKey>,
    pub host: NodeName,
    /// Its agent runs.
    pub alive: bool,
    /// Its pod subnets, and its blocks of tenants' networks.
    pub subnets: Vec<IpNetwork>,
    /// The MTU of outer packets to it, as it published.
    pub mtu_bytes: Option<u32>,
}

/// What must change of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerChange {
    /// For the host with this address.
    Set(IpAddr, NewWireguardPeer),
    Remove(Option<SocketAddr>, PublicKey),
}

/// The name of the device.
pub fn device_name() -> IfName {
    let [first, _] = device_names();
    first
}

/// Its name, and that of the second one, which is there while a host changes its key.
pub fn device_names() -> [IfName; 2] {
    ["humanz-wg", "humanz-wg2"].map(|name| name.parse().expect("a name of an interface"))
}

/// Bytes that WireGuard adds to a packet: 16 of header, 16 of authentication, 8 of UDP, and 20 or 40 of IP.
///
/// Source: the WireGuard paper §5.4.6.
pub fn overhead(underlay: Family) -> u32 {
    match underlay {
        Family::V4 => 60,
        Family::V6 => 80,
    }
}

/// The MTU of inner packets for that of outer ones.
pub fn inner_mtu<T>(outer: u32, underlay: Family, pods: &PerFamily<T>) -> u32 {
    less_overhead(outer, overhead(underlay), pods)
}

/// What makes the pre-shared keys of a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Preshared<'a> {
    /// `None`: there are none.
    pub secret: Option<&'a PresharedSecret>,
    /// The device's public key; one that has none yet sends nothing.
    pub own: Option<PublicKey>,
}

impl Preshared<'_> {
    fn with(&self, key: PublicKey) -> Option<PresharedKey> {
        Some(self.secret?.of_pair(self.own?, key))
    }
}

/// Hosts that the device does not know, or knows otherwise.
///
/// Where a host is received is right if it is any of its node addresses with its port: which of them it sends
/// from is its own to choose.
pub fn missing_peers(
    wanted: &[EncryptedPeer],
    keys: Preshared<'_>,
    found: &[WireguardPeer],
) -> Vec<PeerChange> {
    let found: BTreeMap<PublicKey, &WireguardPeer> =
        found.iter().map(|peer| (peer.key, peer)).gather();
    let change = |peer: &EncryptedPeer| {
        let present = found.get(&peer.key);
        let allowed: BTreeSet<IpNetwork> = peer.subnets.iter().copied().gather();
        let is_received =
            present.and_then(|found| found.endpoint).is_some_and(|at| is_at(peer, at));
        let preshared = keys.with(peer.key);
        let is_right = |found: &&WireguardPeer| {
            (&found.preshared, found.keepalive_secs) == (&preshared, KEEPALIVE_SECS)
                && found.allowed == allowed
        };
        if is_received && present.is_some_and(is_right) {
            return None;
        }
        let endpoint = (!is_received).then(|| SocketAddr::new(peer.address, peer.port));
        let new = NewWireguardPeer { key: peer.key, preshared, endpoint, allowed };
        Some(PeerChange::Set(peer.address, new))
    };
    wanted.iter().filter_map(change).collect()
}

/// Peers of the device that are no host, or no longer.
pub fn surplus_peers(wanted: &[EncryptedPeer], found: &[WireguardPeer]) -> Vec<PeerChange> {
    let keys: BTreeSet<PublicKey> = wanted.iter().map(|peer| peer.key).gather();
    let surplus = found.iter().filter(|peer| !keys.contains(&peer.key));
    surplus.map(|peer| PeerChange::Remove(peer.endpoint, peer.key)).collect()
}

fn is_at(peer: &EncryptedPeer, at: SocketAddr) -> bool {
    at.port() == peer.port && peer.addresses.get(Family::of(at.ip())) == Some(&at.ip())
}

/// The next hop to one of the host's pod subnets over the device, given by index and MTU. `source` is this
/// host's own address among its pods, which alone it may send from.
///
/// The device does not resolve the gateway: it looks at the packet's destination. Two families need one that the
/// kernel takes: for IPv6 a link-local one.
pub fn next_hop<T>(
    peer: &EncryptedPeer,
    to: IpNetwork,
    (device, device_mtu): (u32, u32),
    own_subnets: &PerFamily<IpNetwork>,
    pods: &PerFamily<T>,
) -> NextHop {
    let family = subnet::family(to);
    let via = match family {
        Family::V4 => subnet::gateway(to),
        Family::V6 => Mac::of_subnet(to).link_local().into(),
    };
    let theirs = peer.mtu_bytes.map(|outer| inner_mtu(outer, Family::of(peer.address), pods));
    NextHop {
        via,
        device,
        source: own_subnets.get(family).map(|subnet| subnet::gateway(*subnet)),
        mtu: theirs.filter(|mtu| *mtu < device_mtu),
        onlink: family == Family::V4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Describe;
    use crate::plan::encryption::{Stage, on_second};

    const BOTH: PerFamily<()> = PerFamily { v4: Some(()), v6: Some(()) };

    fn peer(number: u8) -> EncryptedPeer {
        EncryptedPeer {
            key: PublicKey([number; 32]),
            address: format!("192.0.2.{number}").parse().unwrap(),
            addresses: PerFamily {
                v4: format!("192.0.2.{number}").parse().ok(),
                v6: format!("2001:db8::{number}").parse().ok(),
            },
            port: 10401,
            rotation_port: Some(10402),
            next: None,
            host: format!("h{number}").parse().unwrap(),
            alive: true,
            subnets: vec![format!("10.244.{number}.0/24").parse().unwrap()],
            mtu_bytes: None,
        }
    }

    fn found(peer: &EncryptedPeer) -> WireguardPeer {
        WireguardPeer {
            key: peer.key,
            preshared: None,
            endpoint: Some(SocketAddr::new(peer.address, peer.port)),
            keepalive_secs: KEEPALIVE_SECS,
            last_handshake: None,
            received_bytes: 0,
            sent_bytes: 0,
            allowed: peer.subnets.iter().copied().collect(),
        }
    }

    fn check(wanted: &[EncryptedPeer], found: &[WireguardPeer], expected: &[&str]) {
        let changes = missing_peers(wanted, Preshared::default(), found);
        let changes = [changes, surplus_peers(wanted, found)].concat();
        let lines: Vec<String> = changes.iter().map(|change| change.line().to_string()).collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn peers_that_are_right_stay_wherever_they_are_received() {
        let roamed = WireguardPeer {
            endpoint: "[2001:db8::2]:10401".parse().ok(),
            received_bytes: 5,
            last_handshake: Some(std::time::Duration::from_secs(7)),
            ..found(&peer(2))
        };
        check(&[peer(2), peer(3)], &[roamed, found(&peer(3))], &[]);
    }

    #[test]
    fn a_host_that_came_is_added_and_one_that_left_is_removed() {
        check(
            &[peer(2)],
            &[found(&peer(3))],
            &["+ tunnel to 192.0.2.2: 10.244.2.0/24", "- tunnel to 192.0.2.3"],
        );
    }

    #[test]
    fn what_is_wrong_of_a_peer_is_set_again() {
        let right = found(&peer(2));
        for wrong in [
            WireguardPeer { endpoint: None, ..right.clone() },
            WireguardPeer { endpoint: "192.0.2.66:10401".parse().ok(), ..right.clone() },
            WireguardPeer { endpoint: "192.0.2.2:53".parse().ok(), ..right.clone() },
            WireguardPeer { preshared: PresharedKey::of_kernel([7; 32]), ..right.clone() },
            WireguardPeer { keepalive_secs: 0, ..right.clone() },
            WireguardPeer { allowed: BTreeSet::new(), ..right.clone() },
            WireguardPeer { allowed: ["0.0.0.0/0".parse().unwrap()].into(), ..right.clone() },
        ] {
            check(&[peer(2)], &[wrong], &["+ tunnel to 192.0.2.2: 10.244.2.0/24"]);
        }
    }

    const SECRET: &str = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=";

    fn key_of_pair(secret: &str, one: u8, other: u8) -> Option<PresharedKey> {
        let secret: PresharedSecret = secret.parse().unwrap();
        Some(secret.of_pair(PublicKey([one; 32]), PublicKey([other; 32])))
    }

    #[test]
    fn each_peer_gets_the_key_of_the_pair_and_any_other_is_replaced() {
        let secret: PresharedSecret = SECRET.parse().unwrap();
        let keys = Preshared { secret: Some(&secret), own: Some(PublicKey([1; 32])) };
        let wanted = [peer(2), peer(3)];
        let with = |number, preshared| WireguardPeer { preshared, ..found(&peer(number)) };
        let right = [2, 3].map(|other| with(other, key_of_pair(SECRET, 1, other)));
        assert_eq!(missing_peers(&wanted, keys, &right), []);
        assert_ne!(right[0].preshared, right[1].preshared);
        let another = "/".repeat(42) + "8=";
        for wrong in [
            None,
            PresharedKey::of_kernel([9; 32]),
            right[1].preshared.clone(),
            key_of_pair(&another, 1, 2),
            key_of_pair(SECRET, 4, 2),
        ] {
            let found = [with(2, wrong), right[1].clone()];
            let [PeerChange::Set(_, new)] = &missing_peers(&wanted, keys, &found)[..] else {
                panic!("one change")
            };
            assert_eq!((new.key, &new.preshared), (PublicKey([2; 32]), &right[0].preshared));
            let none = missing_peers(&wanted, Preshared::default(), &found);
            assert!(none.iter().all(
                |change| matches!(change, PeerChange::Set(_, new) if new.preshared.is_none())
            ));
        }
    }

    /// While host 1 changes its key from 1 to 11, host 2 has key 2 on both of its devices.
    #[test]
    fn hosts_agree_on_the_key_of_each_device_while_one_changes_its_own() {
        let secret: PresharedSecret = SECRET.parse().unwrap();
        let made = |own: u8, wanted: &[EncryptedPeer]| {
            let keys = Preshared { secret: Some(&secret), own: Some(PublicKey([own; 32])) };
            match &missing_peers(wanted, keys, &[])[..] {
                [PeerChange::Set(_, new)] => new.preshared.clone().unwrap(),
                other => panic!("{other:?}"),
            }
        };
        let changing = EncryptedPeer { next: Some(PublicKey([11; 32])), ..peer(1) };
        let here = on_second(&[peer(2)], Stage::Leaving);
        let there = on_second(std::slice::from_ref(&changing), Stage::Steady);
        let (first, second) = (made(1, &[peer(2)]), made(11, &here));
        assert_eq!(first, made(2, &[changing]));
        assert_eq!(second, made(2, &there));
        assert_ne!(first, second);
    }

    #[test]
    fn what_is_set_keeps_a_right_endpoint() {
        let wrong = WireguardPeer { allowed: BTreeSet::new(), ..found(&peer(2)) };
        let changes = missing_peers(&[peer(2)], Preshared::default(), &[wrong]);
        assert!(matches!(&changes[..], [PeerChange::Set(_, new)] if new.endpoint.is_none()));
    }

    #[test]
    fn a_host_with_a_new_key_takes_its_subnet_along() {
        let renewed = EncryptedPeer { key: PublicKey([9; 32]), ..peer(2) };
        check(
            &[renewed],
            &[found(&peer(2))],
            &["+ tunnel to 192.0.2.2: 10.244.2.0/24", "- tunnel to 192.0.2.2"],
        );
    }

    #[test]
    fn the_next_hop_has_this_hosts_address_among_its_pods_and_the_least_mtu() {
        let own =
            PerFamily { v4: "10.244.1.0/24".parse().ok(), v6: "fd00:0:0:1::/64".parse().ok() };
        let check = |to: &str, mtu_bytes, expected: &str| {
            let peer = EncryptedPeer { mtu_bytes, ..peer(2) };
            let NextHop { via, source, mtu, onlink, .. } =
                next_hop(&peer, to.parse().unwrap(), (7, 8940), &own, &BOTH);
            assert_eq!(format!("{via} from {} {mtu:?} {onlink}", source.unwrap()), expected);
        };
        check("10.244.2.0/24", None, "10.244.2.1 from 10.244.1.1 None true");
        check("10.244.2.0/24", Some(1500), "10.244.2.1 from 10.244.1.1 Some(1440) true");
        check("10.244.2.0/24", Some(1), "10.244.2.1 from 10.244.1.1 Some(1280) true");
        let v6 = Mac::of_subnet("fd00:0:0:2::/64".parse().unwrap()).link_local();
        check("fd00:0:0:2::/64", None, &format!("{v6} from fd00:0:0:1::1 None false"));
        assert_eq!(inner_mtu(1500, Family::V6, &BOTH), 1420);
    }
}
