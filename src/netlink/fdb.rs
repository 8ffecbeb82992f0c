//! Where a VXLAN device sends frames: MAC → address of another host. Source: linux/neighbour.h,
//! kernel drivers/net/vxlan/vxlan_core.c (vxlan_fdb_parse, vxlan_fdb_info).

use std::net::IpAddr;

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Nda, Ntf, Nud, RtAddrFamily, Rtm};
use neli::rtnl::Ndmsg;

use crate::net::Mac;
use crate::netlink::neighbour::{self, HEADER};
use crate::netlink::wire;
use crate::netlink::{Attributes, Message, NetlinkError, Reply};

/// AF_BRIDGE of linux/socket.h.
const BRIDGE: u8 = 7;

/// NDA_MASTER of linux/neighbour.h.
const MASTER: u16 = 9;

/// Frames for `mac` go to `address`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Destination {
    /// MAC of the other end's device.
    pub mac: Mac,
    /// Address of the other host.
    pub address: IpAddr,
    /// UDP port there; `None` is the port of the device itself.
    pub port: Option<u16>,
}

/// Sends frames for a MAC there. If it has a destination it gets this one instead of its first.
pub fn replace(index: u32, destination: &Destination) -> Message {
    let what = format!("send frames for {} to {}", destination.mac, destination.address);
    let flags = NlmF::CREATE | NlmF::REPLACE;
    message(what, Rtm::Newneigh, flags, index, Nud::PERMANENT, destination)
}

/// Sends frames for a MAC there no longer; `ENOENT` if the MAC has no destination. One that it has not,
/// in address or port, is passed over in silence.
pub fn delete(index: u32, destination: &Destination) -> Message {
    let what = format!("send frames for {} to {} no longer", destination.mac, destination.address);
    message(what, Rtm::Delneigh, NlmF::empty(), index, Nud::empty(), destination)
}

/// Asks for all destinations of the device `index`.
pub fn list(index: u32) -> Message {
    let header = neighbour::header(RtAddrFamily::from(BRIDGE), index, Nud::empty(), Ntf::empty());
    Message::new("list destinations", Rtm::Getneigh, NlmF::empty(), &header, Attributes::new())
}

/// The destination in an answer; `None` for an entry without one (of a bridge).
pub fn parse(reply: &Reply<'_>) -> Result<Option<Destination>, NetlinkError> {
    let (header, attributes) = reply.parse::<Ndmsg>(HEADER)?;
    let address = attributes.get(Nda::Dst).and_then(wire::address);
    let entry = attributes.array(Nda::Lladdr).map(Mac).zip(address);
    let of_bridges = u8::from(*header.ndm_family()) == BRIDGE;
    Ok(entry.filter(|_| of_bridges).map(|(mac, address)| Destination {
        mac,
        address,
        port: attributes.array(Nda::Port).map(u16::from_be_bytes),
    }))
}

/// Asks which port of a bridge `mac` is behind; `ENOENT` if the bridge does not know it.
pub fn get(bridge: u32, mac: Mac) -> Message {
    let header = neighbour::header(RtAddrFamily::from(BRIDGE), 0, Nud::empty(), Ntf::empty());
    let attributes = Attributes::new().u32(MASTER, bridge).put(Nda::Lladdr, mac.0);
    let what = format!("look up {mac} in a bridge");
    Message::new(what, Rtm::Getneigh, NlmF::empty(), &header, attributes)
}

/// Asks for the MAC addresses that a bridge has learned, by port.
pub fn list_learned(bridge: u32) -> Message {
    let header = neighbour::header(RtAddrFamily::from(BRIDGE), 0, Nud::empty(), Ntf::empty());
    let attributes = Attributes::new().u32(MASTER, bridge);
    let what = "list what a bridge has learned";
    Message::new(what, Rtm::Getneigh, NlmF::empty(), &header, attributes)
}

/// The MAC in an answer to [`list_learned`], and the index of the port that it is behind; `None` for
/// the MAC of the port itself.
pub fn parse_learned(reply: &Reply<'_>) -> Result<Option<(Mac, u32)>, NetlinkError> {
    let (header, attributes) = reply.parse::<Ndmsg>(HEADER)?;
    let own = header.ndm_state().contains(Nud::PERMANENT);
    let mac = attributes.array(Nda::Lladdr).map(Mac).filter(|_| !own);
    Ok(mac.map(|mac| (mac, header.ndm_index().cast_unsigned())))
}

/// The MAC in an answer to [`list_learned`] that somebody pinned to a port (`neighbour::pin`), and
/// the index of that port.
pub fn parse_pinned(reply: &Reply<'_>) -> Result<Option<(Mac, u32)>, NetlinkError> {
    let (header, attributes) = reply.parse::<Ndmsg>(HEADER)?;
    let pinned = header.ndm_state().contains(Nud::NOARP);
    let mac = attributes.array(Nda::Lladdr).map(Mac).filter(|_| pinned);
    Ok(mac.map(|mac| (mac, header.ndm_index().cast_unsigned())))
}

fn message(
    what: String,
    kind: Rtm,
    flags: NlmF,
    index: u32,
    state: Nud,
    destination: &Destination,
) -> Message {
    let header = neighbour::header(RtAddrFamily::from(BRIDGE), index, state, Ntf::SELF);
    let attributes = Attributes::new()
        .put(Nda::Lladdr, destination.mac.0)
        .put(Nda::Dst, wire::octets(destination.address))
        .put_some(Nda::Port, destination.port.map(u16::to_be_bytes));
    Message::new(what, kind, flags, &header, attributes)
}
