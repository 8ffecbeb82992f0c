//! Routes. Source: rtnetlink(7), linux/rtnetlink.h.

use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use neli::consts::nl::NlmF;
use neli::consts::rtnl::{RtAddrFamily, RtScope, RtTable, Rta, Rtm, RtmF, Rtn, Rtprot};
use neli::rtnl::{Rtmsg, RtmsgBuilder};

use crate::net::{Family, subnet};
use crate::netlink::wire;
use crate::netlink::{AttributeList, Attributes, Message, NetlinkError, Reply};

/// The mark of our routes. Free in /etc/iproute2/rt_protos of every distribution.
pub const PROTOCOL: u8 = 104;

/// The main table: RT_TABLE_MAIN.
pub const MAIN: u32 = 254;

/// A route of whatever scope, for its deletion: RT_SCOPE_NOWHERE.
pub const ANY_SCOPE: u8 = 255;

/// Bytes of `struct rtmsg`.
const HEADER: usize = 12;

/// Bytes of `struct rtnexthop`: length, flags, weight, index of the link.
const NEXT_HOP: usize = 8;

/// RTNH_F_ONLINK: the gateway is on the link although no address says so.
const ONLINK: u32 = 4;

/// Metrics inside RTA_METRICS: RTAX_MTU and RTAX_ADVMSS.
const METRIC_MTU: u16 = 2;
const METRIC_ADVMSS: u16 = 8;

/// A route, as it is asked for or found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where to, without host bits.
    pub destination: IpNetwork,
    /// Through which neighbour.
    pub gateway: Option<IpAddr>,
    pub device: Option<u32>,
    /// Its origin: RTPROT_*.
    pub protocol: u8,
    pub table: u32,
    /// How far the destination is: RT_SCOPE_*.
    pub scope: u8,
    /// Metric; `None` lets the kernel choose (0 for IPv4, 1024 for IPv6).
    pub priority: Option<u32>,
    /// Bytes that a packet may have on this route.
    pub mtu: Option<u32>,
    /// Maximal segment size that is advertised, in bytes.
    pub advmss: Option<u32>,
    /// The gateway is a neighbour although no address of the link says so.
    pub onlink: bool,
    /// The address that the host's own packets are sent from; it must be one of the host's.
    pub source: Option<IpAddr>,
}

/// What the kernel answers when asked for the route to one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteLookup {
    /// Through which neighbour; `None` if the address is on the link.
    pub gateway: Option<IpAddr>,
    pub device: Option<u32>,
    /// The address that packets are sent from.
    pub source: Option<IpAddr>,
    /// The address is the namespace's own.
    pub local: bool,
    /// Bytes that a packet may have on this route, as far as the route or a learned path MTU says.
    pub mtu: Option<u32>,
}

impl Route {
    /// A route of ours to `destination`, without a next hop: main table, our protocol,
    /// universe scope.
    pub fn to(destination: IpNetwork) -> Route {
        Route {
            destination,
            gateway: None,
            device: None,
            protocol: PROTOCOL,
            table: MAIN,
            scope: u8::from(RtScope::Universe),
            priority: None,
            mtu: None,
            advmss: None,
            onlink: false,
            source: None,
        }
    }

    /// A route of ours to `destination` through a neighbour on a link.
    pub fn via(destination: IpNetwork, gateway: IpAddr, device: u32) -> Route {
        Route { gateway: Some(gateway), device: Some(device), ..Route::to(destination) }
    }
}

/// Adds a route; `EEXIST` if there is one to the same destination with the same metric.
pub fn add(route: &Route) -> Message {
    change(format!("add route {}", text(route)), Rtm::Newroute, NlmF::CREATE | NlmF::EXCL, route)
}

/// Adds a route before those with the same destination and metric, which stay; `EEXIST` if it is there.
pub fn prepend(route: &Route) -> Message {
    change(format!("add route {}", text(route)), Rtm::Newroute, NlmF::CREATE, route)
}

/// Adds one route over several next hops, which share the load; they differ in gateway and device alone.
/// Of none there is no message.
pub fn add_paths(paths: &[Route]) -> Option<Message> {
    let (first, rest) = paths.split_first()?;
    if rest.is_empty() {
        return Some(add(first));
    }
    let mut hops = Vec::new();
    for next_hop in paths {
        let gateway = Attributes::new().put_some(Rta::Gateway, next_hop.gateway.map(wire::octets));
        let gateway = gateway.into_bytes();
        let length = (NEXT_HOP + gateway.len()) as u16;
        let flags = if next_hop.onlink { ONLINK as u8 } else { 0 };
        hops.extend_from_slice(&length.to_ne_bytes());
        hops.extend_from_slice(&[flags, 0]);
        hops.extend_from_slice(&next_hop.device.unwrap_or(0).to_ne_bytes());
        hops.extend_from_slice(&gateway);
    }
    let what = format!("add route {} over {} next hops", first.destination, paths.len());
    let whole = Route { gateway: None, device: None, onlink: false, ..*first };
    let attributes = attributes(&whole).put(Rta::Multipath, hops);
    Some(message(what, Rtm::Newroute, NlmF::CREATE | NlmF::EXCL, &whole, attributes))
}

/// Adds a route, or puts it in the place of the one with the same destination and metric.
pub fn replace(route: &Route) -> Message {
    change(
        format!("replace route {}", text(route)),
        Rtm::Newroute,
        NlmF::CREATE | NlmF::REPLACE,
        route,
    )
}

/// Deletes the route that agrees in everything given; `ESRCH` if there is none.
pub fn delete(route: &Route) -> Message {
    change(format!("delete route {}", text(route)), Rtm::Delroute, NlmF::empty(), route)
}

/// Asks for the routes of `protocol` in the main table.
pub fn list(family: Family, protocol: u8) -> Message {
    let header = header(wire::family_number(family), 0, RtTable::Main, protocol, 0, RtmF::empty());
    Message::new("list routes", Rtm::Getroute, NlmF::empty(), &header, Attributes::new())
}

/// Asks for the routes of all tables.
pub fn list_all(family: Family) -> Message {
    let header = header(wire::family_number(family), 0, RtTable::Unspec, 0, 0, RtmF::empty());
    Message::new("list routes", Rtm::Getroute, NlmF::empty(), &header, Attributes::new())
}

/// Asks for the route that a packet to `address` would take.
pub fn lookup(address: IpAddr) -> Message {
    let family = wire::address_family(address);
    let bits = Family::of(address).bits();
    let header = header(family, bits, RtTable::Unspec, 0, 0, RtmF::empty());
    let attributes = Attributes::new().put(Rta::Dst, wire::octets(address));
    Message::new(
        format!("look up the route to {address}"),
        Rtm::Getroute,
        NlmF::empty(),
        &header,
        attributes,
    )
}

/// Asks for the route that a packet from `source` to `address` takes that comes in by the link of that
/// number. It is refused if such a packet is not forwarded: no route, a source that the reverse path
/// filter drops (`EXDEV`; since 6.13 every refusal of IPv4 is `EINVAL`).
pub fn lookup_forwarded(source: IpAddr, address: IpAddr, input: u32) -> Message {
    let bits = Family::of(address).bits();
    let header = RtmsgBuilder::default()
        .rtm_family(wire::address_family(address))
        .rtm_dst_len(bits)
        .rtm_src_len(bits)
        .rtm_tos(0)
        .rtm_table(RtTable::Unspec)
        .rtm_protocol(Rtprot::Unspec)
        .rtm_scope(RtScope::Universe)
        .rtm_type(Rtn::Unspec)
        .rtm_flags(RtmF::empty());
    let header = header.build().expect("every field without a default is set");
    let attributes = Attributes::new()
        .put(Rta::Dst, wire::octets(address))
        .put(Rta::Src, wire::octets(source))
        .u32(Rta::Iif, input);
    let what = format!("look up the route from {source} to {address}");
    Message::new(what, Rtm::Getroute, NlmF::empty(), &header, attributes)
}

/// The route in an answer; `None` for multicast, blackholes and other families.
pub fn parse(reply: &Reply<'_>) -> Result<Option<Route>, NetlinkError> {
    let (header, attributes) = reply.parse::<Rtmsg>(HEADER)?;
    let Some(family) = wire::family_of(*header.rtm_family()) else { return Ok(None) };
    if *header.rtm_type() != Rtn::Unicast {
        return Ok(None);
    }
    let destination = attributes.get(Rta::Dst).and_then(wire::address);
    let destination = destination.unwrap_or_else(|| unspecified(family));
    let metrics = attributes.nested(Rta::Metrics)?;
    let metric = |kind: u16| metrics.as_ref().and_then(|metrics| metrics.u32(kind));
    Ok(Some(Route {
        destination: subnet::with_prefix(destination, *header.rtm_dst_len()),
        gateway: gateway(&attributes),
        device: attributes.u32(Rta::Oif),
        protocol: u8::from(*header.rtm_protocol()),
        table: attributes.u32(Rta::Table).unwrap_or(u8::from(*header.rtm_table()).into()),
        scope: u8::from(*header.rtm_scope()),
        priority: attributes.u32(Rta::Priority),
        mtu: metric(METRIC_MTU),
        advmss: metric(METRIC_ADVMSS),
        onlink: header.rtm_flags().bits() & ONLINK != 0,
        source: source(&attributes),
    }))
}

/// A route of somebody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignRoute {
    pub destination: IpNetwork,
    /// `unicast`, `blackhole`, `unreachable`, `prohibit` or `throw`.
    pub kind: &'static str,
    /// Its origin: RTPROT_*.
    pub protocol: u8,
    /// The kernel made it for an address of the host.
    pub of_kernel: bool,
    pub priority: Option<u32>,
    pub table: u32,
}

impl ForeignRoute {
    /// The table has no route for it: the next rule decides.
    pub fn is_throw(&self) -> bool {
        self.kind == "throw"
    }
}

impl fmt::Display for ForeignRoute {
    /// As `ip route del` understands it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind != "unicast" {
            write!(f, "{} ", self.kind)?;
        }
        write!(f, "{}", self.destination)?;
        match self.priority {
            Some(metric) => write!(f, " metric {metric}"),
            None => Ok(()),
        }
    }
}

/// The route in an answer if it is not ours; `None` for those of the host's own addresses.
pub fn parse_foreign(reply: &Reply<'_>) -> Result<Option<ForeignRoute>, NetlinkError> {
    let (header, attributes) = reply.parse::<Rtmsg>(HEADER)?;
    let Some((destination, protocol, _)) = parse_any(reply)? else { return Ok(None) };
    let kind = match *header.rtm_type() {
        Rtn::Blackhole => "blackhole",
        Rtn::Unreachable => "unreachable",
        Rtn::Prohibit => "prohibit",
        Rtn::Throw => "throw",
        _ => "unicast",
    };
    Ok((protocol != PROTOCOL).then(|| ForeignRoute {
        destination,
        kind,
        protocol,
        of_kernel: *header.rtm_protocol() == Rtprot::Kernel,
        priority: attributes.u32(Rta::Priority),
        table: attributes.u32(Rta::Table).unwrap_or(u8::from(*header.rtm_table()).into()),
    }))
}

/// Destination and protocol of a route that decides about packets to elsewhere, and whether it leads
/// anywhere: not so blackholes and their like.
pub fn parse_any(reply: &Reply<'_>) -> Result<Option<(IpNetwork, u8, bool)>, NetlinkError> {
    let (header, attributes) = reply.parse::<Rtmsg>(HEADER)?;
    let Some(family) = wire::family_of(*header.rtm_family()) else { return Ok(None) };
    let is_way = *header.rtm_type() == Rtn::Unicast;
    let is_refusal =
        [Rtn::Blackhole, Rtn::Unreachable, Rtn::Prohibit, Rtn::Throw].contains(header.rtm_type());
    let destination = attributes.get(Rta::Dst).and_then(wire::address);
    let destination = destination.unwrap_or_else(|| unspecified(family));
    let network = subnet::with_prefix(destination, *header.rtm_dst_len());
    let found = (network, u8::from(*header.rtm_protocol()), is_way);
    Ok((is_way || is_refusal).then_some(found))
}

fn unspecified(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from([0u8; 4]),
        Family::V6 => IpAddr::from([0u8; 16]),
    }
}

/// As [`parse`], with one for each next hop of a route that has several.
pub fn parse_paths(reply: &Reply<'_>) -> Result<Option<Vec<Route>>, NetlinkError> {
    let Some(route) = parse(reply)? else { return Ok(None) };
    let (_, attributes) = reply.parse::<Rtmsg>(HEADER)?;
    let Some(mut hops) = attributes.get(Rta::Multipath) else { return Ok(Some(vec![route])) };
    let mut routes = Vec::new();
    while let Some((head, rest)) = hops.split_first_chunk::<NEXT_HOP>() {
        let [a, b, flags, _, device @ ..] = *head;
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let own = length.checked_sub(NEXT_HOP).and_then(|length| rest.split_at_checked(length));
        let malformed = || NetlinkError::Malformed(format!("next hop of {length} bytes"));
        let (own, next) = own.ok_or_else(malformed)?;
        routes.push(Route {
            gateway: gateway(&AttributeList::parse(own)?),
            device: Some(u32::from_ne_bytes(device)),
            onlink: u32::from(flags) & ONLINK != 0,
            ..route
        });
        hops = next;
    }
    Ok(Some(routes))
}

/// The route in an answer to [`lookup`].
pub fn parse_lookup(reply: &Reply<'_>) -> Result<RouteLookup, NetlinkError> {
    let (header, attributes) = reply.parse::<Rtmsg>(HEADER)?;
    let metrics = attributes.nested(Rta::Metrics)?;
    Ok(RouteLookup {
        gateway: gateway(&attributes),
        device: attributes.u32(Rta::Oif),
        source: source(&attributes),
        local: *header.rtm_type() == Rtn::Local,
        mtu: metrics.and_then(|metrics| metrics.u32(METRIC_MTU)).filter(|mtu| *mtu > 0),
    })
}

fn source(attributes: &AttributeList<'_>) -> Option<IpAddr> {
    attributes.get(Rta::Prefsrc).and_then(wire::address)
}

fn gateway(attributes: &AttributeList<'_>) -> Option<IpAddr> {
    attributes.get(Rta::Gateway).and_then(wire::address)
}

fn change(what: String, kind: Rtm, flags: NlmF, route: &Route) -> Message {
    message(what, kind, flags, route, attributes(route))
}

fn message(what: String, kind: Rtm, flags: NlmF, route: &Route, attributes: Attributes) -> Message {
    let family = wire::address_family(route.destination.ip());
    let rtm_flags = if route.onlink { RtmF::from_bits_retain(ONLINK) } else { RtmF::empty() };
    let prefix = route.destination.prefix();
    let header = header(family, prefix, RtTable::Unspec, route.protocol, route.scope, rtm_flags);
    Message::new(what, kind, flags, &header, attributes)
}

fn attributes(route: &Route) -> Attributes {
    let metrics = Attributes::new()
        .put_some(METRIC_MTU, route.mtu.map(u32::to_ne_bytes))
        .put_some(METRIC_ADVMSS, route.advmss.map(u32::to_ne_bytes));
    let mut attributes = Attributes::new()
        .put(Rta::Dst, wire::octets(route.destination.ip()))
        .put_some(Rta::Gateway, route.gateway.map(wire::octets))
        .put_some(Rta::Oif, route.device.map(u32::to_ne_bytes))
        .put_some(Rta::Prefsrc, route.source.map(wire::octets))
        .put_some(Rta::Priority, route.priority.map(u32::to_ne_bytes))
        .u32(Rta::Table, route.table);
    if route.mtu.is_some() || route.advmss.is_some() {
        attributes = attributes.nest(Rta::Metrics, metrics);
    }
    attributes
}

fn header(
    family: RtAddrFamily,
    prefix: u8,
    table: RtTable,
    protocol: u8,
    scope: u8,
    flags: RtmF,
) -> Rtmsg {
    let header = RtmsgBuilder::default()
        .rtm_family(family)
        .rtm_dst_len(prefix)
        .rtm_src_len(0)
        .rtm_tos(0)
        .rtm_table(table)
        .rtm_protocol(Rtprot::from(protocol))
        .rtm_scope(RtScope::from(scope))
        .rtm_type(if protocol == 0 { Rtn::Unspec } else { Rtn::Unicast })
        .rtm_flags(flags);
    header.build().expect("every field without a default is set")
}

fn text(route: &Route) -> String {
    match route.gateway {
        Some(gateway) => format!("{} via {gateway}", route.destination),
        None => route.destination.to_string(),
    }
}
