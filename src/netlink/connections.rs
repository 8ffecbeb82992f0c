//! Connections that the kernel tracks, for people.

use std::fmt;
use std::net::IpAddr;

use neli::consts::nl::NlmF;
use neli::types::Buffer;

use crate::net::Family;
use crate::netlink::ctnetlink::{
    ADDRESSES, DESTINATION, DESTINATION_PORT, GET, NUMBER, ORIGINAL, PROTOCOL, REPLY, SOURCE,
    STATUS, header, of,
};
use crate::netlink::wire;
use crate::netlink::{
    AttributeList, Attributes, Message, NetlinkError, NetlinkProtocol, NetlinkSocket, Reply,
};

/// IPS_SEEN_REPLY of linux/netfilter/nf_conntrack_common.h.
const SEEN_REPLY: u32 = 1 << 1;

/// A connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// IANA's number: 6 is TCP, 17 UDP.
    pub protocol: u8,
    /// Who began it.
    pub source: IpAddr,
    /// Where it was sent to.
    pub destination: IpAddr,
    /// The port that it was sent to, if the protocol has ports.
    pub port: Option<u16>,
    /// Who answers it; another address than `destination` if that was translated.
    pub answers: IpAddr,
    /// Where the answers go; another address than `source` if that was translated.
    pub answered_to: IpAddr,
    /// There was an answer.
    pub answered: bool,
}

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
        if !self.answered {
            write!(f, ", no answer yet")?;
        }
        Ok(())
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
    let socket = NetlinkSocket::open(NetlinkProtocol::Netfilter)?;
    let family = Family::of(source);
    let header = header(family);
    let list = Message::new("list connections", GET, NlmF::empty(), &header, Attributes::new());
    let mut found = socket.dump(&list, |reply| {
        let wanted = |connection: &Connection| {
            connection.source == source
                && [connection.destination, connection.answers].contains(&destination)
        };
        Ok(parse(family, reply)?.filter(wanted))
    })?;
    found.truncate(most);
    Ok(found)
}

fn parse(family: Family, reply: &Reply<'_>) -> Result<Option<Connection>, NetlinkError> {
    let (_, flow) = reply.parse::<Buffer>(4)?;
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
    let status = flow.array(STATUS).map_or(0, u32::from_be_bytes);
    Ok(Some(Connection {
        protocol: protocol.and_then(|protocol| protocol.u8(NUMBER)).unwrap_or(0),
        source,
        destination,
        port: protocol.and_then(|p| p.array(DESTINATION_PORT)).map(u16::from_be_bytes),
        answers,
        answered_to,
        answered: status & SEEN_REPLY != 0,
    }))
}

/// Source and destination of a direction.
fn ends(
    family: Family,
    direction: &AttributeList,
) -> Result<Option<(IpAddr, IpAddr)>, NetlinkError> {
    let Some(addresses) = direction.nested(ADDRESSES)? else { return Ok(None) };
    let end = |kinds| addresses.get(of(kinds, family)).and_then(wire::address);
    Ok(end(SOURCE).zip(end(DESTINATION)))
}
