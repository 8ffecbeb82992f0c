//! Pure. A WireGuard device as the kernel reports it, and what it takes. Source: linux/wireguard.h.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use ipnetwork::IpNetwork;

use crate::net::gather::Gather;
use crate::net::{Family, IfName, PresharedKey, PrivateKey, PublicKey, subnet};
use crate::netlink::error::NetlinkError;
use crate::netlink::generic::{self, GenericFamily};
use crate::netlink::wire::octets;
use crate::netlink::{AttributeList, Attributes, Message, Reply};

/// The kernel's word for this kind of link, and for the family of its messages.
pub const KIND: &str = "wireguard";

/// WG_CMD_*.
const GET_DEVICE: u8 = 0;
const SET_DEVICE: u8 = 1;

/// WGDEVICE_A_*.
const NAME: u16 = 2;
const PRIVATE_KEY: u16 = 3;
const PUBLIC_KEY: u16 = 4;
const FLAGS: u16 = 5;
const LISTEN_PORT: u16 = 6;
const MARK: u16 = 7;
const PEERS: u16 = 8;

/// WGPEER_A_*.
const PEER_KEY: u16 = 1;
const PRESHARED_KEY: u16 = 2;
const PEER_FLAGS: u16 = 3;
const ENDPOINT: u16 = 4;
const KEEPALIVE: u16 = 5;
const LAST_HANDSHAKE: u16 = 6;
const RECEIVED: u16 = 7;
const SENT: u16 = 8;
const ALLOWED: u16 = 9;

/// WGDEVICE_F_REPLACE_PEERS.
const REPLACE_PEERS: u32 = 1;

/// WGPEER_F_*.
const REMOVE: u32 = 1;
const REPLACE_ALLOWED: u32 = 2;

/// WGALLOWEDIP_A_*.
const ALLOWED_FAMILY: u16 = 1;
const ALLOWED_ADDRESS: u16 = 2;
const ALLOWED_PREFIX: u16 = 3;

/// AF_INET and AF_INET6, as socket addresses have them.
const INET: u16 = 2;
const INET6: u16 = 10;

/// What a WireGuard device is like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WireguardInfo {
    /// `None`: it has none, and sends nothing.
    pub private_key: Option<PrivateKey>,
    /// What the kernel derived from the private key.
    pub public_key: Option<PublicKey>,
    /// UDP port that it listens on.
    pub port: u16,
    /// The mark of its outer packets; 0 for none.
    pub mark: u32,
    /// In the kernel's order.
    pub peers: Vec<WireguardPeer>,
}

/// Another end, as the kernel knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireguardPeer {
    pub key: PublicKey,
    /// What both ends have besides their keys.
    pub preshared: Option<PresharedKey>,
    /// The address that it sent from last, or that was set.
    pub endpoint: Option<SocketAddr>,
    /// Seconds between packets that only keep the way open; 0 for none.
    pub keepalive_secs: u16,
    /// Since 1970; `None`: there was none yet.
    pub last_handshake: Option<Duration>,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// What it may send from, and what is sent to it.
    pub allowed: BTreeSet<IpNetwork>,
}

/// Seconds between packets that keep the way to a peer open: the most there can be. What matters is the first
/// one, which the kernel sends as soon as the peer is set, or the device is up: until this host has sent something,
/// the other one encrypts for the device that was there before, 15 seconds long.
pub const KEEPALIVE_SECS: u16 = u16::MAX;

/// Another end to be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewWireguardPeer {
    pub key: PublicKey,
    /// `None`: there is none from now on.
    pub preshared: Option<PresharedKey>,
    /// `None`: as it is.
    pub endpoint: Option<SocketAddr>,
    /// Replaces what it was allowed.
    pub allowed: BTreeSet<IpNetwork>,
}

/// Asks for a device with all its peers, as a list.
pub(super) fn get(family: GenericFamily, name: &IfName) -> Message {
    let attributes = Attributes::new().text(NAME, name.as_str());
    generic::message(family, GET_DEVICE, format!("get WireGuard device {name}"), attributes)
}

/// Sets key, port and mark (none) of the device.
pub(super) fn set_device(
    family: GenericFamily,
    name: &IfName,
    key: &PrivateKey,
    port: u16,
) -> Message {
    let attributes = Attributes::new()
        .text(NAME, name.as_str())
        .put(PRIVATE_KEY, key.secret_bytes())
        .u32(FLAGS, REPLACE_PEERS)
        .put(LISTEN_PORT, port.to_ne_bytes())
        .u32(MARK, 0);
    generic::message(family, SET_DEVICE, format!("set WireGuard device {name}"), attributes)
}

/// Adds or changes a peer. What another one was allowed of the same it is no longer.
pub(super) fn set_peer(family: GenericFamily, name: &IfName, peer: &NewWireguardPeer) -> Message {
    let allowed = peer.allowed.iter().zip(0u16..);
    let allowed = allowed.fold(Attributes::new(), |list, (network, place)| {
        list.nest(place, allowed_network(*network))
    });
    let attributes = Attributes::new()
        .put(PEER_KEY, peer.key.0)
        .put(PRESHARED_KEY, peer.preshared.as_ref().map_or(&[0; 32], PresharedKey::secret_bytes))
        .u32(PEER_FLAGS, REPLACE_ALLOWED)
        .put_some(ENDPOINT, peer.endpoint.map(socket_address))
        .put(KEEPALIVE, KEEPALIVE_SECS.to_ne_bytes())
        .nest(ALLOWED, allowed);
    let what = format!("set peer {} of {name}", peer.key);
    change_peer(family, name, what, attributes)
}

/// Removes a peer; success if there is none.
pub(super) fn remove_peer(family: GenericFamily, name: &IfName, key: PublicKey) -> Message {
    let attributes = Attributes::new().put(PEER_KEY, key.0).u32(PEER_FLAGS, REMOVE);
    change_peer(family, name, format!("remove peer {key} of {name}"), attributes)
}

fn change_peer(family: GenericFamily, name: &IfName, what: String, peer: Attributes) -> Message {
    let peers = Attributes::new().nest(0u16, peer);
    let attributes = Attributes::new().text(NAME, name.as_str()).nest(PEERS, peers);
    generic::message(family, SET_DEVICE, what, attributes)
}

fn allowed_network(network: IpNetwork) -> Attributes {
    let family = match subnet::family(network) {
        Family::V4 => INET,
        Family::V6 => INET6,
    };
    Attributes::new()
        .put(ALLOWED_FAMILY, family.to_ne_bytes())
        .put(ALLOWED_ADDRESS, octets(network.ip()))
        .u8(ALLOWED_PREFIX, network.prefix())
}

/// One message of the list: the device, and some of its peers.
pub(super) fn parse(reply: &Reply<'_>) -> Result<WireguardInfo, NetlinkError> {
    let device = generic::attributes(reply)?;
    let peers = device.nested(PEERS)?;
    let peers = peers.iter().flat_map(AttributeList::iter);
    Ok(WireguardInfo {
        private_key: device.array(PRIVATE_KEY).filter(is_set).map(PrivateKey::of_random),
        public_key: device.array(PUBLIC_KEY).filter(is_set).map(PublicKey),
        port: device.array(LISTEN_PORT).map_or(0, u16::from_ne_bytes),
        mark: device.u32(MARK).unwrap_or(0),
        peers: peers.map(|(_, peer)| parse_peer(peer)).collect::<Result<_, _>>()?,
    })
}

/// The device that the messages of the list make. A peer whose allowed networks do not fit into one
/// message begins the next one again.
pub(super) fn joined(parts: Vec<WireguardInfo>) -> Option<WireguardInfo> {
    let mut parts = parts.into_iter();
    let mut whole = parts.next()?;
    for peer in parts.flat_map(|part| part.peers) {
        match whole.peers.last_mut() {
            Some(last) if last.key == peer.key => last.allowed.extend(peer.allowed),
            _ => whole.peers.push(peer),
        }
    }
    Some(whole)
}

fn is_set(key: &[u8; 32]) -> bool {
    *key != [0; 32]
}

fn parse_peer(bytes: &[u8]) -> Result<WireguardPeer, NetlinkError> {
    let peer = AttributeList::parse(bytes)?;
    let missing = || NetlinkError::Malformed("a WireGuard peer without its key".to_owned());
    let number = |kind| peer.array(kind).map_or(0, u64::from_ne_bytes);
    let allowed = peer.nested(ALLOWED)?;
    let allowed = allowed.iter().flat_map(AttributeList::iter);
    Ok(WireguardPeer {
        key: PublicKey(peer.array(PEER_KEY).ok_or_else(missing)?),
        preshared: peer.array(PRESHARED_KEY).and_then(PresharedKey::of_kernel),
        endpoint: peer.get(ENDPOINT).and_then(endpoint),
        keepalive_secs: peer.array(KEEPALIVE).map_or(0, u16::from_ne_bytes),
        last_handshake: peer.array(LAST_HANDSHAKE).and_then(time),
        received_bytes: number(RECEIVED),
        sent_bytes: number(SENT),
        allowed: allowed.filter_map(|(_, network)| parse_allowed(network)).gather(),
    })
}

fn parse_allowed(bytes: &[u8]) -> Option<IpNetwork> {
    let allowed = AttributeList::parse(bytes).ok()?;
    let address = allowed.get(ALLOWED_ADDRESS).and_then(crate::netlink::wire::address)?;
    IpNetwork::new(address, allowed.u8(ALLOWED_PREFIX)?).ok()
}

/// `struct __kernel_timespec`: seconds and nanoseconds since 1970, 8 bytes each; zero is never.
fn time(bytes: [u8; 16]) -> Option<Duration> {
    let (seconds, nanos) = bytes.split_at(8);
    let number = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_ne_bytes);
    let nanos = u32::try_from(number(nanos)?).ok()?;
    let since = Duration::new(number(seconds)?, nanos.min(999_999_999));
    (!since.is_zero()).then_some(since)
}

/// `struct sockaddr_in` (16 bytes) or `sockaddr_in6` (28): family in the host's order, port and address in
/// network order. Source: netinet/in.h.
fn socket_address(address: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(28);
    match address {
        SocketAddr::V4(v4) => {
            bytes.extend(INET.to_ne_bytes());
            bytes.extend(v4.port().to_be_bytes());
            bytes.extend(v4.ip().octets());
            bytes.extend([0; 8]);
        }
        SocketAddr::V6(v6) => {
            bytes.extend(INET6.to_ne_bytes());
            bytes.extend(v6.port().to_be_bytes());
            bytes.extend(v6.flowinfo().to_be_bytes());
            bytes.extend(v6.ip().octets());
            bytes.extend(v6.scope_id().to_ne_bytes());
        }
    }
    bytes
}

fn endpoint(bytes: &[u8]) -> Option<SocketAddr> {
    let [f0, f1, p0, p1, rest @ ..] = bytes else { return None };
    let port = u16::from_be_bytes([*p0, *p1]);
    match u16::from_ne_bytes([*f0, *f1]) {
        INET => {
            let address: [u8; 4] = *rest.first_chunk()?;
            Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(address)), port))
        }
        INET6 => {
            let (_, rest) = rest.split_first_chunk::<4>()?;
            let (address, rest) = rest.split_first_chunk::<16>()?;
            let scope = rest.first_chunk().map_or(0, |scope| u32::from_ne_bytes(*scope));
            Some(SocketAddrV6::new(Ipv6Addr::from(*address), port, 0, scope).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use neli::consts::nl::NlmF;

    use super::*;
    use crate::netlink::message::Replies;

    /// What Linux 6.12.117 (Debian 13) answered to the request for family and device: two peers, one with
    /// preshared key, keepalive and both families.
    const FAMILY: &str = "700000001000000001000000b6000000010200000e000200776972656775617264000000060001002300000008000300\
         01000000080004000000000008000500080000002c000600140001000800010000000000080002001c00000014000200\
         0800010001000000080002001a000000";
    const DEVICE: &str = "340200002300020002000000b60000000001000006000600a1280000080007000000000008000100020000000e000200\
         68756d616e7a2d7767000000240003000002030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f60\
         2400040007a37cbc142093c8b755dc1b10e86cb426374ad16aa853ed0bdfc0b2b86d1c7cb0010880e400008024000100\
         070707070707070707070707070707070707070707070707070707070707070724000200030303030303030303030303\
         030303030303030303030303030303030303030314000600000000000000000000000000000000000600050019000000\
         0c00080000000000000000000c000700000000000000000008000a000100000014000400020028a1c000020200000000\
         00000000480009801c00008005000300180000000600010002000000080002000af40200280000800500030040000000\
         060001000a00000014000200fd000000000000020000000000000000c800008024000100090909090909090909090909\
         090909090909090909090909090909090909090524000200000000000000000000000000000000000000000000000000\
         0000000000000000140006000000000000000000000000000000000006000500000000000c0008000000000000000000\
         0c000700000000000000000008000a0001000000200004000a001b580000000020010db8000000000000000000000003\
         00000000200009801c00008005000300180000000600010002000000080002000af40300140000000300020002000000\
         b600000000000000";

    fn bytes(hex: &str) -> Vec<u8> {
        let digit = |place: usize| u8::from_str_radix(&hex[place..place + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(digit).collect()
    }

    fn device(datagram: &[u8]) -> Result<WireguardInfo, NetlinkError> {
        parse(&Replies(datagram).next().expect("a message")?)
    }

    fn networks(list: &[&str]) -> BTreeSet<IpNetwork> {
        list.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn the_kernels_answer_is_read() {
        let family = bytes(FAMILY);
        let family = Replies(&family).next().unwrap().unwrap();
        assert_eq!(generic::parse_family(&family).unwrap(), GenericFamily::numbered(0x23));
        let found = device(&bytes(DEVICE)).unwrap();
        let mut secret = [0; 32];
        secret.iter_mut().zip(1..).for_each(|(byte, number)| *byte = number);
        assert_eq!(found.private_key, Some(PrivateKey::of_random(secret)));
        let public = "B6N8vBQgk8i3VdwbEOhstCY3StFqqFPtC9/AsrhtHHw=";
        assert_eq!(found.public_key, public.parse().ok());
        assert_eq!((found.port, found.mark, found.peers.len()), (10401, 0, 2));
        let first = WireguardPeer {
            key: PublicKey([7; 32]),
            preshared: PresharedKey::of_kernel([3; 32]),
            endpoint: "192.0.2.2:10401".parse().ok(),
            keepalive_secs: 25,
            last_handshake: None,
            received_bytes: 0,
            sent_bytes: 0,
            allowed: networks(&["10.244.2.0/24", "fd00:0:0:2::/64"]),
        };
        assert_eq!(found.peers[0], first);
        let second = &found.peers[1];
        assert_eq!(second.endpoint, "[2001:db8::3]:7000".parse().ok());
        assert_eq!((&second.preshared, &second.allowed), (&None, &networks(&["10.244.3.0/24"])));
    }

    #[test]
    fn bytes_that_are_cut_anywhere_are_an_error_or_less_and_never_a_panic() {
        let whole = bytes(DEVICE);
        for length in 0..whole.len() {
            if let Some(Ok(reply)) = Replies(&whole[..length]).next() {
                let _either = parse(&reply);
            }
        }
        for place in 20..whole.len() {
            let mut broken = whole.clone();
            broken[place] ^= 0xff;
            if let Some(Ok(reply)) = Replies(&broken).next() {
                let _either = parse(&reply);
            }
        }
    }

    /// A peer with 3,000 networks came in three messages.
    #[test]
    fn a_peer_that_fills_several_messages_is_joined() {
        let part = |allowed: &[&str]| {
            let mut part = device(&bytes(DEVICE)).unwrap();
            part.peers.truncate(1);
            part.peers[0].allowed = networks(allowed);
            part
        };
        let whole =
            joined(vec![part(&["10.0.0.0/24"]), part(&["10.0.1.0/24"]), part(&[])]).unwrap();
        assert_eq!(whole.peers.len(), 1);
        assert_eq!(whole.peers[0].allowed, networks(&["10.0.0.0/24", "10.0.1.0/24"]));
        assert_eq!(joined(Vec::new()), None);
    }

    /// Whether it is there, changed or gone: the kernel keeps what a message does not have.
    #[test]
    fn every_peer_is_set_with_a_preshared_key_in_the_form_that_the_kernel_reported() {
        let name = "humanz-wg".parse().unwrap();
        let sent = |preshared| {
            let (key, endpoint, allowed) = (PublicKey([7; 32]), None, networks(&["10.244.2.0/24"]));
            let new = NewWireguardPeer { key, preshared, endpoint, allowed };
            let message = set_peer(GenericFamily::numbered(0x23), &name, &new);
            let mut bytes = Vec::new();
            message.encode(1, NlmF::empty(), &mut bytes).unwrap();
            bytes
        };
        for byte in [3, 0] {
            let message = sent(PresharedKey::of_kernel([byte; 32]));
            let attribute = [&[0x24, 0, 2, 0][..], &[byte; 32]].concat();
            assert!(message.windows(36).any(|part| part == attribute), "{message:02x?}");
            assert_eq!(
                device(&message).unwrap().peers[0].preshared,
                PresharedKey::of_kernel([byte; 32])
            );
        }
        let recorded = [&[0x24, 0, 2, 0][..], &[3; 32]].concat();
        assert!(bytes(DEVICE).windows(36).any(|part| part == recorded));
    }

    #[test]
    fn what_is_set_is_read_back() {
        for endpoint in ["192.0.2.2:10401", "[2001:db8::3]:7000"] {
            let address: SocketAddr = endpoint.parse().unwrap();
            assert_eq!(super::endpoint(&socket_address(address)), Some(address));
        }
        let allowed = allowed_network("fd00:0:0:2::/64".parse().unwrap()).into_bytes();
        assert_eq!(parse_allowed(&allowed), "fd00:0:0:2::/64".parse().ok());
        let seconds = [&5u64.to_ne_bytes()[..], &7u64.to_ne_bytes()].concat();
        assert_eq!(time(seconds.try_into().unwrap()), Some(Duration::new(5, 7)));
        assert_eq!(time([0; 16]), None, "there was no handshake");
        assert_eq!(super::endpoint(&[9, 0, 1, 2, 3, 4]), None);
    }
}
