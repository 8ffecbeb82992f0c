//! Connection tracking: forgets the UDP flows of an address that has a new owner.
//!
//! A flow that was seen before a pod existed keeps its old translation for as long as packets
//! come (a DNS client, a game): to the new pod it is a black hole.

use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::PathBuf;

use neli::consts::nl::NlmF;
use neli::types::Buffer;
use nix::errno::Errno;

use super::netlink::{
    AttributeList, Attributes, Message, NetlinkError, NetlinkSocket, Protocol, Reply,
};
use super::wire::octets;
use crate::net::Family;

/// How many flows the calling thread's network namespace has; absent without connection tracking.
const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";

/// Messages: NFNL_SUBSYS_CTNETLINK in the upper byte. These and the attributes stand in
/// linux/netfilter/nfnetlink_conntrack.h.
const GET: u16 = 1 << 8 | 1;
const DELETE: u16 = 1 << 8 | 2;

/// Of a flow.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;
/// Of a flow's direction.
const ADDRESSES: u16 = 1;
const PROTOCOL: u16 = 2;
/// Of the addresses: one for each family.
const SOURCE: [u16; 2] = [1, 3];
const DESTINATION: [u16; 2] = [2, 4];
/// Of the protocol.
const NUMBER: u16 = 1;
/// Of a filter: which parts of the original direction count, and the one that says the protocol.
const FILTER_ORIGINAL: u16 = 1;
const COUNTS_PROTOCOL: u32 = 1 << 3;

/// NLA_F_NESTED of linux/netlink.h, for an attribute that is passed on as it came.
const NESTED: u16 = 1 << 15;

/// IPPROTO_UDP.
const UDP: u8 = 17;

/// Flows to forget with one `send`: their acknowledgements must fit into the socket.
const DELETES_AT_ONCE: usize = 128;

/// Why flows could not be forgotten.
#[derive(Debug, thiserror::Error)]
pub enum ConntrackError {
    /// The number of flows.
    #[error("read {}", path.display())]
    Count {
        /// Where it stands.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// The kernel said no.
    #[error("forget UDP flows of {address}")]
    Netlink {
        /// Whose flows.
        address: IpAddr,
        /// What went wrong.
        source: NetlinkError,
    },
}

/// Forgets the UDP flows in the calling thread's network namespace that `address` began, that were
/// sent to it, or that it answers (behind a service's address). Gives their number.
///
/// Costs one small file's reading where there is no flow at all.
///
/// # Errors
/// [`ConntrackError`]. A kernel without connection tracking has nothing to forget.
pub fn flush_udp(address: IpAddr) -> Result<usize, ConntrackError> {
    let path = PathBuf::from(COUNT);
    match std::fs::read(&path) {
        Ok(count) if count.trim_ascii() == b"0" => return Ok(0),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        Err(source) => return Err(ConntrackError::Count { path, source }),
        Ok(_) => {}
    }
    flush(address).map_err(|source| ConntrackError::Netlink { address, source })
}

fn flush(address: IpAddr) -> Result<usize, NetlinkError> {
    let socket = NetlinkSocket::open(Protocol::Netfilter)?;
    let octets = octets(address);
    let flows = socket.dump(&list_udp(address), |reply| {
        // Most flows are other people's: a look at the bytes costs less than reading them.
        let names_it = reply.body().windows(octets.len()).any(|bytes| bytes == octets);
        if names_it { forget(address, reply) } else { Ok(None) }
    })?;
    for some in flows.chunks(DELETES_AT_ONCE) {
        socket.transact(some)?;
    }
    Ok(flows.len())
}

/// Asks for all UDP flows of the address's family. Kernels before 5.8 give those of all protocols.
///
/// To ask for the address as well would take a walk over the whole table (4 ms) for each part of a
/// flow that can name it; and a filter on the reply direction finds nothing, because the kernel
/// reads it with the flags of the original one (`ctnetlink_alloc_filter`).
fn list_udp(address: IpAddr) -> Message {
    let protocol = Attributes::new().u8(NUMBER, UDP);
    let attributes = Attributes::new()
        .nest(ORIGINAL, Attributes::new().nest(PROTOCOL, protocol))
        .nest(FILTER, Attributes::new().u32(FILTER_ORIGINAL, COUNTS_PROTOCOL));
    let what = format!("look for UDP flows of {address}");
    Message::new(what, GET, NlmF::empty(), &header(address), attributes)
}

/// What forgets the flow in `reply`, if it is of UDP and of `address`.
fn forget(address: IpAddr, reply: &Reply<'_>) -> Result<Option<Message>, NetlinkError> {
    let (_, flow) = reply.parse::<Buffer>(4)?;
    let original = flow.get(ORIGINAL).unwrap_or_default();
    let answer = flow.get(REPLY).unwrap_or_default();
    if !concerns(address, &AttributeList::parse(original)?, &AttributeList::parse(answer)?)? {
        return Ok(None);
    }
    let attributes = Attributes::new()
        .put(ORIGINAL | NESTED, original)
        .put_some(ZONE, flow.get(ZONE))
        .put_some(ID, flow.get(ID));
    let what = format!("forget a UDP flow of {address}");
    let delete = Message::new(what, DELETE, NlmF::empty(), &header(address), attributes);
    Ok(Some(delete.tolerating(Errno::ENOENT)))
}

/// The flow is of UDP, and `address` began it, it was sent to `address`, or `address` answers.
fn concerns(
    address: IpAddr,
    original: &AttributeList,
    answer: &AttributeList,
) -> Result<bool, NetlinkError> {
    let protocol = original.nested(PROTOCOL)?;
    if protocol.and_then(|protocol| protocol.u8(NUMBER)) != Some(UDP) {
        return Ok(false);
    }
    let octets = octets(address);
    let names = |direction: &AttributeList, kinds: [u16; 2]| {
        let addresses = direction.nested(ADDRESSES)?;
        let is = |addresses: &AttributeList| {
            kinds.iter().any(|kind| addresses.get(*kind) == Some(&octets[..]))
        };
        Ok::<bool, NetlinkError>(addresses.as_ref().is_some_and(is))
    };
    Ok(names(original, SOURCE)? || names(original, DESTINATION)? || names(answer, SOURCE)?)
}

/// `struct nfgenmsg`: AF_INET or AF_INET6, version 0, resource 0.
fn header(address: IpAddr) -> [u8; 4] {
    let family = match Family::of(address) {
        Family::V4 => nix::libc::AF_INET,
        Family::V6 => nix::libc::AF_INET6,
    };
    [family as u8, 0, 0, 0]
}
