//! Connection tracking: forgets the UDP flows of an address, or of a host's port, that has a new
//! owner.
//!
//! A flow that was seen before a pod existed keeps its old translation for as long as packets
//! come (a DNS client, a game): to the new pod it is a black hole.
//!
//! The kernel's table has as many buckets as the host may have flows (262,144 of them), and has no
//! index by address. To list it takes a lock for each bucket: 4 ms, however few flows there are. To
//! have the kernel delete by a filter compares each: 0.15 ms for each filter. Older kernels (6.8 does, 6.12
//! does not) refuse that at once, before they look at any flow.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use neli::consts::nl::NlmF;
use neli::types::Buffer;
use nix::errno::Errno;

use crate::net::{Family, HostPort};
use crate::netlink::ctnetlink::{
    ADDRESSES, COUNTS_DESTINATION, COUNTS_DESTINATION_PORT, COUNTS_PROTOCOL, COUNTS_SOURCE, DELETE,
    DESTINATION, DESTINATION_PORT, FILTER, FILTER_ORIGINAL, GET, ID, NUMBER, ORIGINAL, PROTOCOL,
    REPLY, SOURCE, UDP, ZONE, header, of,
};
use crate::netlink::wire::octets;
use crate::netlink::{
    AttributeList, Attributes, Message, NetlinkError, NetlinkProtocol, NetlinkSocket, Reply,
};
use crate::os::files;

/// How many flows the calling thread's network namespace has; absent without connection tracking.
const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";

/// NLA_F_NESTED of linux/netlink.h, for an attribute that is passed on as it came.
const NESTED: u16 = 1 << 15;

/// Flows to forget with one `send`: their acknowledgements must fit into the socket.
const DELETES_AT_ONCE: usize = 128;

/// Why flows could not be forgotten.
#[derive(Debug, thiserror::Error)]
pub enum ConntrackError {
    /// The number of flows.
    #[error("read {}", path.display())]
    Count { path: PathBuf, source: io::Error },
    /// The kernel said no.
    #[error("forget UDP flows of {addresses}")]
    Netlink {
        /// Whose flows, separated by commas.
        addresses: String,
        source: NetlinkError,
    },
}

/// The end of a flow, in its original direction, at which an address is looked for.
#[derive(Clone, Copy, Debug)]
pub enum FlowEnd {
    /// Who began it.
    Source,
    /// Where it was sent to.
    Destination,
}

/// There are flows in the calling thread's network namespace, so that looking for some of them may
/// be worth what it costs. Reads one small file.
///
/// # Errors
/// [`ConntrackError::Count`]. A kernel without connection tracking has none.
pub fn has_flows() -> Result<bool, ConntrackError> {
    let path = PathBuf::from(COUNT);
    let count = files::found(std::fs::read(&path));
    let count = count.map_err(|source| ConntrackError::Count { path, source })?;
    Ok(count.is_some_and(|count| count.trim_ascii() != b"0"))
}

/// Forgets the UDP flows in the calling thread's network namespace that one of `addresses` began,
/// that were sent to it, or that it answers behind a service's address. Gives their number.
///
/// Costs a walk over the whole table for each family among `addresses`: ask [`has_flows`] before.
///
/// # Errors
/// [`ConntrackError`].
pub fn flush_udp(addresses: &[IpAddr]) -> Result<usize, ConntrackError> {
    let mut forgotten = 0;
    for family in Family::BOTH {
        let of_family = |address: &&IpAddr| Family::of(**address) == family;
        let addresses: Vec<IpAddr> = addresses.iter().filter(of_family).copied().collect();
        if !addresses.is_empty() {
            forgotten += flush(family, &addresses).map_err(failed(&addresses))?;
        }
    }
    Ok(forgotten)
}

/// [`flush_udp`] at a twentieth of its cost for each of `ends`: the kernel alone forgets the flows that have one of the
/// IPv4 `addresses` there. False, and nothing is forgotten, where the kernel deletes by no filter.
///
/// Left alone is what an address answers behind a service's, and IPv6: the kernel's filter takes its
/// addresses for different when they are the same (`ctnetlink_filter_match_tuple`).
///
/// # Errors
/// [`ConntrackError`].
pub fn flush_udp_at(ends: &[FlowEnd], addresses: &[IpAddr]) -> Result<bool, ConntrackError> {
    let v4 = addresses.iter().filter(|address| address.is_ipv4());
    let of =
        |address: &IpAddr| ends.iter().map(|end| forget_all(*address, *end)).collect::<Vec<_>>();
    let all: Vec<Message> = v4.flat_map(of).collect();
    delete_by_filter(&all).map_err(failed(addresses))
}

/// Forgets the UDP flows to `ports` of this host, whoever answers them. (Flows to the same port of
/// another host that this host forwards are begun anew: a look-up of the address would cost ten
/// times as much.)
///
/// # Errors
/// [`ConntrackError`].
pub fn flush_udp_ports(ports: &[HostPort]) -> Result<(), ConntrackError> {
    if ports.is_empty() {
        return Ok(());
    }
    let addresses: Vec<IpAddr> = ports.iter().map(|port| port.address).collect();
    let all: Vec<Message> = ports.iter().map(forget_port).collect();
    if delete_by_filter(&all).map_err(failed(&addresses))? {
        return Ok(());
    }
    for family in Family::BOTH {
        let numbers = ports.iter().filter(|port| port.family() == family).map(|port| port.port);
        let numbers: Vec<[u8; 2]> = numbers.map(u16::to_be_bytes).collect();
        let to_port = |original: &AttributeList<'_>, _: &AttributeList<'_>| {
            let protocol = original.nested(PROTOCOL)?;
            let port = protocol.and_then(|protocol| protocol.array(DESTINATION_PORT));
            Ok(port.is_some_and(|port| numbers.contains(&port)))
        };
        if !numbers.is_empty() {
            flush_flows(family, |_| true, to_port).map_err(failed(&addresses))?;
        }
    }
    Ok(())
}

/// False where the kernel deletes by no filter: it misses the rest of the flow's addresses and ports.
fn delete_by_filter(filters: &[Message]) -> Result<bool, NetlinkError> {
    if filters.is_empty() {
        return Ok(true);
    }
    match NetlinkSocket::open(NetlinkProtocol::Netfilter)?.transact(filters) {
        Err(error) if error.errno() == Some(Errno::EINVAL) => Ok(false),
        outcome => outcome.map(|()| true),
    }
}

fn failed(addresses: &[IpAddr]) -> impl FnOnce(NetlinkError) -> ConntrackError {
    let texts: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    move |source| ConntrackError::Netlink { addresses: texts.join(", "), source }
}

/// Has the kernel delete every UDP flow with an IPv4 `address` at that end.
fn forget_all(address: IpAddr, end: FlowEnd) -> Message {
    let ([kind, _], counts) = match end {
        FlowEnd::Source => (SOURCE, COUNTS_SOURCE),
        FlowEnd::Destination => (DESTINATION, COUNTS_DESTINATION),
    };
    let ends = Attributes::new().put(kind, octets(address));
    let protocol = Attributes::new().u8(NUMBER, UDP);
    let original = Attributes::new().nest(ADDRESSES, ends).nest(PROTOCOL, protocol);
    let filter = Attributes::new().u32(FILTER_ORIGINAL, counts | COUNTS_PROTOCOL);
    let attributes = Attributes::new().nest(ORIGINAL, original).nest(FILTER, filter);
    let what = format!("forget UDP flows of {address}");
    Message::new(what, DELETE, NlmF::empty(), &header(Family::V4), attributes)
}

/// Has the kernel delete every UDP flow to a port.
fn forget_port(port: &HostPort) -> Message {
    let protocol = Attributes::new().u8(NUMBER, UDP).put(DESTINATION_PORT, port.port.to_be_bytes());
    // The kernel's filter is wrong about addresses of IPv6.
    let (ends, counts) = match port.address {
        IpAddr::V4(address) if !address.is_unspecified() => {
            (Attributes::new().put(DESTINATION[0], address.octets()), COUNTS_DESTINATION)
        }
        _ => (Attributes::new(), 0),
    };
    let original = Attributes::new().nest(ADDRESSES, ends).nest(PROTOCOL, protocol);
    let counts = counts | COUNTS_PROTOCOL | COUNTS_DESTINATION_PORT;
    let filter = Attributes::new().u32(FILTER_ORIGINAL, counts);
    let attributes = Attributes::new().nest(ORIGINAL, original).nest(FILTER, filter);
    let what = format!("forget UDP flows to host port {port}");
    Message::new(what, DELETE, NlmF::empty(), &header(port.family()), attributes)
}

fn flush(family: Family, addresses: &[IpAddr]) -> Result<usize, NetlinkError> {
    let octets: Vec<Vec<u8>> = addresses.iter().map(|address| octets(*address)).collect();
    let length = octets[0].len();
    let named = |body: &[u8]| {
        let ours = |bytes: &[u8]| octets.iter().any(|octets| octets == bytes);
        body.windows(length).any(ours)
    };
    flush_flows(family, named, |original, answer| concerns(family, &octets, original, answer))
}

/// Forgets the UDP flows that `concerned` is true of (original direction, answers). `perhaps` looks at
/// a flow's bytes before: most flows are other people's, and that costs less than reading them.
fn flush_flows(
    family: Family,
    perhaps: impl Fn(&[u8]) -> bool,
    concerned: impl Fn(&AttributeList<'_>, &AttributeList<'_>) -> Result<bool, NetlinkError>,
) -> Result<usize, NetlinkError> {
    let socket = NetlinkSocket::open(NetlinkProtocol::Netfilter)?;
    let flows = socket.dump(&list_udp(family), |reply| match perhaps(reply.body()) {
        true => forget(family, &concerned, reply),
        false => Ok(None),
    })?;
    for some in flows.chunks(DELETES_AT_ONCE) {
        socket.transact(some)?;
    }
    Ok(flows.len())
}

/// Asks for all UDP flows of a family. Kernels before 5.8 give those of all protocols.
///
/// To ask for an address as well would take another walk for each part of a flow that can name it;
/// and a filter on the reply direction finds nothing, because the kernel reads it with the flags of
/// the original one (`ctnetlink_alloc_filter`).
fn list_udp(family: Family) -> Message {
    let protocol = Attributes::new().u8(NUMBER, UDP);
    let attributes = Attributes::new()
        .nest(ORIGINAL, Attributes::new().nest(PROTOCOL, protocol))
        .nest(FILTER, Attributes::new().u32(FILTER_ORIGINAL, COUNTS_PROTOCOL));
    let what = format!("look for {family} flows over UDP");
    Message::new(what, GET, NlmF::empty(), &header(family), attributes)
}

/// What forgets the flow in `reply`, if it is of UDP and `concerned` is true of it (original
/// direction, answers).
///
/// # Errors
/// [`NetlinkError::Malformed`].
pub fn forget(
    family: Family,
    concerned: impl Fn(&AttributeList<'_>, &AttributeList<'_>) -> Result<bool, NetlinkError>,
    reply: &Reply<'_>,
) -> Result<Option<Message>, NetlinkError> {
    let (_, flow) = reply.parse::<Buffer>(4)?;
    let original = flow.get(ORIGINAL).unwrap_or_default();
    let answer = flow.get(REPLY).unwrap_or_default();
    let (first, back) = (AttributeList::parse(original)?, AttributeList::parse(answer)?);
    if !is_udp(&first)? || !concerned(&first, &back)? {
        return Ok(None);
    }
    let attributes = Attributes::new()
        .put(ORIGINAL | NESTED, original)
        .put_some(ZONE, flow.get(ZONE))
        .put_some(ID, flow.get(ID));
    let delete =
        Message::new("forget a UDP flow", DELETE, NlmF::empty(), &header(family), attributes);
    Ok(Some(delete.tolerating(Errno::ENOENT)))
}

fn is_udp(original: &AttributeList<'_>) -> Result<bool, NetlinkError> {
    Ok(original.nested(PROTOCOL)?.and_then(|protocol| protocol.u8(NUMBER)) == Some(UDP))
}

/// One of `addresses` began it, it was sent to one, or one answers.
fn concerns(
    family: Family,
    addresses: &[Vec<u8>],
    original: &AttributeList<'_>,
    answer: &AttributeList<'_>,
) -> Result<bool, NetlinkError> {
    let names = |direction: &AttributeList<'_>, kinds| {
        let ends = direction.nested(ADDRESSES)?;
        let end = ends.as_ref().and_then(|ends| ends.get(of(kinds, family)));
        Ok::<bool, NetlinkError>(end.is_some_and(|end| addresses.iter().any(|own| own == end)))
    };
    Ok(names(original, SOURCE)? || names(original, DESTINATION)? || names(answer, SOURCE)?)
}
