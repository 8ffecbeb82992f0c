//! Connections that the kernel follows, looked at for people. Source:
//! linux/netfilter/nfnetlink_conntrack.h.

use std::fmt;
use std::net::IpAddr;

use neli::consts::nl::NlmF;
use neli::types::Buffer;

use super::netlink::{
    AttributeList, Attributes, Message, NetlinkError, NetlinkSocket, Protocol, Reply,
};
use super::wire;
use crate::net::Family;

/// IPCTNL_MSG_CT_GET of NFNL_SUBSYS_CTNETLINK.
const GET: u16 = 1 << 8 | 1;

/// Of a connection: CTA_TUPLE_ORIG, CTA_TUPLE_REPLY, CTA_STATUS.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const STATUS: u16 = 3;
/// Of a direction: CTA_TUPLE_IP, CTA_TUPLE_PROTO.
const ADDRESSES: u16 = 1;
const PROTOCOL: u16 = 2;
/// Of the addresses: source and destination, for each family.
const ENDS: [(u16, u16); 2] = [(1, 2), (3, 4)];
/// CTA_PROTO_NUM, CTA_PROTO_DST_PORT.
const NUMBER: u16 = 1;
const DESTINATION_PORT: u16 = 3;
/// IPS_SEEN_REPLY of linux/netfilter/nf_conntrack_common.h.
const SEEN_REPLY: u32 = 1 << 1;

/// A connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// IANA's number: 6 is TCP, 17 UDP.
    pub protocol: u8,
    /// Who began it.
    pub source: IpAddr,
    /// Whom it was sent to.
    pub destination: IpAddr,
    /// The port that it was sent to, if the protocol has ports.
    pub port: Option<u16>,
    /// Who answers it; another address than `destination` if that was translated.
    pub answers: IpAddr,
    /// To whom the answers go; another address than `source` if that was translated.
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
    let socket = NetlinkSocket::open(Protocol::Netfilter)?;
    let family = match Family::of(source) {
        Family::V4 => nix::libc::AF_INET,
        Family::V6 => nix::libc::AF_INET6,
    };
    let header = [family as u8, 0, 0, 0];
    let list = Message::new("look at connections", GET, NlmF::empty(), &header, Attributes::new());
    let mut found = socket.dump(&list, |reply| {
        let wanted = |connection: &Connection| {
            connection.source == source
                && [connection.destination, connection.answers].contains(&destination)
        };
        Ok(parse(reply)?.filter(wanted))
    })?;
    found.truncate(most);
    Ok(found)
}

fn parse(reply: &Reply<'_>) -> Result<Option<Connection>, NetlinkError> {
    let (_, flow) = reply.parse::<Buffer>(4)?;
    let (Some(there), Some(back)) = (flow.nested(ORIGINAL)?, flow.nested(REPLY)?) else {
        return Ok(None);
    };
    let (Some((source, destination)), Some((answers, answered_to))) = (ends(&there)?, ends(&back)?)
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

fn ends(direction: &AttributeList) -> Result<Option<(IpAddr, IpAddr)>, NetlinkError> {
    let Some(addresses) = direction.nested(ADDRESSES)? else { return Ok(None) };
    let end = |kind: u16| addresses.get(kind).and_then(wire::address);
    Ok(ENDS.iter().find_map(|(source, destination)| end(*source).zip(end(*destination))))
}
