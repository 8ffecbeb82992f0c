//! Pure. The fields of keys and data: their types, and their bytes in the kernel.
//!
//! Each field of several takes whole groups of 4 bytes, as the kernel's registers do: address of IPv4,
//! protocol and port take 12 bytes.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::net::{AddressRange, Family, IfName, Mac, Protocol};
use crate::netlink::Attributes;
use crate::netlink::wire;
use crate::nft::numbers::{expression as list, set};

/// Bytes of an interface's name: IFNAMSIZ.
const IFNAMSIZ: usize = 16;

/// A type of nft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Ipv4,
    Ipv6,
    Protocol,
    Port,
    /// An interface by its name.
    Interface,
    /// An interface by its index.
    InterfaceIndex,
    /// A MAC: to nft a number of its length.
    Mac,
    /// The state of a connection: bits.
    State,
    Mark,
    /// An address at a place where nft expects none, such as in the packet inside a VXLAN packet: to nft a
    /// number of the address's length.
    Inner(Family),
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    Addresses(AddressRange),
    /// IANA's number.
    Protocol(u8),
    /// First and last.
    Ports(u16, u16),
    Interface(IfName),
    InterfaceIndex(u32),
    Mac(Mac),
    /// A mark, or a connection's state.
    Bits(u32),
}

impl Type {
    /// Those that have a number of their own, and one of the other.
    const ALL: [Type; 9] = [
        Type::Ipv4,
        Type::Ipv6,
        Type::Protocol,
        Type::Port,
        Type::Interface,
        Type::InterfaceIndex,
        Type::State,
        Type::Mark,
        Type::Inner(Family::V4),
    ];

    pub fn address(family: Family) -> Type {
        match family {
            Family::V4 => Type::Ipv4,
            Family::V6 => Type::Ipv6,
        }
    }

    /// nft's own number, which the kernel only keeps (`datatype.h`), and length in bytes.
    fn number(self) -> (u32, u32) {
        match self {
            Type::Ipv4 => (7, 4),
            Type::Ipv6 => (8, 16),
            Type::Protocol => (12, 1),
            Type::Port => (13, 2),
            Type::Mac => (4, 6),
            Type::Mark => (19, 4),
            Type::InterfaceIndex => (20, 4),
            Type::State => (26, 4),
            Type::Inner(family) => (4, u32::from(family.bits() / 8)),
            Type::Interface => (41, IFNAMSIZ as u32),
        }
    }

    fn value(self, first: &[u8], last: &[u8]) -> Option<Value> {
        let port = |bytes: &[u8]| bytes.try_into().ok().map(u16::from_be_bytes);
        match self {
            Type::Ipv4 | Type::Ipv6 | Type::Inner(_) => {
                let range = AddressRange::new(wire::address(first)?, wire::address(last)?)?;
                Some(Value::Addresses(range))
            }
            Type::Protocol => first.first().copied().map(Value::Protocol),
            Type::Port => Some(Value::Ports(port(first)?, port(last)?)),
            Type::Interface => {
                let name = first.split(|byte| *byte == 0).next().unwrap_or_default();
                IfName::found(std::str::from_utf8(name).ok()?).ok().map(Value::Interface)
            }
            Type::InterfaceIndex => {
                first.try_into().ok().map(u32::from_ne_bytes).map(Value::InterfaceIndex)
            }
            Type::Mac => first.try_into().ok().map(Mac).map(Value::Mac),
            Type::State | Type::Mark => {
                first.try_into().ok().map(u32::from_ne_bytes).map(Value::Bits)
            }
        }
    }
}

impl Value {
    pub fn address(address: IpAddr) -> Value {
        Value::Addresses(AddressRange::single(address))
    }

    pub fn port(port: u16) -> Value {
        Value::Ports(port, port)
    }

    /// Address and port.
    pub fn socket(socket: SocketAddr) -> Vec<Value> {
        vec![Value::address(socket.ip()), Value::port(socket.port())]
    }

    pub fn first(&self) -> Vec<u8> {
        match self {
            Value::Addresses(range) => wire::octets(range.first()),
            Value::Protocol(number) => vec![*number],
            Value::Ports(first, _) => first.to_be_bytes().to_vec(),
            Value::Interface(name) => padded(name).to_vec(),
            Value::Mac(mac) => mac.0.to_vec(),
            Value::InterfaceIndex(bits) | Value::Bits(bits) => bits.to_ne_bytes().to_vec(),
        }
    }

    pub fn last(&self) -> Vec<u8> {
        match self {
            Value::Addresses(range) => wire::octets(range.last()),
            Value::Ports(_, last) => last.to_be_bytes().to_vec(),
            other => other.first(),
        }
    }
}

/// An interface's name as nft compares it: filled up with zeros.
pub fn padded(name: &IfName) -> [u8; IFNAMSIZ] {
    let mut bytes = [0; IFNAMSIZ];
    bytes[..name.as_str().len()].copy_from_slice(name.as_str().as_bytes());
    bytes
}

pub fn value(bytes: &[u8]) -> Attributes {
    Attributes::new().put(list::DATA_VALUE, bytes)
}

pub(super) fn bytes(values: &[Value], of: fn(&Value) -> Vec<u8>) -> Vec<u8> {
    if let [value] = values {
        return of(value);
    }
    let mut bytes = Vec::new();
    for value in values {
        bytes.extend(of(value));
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    bytes
}

pub(super) fn values(types: &[Type], first: &[u8], last: &[u8]) -> Option<Vec<Value>> {
    let mut at = 0;
    let mut values = Vec::new();
    for kind in types {
        let end = at + kind.number().1 as usize;
        values.push(kind.value(first.get(at..end)?, last.get(at..end)?)?);
        at = end.next_multiple_of(4);
    }
    Some(values)
}

/// nft's number for a type of these fields, so many bits each and the last one lowest, and its
/// length in bytes.
pub(super) fn concatenation(types: &[Type]) -> (u32, u32) {
    if let [kind] = types {
        return kind.number();
    }
    types.iter().fold((0, 0), |(kind, length), field| {
        let (number, bytes) = field.number();
        (kind << set::TYPE_BITS | number, length + bytes.next_multiple_of(4))
    })
}

pub(super) fn types(kind: u32, length: u32) -> Option<Vec<Type>> {
    let numbers =
        (0..5).rev().map(|at| kind >> (at * set::TYPE_BITS) & ((1 << set::TYPE_BITS) - 1));
    let fields = numbers.skip_while(|number| *number == 0);
    let fields = fields.map(|number| Type::ALL.into_iter().find(|kind| kind.number().0 == number));
    let mut types = fields.collect::<Option<Vec<Type>>>()?;
    // Its number is the same for both families.
    if concatenation(&types) != (kind, length)
        && let Some(inner) = types.iter_mut().find(|found| matches!(found, Type::Inner(_)))
    {
        *inner = Type::Inner(Family::V6);
    }
    (!types.is_empty() && concatenation(&types) == (kind, length)).then_some(types)
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Addresses(range) => range.fmt(f),
            Value::Protocol(number) => match Protocol::of_number(*number) {
                Some(protocol) => protocol.fmt(f),
                None => number.fmt(f),
            },
            Value::Ports(first, last) if first == last => first.fmt(f),
            Value::Ports(first, last) => write!(f, "{first}-{last}"),
            Value::Interface(name) => write!(f, "\"{name}\""),
            Value::InterfaceIndex(index) => index.fmt(f),
            Value::Mac(mac) => mac.fmt(f),
            Value::Bits(bits) => write!(f, "{bits:#x}"),
        }
    }
}
