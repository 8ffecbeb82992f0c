//! Links: observe, make, change, delete. Source: rtnetlink(7), linux/if_link.h.

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Iff, Ifla, IflaInfo, RtAddrFamily, Rtm};
use neli::rtnl::Ifinfomsg;
use nix::errno::Errno;

use crate::net::{IfName, Mac};
use crate::netlink::vxlan_info::{self, VxlanInfo};
use crate::netlink::wire::{down_header, link_header};
use crate::netlink::{AttributeList, Attributes, Message, NetlinkError, Reply};

/// Bytes of `struct ifinfomsg`.
const HEADER: usize = 16;

/// IFLA_INFO_SLAVE_KIND and IFLA_INFO_SLAVE_DATA.
const INFO_SLAVE_KIND: u16 = 4;
const INFO_SLAVE_DATA: u16 = 5;

/// IFLA_BR_FORWARD_DELAY (hundredths of a second) and IFLA_BR_STP_STATE.
const BRIDGE_FORWARD_DELAY: u16 = 1;
const BRIDGE_STP_STATE: u16 = 5;

/// IFLA_BRPORT_MODE (hairpin), IFLA_BRPORT_LEARNING, IFLA_BRPORT_UNICAST_FLOOD, IFLA_BRPORT_ISOLATED and
/// IFLA_BRPORT_LOCKED.
const PORT_HAIRPIN: u16 = 4;
const PORT_LEARNING: u16 = 8;
const PORT_UNICAST_FLOOD: u16 = 9;
const PORT_ISOLATED: u16 = 33;
const PORT_LOCKED: u16 = 39;

/// RTEXT_FILTER_SKIP_STATS: counters of every processor, which are not read here.
const SKIP_STATS: u32 = 1 << 3;

/// IF_OPER_UP of linux/if.h.
const OPER_UP: u8 = 6;

/// The MTU that a link is born with unless another one is said.
const ETHERNET_MTU: u32 = 1500;

/// A link as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its number in this namespace.
    pub index: u32,
    pub name: IfName,
    /// `bridge`, `veth`, `vxlan` …; `None` for a physical device and the loopback.
    pub kind: Option<String>,
    pub mac: Option<Mac>,
    pub mtu: u32,
    /// Set up (administratively).
    pub up: bool,
    /// Up and working.
    pub oper_up: bool,
    /// There is something at the other end, or that cannot be known (a tunnel).
    pub carrier: bool,
    /// Index of the bridge it is a port of.
    pub master: Option<u32>,
    /// For a veth: index of the other end in its namespace.
    pub peer_index: Option<u32>,
    /// The text that says whose it is.
    pub alias: Option<String>,
    /// Its link group; 0 unless it was set.
    pub group: u32,
    /// If it is a port of a bridge.
    pub port: Option<PortFlags>,
    /// If it is a bridge: spanning tree keeps new ports silent.
    pub delays_ports: bool,
    /// If it is a VXLAN device.
    pub vxlan: Option<VxlanInfo>,
}

/// A port of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortFlags {
    /// Frames may leave through the port they came in by.
    pub hairpin: bool,
    /// The port does not talk to other isolated ones.
    pub isolated: bool,
    /// Frames come in by the port only from MACs that are pinned to it (`neighbour::pin`). A kernel
    /// before 5.18 passes this over in silence.
    pub locked: bool,
    /// The bridge does not learn MACs from the port, and sends no frames there whose MAC it does not
    /// know: MACs are pinned to it (`neighbour::pin`).
    pub fixed: bool,
}

/// What shall change on a link; `None` stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkChange {
    pub mac: Option<Mac>,
    pub mtu: Option<u32>,
    pub up: bool,
    /// The text that says whose it is, at most 255 bytes.
    pub alias: Option<String>,
    /// Index of the bridge it shall be a port of; 0: of none.
    pub master: Option<u32>,
    /// What it shall be as a port.
    pub port: Option<PortFlags>,
    pub group: Option<u32>,
}

/// A pair of ends, each made where it belongs.
#[derive(Clone, Copy, Debug)]
pub struct Veth<'a> {
    /// The end in this namespace.
    pub host: &'a IfName,
    pub host_mac: Mac,
    /// Index of the bridge it becomes a port of.
    pub master: u32,
    /// The end in the pod.
    pub pod: &'a IfName,
    pub pod_mac: Mac,
    /// The pod's network namespace, an open descriptor.
    pub netns: std::os::fd::RawFd,
    /// Of both ends, in bytes.
    pub mtu: u32,
}

/// Which link is meant.
#[derive(Clone, Copy, Debug)]
pub enum LinkRef<'a> {
    Index(u32),
    Name(&'a IfName),
}

/// Makes a bridge that forwards at once: no spanning tree, no delay. It is up, and keeps its MTU:
/// until the MTU is *changed* it follows that of the ports, and is 1500 when the last one
/// goes (kernel: br_mtu_auto_adjust). So it is born with another one.
///
/// The second message marks whatever bears the name: look first whether the name is free.
pub fn add_bridge(name: &IfName, mac: Mac, mtu: u32, alias: &str) -> [Message; 2] {
    let data = Attributes::new().u32(BRIDGE_FORWARD_DELAY, 0).u32(BRIDGE_STP_STATE, 0);
    let info = Attributes::new().text(IflaInfo::Kind, "bridge").nest(IflaInfo::Data, data);
    let attributes = Attributes::new()
        .text(Ifla::Ifname, name.as_str())
        .put(Ifla::Address, mac.0)
        .put_some(Ifla::Mtu, (mtu == ETHERNET_MTU).then_some((mtu - 1).to_ne_bytes()))
        .nest(Ifla::Linkinfo, info);
    let header = link_header(RtAddrFamily::Unspecified, 0, true);
    let what = format!("create bridge {name}");
    let create = Message::new(what, Rtm::Newlink, NlmF::CREATE | NlmF::EXCL, &header, attributes);
    let mark =
        LinkChange { alias: Some(alias.to_owned()), mtu: Some(mtu), ..LinkChange::default() };
    [create, change(LinkRef::Name(name), &mark)]
}

/// Turns spanning tree off; the forward delay then means nothing (kernel: br_make_forwarding).
pub fn stop_delays(name: &IfName) -> Message {
    let data = Attributes::new().u32(BRIDGE_STP_STATE, 0);
    let info = Attributes::new().text(IflaInfo::Kind, "bridge").nest(IflaInfo::Data, data);
    let attributes = Attributes::new().text(Ifla::Ifname, name.as_str()).nest(Ifla::Linkinfo, info);
    let header = link_header(RtAddrFamily::Unspecified, 0, false);
    Message::new(format!("set bridge {name}"), Rtm::Newlink, NlmF::empty(), &header, attributes)
}

/// Makes a veth pair in place. Neither end is up: the kernel answers `ENOTCONN` to a peer that
/// shall be up before it is tied, and the host's end follows with its port flags ([`change`]) in
/// the same send.
///
/// One queue in each direction is what a veth uses anyway unless it is set otherwise. Unasked the
/// kernel makes one for each processor, and on setting all but one aside it waits for a grace period
/// at each end (drivers/net/veth.c: veth_init_queues).
pub fn add_veth(veth: &Veth<'_>) -> Message {
    /// VETH_INFO_PEER of linux/veth.h: a `struct ifinfomsg` and attributes.
    const INFO_PEER: u16 = 1;
    let pod = Attributes::new()
        .text(Ifla::Ifname, veth.pod.as_str())
        .put(Ifla::Address, veth.pod_mac.0)
        .u32(Ifla::Mtu, veth.mtu)
        .u32(Ifla::NumTxQueues, 1)
        .u32(Ifla::NumRxQueues, 1)
        .u32(Ifla::NetNsFd, veth.netns.cast_unsigned());
    let peer = [vec![0; HEADER], pod.into_bytes()].concat();
    let info = Attributes::new()
        .text(IflaInfo::Kind, "veth")
        .nest(IflaInfo::Data, Attributes::new().put(INFO_PEER, peer));
    let attributes = Attributes::new()
        .text(Ifla::Ifname, veth.host.as_str())
        .put(Ifla::Address, veth.host_mac.0)
        .u32(Ifla::Mtu, veth.mtu)
        .u32(Ifla::NumTxQueues, 1)
        .u32(Ifla::NumRxQueues, 1)
        .u32(Ifla::Master, veth.master)
        .nest(Ifla::Linkinfo, info);
    let header = link_header(RtAddrFamily::Unspecified, 0, false);
    let what = format!("create veth {} with {} in the pod", veth.host, veth.pod);
    Message::new(what, Rtm::Newlink, NlmF::CREATE | NlmF::EXCL, &header, attributes)
}

/// Changes a link.
pub fn change(which: LinkRef<'_>, change: &LinkChange) -> Message {
    let (index, mut attributes) = named(which);
    attributes = attributes
        .put_some(Ifla::Address, change.mac.map(|mac| mac.0))
        .put_some(Ifla::Mtu, change.mtu.map(u32::to_ne_bytes))
        .put_some(Ifla::Master, change.master.map(u32::to_ne_bytes))
        .put_some(Ifla::Group, change.group.map(u32::to_ne_bytes))
        .put_some(Ifla::Ifalias, change.alias.as_ref().map(|alias| alias.as_bytes()));
    if let Some(port) = change.port {
        let data = Attributes::new()
            .u8(PORT_HAIRPIN, port.hairpin.into())
            .u8(PORT_ISOLATED, port.isolated.into())
            .u8(PORT_UNICAST_FLOOD, (!port.fixed).into())
            .u8(PORT_LEARNING, (!port.fixed && !port.locked).into())
            .put_some(PORT_LOCKED, port.locked.then_some([1]));
        let info = Attributes::new().text(INFO_SLAVE_KIND, "bridge").nest(INFO_SLAVE_DATA, data);
        attributes = attributes.nest(Ifla::Linkinfo, info);
    }
    let header = link_header(RtAddrFamily::Unspecified, index, change.up);
    Message::new(format!("set {}", text(which)), Rtm::Newlink, NlmF::empty(), &header, attributes)
}

/// Sets a link down.
pub fn set_down(which: LinkRef<'_>) -> Message {
    let (index, attributes) = named(which);
    let header = down_header(RtAddrFamily::Unspecified, index);
    let what = format!("set down {}", text(which));
    Message::new(what, Rtm::Newlink, NlmF::empty(), &header, attributes)
}

/// Gives a link another name; before Linux 6.2 `EBUSY` if it is up.
pub fn rename(index: u32, name: &IfName) -> Message {
    let header = link_header(RtAddrFamily::Unspecified, index, false);
    let attributes = Attributes::new().text(Ifla::Ifname, name.as_str());
    Message::new(format!("rename to {name}"), Rtm::Newlink, NlmF::empty(), &header, attributes)
}

/// Gives a link no IPv6 link-local address of its own: a port of a bridge needs none.
///
/// A message for itself, because one that cannot be followed is refused whole, and a link without
/// IPv6 (switched off at boot, or an MTU below 1280) knows no such mode: that is success.
pub fn without_link_local(which: LinkRef<'_>) -> Message {
    /// AF_INET6 inside IFLA_AF_SPEC, IFLA_INET6_ADDR_GEN_MODE, IN6_ADDR_GEN_MODE_NONE.
    const INET6: u16 = 10;
    const ADDR_GEN_MODE: u16 = 8;
    const NONE: u8 = 1;
    let mode = Attributes::new().u8(ADDR_GEN_MODE, NONE);
    let (index, attributes) = named(which);
    let attributes = attributes.nest(Ifla::AfSpec, Attributes::new().nest(INET6, mode));
    let header = link_header(RtAddrFamily::Unspecified, index, false);
    let what = format!("switch off the link-local address of {}", text(which));
    Message::new(what, Rtm::Newlink, NlmF::empty(), &header, attributes)
        .tolerating(Errno::EAFNOSUPPORT)
}

/// Deletes a link; `ENODEV` if it is gone.
pub fn delete(which: LinkRef<'_>) -> Message {
    let (index, attributes) = named(which);
    let header = link_header(RtAddrFamily::Unspecified, index, false);
    Message::new(
        format!("delete {}", text(which)),
        Rtm::Dellink,
        NlmF::empty(),
        &header,
        attributes,
    )
}

/// Deletes every link of a group with one wait of the kernel; `ENODEV` if there is none.
pub fn delete_group(group: u32) -> Message {
    let header = link_header(RtAddrFamily::Unspecified, 0, false);
    let attributes = Attributes::new().u32(Ifla::Group, group);
    Message::new(
        format!("delete link group {group}"),
        Rtm::Dellink,
        NlmF::empty(),
        &header,
        attributes,
    )
}

/// Asks for one link; `ENODEV` if there is none.
pub fn get(which: LinkRef<'_>) -> Message {
    let (index, attributes) = named(which);
    let attributes = attributes.u32(Ifla::ExtMask, SKIP_STATS);
    let header = link_header(RtAddrFamily::Unspecified, index, false);
    Message::new(format!("get {}", text(which)), Rtm::Getlink, NlmF::empty(), &header, attributes)
}

/// Asks for all links of a kind. A kernel that does not know the kind gives all links.
pub fn list_kind(kind: &str) -> Message {
    let header = link_header(RtAddrFamily::Unspecified, 0, false);
    let attributes = Attributes::new()
        .u32(Ifla::ExtMask, SKIP_STATS)
        .nest(Ifla::Linkinfo, Attributes::new().text(IflaInfo::Kind, kind));
    let what = format!("list links of kind {kind}");
    Message::new(what, Rtm::Getlink, NlmF::empty(), &header, attributes)
}

/// Asks for all links, or for the ports of one bridge.
pub fn list(master: Option<u32>) -> Message {
    let header = link_header(RtAddrFamily::Unspecified, 0, false);
    let attributes = Attributes::new()
        .u32(Ifla::ExtMask, SKIP_STATS)
        .put_some(Ifla::Master, master.map(u32::to_ne_bytes));
    Message::new("list links", Rtm::Getlink, NlmF::empty(), &header, attributes)
}

/// The link in an answer; `None` for one whose name is none (never made by humanz).
pub fn parse(reply: &Reply<'_>) -> Result<Option<Link>, NetlinkError> {
    let (header, attributes) = reply.parse::<Ifinfomsg>(HEADER)?;
    let name = attributes.text(Ifla::Ifname).and_then(|name| IfName::found(&name).ok());
    let Some(name) = name else { return Ok(None) };
    let info = attributes.nested(Ifla::Linkinfo)?;
    let kind = info.as_ref().and_then(|info| info.text(IflaInfo::Kind));
    let is = |other: &str| kind.as_deref() == Some(other);
    let (port, delays_ports, vxlan) = match &info {
        Some(info) => (
            port(info)?,
            is("bridge") && delays_ports(info)?,
            if is(vxlan_info::KIND) { vxlan_info::parse(info)? } else { None },
        ),
        None => (None, false, None),
    };
    Ok(Some(Link {
        index: header.ifi_index().cast_unsigned(),
        name,
        mac: attributes.array(Ifla::Address).map(Mac),
        mtu: attributes.u32(Ifla::Mtu).unwrap_or(0),
        up: header.ifi_flags().contains(Iff::UP),
        oper_up: attributes.u8(Ifla::Operstate) == Some(OPER_UP),
        carrier: header.ifi_flags().contains(Iff::LOWERUP),
        master: attributes.u32(Ifla::Master),
        peer_index: attributes.u32(Ifla::Link),
        alias: attributes.text(Ifla::Ifalias),
        group: attributes.u32(Ifla::Group).unwrap_or(0),
        port,
        delays_ports,
        vxlan,
        kind,
    }))
}

fn port(info: &AttributeList<'_>) -> Result<Option<PortFlags>, NetlinkError> {
    if info.text(INFO_SLAVE_KIND).as_deref() != Some("bridge") {
        return Ok(None);
    }
    let Some(data) = info.nested(INFO_SLAVE_DATA)? else { return Ok(None) };
    let flag = |kind: u16| data.u8(kind).is_some_and(|value| value != 0);
    Ok(Some(PortFlags {
        hairpin: flag(PORT_HAIRPIN),
        isolated: flag(PORT_ISOLATED),
        locked: flag(PORT_LOCKED),
        fixed: !flag(PORT_LEARNING) && !flag(PORT_UNICAST_FLOOD),
    }))
}

fn delays_ports(info: &AttributeList<'_>) -> Result<bool, NetlinkError> {
    let Some(data) = info.nested(IflaInfo::Data)? else { return Ok(false) };
    Ok(data.u32(BRIDGE_STP_STATE).is_some_and(|state| state != 0))
}

fn named(which: LinkRef<'_>) -> (u32, Attributes) {
    match which {
        LinkRef::Index(index) => (index, Attributes::new()),
        LinkRef::Name(name) => (0, Attributes::new().text(Ifla::Ifname, name.as_str())),
    }
}

fn text(which: LinkRef<'_>) -> String {
    match which {
        LinkRef::Index(index) => format!("link {index}"),
        LinkRef::Name(name) => format!("link {name}"),
    }
}
