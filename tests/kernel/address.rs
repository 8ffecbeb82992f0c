//! Addresses.

use std::net::{SocketAddr, UdpSocket};

use humanz::netlink::address;
use nix::errno::Errno;

use super::{bridge, errno, in_namespace, ip, net};

#[test]
fn an_address_is_added_once_and_gone_when_deleted() {
    in_namespace(|rtnl| {
        let bridge = bridge(rtnl, "br0");
        for text in ["10.1.0.1/24", "10.1.0.2/31", "10.1.0.9/32", "fd00::1/64", "fd00::9/128"] {
            let add = address::add(bridge.index, net(text));
            let delete = address::delete(bridge.index, net(text));
            rtnl.apply(std::slice::from_ref(&add)).unwrap();
            assert_eq!(errno(rtnl.apply(&[add])), Some(Errno::EEXIST), "{text}");
            let found = rtnl.addresses(Some(bridge.index)).unwrap();
            assert_eq!(
                found.iter().filter(|found| found.address == net(text)).count(),
                1,
                "{text}"
            );
            rtnl.apply(std::slice::from_ref(&delete)).unwrap();
            assert_eq!(errno(rtnl.apply(&[delete])), Some(Errno::EADDRNOTAVAIL), "{text}");
        }
    });
}

#[test]
fn the_addresses_of_one_link_are_not_those_of_another() {
    in_namespace(|rtnl| {
        let (one, two) = (bridge(rtnl, "br0"), bridge(rtnl, "br1"));
        rtnl.apply(&[
            address::add(one.index, net("10.1.0.1/24")),
            address::add(two.index, net("10.2.0.1/24")),
        ])
        .unwrap();
        let of_one = rtnl.addresses(Some(one.index)).unwrap();
        assert!(of_one.iter().all(|found| found.index == one.index), "{of_one:?}");
        let all = rtnl.addresses(None).unwrap();
        for text in ["10.1.0.1/24", "10.2.0.1/24"] {
            assert!(all.iter().any(|found| found.address == net(text)), "{all:?}");
        }
    });
}

/// An address that is still being tried for duplicates cannot be bound: EADDRNOTAVAIL.
#[test]
fn an_ipv6_address_is_usable_at_once() {
    in_namespace(|rtnl| {
        let bridge = bridge(rtnl, "br0");
        rtnl.apply(&[address::add(bridge.index, net("fd00::1/64"))]).unwrap();
        UdpSocket::bind(SocketAddr::new(ip("fd00::1"), 0)).unwrap();
    });
}
