//! VXLAN devices, their FDB entries and neighbours.

use std::net::IpAddr;

use humanz::net::{IfName, Mac};
use humanz::netlink::fdb::{self, Destination};
use humanz::netlink::link::{self, Link, LinkRef};
use humanz::netlink::neighbour::{self, Neighbour};
use humanz::netlink::route::{self, Route};
use humanz::netlink::rtnl::Rtnl;
use humanz::netlink::vxlan::{self, NewVxlan, VxlanInfo};
use humanz::netlink::{NetlinkError, address};
use nix::errno::Errno;

use super::{bridge, errno, in_namespace, ip, name, net};

const MAC: Mac = Mac([0x0a, 0x58, 0x0a, 0xf4, 1, 0]);
const THEIR_MAC: Mac = Mac([0x0a, 0x58, 0x0a, 0xf4, 2, 0]);

fn make(rtnl: &Rtnl, device: &IfName, local: &str) -> Result<Link, NetlinkError> {
    let new = NewVxlan {
        name: device,
        mac: MAC,
        vni: 104,
        port: 10400,
        local: ip(local),
        mtu: 1450,
        alias: "humanz tunnel",
    };
    rtnl.apply(&vxlan::add(&new))?;
    rtnl.apply(&[vxlan::set_up(device)])?;
    Ok(rtnl.link(device)?.expect("made"))
}

#[test]
fn a_device_of_each_family_has_the_requested_attributes() {
    in_namespace(|rtnl| {
        for (device, local) in [("vx4", "192.0.2.1"), ("vx6", "2001:db8::1")] {
            let made = make(rtnl, &name(device), local).unwrap();
            assert_eq!(
                (made.kind.as_deref(), made.mac, made.mtu),
                (Some("vxlan"), Some(MAC), 1450)
            );
            assert_eq!((made.alias.as_deref(), made.up), (Some("humanz tunnel"), true));
            let wanted = VxlanInfo {
                vni: 104,
                port: 10400,
                local: Some(ip(local)),
                learning: false,
                checksums: true,
                special: false,
            };
            assert_eq!(made.vxlan, Some(wanted));
            assert!(rtnl.addresses(Some(made.index)).unwrap().is_empty(), "no link-local address");
        }
        let bridge = bridge(rtnl, "br0");
        let names = |links: Vec<Link>| links.into_iter().map(|link| link.index).collect::<Vec<_>>();
        let found = names(rtnl.vxlans().unwrap());
        assert!(found.len() == 2 && !found.contains(&bridge.index), "{found:?}");
    });
}

#[test]
fn a_changed_source_address_is_set_in_place() {
    in_namespace(|rtnl| {
        for (device, local, other) in
            [("vx4", "192.0.2.1", "192.0.2.9"), ("vx6", "2001:db8::1", "2001:db8::9")]
        {
            let made = make(rtnl, &name(device), local).unwrap();
            rtnl.apply(&[vxlan::change(&name(device), ip(other))]).unwrap();
            let changed = rtnl.link(&name(device)).unwrap().unwrap();
            assert_eq!(changed.vxlan.unwrap().local, Some(ip(other)));
            assert_eq!(changed.index, made.index);
        }
    });
}

#[test]
fn a_second_device_of_the_same_identifier_is_refused() {
    in_namespace(|rtnl| {
        make(rtnl, &name("vx4"), "192.0.2.1").unwrap();
        let again = make(rtnl, &name("other"), "192.0.2.1").map(drop);
        assert_eq!(errno(again), Some(Errno::EEXIST));
    });
}

#[test]
fn a_port_used_by_a_program_is_refused_when_the_device_is_set_up() {
    in_namespace(|rtnl| {
        let _socket = std::net::UdpSocket::bind("0.0.0.0:10400").unwrap();
        let made = make(rtnl, &name("vx4"), "192.0.2.1").map(drop);
        assert_eq!(errno(made), Some(Errno::EADDRINUSE));
    });
}

#[test]
fn fdb_entries_and_neighbours_are_read_back_as_set() {
    in_namespace(|rtnl| {
        let device = make(rtnl, &name("vx4"), "192.0.2.1").unwrap().index;
        let other = make(rtnl, &name("vx6"), "2001:db8::1").unwrap().index;
        let there =
            |address: &str, port| Destination { mac: THEIR_MAC, address: ip(address), port };
        let gateways: [IpAddr; 2] = [ip("10.244.2.1"), THEIR_MAC.link_local().into()];
        let neighbours = gateways.map(|address| Neighbour { address, mac: THEIR_MAC });
        rtnl.apply(&[
            fdb::replace(device, &there("198.51.100.2", Some(10401))),
            fdb::replace(other, &there("2001:db8:9::2", Some(10400))),
            neighbour::set_permanent(device, &neighbours[0]),
            neighbour::set_permanent(device, &neighbours[1]),
            neighbour::set(device, ip("10.244.9.9"), THEIR_MAC),
        ])
        .unwrap();
        let found = rtnl.destinations(device).unwrap();
        assert_eq!(found, [there("198.51.100.2", Some(10401))]);
        let of_other = rtnl.destinations(other).unwrap();
        assert_eq!(of_other, [there("2001:db8:9::2", None)], "the device's own port goes unsaid");
        assert_eq!(rtnl.permanent_neighbours(device).unwrap(), neighbours);
        assert!(rtnl.permanent_neighbours(other).unwrap().is_empty());

        rtnl.apply(&[fdb::replace(device, &there("198.51.100.7", None))]).unwrap();
        assert_eq!(rtnl.destinations(device).unwrap(), [there("198.51.100.7", None)]);
        rtnl.apply(&[fdb::delete(device, &found[0])]).unwrap();
        assert_eq!(rtnl.destinations(device).unwrap(), [there("198.51.100.7", None)], "it stays");
        rtnl.apply(&[fdb::delete(device, &there("198.51.100.7", None))]).unwrap();
        let gone = [fdb::delete(device, &there("198.51.100.7", None))];
        assert_eq!(errno(rtnl.apply(&gone)), Some(Errno::ENOENT));
        rtnl.apply(&[neighbour::delete(device, gateways[0])]).unwrap();
        assert!(rtnl.destinations(device).unwrap().is_empty());
        assert_eq!(rtnl.permanent_neighbours(device).unwrap(), neighbours[1..]);
    });
}

/// What a direct route to the same subnet would make impossible with an ordinary gateway.
#[test]
fn a_route_through_a_tunnel_replaces_a_direct_one() {
    in_namespace(|rtnl| {
        let bridge = bridge(rtnl, "br0");
        let device = make(rtnl, &name("vx4"), "192.0.2.1").unwrap().index;
        let addresses = ["192.0.2.1/24", "10.244.1.1/24", "2001:db8::1/64", "fd10:0:0:1::1/64"];
        rtnl.apply(&addresses.map(|text| address::add(bridge.index, net(text)))).unwrap();
        for (to, near, far, source) in [
            ("10.244.2.0/24", ip("192.0.2.2"), ip("10.244.2.1"), ip("10.244.1.1")),
            (
                "fd10:0:0:2::/64",
                ip("2001:db8::2"),
                THEIR_MAC.link_local().into(),
                ip("fd10:0:0:1::1"),
            ),
        ] {
            let direct = Route::via(net(to), near, bridge.index);
            let tunnel = Route {
                source: Some(source),
                mtu: Some(1400),
                onlink: far.is_ipv4(),
                ..Route::via(net(to), far, device)
            };
            rtnl.apply(&[route::add(&direct)]).unwrap();
            for route in [tunnel, direct] {
                rtnl.apply(&[route::replace(&route)]).unwrap();
                let found = rtnl.routes(route::PROTOCOL).unwrap();
                let found: Vec<Route> =
                    found.into_iter().filter(|found| found.destination == net(to)).collect();
                let priority = found[0].priority;
                assert_eq!(found, [Route { priority, ..route }]);
            }
        }
        rtnl.apply(&[link::delete(LinkRef::Index(device))]).unwrap();
    });
}
