//! Pure. Maps from ports of the host to ports of pods, and their elements as bytes.
//!
//! A key or an answer of several parts has each of them in whole groups of 4 bytes, as the kernel's
//! registers do: protocol and port take 8 bytes, IPv4 address and port 8, IPv6 address and port 20.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::net::{Family, HostPort, IfName, PortForward, Protocol};
use crate::netlink::wire::{address, octets};
use crate::netlink::{AttributeList, NetlinkError, Reply};
use crate::nft::numbers::{expression as list, set};
use crate::nft::userdata;

/// The set of bridges that pods with host ports are plugged into.
pub const BRIDGES: &str = "bridges";

/// One of the four maps: of each family, by one address of the host or by any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PortMap {
    /// Address, protocol and port of this family.
    At(Family),
    /// Protocol and port, on every address of this family.
    Any(Family),
}

/// An element of one of the maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortElement {
    /// The port, and where it leads.
    pub forward: PortForward,
    /// Whose it is, for people; at most 127 bytes are kept.
    pub comment: String,
    /// Our mark.
    pub mark: PortMark,
}

/// What humanz writes beside an element that it makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortMark {
    /// Which store the owner's reservation is in: [`crate::ipam::PortClaims::fingerprint`].
    pub store: u64,
    /// The link that the owner's packets take.
    pub link: IfName,
}

/// An element as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundPort {
    /// The port, and where it leads.
    pub forward: PortForward,
    /// The comment beside it.
    pub comment: Option<String>,
    /// `None` if somebody else made it.
    pub mark: Option<PortMark>,
}

/// A change to what the table holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortChange {
    /// The bridge is one of those with host ports; nothing if it is already.
    Bridge(IfName),
    /// A port that nobody has. Refused with `EEXIST` if somebody has it.
    Add(PortElement),
    /// Refused with `ENOENT` if it is not there.
    Remove(HostPort),
}

impl PortMap {
    /// The maps of the table.
    pub const ALL: [PortMap; 4] = [
        PortMap::At(Family::V4),
        PortMap::At(Family::V6),
        PortMap::Any(Family::V4),
        PortMap::Any(Family::V6),
    ];

    /// The map that has the key of `port`.
    pub fn of(port: &HostPort) -> PortMap {
        match port.address.is_unspecified() {
            true => PortMap::Any(port.family()),
            false => PortMap::At(port.family()),
        }
    }

    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            PortMap::At(Family::V4) => "at4",
            PortMap::At(Family::V6) => "at6",
            PortMap::Any(Family::V4) => "any4",
            PortMap::Any(Family::V6) => "any6",
        }
    }

    /// The family of its keys and answers.
    pub fn family(self) -> Family {
        match self {
            PortMap::At(family) | PortMap::Any(family) => family,
        }
    }

    /// Its keys begin with an address.
    pub fn has_address(self) -> bool {
        matches!(self, PortMap::At(_))
    }

    /// The parts of a key: nft's number of each type, and its bytes.
    pub(super) fn key_parts(self) -> Vec<(u32, u32)> {
        let address = self.has_address().then_some(address_part(self.family()));
        let rest = [(set::TYPE_PROTOCOL, 4), (set::TYPE_PORT, 4)];
        address.into_iter().chain(rest).collect()
    }

    pub(super) fn answer_parts(self) -> [(u32, u32); 2] {
        [address_part(self.family()), (set::TYPE_PORT, 4)]
    }
}

impl fmt::Display for PortMap {
    /// The rule's end, as nft writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ip = match self.family() {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        };
        let address = if self.has_address() { format!("{ip} daddr . ") } else { String::new() };
        write!(f, "dnat {ip} to {address}meta l4proto . th dport map @{}", self.name())
    }
}

fn address_part(family: Family) -> (u32, u32) {
    match family {
        Family::V4 => (set::TYPE_IPV4, 4),
        Family::V6 => (set::TYPE_IPV6, 16),
    }
}

/// The elements of `map` in one piece of a list; others than humanz can make are left out.
pub fn found(map: PortMap, reply: &Reply<'_>) -> Result<Vec<FoundPort>, NetlinkError> {
    let (_, attributes) = crate::nft::found::parts(reply)?;
    let Some(elements) = attributes.nested(set::LIST_ELEMENTS)? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for (_, element) in elements.iter() {
        let element = AttributeList::parse(element)?;
        let part = |kind: u16| {
            let part = element.nested(kind)?;
            let bytes = part.as_ref().and_then(|part| part.get(list::DATA_VALUE));
            Ok::<_, NetlinkError>(bytes.map(<[u8]>::to_vec))
        };
        let (key, answer) = (part(set::ELEMENT_KEY)?, part(set::ELEMENT_DATA)?);
        let from = key.and_then(|key| read_key(map, &key));
        let forward = from.zip(answer.and_then(|answer| read_answer(map, &answer)));
        let beside = element.get(set::ELEMENT_USERDATA).unwrap_or_default();
        let mark = userdata::port(beside)
            .and_then(|(store, link)| Some(PortMark { store, link: IfName::found(&link).ok()? }));
        let comment = userdata::comment(beside);
        found.extend(forward.map(|(from, to)| FoundPort {
            forward: PortForward { from, to },
            comment,
            mark,
        }));
    }
    Ok(found)
}

/// nft's number and the bytes of a type of several parts.
pub(super) fn concatenation(parts: &[(u32, u32)]) -> (u32, u32) {
    parts.iter().fold((0, 0), |(kind, length), (part, bytes)| {
        (kind << set::TYPE_BITS | part, length + bytes)
    })
}

pub(super) fn key(port: &HostPort) -> Vec<u8> {
    let mut key = match PortMap::of(port).has_address() {
        true => octets(port.address),
        false => Vec::new(),
    };
    key.extend([port.protocol.number(), 0, 0, 0]);
    key.extend(port.port.to_be_bytes());
    key.extend([0, 0]);
    key
}

pub(super) fn answer(to: SocketAddr) -> Vec<u8> {
    let mut answer = octets(to.ip());
    answer.extend(to.port().to_be_bytes());
    answer.extend([0, 0]);
    answer
}

fn read_key(map: PortMap, bytes: &[u8]) -> Option<HostPort> {
    let unspecified = match map.family() {
        Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let (bytes, address) = match map.has_address() {
        true => {
            let (own, rest) = bytes.split_at_checked(octets(unspecified).len())?;
            (rest, address(own)?)
        }
        false => (bytes, unspecified),
    };
    let [protocol, _, _, _, high, low, _, _] = *bytes else { return None };
    let port = u16::from_be_bytes([high, low]);
    Some(HostPort { protocol: Protocol::of_number(protocol)?, port, address })
}

fn read_answer(map: PortMap, bytes: &[u8]) -> Option<SocketAddr> {
    let length = usize::from(map.family().bits() / 8);
    let (own, rest) = bytes.split_at_checked(length)?;
    let [high, low, ..] = *rest else { return None };
    Some(SocketAddr::new(address(own)?, u16::from_be_bytes([high, low])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(address: &str, to: &str) {
        let from =
            HostPort { protocol: Protocol::Sctp, port: 8080, address: address.parse().unwrap() };
        let to: SocketAddr = to.parse().unwrap();
        let map = PortMap::of(&from);
        assert_eq!(key(&from).len() as u32, concatenation(&map.key_parts()).1);
        assert_eq!(answer(to).len() as u32, concatenation(&map.answer_parts()).1);
        assert_eq!(read_key(map, &key(&from)), Some(from));
        assert_eq!(read_answer(map, &answer(to)), Some(to));
    }

    #[test]
    fn elements_are_read_back_as_they_were_written() {
        check("0.0.0.0", "10.1.2.3:80");
        check("192.0.2.1", "10.1.2.3:80");
        check("::", "[fd00::3]:80");
        check("2001:db8::1", "[fd00::3]:80");
    }

    #[test]
    fn a_rule_reads_as_nft_writes_it() {
        let text = "dnat ip to ip daddr . meta l4proto . th dport map @at4";
        assert_eq!(PortMap::At(Family::V4).to_string(), text);
        let text = "dnat ip6 to meta l4proto . th dport map @any6";
        assert_eq!(PortMap::Any(Family::V6).to_string(), text);
    }

    #[test]
    fn types_are_those_of_nft() {
        assert_eq!(concatenation(&PortMap::Any(Family::V4).key_parts()), (781, 8));
        assert_eq!(concatenation(&PortMap::At(Family::V6).key_parts()).1, 24);
    }

    #[test]
    fn broken_bytes_give_nothing() {
        for bytes in [&b""[..], b"\x06\0\0\0", b"\x01\0\0\0\0\x50\0\0"] {
            assert_eq!(read_key(PortMap::Any(Family::V4), bytes), None);
        }
        assert_eq!(read_answer(PortMap::Any(Family::V6), b"\0"), None);
    }
}
