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

/// Where a bridge sends frames for a MAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BridgeEntry {
    pub mac: Mac,
    /// Index of the port, or of the bridge itself.
    pub link: u32,
    pub kind: EntryKind,
    /// `None`: where the bridge keeps no VLANs apart.
    pub vlan: Option<u16>,
}

/// Why a bridge sends them there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// It is the MAC of the link itself: the host takes them in.
    Local,
    /// Somebody pinned the MAC to the port (`neighbour::pin`).
    Pinned,
    /// The bridge has seen it there.
    Learned,
}

/// Asks which port of a bridge `mac` is behind; `ENOENT` if the bridge does not know it.
pub fn get(bridge: u32, mac: Mac) -> Message {
    let header = neighbour::header(RtAddrFamily::from(BRIDGE), 0, Nud::empty(), Ntf::empty());
    let attributes = Attributes::new().u32(MASTER, bridge).put(Nda::Lladdr, mac.0);
    let what = format!("look up {mac} in a bridge");
    Message::new(what, Rtm::Getneigh, NlmF::empty(), &header, attributes)
}

/// Asks for all entries of a bridge.
pub fn list_bridge(bridge: u32) -> Message {
    let header = neighbour::header(RtAddrFamily::from(BRIDGE), 0, Nud::empty(), Ntf::empty());
    let attributes = Attributes::new().u32(MASTER, bridge);
    Message::new("list a bridge's MACs", Rtm::Getneigh, NlmF::empty(), &header, attributes)
}

/// The entry of a bridge in an answer; `None` for one of a port's own table.
pub fn parse_bridge(reply: &Reply<'_>) -> Result<Option<BridgeEntry>, NetlinkError> {
    /// NDA_VLAN of linux/neighbour.h.
    const VLAN: u16 = 5;
    let (header, attributes) = reply.parse::<Ndmsg>(HEADER)?;
    let is_of_bridge =
        u8::from(*header.ndm_family()) == BRIDGE && !header.ndm_flags().contains(Ntf::SELF);
    let kind = match header.ndm_state() {
        state if state.contains(Nud::PERMANENT) => EntryKind::Local,
        state if state.contains(Nud::NOARP) => EntryKind::Pinned,
        _ => EntryKind::Learned,
    };
    let mac = attributes.array(Nda::Lladdr).map(Mac).filter(|_| is_of_bridge);
    Ok(mac.map(|mac| BridgeEntry {
        mac,
        link: header.ndm_index().cast_unsigned(),
        kind,
        vlan: attributes.array(VLAN).map(u16::from_ne_bytes),
    }))
}

/// Lets the host take in frames for `mac` again, which is that of this link: a port, or the bridge itself. In
/// each of the link's VLANs, as the kernel does by itself when a port comes, and from whichever port has it.
pub fn set_local(link: u32, mac: Mac, is_bridge: bool) -> Message {
    /// NTF_MASTER of linux/neighbour.h: the table of the port's bridge.
    const OF_BRIDGE: Ntf = Ntf::from_bits_retain(1 << 2);
    let table = if is_bridge { Ntf::SELF } else { OF_BRIDGE };
    let header = neighbour::header(RtAddrFamily::from(BRIDGE), link, Nud::PERMANENT, table);
    let attributes = Attributes::new().put(Nda::Lladdr, mac.0);
    let flags = NlmF::CREATE | NlmF::REPLACE;
    Message::new(format!("set local MAC {mac}"), Rtm::Newneigh, flags, &header, attributes)
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
