//! Addresses of links. Source: rtnetlink(7), linux/if_addr.h.

use ipnetwork::IpNetwork;
use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Ifa, IfaF, RtAddrFamily, RtScope, Rtm};
use neli::rtnl::{Ifaddrmsg, IfaddrmsgBuilder};

use crate::net::{Family, subnet};
use crate::netlink::wire;
use crate::netlink::{Attributes, Message, NetlinkError, Reply};

/// Bytes of `struct ifaddrmsg`.
const HEADER: usize = 8;

/// An address of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    pub index: u32,
    /// With its host bits, as in 10.244.1.1/24.
    pub address: IpNetwork,
}

/// Puts `address` (with its prefix length) on a link. An IPv6 address is usable at once: it is
/// added without duplicate address detection.
///
/// Refused with `EEXIST` if the link has it.
pub fn add(index: u32, address: IpNetwork) -> Message {
    let flags = match Family::of(address.ip()) {
        Family::V4 => IfaF::empty(),
        Family::V6 => IfaF::NODAD,
    };
    let what = format!("add address {address}");
    let header = header(wire::address_family(address.ip()), address.prefix(), flags, index);
    Message::new(what, Rtm::Newaddr, NlmF::CREATE | NlmF::EXCL, &header, attributes(address))
}

/// Takes `address` from a link; refused with `EADDRNOTAVAIL` if it is not there.
pub fn delete(index: u32, address: IpNetwork) -> Message {
    let what = format!("delete address {address}");
    let header = header(wire::address_family(address.ip()), address.prefix(), IfaF::empty(), index);
    Message::new(what, Rtm::Deladdr, NlmF::empty(), &header, attributes(address))
}

/// Asks for all addresses of the link `index`, 0 for all links.
pub fn list(index: u32) -> Message {
    let header = header(RtAddrFamily::Unspecified, 0, IfaF::empty(), index);
    Message::new("list addresses", Rtm::Getaddr, NlmF::empty(), &header, Attributes::new())
}

/// The address in an answer; `None` for one of another family.
pub fn parse(reply: &Reply<'_>) -> Result<Option<Address>, NetlinkError> {
    let (header, attributes) = reply.parse::<Ifaddrmsg>(HEADER)?;
    let local = attributes.get(Ifa::Local).or_else(|| attributes.get(Ifa::Address));
    let address = local.and_then(wire::address);
    Ok(address.map(|address| Address {
        index: *header.ifa_index(),
        address: subnet::with_prefix(address, *header.ifa_prefixlen()),
    }))
}

fn header(family: RtAddrFamily, prefix: u8, flags: IfaF, index: u32) -> Ifaddrmsg {
    let header = IfaddrmsgBuilder::default()
        .ifa_family(family)
        .ifa_prefixlen(prefix)
        .ifa_flags(flags)
        .ifa_scope(RtScope::Universe)
        .ifa_index(index);
    header.build().expect("every field without a default is set")
}

fn attributes(address: IpNetwork) -> Attributes {
    let octets = wire::octets(address.ip());
    let attributes = Attributes::new().put(Ifa::Local, &octets).put(Ifa::Address, &octets);
    match address {
        IpNetwork::V4(v4) if v4.prefix() < 31 => {
            attributes.put(Ifa::Broadcast, v4.broadcast().octets())
        }
        _ => attributes,
    }
}
