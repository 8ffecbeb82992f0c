//! Pure. A VXLAN device as the kernel reports it. Source: linux/if_link.h.

use std::net::IpAddr;

use neli::consts::rtnl::IflaInfo;

use crate::netlink::{AttributeList, NetlinkError, wire};

/// The kernel's word for this kind of link.
pub const KIND: &str = "vxlan";

/// IFLA_VXLAN_*.
pub const ID: u16 = 1;
const LINK: u16 = 3;
pub const LOCAL: u16 = 4;
pub const LEARNING: u16 = 7;
pub const PORT: u16 = 15;
pub const LOCAL6: u16 = 17;
pub const UDP_CSUM: u16 = 18;
const UDP_ZERO_CSUM6_TX: u16 = 19;
const COLLECT_METADATA: u16 = 25;

/// What a VXLAN device is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VxlanInfo {
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

/// What a link's information says of it as a VXLAN device.
pub fn parse(info: &AttributeList<'_>) -> Result<Option<VxlanInfo>, NetlinkError> {
    let Some(data) = info.nested(IflaInfo::Data)? else { return Ok(None) };
    let flag = |kind: u16| data.u8(kind).is_some_and(|value| value != 0);
    let local = data.get(LOCAL).or_else(|| data.get(LOCAL6)).and_then(wire::address);
    Ok(Some(VxlanInfo {
        vni: data.u32(ID).unwrap_or(0),
        port: data.array(PORT).map_or(0, u16::from_be_bytes),
        local: local.filter(|local| !local.is_unspecified()),
        learning: flag(LEARNING),
        checksums: flag(UDP_CSUM) && !flag(UDP_ZERO_CSUM6_TX),
        special: data.u32(LINK).is_some_and(|link| link != 0) || flag(COLLECT_METADATA),
    }))
}
