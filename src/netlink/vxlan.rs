//! VXLAN devices: make, change, observe. Source: linux/if_link.h, RFC 7348.

use std::net::IpAddr;

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Ifla, IflaInfo, RtAddrFamily, Rtm};

use crate::net::{Family, IfName, Mac};
use crate::netlink::link::{self, LinkChange, LinkRef};
use crate::netlink::wire::{self, link_header};
use crate::netlink::{AttributeList, Attributes, Message, NetlinkError};

/// The kernel's word for this kind of link.
pub const KIND: &str = "vxlan";

/// IFLA_VXLAN_*.
const ID: u16 = 1;
const LINK: u16 = 3;
const LOCAL: u16 = 4;
const LEARNING: u16 = 7;
const PORT: u16 = 15;
const LOCAL6: u16 = 17;
const UDP_CSUM: u16 = 18;
const UDP_ZERO_CSUM6_TX: u16 = 19;
const COLLECT_METADATA: u16 = 25;

/// What a VXLAN device is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vxlan {
    /// VXLAN network identifier.
    pub vni: u32,
    /// UDP port that it listens on.
    pub port: u16,
    /// The address that it sends from; `None` if the kernel chooses one.
    pub local: Option<IpAddr>,
    /// It believes what comes in about where a MAC is.
    pub learning: bool,
    /// Its outer packets carry a UDP checksum.
    pub checksums: bool,
    /// It is tied to one link, or takes every VNI: nothing of ours.
    pub special: bool,
}

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

/// What a link's information says of it as a VXLAN device.
pub fn parse(info: &AttributeList) -> Result<Option<Vxlan>, NetlinkError> {
    let Some(data) = info.nested(IflaInfo::Data)? else { return Ok(None) };
    let flag = |kind: u16| data.u8(kind).is_some_and(|value| value != 0);
    let local = data.get(LOCAL).or_else(|| data.get(LOCAL6)).and_then(wire::address);
    Ok(Some(Vxlan {
        vni: data.u32(ID).unwrap_or(0),
        port: data.array(PORT).map_or(0, u16::from_be_bytes),
        local: local.filter(|local| !local.is_unspecified()),
        learning: flag(LEARNING),
        checksums: flag(UDP_CSUM) && !flag(UDP_ZERO_CSUM6_TX),
        special: data.u32(LINK).is_some_and(|link| link != 0) || flag(COLLECT_METADATA),
    }))
}

fn local_kind(local: IpAddr) -> u16 {
    match Family::of(local) {
        Family::V4 => LOCAL,
        Family::V6 => LOCAL6,
    }
}
