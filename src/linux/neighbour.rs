//! Neighbours: which MAC an address on a link has. Source: rtnetlink(7), linux/neighbour.h.

use std::net::IpAddr;

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Nda, Ntf, Nud, RtAddrFamily, Rtm, Rtn};
use neli::rtnl::{Ndmsg, NdmsgBuilder};

use super::netlink::{Attributes, Message};
use super::wire;
use crate::net::Mac;

/// Says that `address` has `mac` on the link `index`, whatever was believed before. The kernel
/// checks and forgets it as it does with what it learned itself.
pub fn set(index: u32, address: IpAddr, mac: Mac) -> Message {
    let attributes = Attributes::new().put(Nda::Dst, wire::octets(address)).put(Nda::Lladdr, mac.0);
    let what = format!("set neighbour {address}");
    let header = header(index, address, Nud::REACHABLE);
    Message::new(what, Rtm::Newneigh, NlmF::CREATE | NlmF::REPLACE, &header, attributes)
}

/// Forgets the MAC of `address`; `ENOENT` if none is known.
pub fn delete(index: u32, address: IpAddr) -> Message {
    let attributes = Attributes::new().put(Nda::Dst, wire::octets(address));
    let what = format!("delete neighbour {address}");
    Message::new(
        what,
        Rtm::Delneigh,
        NlmF::empty(),
        &header(index, address, Nud::empty()),
        attributes,
    )
}

/// Pins `mac` to a port of a bridge, by the index of the port: it moves to no other port, and a
/// locked port lets it in. It goes with the port.
pub fn pin(port: u32, mac: Mac) -> Message {
    /// AF_BRIDGE of linux/socket.h; NTF_MASTER (the bridge's table, not the port's own) and
    /// NTF_STICKY of linux/neighbour.h.
    const BRIDGE: u8 = 7;
    const MASTER: u8 = 1 << 2;
    const STICKY: u8 = 1 << 6;
    let header = NdmsgBuilder::default()
        .ndm_family(RtAddrFamily::from(BRIDGE))
        .ndm_index(port.cast_signed())
        .ndm_state(Nud::NOARP)
        .ndm_flags(Ntf::from_bits_retain(MASTER | STICKY))
        .ndm_type(Rtn::Unspec);
    let header = header.build().expect("every field without a default is set");
    let attributes = Attributes::new().put(Nda::Lladdr, mac.0);
    let flags = NlmF::CREATE | NlmF::REPLACE;
    Message::new(format!("pin {mac} to port {port}"), Rtm::Newneigh, flags, &header, attributes)
}

fn header(index: u32, address: IpAddr, state: Nud) -> Ndmsg {
    let header = NdmsgBuilder::default()
        .ndm_family(wire::family(address))
        .ndm_index(index.cast_signed())
        .ndm_state(state)
        .ndm_flags(Ntf::empty())
        .ndm_type(Rtn::Unspec);
    header.build().expect("every field without a default is set")
}
