//! Pure. Where things are in a VXLAN packet, in bytes from the begin of its UDP header.
//!
//! Source: RFC 7348 §5; RFC 791 §3.1; RFC 8200 §3.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;

use crate::net::{Family, subnet};

pub const VXLAN: u32 = 8;
pub const VNI: u32 = VXLAN + 4;
const ETHERNET: u32 = VXLAN + 8;
pub const ETHER_TYPE: u32 = ETHERNET + 12;
const IP: u32 = ETHERNET + 14;

/// The source address of the packet inside.
pub fn source(family: Family) -> u32 {
    match family {
        Family::V4 => IP + 12,
        Family::V6 => IP + 8,
    }
}

/// Its destination.
pub fn destination(family: Family) -> u32 {
    source(family) + u32::from(family.bits() / 8)
}

/// A network of that length: for its mask.
pub fn network(family: Family, prefix: u8) -> IpNetwork {
    let address = match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    subnet::with_prefix(address, prefix)
}
