//! Pure. A rule of a base chain, whoever made it: what it compares of a packet, and its verdict.

use std::net::IpAddr;

use crate::net::{AddressRange, Family, IfName};
use crate::netlink::wire::octets;
use crate::nft::Verdict;
use crate::nft::base_chains::direction::Direction;
use crate::nft::expression::family_number;

/// IFNAMSIZ: what an interface's name is filled up to.
const IFNAMSIZ: usize = 16;

/// NF_CT_STATE_BIT(IP_CT_NEW), as nft and the `conntrack` extension of iptables count.
pub const STATE_NEW: u32 = 8;

/// The first packet of a connection: no mark, no flag, no other state than that it is new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The interface that it came in by.
    pub input: &'a str,
    /// The interface that it goes out by.
    pub output: &'a str,
    pub source: IpAddr,
    pub destination: IpAddr,
    /// Protocol (IANA's number) and destination port; `None` if no rule about one concerns it.
    pub transport: Option<(u8, u16)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainRule {
    /// The kernel's number for it; `None` in older tables.
    pub handle: Option<u64>,
    /// All of them must hold.
    pub matches: Vec<Match>,
    pub verdict: Verdict,
    pub comment: Option<String>,
}

/// A comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    pub field: Field,
    /// What is left of the field, as far as this goes.
    pub mask: Option<Vec<u8>>,
    pub test: Test,
    pub negated: bool,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The name of an interface, filled up with zeros.
    Interface(Direction),
    /// The first bytes of an address: how many.
    Address(End, Family, usize),
    /// The number of its family.
    Family,
    Protocol,
    DestinationPort,
    /// The state of its connection, in the host's byte order.
    State,
    /// Marks and flags: 4 bytes that are 0.
    Zero,
    /// Something that only few packets have: no comparison is true.
    Special,
    /// Not known here.
    Unknown,
}

/// Which address of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Source,
    Destination,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// The field begins with these bytes.
    Begins(Vec<u8>),
    /// It is in one of these ranges, first and last.
    Within(Vec<(Vec<u8>, Vec<u8>)>),
    /// Not known here.
    Unknown,
}

impl ChainRule {
    /// It accepts everything that comes in, or goes out, by `bridge`, and nothing else.
    pub fn accepts(&self, direction: Direction, bridge: &IfName) -> bool {
        let [only] = &self.matches[..] else { return false };
        let Test::Begins(name) = &only.test else { return false };
        let field = Field::Interface(direction);
        let name = name.split(|byte| *byte == 0).next().filter(|start| start.len() < name.len());
        self.verdict == Verdict::Accept
            && (only.field, only.negated) == (field, false)
            && name == Some(bridge.as_str().as_bytes())
    }
}

impl Match {
    pub fn new(field: Field, test: Test) -> Match {
        Match { field, mask: None, test, negated: false }
    }

    /// No ordinary packet fulfils it.
    pub fn never() -> Match {
        Match::new(Field::Special, Test::Begins(Vec::new()))
    }

    pub fn unknown() -> Match {
        Match::new(Field::Unknown, Test::Unknown)
    }

    /// An interface of exactly this name.
    pub fn interface(direction: Direction, name: &str) -> Match {
        Match::new(Field::Interface(direction), Test::Begins([name.as_bytes(), &[0]].concat()))
    }

    /// An interface whose name begins so.
    pub fn interfaces(direction: Direction, start: &str) -> Match {
        Match::new(Field::Interface(direction), Test::Begins(start.into()))
    }

    /// An address in one of `ranges`, all of one family.
    pub fn address(end: End, ranges: &[AddressRange]) -> Match {
        let family = ranges.first().map_or(Family::V4, |range| Family::of(range.first()));
        let within = ranges.iter().map(|range| (octets(range.first()), octets(range.last())));
        let field = Field::Address(end, family, usize::from(family.bits() / 8));
        Match::new(field, Test::Within(within.collect()))
    }

    pub fn protocol(number: u8) -> Match {
        Match::new(Field::Protocol, Test::Begins(vec![number]))
    }

    /// A destination port in one of these ranges, first and last.
    pub fn ports(ranges: &[(u16, u16)]) -> Match {
        let bytes = |port: u16| port.to_be_bytes().to_vec();
        let within = ranges.iter().map(|(first, last)| (bytes(*first), bytes(*last)));
        Match::new(Field::DestinationPort, Test::Within(within.collect()))
    }

    #[must_use]
    pub fn negated(self, negated: bool) -> Match {
        Match { negated: self.negated != negated, ..self }
    }

    /// Whether `packet` fulfils it; `None` if that is not known.
    pub fn holds(&self, packet: &Packet<'_>) -> Option<bool> {
        if self.field == Field::Unknown {
            return None;
        }
        let Some(mut bytes) = self.field.bytes(packet) else { return Some(self.negated) };
        for (byte, mask) in bytes.iter_mut().zip(self.mask.iter().flatten()) {
            *byte &= mask;
        }
        let is = match &self.test {
            Test::Begins(wanted) => bytes.starts_with(wanted),
            Test::Within(ranges) => ranges.iter().any(|(first, last)| {
                first.len() == bytes.len() && *first <= bytes && bytes <= *last
            }),
            Test::Unknown => return None,
        };
        Some(is != self.negated)
    }

    pub fn is_of_address(&self) -> bool {
        matches!(self.field, Field::Address(..))
    }

    /// It is about an interface or an address.
    pub fn is_targeted(&self) -> bool {
        self.is_of_address() || matches!(self.field, Field::Interface(_))
    }
}

impl Field {
    /// `None` if an ordinary packet has no such thing.
    fn bytes(self, packet: &Packet<'_>) -> Option<Vec<u8>> {
        let name = |name: &str| {
            let mut bytes = name.as_bytes().to_vec();
            bytes.resize(IFNAMSIZ, 0);
            bytes
        };
        match self {
            Field::Interface(Direction::In) => Some(name(packet.input)),
            Field::Interface(Direction::Out) => Some(name(packet.output)),
            Field::Address(end, family, length) => {
                let address = match end {
                    End::Source => packet.source,
                    End::Destination => packet.destination,
                };
                let octets = (Family::of(address) == family).then(|| octets(address))?;
                octets.get(..length).map(<[u8]>::to_vec)
            }
            Field::Family => Some(vec![family_number(Family::of(packet.source))]),
            Field::Protocol => packet.transport.map(|(protocol, _)| vec![protocol]),
            Field::DestinationPort => packet.transport.map(|(_, port)| port.to_be_bytes().to_vec()),
            Field::State => Some(STATE_NEW.to_ne_bytes().to_vec()),
            Field::Zero => Some(vec![0; 4]),
            Field::Special | Field::Unknown => None,
        }
    }
}
