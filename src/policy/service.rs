//! Pure. What a rule says of a connection's protocol and destination port.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::net::{Family, Protocol};
use crate::policy::name::ObjectName;
use crate::policy::tuple::{Transport, Tuple};

pub use crate::policy::tuple::{ICMP, ICMPV6};

/// Ports from the first to the last, both included; `first <= last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "(u16, u16)", into = "(u16, u16)")]
pub struct PortRange {
    first: u16,
    last: u16,
}

/// One protocol, and which connections of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Service {
    /// All of an IP protocol, by its number.
    Protocol(u8),
    /// Destination ports by number.
    Ports(Protocol, PortRange),
    /// The destination pod's container port of this name; `None`: whatever its protocol. Two pods may
    /// give one name two numbers; a destination that is no pod, or has no such port, does not match.
    Named(Option<Protocol>, ObjectName),
    /// ICMP of IPv4 or ICMPv6 by type, and by code if there is one. The whole protocol is
    /// [`Service::Protocol`].
    Icmp { family: Family, kind: u8, code: Option<u8> },
    /// A port of the destination's host, or of a service, that leads to the pod: the connection's destination
    /// was translated there. A tuple has the addresses behind all translation, and is of no such service.
    HostPort,
}

impl Service {
    /// `tuple` is of this service, as far as that can be said without the destination's ports.
    pub fn is_of(&self, tuple: &Tuple) -> bool {
        match (self, tuple.transport) {
            (Service::Protocol(number), _) => *number == tuple.protocol(),
            (Service::Ports(protocol, range), Transport::Port(own, port)) => {
                *protocol == own && range.contains(port)
            }
            (Service::Icmp { family, kind, code }, Transport::Icmp { kind: own, code: of }) => {
                let same_family = *family == Family::of(tuple.destination);
                same_family && *kind == own && code.is_none_or(|code| code == of)
            }
            _ => false,
        }
    }
}

/// The number of the protocol.
pub fn icmp(family: Family) -> u8 {
    match family {
        Family::V4 => ICMP,
        Family::V6 => ICMPV6,
    }
}

/// Types of ICMP that tell of an error, from the first to the last: they quote the packet that it was about. (RFC 792,
/// RFC 4443 §2.1; a redirect of ICMPv6 is no error, and no router passes it on.)
pub fn icmp_errors(family: Family) -> &'static [(u8, u8)] {
    match family {
        Family::V4 => &[(3, 5), (11, 12)],
        Family::V6 => &[(1, 127)],
    }
}

/// Of the resolver of a node, which all of its pods may ask.
pub const DNS_PORT: u16 = 53;

impl PortRange {
    /// `None` if the last is below the first.
    pub fn new(first: u16, last: u16) -> Option<PortRange> {
        (first <= last).then_some(PortRange { first, last })
    }

    pub fn single(port: u16) -> PortRange {
        PortRange { first: port, last: port }
    }

    pub fn first(self) -> u16 {
        self.first
    }

    pub fn last(self) -> u16 {
        self.last
    }

    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl TryFrom<(u16, u16)> for PortRange {
    type Error = &'static str;

    fn try_from((first, last): (u16, u16)) -> Result<PortRange, &'static str> {
        PortRange::new(first, last).ok_or("the last port is below the first")
    }
}

impl From<PortRange> for (u16, u16) {
    fn from(range: PortRange) -> (u16, u16) {
        (range.first, range.last)
    }
}

impl fmt::Display for PortRange {
    /// `80` or `8000-8999`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

impl fmt::Display for Service {
    /// `tcp/80`, `udp/8000-8999`, `tcp/http`, `http`, `icmp type 8`, `tcp`, `protocol 47`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Service::Protocol(ICMP) => f.write_str("icmp"),
            Service::Protocol(ICMPV6) => f.write_str("icmpv6"),
            Service::Protocol(number) => match Protocol::of_number(*number) {
                Some(protocol) => protocol.fmt(f),
                None => write!(f, "protocol {number}"),
            },
            Service::Ports(protocol, range) => write!(f, "{protocol}/{range}"),
            Service::Named(Some(protocol), name) => write!(f, "{protocol}/{name}"),
            Service::Named(None, name) => name.fmt(f),
            Service::HostPort => f.write_str("host ports"),
            Service::Icmp { family, kind, code } => {
                let protocol = if *family == Family::V4 { "icmp" } else { "icmpv6" };
                write!(f, "{protocol} type {kind}")?;
                code.map_or(Ok(()), |code| write!(f, " code {code}"))
            }
        }
    }
}
