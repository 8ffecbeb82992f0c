//! Pure. Sets and maps: typed keys and data, and their bytes in the kernel.
//!
//! A key or data of several fields has each of them in whole groups of 4 bytes, as the kernel's
//! registers do: address of IPv4, protocol and port take 12 bytes.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::net::{AddressRange, Family, IfName, Protocol};
use crate::netlink::wire;
use crate::netlink::{AttributeList, Attributes, NetlinkError};
use crate::nft::numbers::{expression as list, set};
use crate::nft::userdata::{self, Userdata};
use crate::nft::verdict::Verdict;

/// Bytes of an interface's name: IFNAMSIZ.
const IFNAMSIZ: usize = 16;

/// A named set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Unique in the table.
    pub name: String,
    pub shape: Shape,
    /// Ranges must not touch each other ([`crate::net::range::covering`]).
    pub elements: BTreeSet<Element>,
}

/// What a set or map holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The fields of a key, at most 5.
    pub key: Vec<Type>,
    /// Of a map: what it holds for a key.
    pub data: Option<DataType>,
    /// Keys are ranges (`flags interval`): of one field, an address or a port.
    pub intervals: bool,
}

/// What a map holds for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataType {
    /// These fields.
    Values(Vec<Type>),
    Verdict,
}

/// A type of nft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Ipv4,
    Ipv6,
    Protocol,
    Port,
    /// An interface by its name.
    Interface,
    /// The state of a connection: bits.
    State,
    Mark,
    /// An address of the packet inside a VXLAN packet: to nft a number of the address's length.
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
    /// A mark, or a connection's state.
    Bits(u32),
}

/// An element of a set or map.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Element {
    pub key: Vec<Value>,
    pub data: Option<Data>,
    pub userdata: Userdata,
}

/// What a map holds for a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Data {
    Values(Vec<Value>),
    Verdict(Verdict),
}

/// Elements to add to and to remove from one set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElementChange {
    /// The set's name.
    pub set: String,
    pub shape: Shape,
    pub added: BTreeSet<Element>,
    pub removed: BTreeSet<Element>,
}

/// An element as the kernel lists it.
#[derive(Clone, Debug)]
pub struct Entry {
    key: Vec<u8>,
    /// It is the first key behind a range.
    is_end: bool,
    data: Option<RawData>,
    userdata: Userdata,
}

#[derive(Clone, Debug)]
enum RawData {
    Value(Vec<u8>),
    Verdict(Verdict),
}

impl Shape {
    /// A set of single keys.
    pub fn set(key: impl Into<Vec<Type>>) -> Shape {
        Shape { key: key.into(), data: None, intervals: false }
    }

    /// A map from keys to values.
    pub fn map(key: impl Into<Vec<Type>>, data: impl Into<Vec<Type>>) -> Shape {
        Shape { data: Some(DataType::Values(data.into())), ..Shape::set(key) }
    }

    /// A map from keys to verdicts.
    pub fn verdicts(key: impl Into<Vec<Type>>) -> Shape {
        Shape { data: Some(DataType::Verdict), ..Shape::set(key) }
    }

    /// The shape that the attributes of a set give; `None` if it holds more than can be read here.
    pub fn read(attributes: &AttributeList) -> Option<Shape> {
        let flags = attributes.be32(set::FLAGS).unwrap_or(0);
        let known = match is_anonymous(attributes) {
            true => set::INTERVAL | set::MAP | set::ANONYMOUS | set::CONSTANT,
            false => set::INTERVAL | set::MAP,
        };
        if flags & !known != 0 {
            return None;
        }
        let key = types(attributes.be32(set::KEY_TYPE)?, attributes.be32(set::KEY_LENGTH)?)?;
        let data = match (flags & set::MAP != 0, attributes.be32(set::DATA_TYPE)) {
            (false, _) => None,
            (true, Some(set::TYPE_VERDICT)) => Some(DataType::Verdict),
            (true, kind) => {
                Some(DataType::Values(types(kind?, attributes.be32(set::DATA_LENGTH)?)?))
            }
        };
        let intervals = flags & set::INTERVAL != 0;
        let is_range = matches!(key[..], [Type::Ipv4 | Type::Ipv6 | Type::Port]);
        (is_range || !intervals).then_some(Shape { key, data, intervals })
    }

    /// The attributes of a set of this shape.
    pub(super) fn attributes(&self, attributes: Attributes) -> Attributes {
        let interval = if self.intervals { set::INTERVAL } else { 0 };
        let map = if self.data.is_some() { set::MAP } else { 0 };
        let (kind, length) = concatenation(&self.key);
        let attributes = attributes
            .be32(set::FLAGS, interval | map)
            .be32(set::KEY_TYPE, kind)
            .be32(set::KEY_LENGTH, length);
        let attributes = match &self.data {
            None => attributes,
            Some(DataType::Verdict) => attributes.be32(set::DATA_TYPE, set::TYPE_VERDICT),
            Some(DataType::Values(types)) => {
                let (kind, length) = concatenation(types);
                attributes.be32(set::DATA_TYPE, kind).be32(set::DATA_LENGTH, length)
            }
        };
        let userdata = match self.key[..] {
            [Type::Interface] => Some(Userdata::host_byte_order()),
            [Type::Ipv4, Type::Inner(inner)] => Some(userdata::sender(Family::V4, inner)),
            [Type::Ipv6, Type::Inner(inner)] => Some(userdata::sender(Family::V6, inner)),
            _ => None,
        };
        attributes.put_some(set::USERDATA, userdata)
    }

    /// The elements that `entries` stand for, in any order; those that cannot be read are left out.
    pub fn elements(&self, mut entries: Vec<Entry>) -> BTreeSet<Element> {
        if !self.intervals {
            return entries.iter().filter_map(|entry| self.element(entry, &entry.key)).collect();
        }
        // An end comes before a start at the same key.
        entries.sort_by(|a, b| (&a.key, !a.is_end).cmp(&(&b.key, !b.is_end)));
        let starts = entries.iter().enumerate().filter(|(_, entry)| !entry.is_end);
        let element = |(at, entry): (usize, &Entry)| {
            let last = match entries.get(at + 1) {
                Some(next) => before(&next.key),
                None => vec![u8::MAX; entry.key.len()],
            };
            self.element(entry, &last)
        };
        starts.filter_map(element).collect()
    }

    fn element(&self, entry: &Entry, last: &[u8]) -> Option<Element> {
        let data = match (&self.data, &entry.data) {
            (Some(DataType::Values(types)), Some(RawData::Value(bytes))) => {
                Some(Data::Values(values(types, bytes, bytes)?))
            }
            (Some(DataType::Verdict), Some(RawData::Verdict(verdict))) => {
                Some(Data::Verdict(verdict.clone()))
            }
            (Some(_), _) => return None,
            (None, _) => None,
        };
        let key = values(&self.key, &entry.key, last)?;
        Some(Element { key, data, userdata: entry.userdata.clone() })
    }

    /// The attributes of an element: two lists for a range, its first key and the first behind it.
    pub(super) fn encode(&self, element: &Element, with_data: bool) -> Vec<Attributes> {
        let (first, last) = element.bounds();
        let mut start = Attributes::new().nest(set::ELEMENT_KEY, value(&first));
        if with_data {
            start = match &element.data {
                None => start,
                Some(Data::Values(values)) => {
                    start.nest(set::ELEMENT_DATA, value(&bytes(values, Value::first)))
                }
                Some(Data::Verdict(verdict)) => start.nest(set::ELEMENT_DATA, verdict.encode()),
            };
            let userdata = Some(element.userdata.bytes()).filter(|bytes| !bytes.is_empty());
            start = start.put_some(set::ELEMENT_USERDATA, userdata);
        }
        let mut list = vec![start];
        if let Some(behind) = behind(last).filter(|_| self.intervals) {
            let end = Attributes::new().nest(set::ELEMENT_KEY, value(&behind));
            list.push(end.be32(set::ELEMENT_FLAGS, set::INTERVAL_END));
        }
        list
    }
}

/// The set has no name of its own: it is part of a rule.
pub fn is_anonymous(attributes: &AttributeList) -> bool {
    attributes.be32(set::FLAGS).unwrap_or(0) & set::ANONYMOUS != 0
}

/// The entries of one part of a list.
///
/// # Errors
/// [`NetlinkError::Malformed`].
pub fn entries(attributes: &AttributeList) -> Result<Vec<Entry>, NetlinkError> {
    let Some(elements) = attributes.nested(set::LIST_ELEMENTS)? else { return Ok(Vec::new()) };
    let mut entries = Vec::new();
    for (_, element) in elements.iter() {
        let element = AttributeList::parse(element)?;
        let Some(key) = element.nested(set::ELEMENT_KEY)? else { continue };
        let Some(key) = key.get(list::DATA_VALUE) else { continue };
        let data = match element.nested(set::ELEMENT_DATA)? {
            None => None,
            Some(data) => match data.nested(list::DATA_VERDICT)? {
                Some(verdict) => Verdict::read(&verdict).map(RawData::Verdict),
                None => data.get(list::DATA_VALUE).map(|value| RawData::Value(value.to_vec())),
            },
        };
        let is_end = element.be32(set::ELEMENT_FLAGS).unwrap_or(0) & set::INTERVAL_END != 0;
        let userdata = Userdata::read(element.get(set::ELEMENT_USERDATA).unwrap_or_default());
        entries.push(Entry { key: key.to_vec(), is_end, data, userdata });
    }
    Ok(entries)
}

impl Element {
    /// An element of a set, or one of a map to remove.
    pub fn key(key: impl Into<Vec<Value>>) -> Element {
        Element { key: key.into(), data: None, userdata: Userdata::default() }
    }

    /// The first and the last key in bytes, as the kernel compares them.
    pub(super) fn bounds(&self) -> (Vec<u8>, Vec<u8>) {
        (bytes(&self.key, Value::first), bytes(&self.key, Value::last))
    }
}

impl From<AddressRange> for Element {
    fn from(range: AddressRange) -> Element {
        Element::key([Value::Addresses(range)])
    }
}

impl Type {
    /// Those that have a number of their own, and one of the other.
    const ALL: [Type; 8] = [
        Type::Ipv4,
        Type::Ipv6,
        Type::Protocol,
        Type::Port,
        Type::Interface,
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
            Type::Mark => (19, 4),
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

    pub(super) fn first(&self) -> Vec<u8> {
        match self {
            Value::Addresses(range) => wire::octets(range.first()),
            Value::Protocol(number) => vec![*number],
            Value::Ports(first, _) => first.to_be_bytes().to_vec(),
            Value::Interface(name) => padded(name).to_vec(),
            Value::Bits(bits) => bits.to_ne_bytes().to_vec(),
        }
    }

    pub(super) fn last(&self) -> Vec<u8> {
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

fn bytes(values: &[Value], of: fn(&Value) -> Vec<u8>) -> Vec<u8> {
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

fn values(types: &[Type], first: &[u8], last: &[u8]) -> Option<Vec<Value>> {
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
fn concatenation(types: &[Type]) -> (u32, u32) {
    if let [kind] = types {
        return kind.number();
    }
    types.iter().fold((0, 0), |(kind, length), field| {
        let (number, bytes) = field.number();
        (kind << set::TYPE_BITS | number, length + bytes.next_multiple_of(4))
    })
}

fn types(kind: u32, length: u32) -> Option<Vec<Type>> {
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

/// The key behind `key`, if there is one.
fn behind(mut key: Vec<u8>) -> Option<Vec<u8>> {
    for byte in key.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            return Some(key);
        }
    }
    None
}

fn before(key: &[u8]) -> Vec<u8> {
    let mut key = key.to_vec();
    for byte in key.iter_mut().rev() {
        *byte = byte.wrapping_sub(1);
        if *byte != u8::MAX {
            break;
        }
    }
    key
}

impl fmt::Display for Element {
    /// As nft writes it: `10.0.0.1 . tcp . 80 : 10.1.2.3 . 80`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        joined(f, &self.key)?;
        match &self.data {
            None => Ok(()),
            Some(data) => {
                f.write_str(" : ")?;
                match data {
                    Data::Values(values) => joined(f, values),
                    Data::Verdict(verdict) => write!(f, "{verdict}"),
                }
            }
        }
    }
}

fn joined(f: &mut fmt::Formatter<'_>, values: &[Value]) -> fmt::Result {
    for (at, value) in values.iter().enumerate() {
        let dot = if at > 0 { " . " } else { "" };
        write!(f, "{dot}{value}")?;
    }
    Ok(())
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
            Value::Bits(bits) => write!(f, "{bits:#x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::net::range::covering;
    use crate::net::subnet;

    fn ranges(family: Family) -> Shape {
        Shape { intervals: true, ..Shape::set([Type::address(family)]) }
    }

    /// The entries that the kernel lists of an element.
    fn listed(shape: &Shape, element: &Element) -> Vec<Entry> {
        let list = |elements: Attributes, element| elements.nest(list::LIST_ELEMENT, element);
        let elements = shape.encode(element, true).into_iter().fold(Attributes::new(), list);
        let reply = Attributes::new().nest(set::LIST_ELEMENTS, elements).into_bytes();
        entries(&AttributeList::parse(&reply).unwrap()).unwrap()
    }

    /// Checks the keys in bytes, an end with `!`, of a range.
    fn check_range(first: &str, last: &str, wanted: &[(&str, bool)]) {
        let range = AddressRange::new(first.parse().unwrap(), last.parse().unwrap()).unwrap();
        let shape = ranges(Family::of(range.first()));
        let entries = listed(&shape, &range.into());
        let found: Vec<_> = entries
            .iter()
            .map(|entry| (wire::address(&entry.key).unwrap().to_string(), entry.is_end))
            .collect();
        let wanted: Vec<_> =
            wanted.iter().map(|(key, is_end)| ((*key).to_owned(), *is_end)).collect();
        assert_eq!(found, wanted);
    }

    #[test]
    fn a_range_is_its_first_address_and_the_one_behind_it() {
        let wanted = [("10.0.0.0", false), ("11.0.0.0", true)];
        check_range("10.0.0.0", "10.255.255.255", &wanted);
    }

    #[test]
    fn a_range_up_to_the_last_address_has_no_end() {
        check_range("255.255.255.255", "255.255.255.255", &[("255.255.255.255", false)]);
        let last = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        check_range("ff00::", last, &[("ff00::", false)]);
    }

    /// Checks the elements of a set of ranges with these keys, true for an end.
    fn check_keys(keys: &[(&str, bool)], wanted: &[&str]) {
        let entry = |(key, is_end): &(&str, bool)| Entry {
            key: wire::octets(key.parse().unwrap()),
            is_end: *is_end,
            data: None,
            userdata: Userdata::default(),
        };
        let family = Family::of(keys[0].0.parse().unwrap());
        let elements = ranges(family).elements(keys.iter().map(entry).collect());
        let found: Vec<_> = elements.iter().map(ToString::to_string).collect();
        assert_eq!(found, wanted);
    }

    #[test]
    fn a_start_and_an_end_are_a_range() {
        check_keys(&[("11.0.0.0", true), ("10.0.0.0", false)], &["10.0.0.0/8"]);
    }

    #[test]
    fn a_last_start_without_end_goes_to_the_end_of_the_space() {
        check_keys(&[("ff00::", false)], &["ff00::/8"]);
        check_keys(&[("255.255.255.255", false)], &["255.255.255.255"]);
    }

    #[test]
    fn the_end_that_nft_puts_at_the_start_of_the_space_is_nothing() {
        check_keys(&[("0.0.0.0", true), ("10.0.0.0", false), ("11.0.0.0", true)], &["10.0.0.0/8"]);
    }

    #[test]
    fn ranges_that_touch_are_kept_apart() {
        let keys =
            [("10.0.0.0", false), ("10.1.0.0", true), ("10.1.0.0", false), ("10.2.0.0", true)];
        check_keys(&keys, &["10.0.0.0/16", "10.1.0.0/16"]);
    }

    #[test]
    fn ranges_of_ports_end_before_the_next_key() {
        let shape = Shape { intervals: true, ..Shape::set([Type::Port]) };
        let written = [(22, 22), (80, u16::MAX)]
            .map(|(first, last)| Element::key([Value::Ports(first, last)]));
        let entries: Vec<_> = written.iter().flat_map(|element| listed(&shape, element)).collect();
        assert_eq!(entries.len(), 3);
        assert_eq!(shape.elements(entries), written.into());
    }

    #[test]
    fn elements_of_a_map_are_read_back_with_data_and_userdata() {
        let address = |text: &str| Value::address(text.parse().unwrap());
        let userdata = Userdata { fingerprint: Some(7), ..Userdata::comment("net c1 eth0") };
        let shape = Shape::map([Type::Ipv6, Type::Protocol, Type::Port], [Type::Ipv4, Type::Port]);
        let data = Some(Data::Values(vec![address("10.1.2.3"), Value::port(80)]));
        let key = vec![address("2001:db8::1"), Value::Protocol(132), Value::port(8080)];
        let element = Element { key, data, userdata: userdata.clone() };
        assert_eq!(shape.elements(listed(&shape, &element)), [element.clone()].into());
        assert_eq!(element.to_string(), "2001:db8::1 . sctp . 8080 : 10.1.2.3 . 80");
        let shape = Shape { data: Some(DataType::Verdict), ..Shape::set([Type::Interface]) };
        let key = vec![Value::Interface("humanz0".parse().unwrap())];
        let data = Some(Data::Verdict(Verdict::Goto("pods".to_owned())));
        let element = Element { key, data, userdata };
        assert_eq!(shape.elements(listed(&shape, &element)), [element.clone()].into());
        assert_eq!(element.to_string(), "\"humanz0\" : goto pods");
    }

    #[test]
    fn shapes_are_read_back_and_types_are_those_of_nft() {
        assert_eq!(concatenation(&[Type::Protocol, Type::Port]), (781, 8));
        assert_eq!(concatenation(&[Type::Ipv6, Type::Protocol, Type::Port]).1, 24);
        let verdicts = Shape { data: Some(DataType::Verdict), ..Shape::set([Type::Ipv4]) };
        let map = Shape::map([Type::Ipv4, Type::Mark], [Type::Ipv6, Type::Port]);
        for shape in [Shape::set([Type::Interface]), ranges(Family::V6), verdicts, map] {
            let bytes = shape.attributes(Attributes::new()).into_bytes();
            assert_eq!(Shape::read(&AttributeList::parse(&bytes).unwrap()), Some(shape));
        }
    }

    #[test]
    fn broken_bytes_give_nothing() {
        for bytes in [&b""[..], b"\x06\0\0\0", b"\x06\0\0\0\x50"] {
            assert_eq!(values(&[Type::Protocol, Type::Port], bytes, bytes), None);
        }
        assert_eq!(types(0, 4), None);
    }

    proptest! {
        #[test]
        fn ranges_are_read_back_as_they_were_written(
            networks in vec((any::<u32>(), 0..=32u8, any::<u128>(), 0..=128u8), 0..40)
        ) {
            for family in Family::BOTH {
                let networks = networks.iter().map(|(v4, short, v6, long)| match family {
                    Family::V4 => subnet::with_prefix(Ipv4Addr::from(*v4).into(), *short),
                    Family::V6 => subnet::with_prefix(Ipv6Addr::from(*v6).into(), *long),
                });
                let wanted: BTreeSet<_> = covering(networks).into_iter().map(Element::from).collect();
                let shape = ranges(family);
                // The kernel lists them backwards.
                let entries = wanted.iter().flat_map(|element| listed(&shape, element));
                let entries: Vec<_> = entries.collect();
                let entries = entries.into_iter().rev().collect();
                prop_assert_eq!(shape.elements(entries), wanted);
            }
        }
    }
}
