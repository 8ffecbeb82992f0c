//! Pure. A rule of a base chain, whoever made it: what it compares of a packet, and its verdict.

use std::net::IpAddr;

use crate::net::{AddressRange, Family, IfName};
use crate::netlink::wire::octets;
use crate::nft::Verdict;
use crate::nft::base_chains::direction::HookDirection;
use crate::nft::numbers::family;

/// IFNAMSIZ: what an interface's name is filled up to.
const IFNAMSIZ: usize = 16;

/// NF_CT_STATE_BIT(IP_CT_NEW), as nft and the `conntrack` extension of iptables count.
pub const STATE_NEW: u32 = 8;

/// The first packet of a connection: no mark, no flag, no other state than that it is new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstPacket<'a> {
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
    pub matches: Vec<RuleMatch>,
    pub verdict: Verdict,
    pub comment: Option<String>,
}

/// A comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleMatch {
    pub field: PacketField,
    /// What is left of the field, as far as this goes.
    pub mask: Option<Vec<u8>>,
    pub test: Comparison,
    pub negated: bool,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketField {
    /// The name of an interface, filled up with zeros.
    Interface(HookDirection),
    /// The first bytes of an address: how many.
    Address(PacketAddress, Family, usize),
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
pub enum PacketAddress {
    Source,
    Destination,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// The field begins with these bytes.
    Begins(Vec<u8>),
    /// It is in one of these ranges, first and last.
    Within(Vec<(Vec<u8>, Vec<u8>)>),
    /// Not known here.
    Unknown,
}

impl ChainRule {
    /// The one address that its packets come from, if it compares that.
    pub fn source(&self) -> Option<IpAddr> {
        self.matches.iter().find_map(|compared| {
            let PacketField::Address(PacketAddress::Source, _, _) = compared.field else {
                return None;
            };
            match &compared.test {
                Comparison::Begins(bytes) if !compared.negated => address_of(bytes),
                Comparison::Within(ranges) if !compared.negated => match &ranges[..] {
                    [(first, last)] if first == last => address_of(first),
                    _ => None,
                },
                _ => None,
            }
        })
    }

    /// It accepts everything that comes in, or goes out, by `bridge`, and nothing else.
    pub fn accepts(&self, direction: HookDirection, bridge: &IfName) -> bool {
        let [only] = &self.matches[..] else { return false };
        let Comparison::Begins(name) = &only.test else { return false };
        let field = PacketField::Interface(direction);
        let name = name.split(|byte| *byte == 0).next().filter(|start| start.len() < name.len());
        self.verdict == Verdict::Accept
            && (only.field, only.negated) == (field, false)
            && name == Some(bridge.as_str().as_bytes())
    }
}

/// Of 4 or 16 bytes.
fn address_of(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

impl RuleMatch {
    pub fn new(field: PacketField, test: Comparison) -> RuleMatch {
        RuleMatch { field, mask: None, test, negated: false }
    }

    /// No ordinary packet fulfils it.
    pub fn never() -> RuleMatch {
        RuleMatch::new(PacketField::Special, Comparison::Begins(Vec::new()))
    }

    pub fn unknown() -> RuleMatch {
        RuleMatch::new(PacketField::Unknown, Comparison::Unknown)
    }

    /// An interface of exactly this name.
    pub fn interface(direction: HookDirection, name: &str) -> RuleMatch {
        RuleMatch::new(
            PacketField::Interface(direction),
            Comparison::Begins([name.as_bytes(), &[0]].concat()),
        )
    }

    /// An interface whose name begins so.
    pub fn interfaces(direction: HookDirection, start: &str) -> RuleMatch {
        RuleMatch::new(PacketField::Interface(direction), Comparison::Begins(start.into()))
    }

    /// An address in one of `ranges`, all of one family.
    pub fn address(end: PacketAddress, ranges: &[AddressRange]) -> RuleMatch {
        let family = ranges.first().map_or(Family::V4, |range| Family::of(range.first()));
        let within = ranges.iter().map(|range| (octets(range.first()), octets(range.last())));
        let field = PacketField::Address(end, family, usize::from(family.bits() / 8));
        RuleMatch::new(field, Comparison::Within(within.collect()))
    }

    pub fn protocol(number: u8) -> RuleMatch {
        RuleMatch::new(PacketField::Protocol, Comparison::Begins(vec![number]))
    }

    /// A destination port in one of these ranges, first and last.
    pub fn ports(ranges: &[(u16, u16)]) -> RuleMatch {
        let bytes = |port: u16| port.to_be_bytes().to_vec();
        let within = ranges.iter().map(|(first, last)| (bytes(*first), bytes(*last)));
        RuleMatch::new(PacketField::DestinationPort, Comparison::Within(within.collect()))
    }

    #[must_use]
    pub fn negated(self, negated: bool) -> RuleMatch {
        RuleMatch { negated: self.negated != negated, ..self }
    }

    /// Whether `packet` fulfils it; `None` if that is not known.
    pub fn holds(&self, packet: &FirstPacket<'_>) -> Option<bool> {
        if self.field == PacketField::Unknown {
            return None;
        }
        let Some(mut bytes) = self.field.bytes(packet) else { return Some(self.negated) };
        for (byte, mask) in bytes.iter_mut().zip(self.mask.iter().flatten()) {
            *byte &= mask;
        }
        let is = match &self.test {
            Comparison::Begins(wanted) => bytes.starts_with(wanted),
            Comparison::Within(ranges) => ranges.iter().any(|(first, last)| {
                first.len() == bytes.len() && *first <= bytes && bytes <= *last
            }),
            Comparison::Unknown => return None,
        };
        Some(is != self.negated)
    }

    pub fn is_of_address(&self) -> bool {
        matches!(self.field, PacketField::Address(..))
    }

    /// It is about an interface or an address.
    pub fn is_targeted(&self) -> bool {
        self.is_of_address() || matches!(self.field, PacketField::Interface(_))
    }
}

impl PacketField {
    /// `None` if an ordinary packet has no such thing.
    fn bytes(self, packet: &FirstPacket<'_>) -> Option<Vec<u8>> {
        let name = |name: &str| {
            let mut bytes = name.as_bytes().to_vec();
            bytes.resize(IFNAMSIZ, 0);
            bytes
        };
        match self {
            PacketField::Interface(HookDirection::In) => Some(name(packet.input)),
            PacketField::Interface(HookDirection::Out) => Some(name(packet.output)),
            PacketField::Address(end, family, length) => {
                let address = match end {
                    PacketAddress::Source => packet.source,
                    PacketAddress::Destination => packet.destination,
                };
                let octets = (Family::of(address) == family).then(|| octets(address))?;
                octets.get(..length).map(<[u8]>::to_vec)
            }
            PacketField::Family => Some(vec![family::number(Family::of(packet.source))]),
            PacketField::Protocol => packet.transport.map(|(protocol, _)| vec![protocol]),
            PacketField::DestinationPort => {
                packet.transport.map(|(_, port)| port.to_be_bytes().to_vec())
            }
            PacketField::State => Some(STATE_NEW.to_ne_bytes().to_vec()),
            PacketField::Zero => Some(vec![0; 4]),
            PacketField::Special | PacketField::Unknown => None,
        }
    }
}
