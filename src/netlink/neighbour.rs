//! Neighbours: which MAC an address on a link has. Source: rtnetlink(7), linux/neighbour.h.

use std::net::IpAddr;

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Nda, Ntf, Nud, RtAddrFamily, Rtm, Rtn};
use neli::rtnl::{Ndmsg, NdmsgBuilder};

use crate::net::Mac;
use crate::netlink::route::PROTOCOL;
use crate::netlink::wire;
use crate::netlink::{Attributes, Message, NetlinkError, Reply};

/// Bytes of `struct ndmsg`.
pub(super) const HEADER: usize = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Neighbour {
    pub address: IpAddr,
    pub mac: Mac,
}

/// Says that `address` has `mac` on the link `index`, whatever was believed before. The kernel
/// checks and forgets it as it does with what it learned itself.
pub fn set(index: u32, address: IpAddr, mac: Mac) -> Message {
    let attributes = Attributes::new().put(Nda::Dst, wire::octets(address)).put(Nda::Lladdr, mac.0);
    let what = format!("set neighbour {address}");
    let header = header(wire::address_family(address), index, Nud::REACHABLE, Ntf::empty());
    Message::new(what, Rtm::Newneigh, NlmF::CREATE | NlmF::REPLACE, &header, attributes)
}

/// Adds a permanent entry (`NUD_PERMANENT`): a neighbour of the link `index` has this MAC; the kernel neither checks nor
/// forgets it. It bears our mark ([`PROTOCOL`]) where the kernel has marks for neighbours (5.0).
pub fn set_permanent(index: u32, neighbour: &Neighbour) -> Message {
    /// NDA_PROTOCOL of linux/neighbour.h.
    const MADE_BY: u16 = 12;
    let Neighbour { address, mac } = neighbour;
    let attributes = Attributes::new()
        .put(Nda::Dst, wire::octets(*address))
        .put(Nda::Lladdr, mac.0)
        .u8(MADE_BY, PROTOCOL);
    let what = format!("set neighbour {address}");
    let header = header(wire::address_family(*address), index, Nud::PERMANENT, Ntf::empty());
    Message::new(what, Rtm::Newneigh, NlmF::CREATE | NlmF::REPLACE, &header, attributes)
}

/// Asks for the neighbours of the link `index`, both families.
pub fn list(index: u32) -> Message {
    let header = header(RtAddrFamily::Unspecified, 0, Nud::empty(), Ntf::empty());
    let attributes = Attributes::new().u32(Nda::Ifindex, index);
    Message::new("list neighbours", Rtm::Getneigh, NlmF::empty(), &header, attributes)
}

/// Asks for the neighbour `address` of the link `index`; `ENOENT` if there is none.
pub fn get(index: u32, address: IpAddr) -> Message {
    let header = header(wire::address_family(address), index, Nud::empty(), Ntf::empty());
    let attributes = Attributes::new().put(Nda::Dst, wire::octets(address));
    Message::new("look up a neighbour", Rtm::Getneigh, NlmF::empty(), &header, attributes)
}

/// The neighbour in an answer; `None` for one whose MAC may change.
pub fn parse(reply: &Reply<'_>) -> Result<Option<Neighbour>, NetlinkError> {
    let (header, attributes) = reply.parse::<Ndmsg>(HEADER)?;
    let address = attributes.get(Nda::Dst).and_then(wire::address);
    let entry = address.zip(attributes.array(Nda::Lladdr).map(Mac));
    let permanent = header.ndm_state().contains(Nud::PERMANENT)
        && wire::family_of(*header.ndm_family()).is_some();
    Ok(entry.filter(|_| permanent).map(|(address, mac)| Neighbour { address, mac }))
}

/// What is known of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourState {
    pub address: IpAddr,
    /// Its MAC, while one is known.
    pub mac: Option<Mac>,
    /// How sure that is.
    pub state: NudState,
}

/// How sure the MAC of a neighbour is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NudState {
    /// It may be used.
    Valid,
    Permanent,
    /// It was asked for, and there is no answer yet.
    Incomplete,
    /// It was asked for, and there was no answer.
    Failed,
}

/// What an answer to [`list`] says of a neighbour, be its MAC known or not; `None` for other
/// families.
pub fn parse_state(reply: &Reply<'_>) -> Result<Option<NeighbourState>, NetlinkError> {
    let (header, attributes) = reply.parse::<Ndmsg>(HEADER)?;
    let Some(address) = attributes.get(Nda::Dst).and_then(wire::address) else { return Ok(None) };
    let is = |state: Nud| header.ndm_state().contains(state);
    let state = match () {
        () if is(Nud::PERMANENT) => NudState::Permanent,
        () if is(Nud::FAILED) => NudState::Failed,
        () if is(Nud::INCOMPLETE) => NudState::Incomplete,
        () => NudState::Valid,
    };
    let mac = attributes.array(Nda::Lladdr).map(Mac);
    let known = wire::family_of(*header.ndm_family()).is_some();
    Ok(known.then_some(NeighbourState { address, mac, state }))
}

/// Index of the link that a notification is about, of whichever table.
pub fn link_of(reply: &Reply<'_>) -> Result<u32, NetlinkError> {
    let (header, _) = reply.parse::<Ndmsg>(HEADER)?;
    Ok(header.ndm_index().cast_unsigned())
}

/// Forgets the MAC of `address`; `ENOENT` if none is known.
pub fn delete(index: u32, address: IpAddr) -> Message {
    let attributes = Attributes::new().put(Nda::Dst, wire::octets(address));
    let what = format!("delete neighbour {address}");
    Message::new(
        what,
        Rtm::Delneigh,
        NlmF::empty(),
        &header(wire::address_family(address), index, Nud::empty(), Ntf::empty()),
        attributes,
    )
}

/// Pins `mac` to a port of a bridge, by the index of the port: it moves to no other port, and a
/// locked port lets it in. It goes with the port.
pub fn pin(port: u32, mac: Mac) -> Message {
    pin_with(NlmF::CREATE | NlmF::REPLACE, port, mac)
}

/// As [`pin`]; `EEXIST` if the bridge knows the MAC already.
pub fn pin_new(port: u32, mac: Mac) -> Message {
    pin_with(NlmF::CREATE | NlmF::EXCL, port, mac)
}

fn pin_with(flags: NlmF, port: u32, mac: Mac) -> Message {
    /// AF_BRIDGE of linux/socket.h; NTF_MASTER (the bridge's table, not the port's own) and
    /// NTF_STICKY of linux/neighbour.h.
    const BRIDGE: u8 = 7;
    const MASTER: u8 = 1 << 2;
    const STICKY: u8 = 1 << 6;
    let entry = Ntf::from_bits_retain(MASTER | STICKY);
    let header = header(RtAddrFamily::from(BRIDGE), port, Nud::NOARP, entry);
    let attributes = Attributes::new().put(Nda::Lladdr, mac.0);
    Message::new(format!("pin {mac} to port {port}"), Rtm::Newneigh, flags, &header, attributes)
}

pub(super) fn header(family: RtAddrFamily, index: u32, state: Nud, flags: Ntf) -> Ndmsg {
    let header = NdmsgBuilder::default()
        .ndm_family(family)
        .ndm_index(index.cast_signed())
        .ndm_state(state)
        .ndm_flags(flags)
        .ndm_type(Rtn::Unspec);
    header.build().expect("every field without a default is set")
}
