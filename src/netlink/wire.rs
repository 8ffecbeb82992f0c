//! Pure. Addresses and headers as rtnetlink writes them.

use std::net::IpAddr;

use neli::consts::rtnl::{Iff, RtAddrFamily};
use neli::rtnl::{Ifinfomsg, IfinfomsgBuilder};

use crate::net::Family;

/// The address family's number: `AF_INET` or `AF_INET6`.
pub fn address_family(address: IpAddr) -> RtAddrFamily {
    family_number(Family::of(address))
}

pub fn family_number(family: Family) -> RtAddrFamily {
    match family {
        Family::V4 => RtAddrFamily::Inet,
        Family::V6 => RtAddrFamily::Inet6,
    }
}

/// The family of a number; `None` for one that is neither.
pub fn family_of(family: RtAddrFamily) -> Option<Family> {
    match family {
        RtAddrFamily::Inet => Some(Family::V4),
        RtAddrFamily::Inet6 => Some(Family::V6),
        _ => None,
    }
}

/// 4 or 16 bytes, network order.
pub fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// The address of 4 or 16 bytes; `None` for any other length.
pub fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

/// `struct ifinfomsg` for the link `index` (0: named by an attribute); `up` also sets it up.
pub fn link_header(family: RtAddrFamily, index: u32, up: bool) -> Ifinfomsg {
    let flags = if up { Iff::UP } else { Iff::empty() };
    flags_header(family, index, flags, flags)
}

/// As [`link_header`], and sets the link down.
pub fn down_header(family: RtAddrFamily, index: u32) -> Ifinfomsg {
    flags_header(family, index, Iff::empty(), Iff::UP)
}

/// `flags` are what those of `change` shall be.
fn flags_header(family: RtAddrFamily, index: u32, flags: Iff, change: Iff) -> Ifinfomsg {
    let header = IfinfomsgBuilder::default()
        .ifi_family(family)
        .ifi_index(index.cast_signed())
        .ifi_flags(flags)
        .ifi_change(change);
    header.build().expect("every field without a default is set")
}
