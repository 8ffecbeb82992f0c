//! VXLAN devices: make, change. Source: linux/if_link.h, RFC 7348.

use std::net::IpAddr;

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Ifla, IflaInfo, RtAddrFamily, Rtm};

use crate::net::{Family, IfName, Mac};
use crate::netlink::link::{self, LinkChange, LinkRef};
use crate::netlink::vxlan_info::{ID, LEARNING, LOCAL, LOCAL6, PORT, UDP_CSUM};
use crate::netlink::wire::{self, link_header};
use crate::netlink::{Attributes, Message};

pub use crate::netlink::vxlan_info::{KIND, VxlanInfo};

/// A VXLAN device to be made.
#[derive(Clone, Copy, Debug)]
pub struct NewVxlan<'a> {
    pub name: &'a IfName,
    pub mac: Mac,
    /// VXLAN network identifier, 24 bits.
    pub vni: u32,
    /// UDP port to listen on.
    pub port: u16,
    /// The address to send from; its family is that of the outer packets.
    pub local: IpAddr,
    /// Bytes of an inner packet.
    pub mtu: u32,
    /// The text that says whose it is.
    pub alias: &'a str,
}

/// Makes a device that sends only to destinations that were set: it learns nothing, is tied to no link (the
/// route to the other host says which), has no IPv6 address of its own, and its outer packets carry
/// a UDP checksum.
///
/// With checksum, because one that is not there is what kernels before 5.7 got wrong when a rule
/// translated the outer packet's address ("netfilter: nat: never update the UDP checksum when it's
/// 0"); and receivers can derive the inner
/// checksum from it.
///
/// It is not up yet: [`set_up`] is what needs the port.
pub fn add(new: &NewVxlan<'_>) -> Vec<Message> {
    let data = Attributes::new()
        .u32(ID, new.vni)
        .put(local_kind(new.local), wire::octets(new.local))
        .put(PORT, new.port.to_be_bytes())
        .u8(LEARNING, 0)
        .u8(UDP_CSUM, 1);
    let info = Attributes::new().text(IflaInfo::Kind, KIND).nest(IflaInfo::Data, data);
    let attributes = Attributes::new()
        .text(Ifla::Ifname, new.name.as_str())
        .put(Ifla::Address, new.mac.0)
        .u32(Ifla::Mtu, new.mtu)
        .nest(Ifla::Linkinfo, info);
    let header = link_header(RtAddrFamily::Unspecified, 0, false);
    let what = format!("create VXLAN device {}", new.name);
    let create = Message::new(what, Rtm::Newlink, NlmF::CREATE | NlmF::EXCL, &header, attributes);
    let which = LinkRef::Name(new.name);
    let mark = LinkChange { alias: Some(new.alias.to_owned()), ..LinkChange::default() };
    vec![create, link::change(which, &mark), link::without_link_local(which)]
}

/// Sets the device up; `EADDRINUSE` if something else has its port.
pub fn set_up(name: &IfName) -> Message {
    link::change(LinkRef::Name(name), &LinkChange { up: true, ..LinkChange::default() })
}

/// Gives the device another address to send from, of the same family, and makes it learn nothing.
/// Nothing is lost on the way.
pub fn change(name: &IfName, local: IpAddr) -> Message {
    let data = Attributes::new().put(local_kind(local), wire::octets(local)).u8(LEARNING, 0);
    let info = Attributes::new().text(IflaInfo::Kind, KIND).nest(IflaInfo::Data, data);
    let attributes = Attributes::new().text(Ifla::Ifname, name.as_str()).nest(Ifla::Linkinfo, info);
    let header = link_header(RtAddrFamily::Unspecified, 0, false);
    Message::new(format!("set {name}"), Rtm::Newlink, NlmF::empty(), &header, attributes)
}

fn local_kind(local: IpAddr) -> u16 {
    match Family::of(local) {
        Family::V4 => LOCAL,
        Family::V6 => LOCAL6,
    }
}
