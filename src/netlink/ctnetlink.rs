//! Pure. Messages and attributes of connection tracking. Source:
//! linux/netfilter/nfnetlink_conntrack.h.

use crate::net::Family;

/// Messages: NFNL_SUBSYS_CTNETLINK in the upper byte.
pub const GET: u16 = 1 << 8 | 1;
pub const DELETE: u16 = 1 << 8 | 2;

/// Of a flow.
pub const ORIGINAL: u16 = 1;
pub const REPLY: u16 = 2;
pub const STATUS: u16 = 3;
pub const PROTOCOL_STATE: u16 = 4;
pub const MARK: u16 = 8;
pub const ID: u16 = 12;
pub const ZONE: u16 = 18;
pub const FILTER: u16 = 25;
/// Of a flow's direction.
pub const ADDRESSES: u16 = 1;
pub const PROTOCOL: u16 = 2;
/// Of the addresses: one for each family.
pub const SOURCE: [u16; 2] = [1, 3];
pub const DESTINATION: [u16; 2] = [2, 4];
/// Of the protocol.
pub const NUMBER: u16 = 1;
pub const SOURCE_PORT: u16 = 2;
pub const DESTINATION_PORT: u16 = 3;
/// For ICMP and ICMPv6.
pub const ICMP_TYPE: [u16; 2] = [5, 8];
pub const ICMP_CODE: [u16; 2] = [6, 9];
/// Of the protocol's state, and in that of TCP.
pub const TCP: u16 = 1;
pub const TCP_STATE: u16 = 1;
/// Of a filter: which parts of the original direction count. CTA_FILTER_F_CTA_IP_SRC, _IP_DST,
/// _PROTO_NUM of the kernel's nf_internals.h.
pub const FILTER_ORIGINAL: u16 = 1;
pub const COUNTS_SOURCE: u32 = 1 << 0;
pub const COUNTS_DESTINATION: u32 = 1 << 1;
pub const COUNTS_PROTOCOL: u32 = 1 << 3;
pub const COUNTS_DESTINATION_PORT: u32 = 1 << 5;

/// IPPROTO_UDP.
pub const UDP: u8 = 17;

/// The attribute for the family, of those for both.
pub fn of([v4, v6]: [u16; 2], family: Family) -> u16 {
    match family {
        Family::V4 => v4,
        Family::V6 => v6,
    }
}

/// `struct nfgenmsg`: AF_INET or AF_INET6, version 0, resource 0.
pub fn header(family: Family) -> [u8; 4] {
    let family = match family {
        Family::V4 => nix::libc::AF_INET,
        Family::V6 => nix::libc::AF_INET6,
    };
    [family as u8, 0, 0, 0]
}
