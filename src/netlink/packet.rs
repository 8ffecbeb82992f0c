//! Pure. The head of an IP packet. Its bytes are whatever somebody sent.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::net::Protocol;
use crate::netlink::wire;

/// IANA's numbers of protocols and of IPv6's extension headers.
const HOP_BY_HOP: u8 = 0;
const ICMP: u8 = 1;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const ICMPV6: u8 = 58;
const DESTINATION_OPTIONS: u8 = 60;

/// A packet with more extension headers has no known protocol.
const EXTENSIONS: usize = 8;

/// Where a packet comes from and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Packet {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// IANA's number.
    pub protocol: u8,
    /// Source and destination, of TCP, UDP and SCTP; `None` of a later fragment, or if they are cut off.
    pub ports: Option<(u16, u16)>,
    /// Type and code, of ICMP and ICMPv6.
    pub icmp: Option<(u8, u8)>,
}

impl Packet {
    /// The head of the packet that begins with `bytes`; `None` if its addresses are not in them.
    pub fn read(bytes: &[u8]) -> Option<Packet> {
        match bytes.first()? >> 4 {
            4 => v4(bytes),
            6 => v6(bytes),
            _ => None,
        }
    }

    /// The same as its answer has it.
    pub fn reversed(self) -> Packet {
        Packet {
            source: self.destination,
            destination: self.source,
            ports: self.ports.map(|(source, destination)| (destination, source)),
            ..self
        }
    }
}

/// RFC 791 §3.1.
fn v4(bytes: &[u8]) -> Option<Packet> {
    let header_bytes = usize::from(bytes[0] & 0xf) * 4;
    if header_bytes < 20 {
        return None;
    }
    let is_first = u16_at(bytes, 6)? & 0x1fff == 0;
    let behind = if is_first { bytes.get(header_bytes..) } else { None };
    let address = |at| wire::address(bytes.get(at..at + 4)?);
    Some(with_transport(address(12)?, address(16)?, *bytes.get(9)?, behind))
}

/// RFC 8200 §3 and §4.
fn v6(bytes: &[u8]) -> Option<Packet> {
    let address = |at| wire::address(bytes.get(at..at + 16)?);
    let (source, destination) = (address(8)?, address(24)?);
    let (mut protocol, mut behind) = (*bytes.get(6)?, bytes.get(40..));
    for _ in 0..EXTENSIONS {
        let Some((next, rest)) = behind.and_then(|header| extension(protocol, header)) else {
            break;
        };
        (protocol, behind) = (next, rest);
    }
    Some(with_transport(source, destination, protocol, behind))
}

/// What follows the extension header of this kind that `bytes` begin with: its kind and its bytes.
/// `None` if this is none.
fn extension(kind: u8, bytes: &[u8]) -> Option<(u8, Option<&[u8]>)> {
    let (next, length) = (*bytes.first()?, usize::from(*bytes.get(1)?));
    match kind {
        HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS => Some((next, bytes.get((length + 1) * 8..))),
        AUTHENTICATION => Some((next, bytes.get((length + 2) * 4..))),
        FRAGMENT if u16_at(bytes, 2)? >> 3 == 0 => Some((next, bytes.get(8..))),
        FRAGMENT => Some((next, None)),
        _ => None,
    }
}

fn with_transport(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    bytes: Option<&[u8]>,
) -> Packet {
    let ports = || Some((u16_at(bytes?, 0)?, u16_at(bytes?, 2)?));
    let icmp = || Some((*bytes?.first()?, *bytes?.get(1)?));
    let is_icmp = protocol == if source.is_ipv4() { ICMP } else { ICMPV6 };
    Packet {
        source,
        destination,
        protocol,
        ports: Protocol::of_number(protocol).and_then(|_| ports()),
        icmp: if is_icmp { icmp() } else { None },
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ipv4(protocol: u8, fragment: u16, behind: &[u8]) -> Vec<u8> {
        let [high, low] = fragment.to_be_bytes();
        let head = [0x45, 0, 0, 0, 0, 0, high, low, 64, protocol, 0, 0, 10, 1, 0, 2, 10, 1, 0, 3];
        [&head, behind].concat()
    }

    fn ipv6(next: u8, behind: &[u8]) -> Vec<u8> {
        let mut head = vec![0x60, 0, 0, 0, 0, 0, next, 64];
        head.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        head.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3]);
        [head, behind.to_vec()].concat()
    }

    fn check(bytes: &[u8], wanted: &str) {
        let found = Packet::read(bytes).map_or("nothing".to_owned(), |found| {
            let Packet { source, destination, protocol, ports, icmp } = found;
            format!("{source} {destination} {protocol} {ports:?} {icmp:?}")
        });
        assert_eq!(found, wanted, "{bytes:02x?}");
    }

    const PORTS: [u8; 4] = [0x9c, 0x40, 0x15, 0x38];

    #[test]
    fn ports_are_those_of_tcp_udp_and_sctp() {
        for number in [6, 17, 132] {
            let ports = "Some((40000, 5432)) None";
            check(&ipv4(number, 0, &PORTS), &format!("10.1.0.2 10.1.0.3 {number} {ports}"));
            check(&ipv6(number, &PORTS), &format!("fd00::2 fd00::3 {number} {ports}"));
        }
        check(&ipv4(47, 0, &PORTS), "10.1.0.2 10.1.0.3 47 None None");
        check(&ipv4(1, 0, &[8, 0]), "10.1.0.2 10.1.0.3 1 None Some((8, 0))");
        check(&ipv6(58, &[128, 0]), "fd00::2 fd00::3 58 None Some((128, 0))");
        check(&ipv4(58, 0, &[128, 0]), "10.1.0.2 10.1.0.3 58 None None");
        let answer = Packet::read(&ipv4(6, 0, &PORTS)).unwrap().reversed();
        assert_eq!((answer.ports, answer.source), (Some((5432, 40000)), [10, 1, 0, 3].into()));
    }

    #[test]
    fn extension_headers_are_skipped_and_their_number_is_bounded() {
        let options = [&[6, 0, 1, 4, 0, 0, 0, 0][..], &PORTS].concat();
        for kind in [HOP_BY_HOP, ROUTING, DESTINATION_OPTIONS] {
            check(&ipv6(kind, &options), "fd00::2 fd00::3 6 Some((40000, 5432)) None");
        }
        let authentication = [&[6, 1][..], &[0; 10], &PORTS].concat();
        check(&ipv6(51, &authentication), "fd00::2 fd00::3 6 Some((40000, 5432)) None");
        let first = [&[6, 0, 0, 1, 0, 0, 0, 9][..], &PORTS].concat();
        check(&ipv6(44, &first), "fd00::2 fd00::3 6 Some((40000, 5432)) None");
        let later = [&[6, 0, 0, 9, 0, 0, 0, 9][..], &PORTS].concat();
        check(&ipv6(44, &later), "fd00::2 fd00::3 6 None None");
        check(&ipv6(60, &[60, 0, 0, 0, 0, 0, 0, 0].repeat(1000)), "fd00::2 fd00::3 60 None None");
        check(&ipv6(60, &[6, 255]), "fd00::2 fd00::3 6 None None");
    }

    #[test]
    fn what_is_cut_off_or_no_packet_is_not_made_up() {
        check(&[], "nothing");
        check(&[0xff; 64], "nothing");
        check(&ipv4(6, 0, &PORTS)[..19], "nothing");
        check(&ipv6(6, &PORTS)[..39], "nothing");
        check(&[&[0x44][..], &ipv4(6, 0, &PORTS)[1..]].concat(), "nothing");
        check(&[&[0x4f][..], &ipv4(6, 0, &PORTS)[1..]].concat(), "10.1.0.2 10.1.0.3 6 None None");
        check(&ipv4(6, 0, &PORTS[..3]), "10.1.0.2 10.1.0.3 6 None None");
        check(&ipv4(6, 1, &PORTS), "10.1.0.2 10.1.0.3 6 None None");
    }
}
