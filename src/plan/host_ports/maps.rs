//! Pure. The maps of the table: from ports of the host to ports of pods, and their elements.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::net::gather::Gather;
use crate::net::{AddressRange, Family, HostPort, IfName, PortForward, Protocol};
use crate::nft::{Data, Element, ElementChange, Set, Shape, Type, Userdata, Value};

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
    pub forward: PortForward,
    /// Its owner, for people; at most 127 bytes are kept.
    pub comment: Option<String>,
    /// `None` if humanz did not make it.
    pub mark: Option<PortMark>,
}

/// What humanz writes beside an element that it makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortMark {
    /// Which store the owner's reservation is in: [`crate::ipam::PortClaims::fingerprint`].
    pub store: u64,
    /// The link that the owner's packets take.
    pub link: IfName,
}

/// A change to what the table holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortChange {
    /// The bridge is one of those with host ports; nothing if it is already.
    Bridge(IfName),
    /// Refused with `EEXIST` if the port is there.
    Add(PortElement),
    /// Refused with `ENOENT` if it is not there.
    Remove(HostPort),
}

impl PortMap {
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

    pub fn name(self) -> &'static str {
        match self {
            PortMap::At(Family::V4) => "at4",
            PortMap::At(Family::V6) => "at6",
            PortMap::Any(Family::V4) => "any4",
            PortMap::Any(Family::V6) => "any6",
        }
    }

    /// The family of its keys and data.
    pub fn family(self) -> Family {
        match self {
            PortMap::At(family) | PortMap::Any(family) => family,
        }
    }

    /// The map without elements.
    pub fn set(self) -> Set {
        let address = Type::address(self.family());
        let key = match self {
            PortMap::At(_) => vec![address, Type::Protocol, Type::Port],
            PortMap::Any(_) => vec![Type::Protocol, Type::Port],
        };
        let shape = Shape::map(key, [address, Type::Port]);
        Set { name: self.name().to_owned(), shape, elements: BTreeSet::new() }
    }

    /// The key of `port` in its map.
    pub fn key(port: &HostPort) -> Vec<Value> {
        let address = (!port.address.is_unspecified()).then(|| Value::address(port.address));
        let rest = [Value::Protocol(port.protocol.number()), Value::port(port.port)];
        address.into_iter().chain(rest).collect()
    }

    /// The element as humanz reads it; `None` if it cannot have made it.
    pub fn read(self, element: &Element) -> Option<PortElement> {
        let single = |range: &AddressRange| (range.first() == range.last()).then(|| range.first());
        let (address, rest) = match (self, &element.key[..]) {
            (PortMap::At(_), [Value::Addresses(range), rest @ ..]) => (single(range)?, rest),
            (PortMap::Any(Family::V4), rest) => (IpAddr::V4(Ipv4Addr::UNSPECIFIED), rest),
            (PortMap::Any(Family::V6), rest) => (IpAddr::V6(Ipv6Addr::UNSPECIFIED), rest),
            _ => return None,
        };
        let [Value::Protocol(protocol), Value::Ports(port, _)] = *rest else { return None };
        let Some(Data::Values(data)) = &element.data else { return None };
        let [Value::Addresses(to), Value::Ports(to_port, _)] = &data[..] else { return None };
        let from = HostPort { protocol: Protocol::of_number(protocol)?, port, address };
        let to = SocketAddr::new(single(to)?, *to_port);
        let Userdata { comment, fingerprint, link } = element.userdata.clone();
        let mark = fingerprint.zip(link.and_then(|link| IfName::found(&link).ok()));
        let mark = mark.map(|(store, link)| PortMark { store, link });
        Some(PortElement { forward: PortForward { from, to }, comment, mark })
    }
}

impl From<&PortElement> for Element {
    fn from(port: &PortElement) -> Element {
        let userdata = Userdata {
            comment: port.comment.clone(),
            fingerprint: port.mark.as_ref().map(|mark| mark.store),
            link: port.mark.as_ref().map(|mark| mark.link.to_string()),
        };
        let data = Some(Data::Values(Value::socket(port.forward.to)));
        Element { key: PortMap::key(&port.forward.from).into(), data, userdata }
    }
}

/// The set [`BRIDGES`] without elements.
pub fn bridges() -> Set {
    let shape = Shape::set([Type::Interface]);
    Set { name: BRIDGES.to_owned(), shape, elements: BTreeSet::new() }
}

/// The names that elements of [`BRIDGES`] are.
pub fn bridge_names(elements: BTreeSet<Element>) -> BTreeSet<IfName> {
    let names = elements.into_iter().flat_map(|element| element.key.to_vec());
    let names = names.filter_map(|value| match value {
        Value::Interface(name) => Some(name),
        _ => None,
    });
    names.gather()
}

/// `changes` set by set.
pub fn element_changes(changes: &[PortChange]) -> Vec<ElementChange> {
    let mut by_set: BTreeMap<String, ElementChange> = BTreeMap::new();
    for change in changes {
        let (set, element, adds) = match change {
            PortChange::Bridge(name) => {
                (bridges(), Element::key([Value::Interface(name.clone())]), true)
            }
            PortChange::Add(port) => {
                (PortMap::of(&port.forward.from).set(), Element::from(port), true)
            }
            PortChange::Remove(port) => {
                (PortMap::of(port).set(), Element::key(PortMap::key(port)), false)
            }
        };
        let change = by_set.entry(set.name.clone()).or_insert_with(|| ElementChange {
            set: set.name,
            shape: set.shape,
            added: BTreeSet::new(),
            removed: BTreeSet::new(),
        });
        if adds { &mut change.added } else { &mut change.removed }.insert(element);
    }
    by_set.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(address: &str, to: &str) {
        let from =
            HostPort { protocol: Protocol::Sctp, port: 8080, address: address.parse().unwrap() };
        let port = PortElement {
            forward: PortForward { from, to: to.parse().unwrap() },
            comment: Some("humanz net c1 eth0".to_owned()),
            mark: Some(PortMark { store: 7, link: "hz0123456789abc".parse().unwrap() }),
        };
        let map = PortMap::of(&from);
        assert_eq!(map.read(&Element::from(&port)), Some(port));
    }

    #[test]
    fn elements_are_read_back_as_they_were_written() {
        check("0.0.0.0", "10.1.2.3:80");
        check("192.0.2.1", "10.1.2.3:80");
        check("::", "[fd00::3]:80");
        check("2001:db8::1", "[fd00::3]:80");
    }
}
