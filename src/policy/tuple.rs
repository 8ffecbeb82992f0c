//! Pure. A connection, as connection tracking knows it after destination NAT.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::net::Protocol;
use crate::netlink::connections::Connection;

/// IPPROTO_ICMP.
pub const ICMP: u8 = 1;
/// IPPROTO_ICMPV6.
pub const ICMPV6: u8 = 58;

/// The ends of a connection, as it was opened. A service's address never stands here: the destination is the
/// pod behind it. Both addresses are of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tuple {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub transport: Transport,
}

/// Protocol of a connection and what distinguishes its services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// A destination port.
    Port(Protocol, u16),
    /// ICMP (IPv4) or ICMPv6 (IPv6): type and code of the first packet.
    Icmp { kind: u8, code: u8 },
    /// Any other protocol, by its number.
    Other(u8),
}

impl Tuple {
    /// The IP protocol's number.
    pub fn protocol(&self) -> u8 {
        match self.transport {
            Transport::Port(protocol, _) => protocol.number(),
            Transport::Icmp { .. } if self.source.is_ipv4() => ICMP,
            Transport::Icmp { .. } => ICMPV6,
            Transport::Other(number) => number,
        }
    }
}

impl Tuple {
    /// `10.1.0.3:80 tcp`.
    pub fn target(&self) -> String {
        match self.transport {
            Transport::Port(protocol, port) => {
                format!("{} {protocol}", SocketAddr::new(self.destination, port))
            }
            Transport::Icmp { kind, code } => {
                format!("{} icmp type {kind} code {code}", self.destination)
            }
            Transport::Other(number) => format!("{} protocol {number}", self.destination),
        }
    }
}

impl Tuple {
    /// As it is judged: behind translation of its destination, before that of its source.
    pub fn of(connection: &Connection) -> Tuple {
        let Connection { source, answers: destination, protocol, .. } = *connection;
        let port = connection.answering_port.or(connection.port);
        let transport = match (Protocol::of_number(protocol), port, connection.icmp) {
            (Some(protocol), Some(port), _) => Transport::Port(protocol, port),
            (_, _, Some((kind, code))) => Transport::Icmp { kind, code },
            _ => Transport::Other(protocol),
        };
        Tuple { source, destination, transport }
    }
}

impl fmt::Display for Tuple {
    /// `10.1.0.2 -> 10.1.0.3:80 tcp`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", self.source, self.target())
    }
}
