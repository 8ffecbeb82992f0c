//! Connections that the kernel tracks, for people.

use std::fmt;
use std::net::IpAddr;

use neli::consts::nl::NlmF;
use neli::types::Buffer;
use nix::errno::Errno;

use crate::net::Family;
use crate::netlink::ctnetlink::{
    ADDRESSES, DESTINATION, DESTINATION_PORT, GET, ICMP_CODE, ICMP_TYPE, MARK, NUMBER, ORIGINAL,
    PROTOCOL, PROTOCOL_STATE, REPLY, SOURCE, SOURCE_PORT, STATUS, TCP, TCP_STATE, header, of,
};
use crate::netlink::packet::Packet;
use crate::netlink::wire::{self, octets};
use crate::netlink::{
    AttributeList, Attributes, Message, NetlinkError, NetlinkProtocol, NetlinkSocket, Reply,
};

/// IPS_SEEN_REPLY of linux/netfilter/nf_conntrack_common.h.
const SEEN_REPLY: u32 = 1 << 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// IANA's number: 6 is TCP, 17 UDP.
    pub protocol: u8,
    /// The end that opened it.
    pub source: IpAddr,
    /// Where it was sent to.
    pub destination: IpAddr,
    /// The port that it was sent to, if the protocol has ports.
    pub port: Option<u16>,
    /// The end that answers; another address than `destination` if that was translated.
    pub answers: IpAddr,
    /// Where the answers go; another address than `source` if that was translated.
    pub answered_to: IpAddr,
    pub answered: bool,
    /// The port that it came from, if the protocol has ports.
    pub source_port: Option<u16>,
    /// The port that it is answered from; another one than `port` if that was translated.
    pub answering_port: Option<u16>,
    /// Type and code of ICMP's first packet.
    pub icmp: Option<(u8, u8)>,
    pub mark: u32,
    /// What TCP's state machine says, as an index of [`TCP_STATES`].
    pub tcp_state: Option<u8>,
}

/// TCP_CONNTRACK_TIME_WAIT and _CLOSE: places in [`TCP_STATES`].
const TIME_WAIT: u8 = 7;
const CLOSED: u8 = 8;

/// Names of TCP's states in linux/netfilter/nf_conntrack_tcp.h.
const TCP_STATES: [&str; 10] = [
    "not opened",
    "opening (SYN sent)",
    "opening (SYN answered)",
    "established",
    "closing (FIN sent)",
    "closing (close wait)",
    "closing (last ACK)",
    "closed (time wait)",
    "closed",
    "opening (both SYN sent)",
];

impl fmt::Display for Connection {
    /// `TCP 10.244.1.5 → 10.96.0.1 port 443, answered by 192.0.2.7, no answer yet`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Connection { source, destination, answers, answered_to, .. } = self;
        match self.protocol {
            6 => write!(f, "TCP")?,
            17 => write!(f, "UDP")?,
            1 | 58 => write!(f, "ICMP")?,
            132 => write!(f, "SCTP")?,
            number => write!(f, "protocol {number}")?,
        }
        write!(f, " {source} → {destination}")?;
        if let Some(port) = self.port {
            write!(f, " port {port}")?;
        }
        if answers != destination {
            write!(f, ", which is {answers}")?;
        }
        if answered_to != source {
            write!(f, ", seen there as {answered_to}")?;
        }
        if let Some(state) = self.tcp_state.and_then(|state| TCP_STATES.get(usize::from(state))) {
            write!(f, ", {state}")?;
        }
        if !self.answered {
            write!(f, ", no answer yet")?;
        }
        Ok(())
    }
}

impl Connection {
    /// TCP has closed it, and only its entry is left.
    pub fn is_over(&self) -> bool {
        matches!(self.tcp_state, Some(TIME_WAIT | CLOSED))
    }
}

/// The connections in the calling thread's network namespace from `source` to `destination`, as it
/// was sent or as it was translated; at most `most`. Walks over the whole table: some milliseconds.
///
/// # Errors
/// [`NetlinkError`]; a kernel without connection tracking.
pub fn between(
    source: IpAddr,
    destination: IpAddr,
    most: usize,
) -> Result<Vec<Connection>, NetlinkError> {
    let mut found = of_family(Family::of(source), |connection| {
        connection.source == source
            && [connection.destination, connection.answers].contains(&destination)
    })?;
    found.truncate(most);
    Ok(found)
}

/// Those of a family in the calling thread's network namespace that are `wanted`.
///
/// # Errors
/// As [`between`].
pub fn of_family(
    family: Family,
    wanted: impl Fn(&Connection) -> bool,
) -> Result<Vec<Connection>, NetlinkError> {
    let socket = NetlinkSocket::open(NetlinkProtocol::Netfilter)?;
    let header = header(family);
    let list = Message::new("list connections", GET, NlmF::empty(), &header, Attributes::new());
    socket.dump(&list, |reply| Ok(parse(family, reply)?.filter(&wanted)))
}

/// `packet` in the direction in which its connection was opened, as far as the namespace of `socket` tracks
/// it by the addresses and ports that it has there: an answer becomes the packet that it answers.
///
/// # Errors
/// [`NetlinkError`].
pub fn as_opened(socket: &NetlinkSocket, packet: Packet) -> Result<Packet, NetlinkError> {
    let Some((from, to)) = packet.ports else { return Ok(packet) };
    let family = Family::of(packet.source);
    let addresses = Attributes::new()
        .put(of(SOURCE, family), octets(packet.source))
        .put(of(DESTINATION, family), octets(packet.destination));
    let ports = Attributes::new()
        .u8(NUMBER, packet.protocol)
        .put(SOURCE_PORT, from.to_be_bytes())
        .put(DESTINATION_PORT, to.to_be_bytes());
    let either = Attributes::new().nest(ADDRESSES, addresses).nest(PROTOCOL, ports);
    let attributes = Attributes::new().nest(ORIGINAL, either);
    let what = "look up a connection";
    let request = Message::new(what, GET, NlmF::empty(), &header(family), attributes);
    match socket.ask(&request, |reply| parse(family, reply)) {
        Ok(Some(found)) if (found.source, found.source_port) != (packet.source, Some(from)) => {
            Ok(packet.reversed())
        }
        Err(error) if error.errno() != Some(Errno::ENOENT) => Err(error),
        _ => Ok(packet),
    }
}

fn parse(family: Family, reply: &Reply<'_>) -> Result<Option<Connection>, NetlinkError> {
    let (_, flow) = reply.parse::<Buffer>(4)?;
    connection(family, &flow)
}

/// The connection in attributes CTA_*, if it has both directions.
///
/// # Errors
/// [`NetlinkError::Malformed`].
pub fn connection(
    family: Family,
    flow: &AttributeList<'_>,
) -> Result<Option<Connection>, NetlinkError> {
    let (Some(there), Some(back)) = (flow.nested(ORIGINAL)?, flow.nested(REPLY)?) else {
        return Ok(None);
    };
    let (Some((source, destination)), Some((answers, answered_to))) =
        (ends(family, &there)?, ends(family, &back)?)
    else {
        return Ok(None);
    };
    let protocol = there.nested(PROTOCOL)?;
    let protocol = protocol.as_ref();
    let answering = back.nested(PROTOCOL)?;
    let port = |of: Option<&AttributeList<'_>>, kind| of.and_then(|of| of.array(kind));
    let byte = |[v4, v6]: [u16; 2]| protocol.and_then(|of| of.u8(v4).or_else(|| of.u8(v6)));
    let tcp = flow.nested(PROTOCOL_STATE)?.map(|state| state.nested(TCP)).transpose()?.flatten();
    let status = flow.array(STATUS).map_or(0, u32::from_be_bytes);
    Ok(Some(Connection {
        protocol: protocol.and_then(|protocol| protocol.u8(NUMBER)).unwrap_or(0),
        source,
        destination,
        port: port(protocol, DESTINATION_PORT).map(u16::from_be_bytes),
        source_port: port(protocol, SOURCE_PORT).map(u16::from_be_bytes),
        answering_port: port(answering.as_ref(), SOURCE_PORT).map(u16::from_be_bytes),
        icmp: byte(ICMP_TYPE).zip(byte(ICMP_CODE)),
        mark: flow.array(MARK).map_or(0, u32::from_be_bytes),
        tcp_state: tcp.and_then(|tcp| tcp.u8(TCP_STATE)),
        answers,
        answered_to,
        answered: status & SEEN_REPLY != 0,
    }))
}

/// Source and destination of a direction.
fn ends(
    family: Family,
    direction: &AttributeList<'_>,
) -> Result<Option<(IpAddr, IpAddr)>, NetlinkError> {
    let Some(addresses) = direction.nested(ADDRESSES)? else { return Ok(None) };
    let end = |kinds| addresses.get(of(kinds, family)).and_then(wire::address);
    Ok(end(SOURCE).zip(end(DESTINATION)))
}
