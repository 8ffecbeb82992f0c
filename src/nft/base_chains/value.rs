//! Pure. What a register of an nftables rule holds, and what a comparison with it asks.

use crate::net::{AddressRange, Family, subnet};
use crate::netlink::wire;
use crate::nft::Value;
use crate::nft::numbers::family;

use crate::nft::base_chains::chain::Direction;
use crate::nft::base_chains::numbers as n;
use crate::nft::base_chains::rule::{Criterion, End, Match, NamePattern};

/// What was loaded of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// The name of an interface.
    Interface(Direction),
    /// Its index.
    Index(Direction),
    /// The first bytes of an address: how many bits.
    Address(End, Family, u8),
    /// The number of its family.
    Family,
    /// Ethernet's number of its family.
    Ethertype,
    /// The number of its protocol.
    Protocol,
    /// The port that it goes to.
    Port,
    /// The state of its connection: what is left of that of a new one.
    State(u32),
    /// Marks and flags, of which an ordinary packet has none.
    Zero,
    /// Something that not every packet has.
    Special,
    /// Part of an address that is no prefix.
    Unknown,
}

/// `bytes` of the network header at `offset` (RFC 791 §3.1, RFC 8200 §3). The two families have
/// their addresses at different places.
pub fn known(offset: u32, bytes: u32) -> Loaded {
    let (end, family, whole) = match offset {
        12 => (End::Source, Family::V4, 4),
        16 => (End::Destination, Family::V4, 4),
        8 => (End::Source, Family::V6, 16),
        24 => (End::Destination, Family::V6, 16),
        // The protocol of IPv4, and the next header of IPv6.
        9 | 6 if bytes == 1 => return Loaded::Protocol,
        _ => return Loaded::Special,
    };
    // One byte there is the time to live of IPv4.
    if bytes > whole || (offset == 8 && bytes == 1) {
        return Loaded::Special;
    }
    Loaded::Address(end, family, 8 * bytes as u8)
}

impl Loaded {
    /// What is left of it behind a mask.
    pub fn masked(self, mask: &[u8]) -> Loaded {
        match self {
            Loaded::Address(end, family, bits) => match prefix(mask) {
                Some(prefix) => Loaded::Address(end, family, bits.min(prefix)),
                None => Loaded::Unknown,
            },
            Loaded::State(state) => match <[u8; 4]>::try_from(mask) {
                Ok(mask) => Loaded::State(state & u32::from_ne_bytes(mask)),
                Err(_) => Loaded::Unknown,
            },
            // `ct status dnat`, `tcp flags syn`: are there any of these?
            _ => Loaded::Zero,
        }
    }

    /// That it is `value`, or is not. `name` gives an interface's name by its index.
    pub fn equals(
        &self,
        value: &[u8],
        negated: bool,
        name: &dyn Fn(u32) -> Option<String>,
    ) -> Vec<Match> {
        let asks = match self {
            Loaded::Interface(direction) => Criterion::Interface(*direction, vec![pattern(value)]),
            Loaded::Index(direction) => match number(value).and_then(name) {
                Some(name) => Criterion::Interface(*direction, vec![NamePattern::exact(&name)]),
                None => Criterion::Special,
            },
            Loaded::Address(end, family, bits) => match network(*family, *bits, value) {
                Some(range) => Criterion::Address(*end, vec![range]),
                None => Criterion::Unknown,
            },
            Loaded::Protocol => match value {
                [protocol] => Criterion::Protocol(vec![*protocol]),
                _ => Criterion::Special,
            },
            Loaded::Port => match <[u8; 2]>::try_from(value).map(u16::from_be_bytes) {
                Ok(port) => Criterion::Port(vec![(port, port)]),
                Err(_) => Criterion::Special,
            },
            Loaded::Family | Loaded::Ethertype => match of_number(value) {
                Some(family) => Criterion::Family(family),
                None => Criterion::Special,
            },
            Loaded::State(state) => return decided((number(value) == Some(*state)) != negated),
            Loaded::Zero => return decided(value.iter().all(|byte| *byte == 0) != negated),
            Loaded::Special => Criterion::Special,
            Loaded::Unknown => Criterion::Unknown,
        };
        vec![Match { asks, negated }]
    }

    /// That it is one of `values`, or is not.
    pub fn is_among<'a>(
        &self,
        values: impl Iterator<Item = &'a Value>,
        negated: bool,
    ) -> Vec<Match> {
        let values: Vec<&Value> = values.collect();
        let asks = match self {
            Loaded::Special | Loaded::Zero => Some(Criterion::Special),
            Loaded::Interface(direction) => {
                names(&values).map(|names| Criterion::Interface(*direction, names))
            }
            Loaded::Address(end, ..) => all(&values, |value| match value {
                Value::Addresses(range) => Some(*range),
                _ => None,
            })
            .map(|ranges| Criterion::Address(*end, ranges)),
            Loaded::Protocol => all(&values, |value| match value {
                Value::Protocol(number) => Some(*number),
                _ => None,
            })
            .map(Criterion::Protocol),
            Loaded::Port => all(&values, |value| match value {
                Value::Ports(first, last) => Some((*first, *last)),
                _ => None,
            })
            .map(Criterion::Port),
            Loaded::State(state) => {
                return decided(values.contains(&&Value::Bits(*state)) != negated);
            }
            _ => None,
        };
        vec![Match { asks: asks.unwrap_or(Criterion::Unknown), negated }]
    }

    /// That it is less or more than something.
    pub fn is_between(&self) -> Match {
        match self {
            Loaded::Special | Loaded::Zero => Criterion::Special.holds(),
            _ => Criterion::Unknown.holds(),
        }
    }
}

/// No condition, or one that no ordinary packet meets.
fn decided(holds: bool) -> Vec<Match> {
    if holds { Vec::new() } else { vec![Criterion::Special.holds()] }
}

fn all<T>(values: &[&Value], of: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    values.iter().map(|value| of(value)).collect()
}

fn names(values: &[&Value]) -> Option<Vec<NamePattern>> {
    all(values, |value| match value {
        Value::Interface(name) => Some(NamePattern::exact(name.as_str())),
        _ => None,
    })
}

/// With a final zero it is a name, without one the start of names.
fn pattern(value: &[u8]) -> NamePattern {
    let end = value.iter().position(|byte| *byte == 0);
    let text = String::from_utf8_lossy(&value[..end.unwrap_or(value.len())]).into_owned();
    NamePattern { text, open: end.is_none() }
}

/// In the host's byte order.
fn number(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_ne_bytes)
}

fn of_number(value: &[u8]) -> Option<Family> {
    match value {
        [family::IPV4] => Some(Family::V4),
        [family::IPV6] => Some(Family::V6),
        value if value == n::ETHERTYPE_IPV4 => Some(Family::V4),
        value if value == n::ETHERTYPE_IPV6 => Some(Family::V6),
        _ => None,
    }
}

fn network(family: Family, bits: u8, value: &[u8]) -> Option<AddressRange> {
    let mut octets = vec![0; usize::from(family.bits() / 8)];
    octets.get_mut(..value.len())?.copy_from_slice(value);
    let address = wire::address(&octets)?;
    Some(AddressRange::from(subnet::with_prefix(address, bits)))
}

/// How many bits of the mask are set; `None` unless those are the first ones.
fn prefix(mask: &[u8]) -> Option<u8> {
    let ones = mask.iter().map(|byte| byte.count_ones() as u8).sum::<u8>();
    let leading = mask.iter().take_while(|byte| **byte == 0xff).count();
    let rest = mask.get(leading).map_or(0, |byte| byte.leading_ones() as u8);
    (ones == 8 * leading as u8 + rest).then_some(ones)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(loaded: Loaded, value: &[u8], wanted: &[Match]) {
        assert_eq!(loaded.equals(value, false, &|index| (index == 1).then(|| "lo".into())), wanted);
    }

    fn from(network: &str) -> Match {
        let network: ipnetwork::IpNetwork = network.parse().unwrap();
        Criterion::Address(End::Source, vec![network.into()]).holds()
    }

    #[test]
    fn a_prefix_is_compared_by_its_bytes_or_through_a_mask() {
        check(known(12, 1), &[10], &[from("10.0.0.0/8")]);
        check(known(12, 4).masked(&[255, 128, 0, 0]), &[10, 128, 0, 0], &[from("10.128.0.0/9")]);
        check(known(8, 6), &[0xfd, 0, 0, 0, 0, 1], &[from("fd00:0:1::/48")]);
    }

    #[test]
    fn a_mask_that_is_no_prefix_is_not_understood() {
        let loaded = known(12, 4).masked(&[255, 0, 255, 0]);
        check(loaded, &[10, 0, 1, 0], &[Criterion::Unknown.holds()]);
    }

    #[test]
    fn protocols_and_ports_are_known() {
        check(known(9, 1), &[17], &[Criterion::Protocol(vec![17]).holds()]);
        check(Loaded::Port, &[0x28, 0xa0], &[Criterion::Port(vec![(10400, 10400)]).holds()]);
    }

    #[test]
    fn other_fields_of_the_header_are_special() {
        assert_eq!(known(1, 1), Loaded::Special);
        assert_eq!(known(8, 1), Loaded::Special);
    }

    #[test]
    fn the_state_of_a_new_connection_is_known() {
        let state = Loaded::State(n::STATE_NEW);
        let zero = 0u32.to_ne_bytes();
        let established = state.clone().masked(&6u32.to_ne_bytes());
        assert_eq!(established.equals(&zero, true, &|_| None), [Criterion::Special.holds()]);
        let new = state.masked(&8u32.to_ne_bytes());
        assert_eq!(new.equals(&zero, true, &|_| None), []);
    }

    #[test]
    fn an_ordinary_packet_has_no_marks_and_flags() {
        let special = [Criterion::Special.holds()];
        let masked = Loaded::Special.masked(&[0x20]);
        assert_eq!(masked.equals(&[0], true, &|_| None), special);
        assert_eq!(Loaded::Zero.equals(&[0x40], false, &|_| None), special);
        assert_eq!(Loaded::Zero.equals(&[0x40], true, &|_| None), []);
    }

    #[test]
    fn an_index_is_the_interface_that_has_it() {
        let lo = Criterion::Interface(Direction::In, vec![NamePattern::exact("lo")]);
        check(Loaded::Index(Direction::In), &1u32.to_ne_bytes(), &[lo.holds()]);
        check(Loaded::Index(Direction::In), &9u32.to_ne_bytes(), &[Criterion::Special.holds()]);
    }

    #[test]
    fn families_have_two_numbers() {
        check(Loaded::Family, &[10], &[Criterion::Family(Family::V6).holds()]);
        check(Loaded::Ethertype, &[8, 0], &[Criterion::Family(Family::V4).holds()]);
    }
}
