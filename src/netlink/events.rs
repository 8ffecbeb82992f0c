//! What changes in the kernel. An event only says where to look.

use std::time::Duration;

use ipnetwork::IpNetwork;
use neli::consts::rtnl::Rtm;
use nix::errno::Errno;

use crate::net::IfName;
use crate::netlink::fdb::{self, Destination, EntryKind};
use crate::netlink::link::Link;
use crate::netlink::{AttributeList, Monitor, NetlinkError, NetlinkProtocol, Reply};
use crate::netlink::{address, link, neighbour, route};

/// RTNLGRP_LINK, _NEIGH, _IPV4_IFADDR, _IPV4_ROUTE, _IPV6_IFADDR, _IPV6_ROUTE, _IPV4_NETCONF,
/// _IPV6_NETCONF of linux/rtnetlink.h.
const ROUTE_GROUPS: [u32; 8] = [1, 3, 5, 7, 9, 11, 24, 25];

/// NFNLGRP_NFTABLES of linux/netfilter/nfnetlink.h.
const NFTABLES_GROUPS: [u32; 1] = [7];

/// Something that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelEvent {
    /// A link came, went or changed.
    Link {
        name: IfName,
        index: u32,
        /// How it is since then.
        now: LinkState,
    },
    /// A neighbour went, or a place that a device sends to.
    NeighbourGone { index: u32 },
    /// A bridge takes in frames for the MAC of this link no longer, which is a port or the bridge itself, or was.
    LocalMacGone { index: u32 },
    /// A neighbour came or changed; `sender` as in [`Reply::sender`].
    Neighbour { index: u32, sender: u32 },
    /// A device sends frames for a MAC elsewhere than before.
    Destination { index: u32, to: Destination },
    /// An address came or went.
    Address { index: u32 },
    /// A route came or went.
    Route {
        /// Its origin, RTPROT_*.
        protocol: u8,
        /// It is a default route.
        default: bool,
        gone: bool,
        destination: IpNetwork,
        /// Port id of the process that changed it, as in [`Reply::sender`].
        sender: u32,
    },
    /// Forwarding was turned off, on the host or on a link.
    ForwardingOff,
    /// nftables changed; `sender` as in [`Reply::sender`].
    Nftables { sender: u32 },
    /// nftables changed, in a table of the family `netdev`: this message says what.
    Frames { kind: u16, body: Vec<u8> },
    /// The end of a transaction that had such messages.
    FramesDone,
    /// Events were lost: check everything.
    Lost,
}

/// How a link is after its event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// A port of another one, and up.
    Port,
    /// A port of another one, and down.
    PortDown,
    /// Up, and a port of nothing.
    Alone,
    /// Down, and a port of nothing: new, or about to go.
    Down,
    /// It is no more.
    Gone,
}

/// Events of one protocol.
pub struct Events {
    monitor: Monitor,
    protocol: NetlinkProtocol,
    /// Messages of a transaction's tables of the family `netdev` came, and not yet its end.
    in_frames: bool,
}

impl Events {
    /// Links, addresses and routes ([`NetlinkProtocol::Route`]) or nftables ([`NetlinkProtocol::Netfilter`]) of
    /// the namespace of the calling thread.
    ///
    /// # Errors
    /// [`NetlinkError::Io`].
    pub fn open(protocol: NetlinkProtocol) -> Result<Events, NetlinkError> {
        let groups: &[u32] = match protocol {
            NetlinkProtocol::Route => &ROUTE_GROUPS,
            NetlinkProtocol::Netfilter => &NFTABLES_GROUPS,
            NetlinkProtocol::Generic => &[],
        };
        Ok(Events { monitor: Monitor::open(protocol, groups)?, protocol, in_frames: false })
    }

    /// Waits for something to change, not longer than `patience`; nothing if nothing did. What the
    /// kernel says cannot be understood counts as [`KernelEvent::Lost`]: better look once too often.
    ///
    /// # Errors
    /// The socket is of no more use: open another one.
    pub fn wait(&mut self, patience: Duration) -> Result<Vec<KernelEvent>, NetlinkError> {
        let mut events = Vec::new();
        let (protocol, in_frames) = (self.protocol, &mut self.in_frames);
        let received = self.monitor.wait(patience, |reply| {
            let event = match protocol {
                NetlinkProtocol::Route => of_route(reply),
                NetlinkProtocol::Netfilter => Ok(of_nftables(reply, in_frames)),
                NetlinkProtocol::Generic => Ok(None),
            };
            events.extend(event.unwrap_or(Some(KernelEvent::Lost)));
        });
        match received {
            Ok(()) => {}
            Err(NetlinkError::Malformed(_)) => events.push(KernelEvent::Lost),
            Err(error) if error.errno() == Some(Errno::ENOBUFS) => events.push(KernelEvent::Lost),
            Err(error) => return Err(error),
        }
        events.dedup();
        Ok(events)
    }
}

/// The event that a message of nftables reports.
fn of_nftables(reply: &Reply<'_>, in_frames: &mut bool) -> Option<KernelEvent> {
    /// NFT_MSG_NEWGEN of linux/netfilter/nf_tables.h, NFPROTO_NETDEV.
    const NEW_GENERATION: u16 = 10 << 8 | 15;
    const NETDEV: u8 = 5;
    if reply.kind == NEW_GENERATION {
        return std::mem::take(in_frames).then_some(KernelEvent::FramesDone);
    }
    if reply.body().first() != Some(&NETDEV) {
        return Some(KernelEvent::Nftables { sender: reply.sender });
    }
    *in_frames = true;
    Some(KernelEvent::Frames { kind: reply.kind, body: reply.body().to_vec() })
}

/// The event that a message of rtnetlink reports; `None` if it does not matter here.
///
/// # Errors
/// [`NetlinkError::Malformed`].
pub fn of_route(reply: &Reply<'_>) -> Result<Option<KernelEvent>, NetlinkError> {
    let is = |kind: Rtm| reply.kind == u16::from(kind);
    if is(Rtm::Newlink) || is(Rtm::Dellink) {
        let gone = is(Rtm::Dellink) && !is_of_bridge(reply);
        let event = |link: Link| {
            let now = link_now(&link, gone);
            KernelEvent::Link { name: link.name, index: link.index, now }
        };
        return Ok(link::parse(reply)?.map(event));
    }
    if is(Rtm::Newaddr) || is(Rtm::Deladdr) {
        return Ok(
            address::parse(reply)?.map(|address| KernelEvent::Address { index: address.index })
        );
    }
    if is(Rtm::Delneigh) {
        let index = neighbour::link_of(reply)?;
        let of_bridge = fdb::parse_bridge(reply)?;
        let is_local = of_bridge.is_some_and(|entry| entry.kind == EntryKind::Local);
        return Ok(Some(match is_local {
            true => KernelEvent::LocalMacGone { index },
            false => KernelEvent::NeighbourGone { index },
        }));
    }
    if is(Rtm::Newneigh) {
        let index = neighbour::link_of(reply)?;
        if !is_of_bridge(reply) {
            return Ok(Some(KernelEvent::Neighbour { index, sender: reply.sender }));
        }
        return Ok(fdb::parse(reply)?.map(|to| KernelEvent::Destination { index, to }));
    }
    if is(Rtm::Newroute) || is(Rtm::Delroute) {
        let gone = is(Rtm::Delroute);
        let (sender, found) = (reply.sender, route::parse_any(reply)?);
        return Ok(found.map(|(destination, protocol, is_way)| KernelEvent::Route {
            protocol,
            default: is_way && destination.prefix() == 0,
            gone,
            destination,
            sender,
        }));
    }
    if is(Rtm::Newnetconf) {
        return Ok(is_forwarding_off(reply)?.then_some(KernelEvent::ForwardingOff));
    }
    Ok(None)
}

/// The bridge itself reports its ports, as links that come and go.
fn is_of_bridge(reply: &Reply<'_>) -> bool {
    reply.body().first().copied() == Some(nix::libc::AF_BRIDGE as u8)
}

fn link_now(link: &Link, gone: bool) -> LinkState {
    match link.master {
        _ if gone => LinkState::Gone,
        Some(_) if link.up => LinkState::Port,
        Some(_) => LinkState::PortDown,
        None if link.up => LinkState::Alone,
        None => LinkState::Down,
    }
}

/// Of a new link, such as a pod's, the kernel reports everything at once; of a change, that alone.
fn is_forwarding_off(reply: &Reply<'_>) -> Result<bool, NetlinkError> {
    /// `struct netconfmsg`, padded; NETCONFA_FORWARDING and NETCONFA_MC_FORWARDING. Source:
    /// linux/netconf.h.
    const HEADER: usize = 4;
    const FORWARDING: u16 = 2;
    const MULTICAST: u16 = 4;
    let Some((_, attributes)) = reply.body().split_at_checked(HEADER) else { return Ok(false) };
    let attributes = AttributeList::parse(attributes)?;
    Ok(attributes.u32(FORWARDING) == Some(0) && attributes.get(MULTICAST).is_none())
}
