//! The VLANs of a bridge and its ports. Source: linux/if_bridge.h, linux/if_link.h, kernel
//! net/bridge/br_netlink.c.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Ifla, IflaInfo, RtAddrFamily, Rtm};
use neli::rtnl::Ifinfomsg;

use crate::net::IfName;
use crate::netlink::link::{self, LinkChange, LinkRef};
use crate::netlink::wire::link_header;
use crate::netlink::{AttributeList, Attributes, Message, NetlinkError, Reply};

/// Bytes of `struct ifinfomsg`.
const HEADER: usize = 16;

/// AF_BRIDGE of linux/socket.h.
const BRIDGE: u8 = 7;

/// IFLA_BR_VLAN_FILTERING.
const FILTERING: u16 = 7;

/// IFLA_BRIDGE_FLAGS with BRIDGE_FLAGS_SELF, and IFLA_BRIDGE_VLAN_INFO.
const FLAGS: u16 = 0;
const SELF: u16 = 2;
const VLAN_INFO: u16 = 2;

/// BRIDGE_VLAN_INFO_PVID, _UNTAGGED, _RANGE_BEGIN and _RANGE_END.
const PVID: u16 = 1 << 1;
const UNTAGGED: u16 = 1 << 2;
const RANGE_BEGIN: u16 = 1 << 3;
const RANGE_END: u16 = 1 << 4;

/// RTEXT_FILTER_BRVLAN_COMPRESSED: VLANs in ranges.
const COMPRESSED: u32 = 1 << 2;

/// IFLA_VLAN_ID.
const VLAN_ID: u16 = 1;

/// How a port is in a VLAN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VlanMembership {
    /// What comes in without a tag is of this VLAN.
    pub pvid: bool,
    /// Frames leave without a tag.
    pub untagged: bool,
}

/// The VLANs that a port is in.
pub type PortVlans = BTreeMap<u16, VlanMembership>;

/// An interface for one VLAN of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanDevice {
    /// Index of the other one.
    pub lower: u32,
    pub vlan: u16,
}

/// Lets the bridge of that number keep VLANs apart; `EOPNOTSUPP` if the kernel cannot.
pub fn filter(bridge: u32) -> Message {
    let data = Attributes::new().u8(FILTERING, 1);
    let info = Attributes::new().text(IflaInfo::Kind, "bridge").nest(IflaInfo::Data, data);
    let header = link_header(RtAddrFamily::Unspecified, bridge, false);
    let attributes = Attributes::new().nest(Ifla::Linkinfo, info);
    Message::new("set VLAN filtering", Rtm::Newlink, NlmF::empty(), &header, attributes)
}

/// The bridge of an answer to [`link::get`] keeps VLANs apart.
pub fn parse_filtering(reply: &Reply<'_>) -> Result<Option<bool>, NetlinkError> {
    let (_, attributes) = reply.parse::<Ifinfomsg>(HEADER)?;
    let data = info_data(&attributes, "bridge")?;
    Ok(Some(data.and_then(|data| data.u8(FILTERING)).is_some_and(|on| on != 0)))
}

/// Puts a port, by its number, into the VLANs of a range; a `pvid` is one alone.
pub fn add(port: u32, range: &RangeInclusive<u16>, membership: VlanMembership) -> Message {
    let what = format!("put port {port} into {}", text(range));
    message(what, Rtm::Setlink, port, infos(Attributes::new(), range, membership))
}

/// Takes a port, by its number, out of the VLANs of a range.
pub fn remove(port: u32, range: &RangeInclusive<u16>) -> Message {
    let what = format!("take port {port} out of {}", text(range));
    message(what, Rtm::Dellink, port, infos(Attributes::new(), range, VlanMembership::default()))
}

/// Puts the bridge itself, by its number, into a VLAN: a [`VlanDevice`] on it gets the frames.
pub fn add_bridge(bridge: u32, vlan: u16) -> Message {
    let itself = Attributes::new().put(FLAGS, SELF.to_ne_bytes());
    let what = format!("put bridge {bridge} into VLAN {vlan}");
    let itself = infos(itself, &(vlan..=vlan), VlanMembership::default());
    message(what, Rtm::Setlink, bridge, itself)
}

/// Asks for the VLANs of all ports of all bridges.
pub fn list() -> Message {
    let header = link_header(RtAddrFamily::from(BRIDGE), 0, false);
    let attributes = Attributes::new().u32(Ifla::ExtMask, COMPRESSED);
    Message::new("list VLANs of ports", Rtm::Getlink, NlmF::empty(), &header, attributes)
}

/// The number of the port (or bridge) in an answer to [`list`], and its VLANs.
pub fn parse(reply: &Reply<'_>) -> Result<Option<(u32, PortVlans)>, NetlinkError> {
    let (header, attributes) = reply.parse::<Ifinfomsg>(HEADER)?;
    let mut vlans = PortVlans::new();
    let mut first = None;
    for (kind, info) in attributes.nested(Ifla::AfSpec)?.iter().flat_map(AttributeList::iter) {
        let [f0, f1, v0, v1] = match <[u8; 4]>::try_from(info) {
            Ok(info) if kind == VLAN_INFO => info,
            _ => continue,
        };
        let (flags, vlan) = (u16::from_ne_bytes([f0, f1]), u16::from_ne_bytes([v0, v1]));
        if flags & RANGE_BEGIN != 0 {
            first = Some(vlan);
            continue;
        }
        let begin = first.take().filter(|_| flags & RANGE_END != 0).unwrap_or(vlan);
        let membership =
            VlanMembership { pvid: flags & PVID != 0, untagged: flags & UNTAGGED != 0 };
        vlans.extend((begin..=vlan).map(|vlan| (vlan, membership)));
    }
    Ok(Some((header.ifi_index().cast_unsigned(), vlans)))
}

/// Makes an interface for one VLAN of the bridge of that number; it is up.
///
/// The second message marks whatever bears the name: look first whether the name is free.
pub fn add_device(name: &IfName, bridge: u32, vlan: u16, alias: &str) -> [Message; 2] {
    let data = Attributes::new().put(VLAN_ID, vlan.to_ne_bytes());
    let info = Attributes::new().text(IflaInfo::Kind, "vlan").nest(IflaInfo::Data, data);
    let attributes = Attributes::new()
        .text(Ifla::Ifname, name.as_str())
        .u32(Ifla::Link, bridge)
        .nest(Ifla::Linkinfo, info);
    let header = link_header(RtAddrFamily::Unspecified, 0, true);
    let what = format!("create VLAN device {name}");
    let create = Message::new(what, Rtm::Newlink, NlmF::CREATE | NlmF::EXCL, &header, attributes);
    let mark = LinkChange { alias: Some(alias.to_owned()), ..LinkChange::default() };
    [create, link::change(LinkRef::Name(name), &mark)]
}

/// The VLAN device of an answer to [`link::get`]; `None` if it is another kind of link.
pub fn parse_device(reply: &Reply<'_>) -> Result<Option<VlanDevice>, NetlinkError> {
    let (_, attributes) = reply.parse::<Ifinfomsg>(HEADER)?;
    let vlan = info_data(&attributes, "vlan")?.and_then(|data| data.array(VLAN_ID));
    let device = vlan.map(u16::from_ne_bytes).zip(attributes.u32(Ifla::Link));
    Ok(device.map(|(vlan, lower)| VlanDevice { lower, vlan }))
}

/// What a link of that kind says of itself.
fn info_data<'a>(
    attributes: &AttributeList<'a>,
    kind: &str,
) -> Result<Option<AttributeList<'a>>, NetlinkError> {
    let info = attributes.nested(Ifla::Linkinfo)?;
    let info = info.filter(|info| info.text(IflaInfo::Kind).as_deref() == Some(kind));
    info.map_or(Ok(None), |info| info.nested(IflaInfo::Data))
}

fn infos(
    attributes: Attributes,
    range: &RangeInclusive<u16>,
    membership: VlanMembership,
) -> Attributes {
    let VlanMembership { pvid, untagged } = membership;
    let flags = if pvid { PVID } else { 0 } | if untagged { UNTAGGED } else { 0 };
    let info = |attributes: Attributes, flags: u16, vlan: u16| {
        attributes.put(VLAN_INFO, [flags.to_ne_bytes(), vlan.to_ne_bytes()].concat())
    };
    if range.start() == range.end() {
        return info(attributes, flags, *range.start());
    }
    let begun = info(attributes, flags | RANGE_BEGIN, *range.start());
    info(begun, flags | RANGE_END, *range.end())
}

fn message(what: String, kind: Rtm, index: u32, infos: Attributes) -> Message {
    let header = link_header(RtAddrFamily::from(BRIDGE), index, false);
    let attributes = Attributes::new().nest(Ifla::AfSpec, infos);
    Message::new(what, kind, NlmF::empty(), &header, attributes)
}

fn text(range: &RangeInclusive<u16>) -> String {
    match (range.start(), range.end()) {
        (first, last) if first == last => format!("VLAN {first}"),
        (first, last) => format!("VLANs {first}-{last}"),
    }
}
