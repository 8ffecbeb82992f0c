//! Routes, neighbours, and error messages.

use std::net::IpAddr;

use humanz::net::Mac;
use humanz::netlink::route::{self, Route};
use humanz::netlink::rtnl::Rtnl;
use humanz::netlink::{NetlinkError, NetlinkProtocol, NetlinkSocket, Reply};
use humanz::netlink::{address, link, neighbour};
use nix::errno::Errno;

use super::{bridge, errno, in_namespace, ip, net};

#[test]
fn an_error_includes_the_netlink_message_and_the_kernels_extack() {
    in_namespace(|rtnl| {
        let bridge = bridge(rtnl, "br0");
        let unreachable = Route::via(net("10.9.0.0/24"), ip("203.0.113.1"), bridge.index);
        let result = rtnl.apply(&[
            address::add(bridge.index, net("10.1.0.1/24")),
            route::add(&unreachable),
            address::add(bridge.index, net("10.2.0.1/24")),
        ]);
        let NetlinkError::Refused(refused) = result.unwrap_err() else { panic!("not refused") };
        assert_eq!((refused.index, refused.errno), (1, Errno::ENETUNREACH));
        let text = refused.to_string();
        assert!(text.contains("add route 10.9.0.0/24 via 203.0.113.1"), "{text}");
        assert!(text.contains("invalid gateway"), "{text}");
        let count = rtnl.addresses(Some(bridge.index)).unwrap();
        assert!(
            count.iter().any(|found| found.address == net("10.2.0.1/24")),
            "what follows is done"
        );
    });
}

/// More than go into one send: refused ones in the first and in the last of them.
#[test]
fn each_of_many_routes_has_its_own_outcome() {
    in_namespace(|rtnl| {
        let bridge = bridge(rtnl, "br0");
        rtnl.apply(&[address::add(bridge.index, net("192.0.2.1/24"))]).unwrap();
        let gateway =
            |number: u32| if matches!(number, 3 | 299) { "203.0.113.1" } else { "192.0.2.7" };
        let to = |number: u32| net(&format!("10.1.{}.{}/32", number / 256, number % 256));
        let route = |number| Route::via(to(number), ip(gateway(number)), bridge.index);
        let messages: Vec<_> = (0..300).map(|number| route::add(&route(number))).collect();
        let outcomes = rtnl.apply_each(&messages).unwrap();
        let refused = (0..).zip(outcomes).filter_map(|(number, done)| Some((number, done.err()?)));
        let refused: Vec<(u32, String)> =
            refused.map(|(number, error)| (number, error.to_string())).collect();
        assert_eq!(refused.len(), 2, "{refused:?}");
        assert!(refused[0].0 == 3 && refused[0].1.contains("add route 10.1.0.3/32"), "{refused:?}");
        assert!(refused[1].0 == 299 && refused[1].1.contains("invalid gateway"), "{refused:?}");
        assert_eq!(rtnl.routes(route::PROTOCOL).unwrap().len(), 298);
        let again: Vec<_> = messages.into_iter().map(|add| add.tolerating(Errno::EEXIST)).collect();
        let outcomes = rtnl.apply_each(&again).unwrap();
        assert_eq!(outcomes.iter().filter(|done| done.is_err()).count(), 2, "EEXIST is tolerated");
        assert_eq!(rtnl.apply_each(&[]).unwrap().len(), 0);
    });
}

#[test]
fn routes_bear_our_mark_in_both_families() {
    in_namespace(|rtnl| {
        let bridge = bridge(rtnl, "br0");
        rtnl.apply(&[
            address::add(bridge.index, net("192.0.2.1/24")),
            address::add(bridge.index, net("2001:db8::1/64")),
        ])
        .unwrap();
        let v4 = Route::via(net("10.1.2.0/24"), ip("192.0.2.7"), bridge.index);
        let v6 = Route::via(net("fd00:1::/64"), ip("2001:db8::7"), bridge.index);
        rtnl.apply(&[route::add(&v4), route::add(&v6)]).unwrap();
        assert_eq!(errno(rtnl.apply(&[route::add(&v4)])), Some(Errno::EEXIST));
        let moved = Route { gateway: Some(ip("192.0.2.9")), ..v4 };
        rtnl.apply(&[route::replace(&moved)]).unwrap();
        let found = rtnl.routes(route::PROTOCOL).unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!((found[0].destination, found[0].gateway), (v4.destination, moved.gateway));
        assert_eq!((found[1].destination, found[1].gateway), (v6.destination, v6.gateway));
        rtnl.apply(&[route::delete(&found[0]), route::delete(&found[1])]).unwrap();
        assert_eq!(rtnl.routes(route::PROTOCOL).unwrap(), []);
        assert_eq!(errno(rtnl.apply(&[route::delete(&v4)])), Some(Errno::ESRCH));
        assert_eq!(rtnl.lookup_route(ip("198.51.100.1")).unwrap(), None, "no way is no error");
    });
}

#[test]
fn a_route_carries_its_metrics_table_and_scope() {
    in_namespace(|rtnl| {
        let bridge = bridge(rtnl, "br0");
        rtnl.apply(&[address::add(bridge.index, net("192.0.2.1/24"))]).unwrap();
        let wanted = Route {
            priority: Some(50),
            mtu: Some(1300),
            advmss: Some(1200),
            onlink: true,
            ..Route::via(net("10.1.2.0/24"), ip("203.0.113.9"), bridge.index)
        };
        rtnl.apply(&[route::add(&wanted)]).unwrap();
        assert_eq!(rtnl.routes(route::PROTOCOL).unwrap(), [wanted]);
        let elsewhere = Route { table: 5000, ..wanted };
        rtnl.apply(&[route::add(&elsewhere)]).unwrap();
        assert_eq!(rtnl.routes(route::PROTOCOL).unwrap(), [wanted], "only the main table is ours");
    });
}

#[test]
fn a_neighbour_replaces_a_learned_one() {
    in_namespace(|rtnl| {
        let bridge = bridge(rtnl, "br0");
        rtnl.apply(&[address::add(bridge.index, net("10.1.0.1/24"))]).unwrap();
        for last in 1..3 {
            let mac = Mac([0x0a, 0, 0, 0, 0, last]);
            rtnl.apply(&[neighbour::set(bridge.index, ip("10.1.0.2"), mac)]).unwrap();
        }
        rtnl.apply(&[neighbour::delete(bridge.index, ip("10.1.0.2"))]).unwrap();
        let gone = errno(rtnl.apply(&[neighbour::delete(bridge.index, ip("10.1.0.2"))]));
        assert!(matches!(gone, None | Some(Errno::ENOENT)), "{gone:?}");
    });
}

#[test]
fn an_ipv6_route_is_replaced_instead_of_becoming_multipath() {
    in_namespace(|rtnl| {
        let bridge = bridge(rtnl, "br0");
        rtnl.apply(&[address::add(bridge.index, net("2001:db8::1/64"))]).unwrap();
        let first = Route::via(net("fd00:1::/64"), ip("2001:db8::7"), bridge.index);
        let moved = Route { gateway: Some(ip("2001:db8::9")), ..first };
        rtnl.apply(&[route::add(&first), route::replace(&moved)]).unwrap();
        assert_eq!(gateways(rtnl), [Some(ip("2001:db8::9"))]);
        assert_eq!(
            rtnl.lookup_route(ip("fd00:1::5")).unwrap().unwrap().gateway,
            Some(ip("2001:db8::9"))
        );
        assert_eq!(
            rtnl.lookup_route(ip("2001:db8::5")).unwrap().unwrap().gateway,
            None,
            "on the link"
        );
        assert_eq!(rtnl.lookup_route(ip("2001:db9::5")).unwrap(), None, "no way is no error");
    });
}

#[test]
fn an_ipv6_route_can_have_a_gateway_off_the_link() {
    in_namespace(|rtnl| {
        let bridge = bridge(rtnl, "br0");
        rtnl.apply(&[address::add(bridge.index, net("2001:db8::1/64"))]).unwrap();
        let wanted = Route {
            onlink: true,
            mtu: Some(1300),
            priority: Some(50),
            ..Route::via(net("fd00:1::/64"), ip("2001:db8:1::7"), bridge.index)
        };
        rtnl.apply(&[route::add(&wanted)]).unwrap();
        assert_eq!(rtnl.routes(route::PROTOCOL).unwrap(), [wanted]);
    });
}

/// Somebody gave a route of ours a second next hop: one route, found without gateway. It can be
/// replaced by what is wanted, and removed.
#[test]
fn a_multipath_route_is_foreign() {
    in_namespace(|rtnl| {
        let bridge = bridge(rtnl, "br0");
        rtnl.apply(&[
            address::add(bridge.index, net("192.0.2.1/24")),
            address::add(bridge.index, net("2001:db8::1/64")),
        ])
        .unwrap();
        for (to, first, second) in [
            ("10.1.2.0/24", "192.0.2.7", "192.0.2.8"),
            ("fd00:1::/64", "2001:db8::7", "2001:db8::8"),
        ] {
            two_next_hops(to, first, second);
            assert_eq!(gateways(rtnl), [None], "{to}");
            let wanted = Route::via(net(to), ip(first), bridge.index);
            rtnl.apply(&[route::replace(&wanted)]).unwrap();
            assert_eq!(gateways(rtnl), [wanted.gateway], "{to} replaced");
            rtnl.apply(&[route::delete(&wanted)]).unwrap();
            assert_eq!(gateways(rtnl), [], "{to} deleted");

            two_next_hops(to, first, second);
            let found = rtnl.routes(route::PROTOCOL).unwrap();
            rtnl.apply(&[route::delete(&found[0])]).unwrap();
            assert_eq!(gateways(rtnl), [], "{to} deleted with both next hops");
        }
    });
}

/// A route with our mark and two next hops, as `ip` makes it.
fn two_next_hops(to: &str, first: &str, second: &str) {
    let nexthops = ["nexthop", "via", first, "nexthop", "via", second];
    let arguments = [&["route", "add", to, "proto", "104"], &nexthops[..]].concat();
    let status = std::process::Command::new("ip").args(arguments).status();
    assert!(status.expect("ip of Debian's iproute2 is needed").success());
}

/// The gateways of our routes.
fn gateways(rtnl: &Rtnl) -> Vec<Option<IpAddr>> {
    rtnl.routes(route::PROTOCOL).unwrap().iter().map(|route| route.gateway).collect()
}

/// More than one datagram of the kernel's: the rest of it must not be in the way of the next request.
#[test]
fn a_list_that_could_not_be_read_does_not_disturb_later_ones() {
    in_namespace(|rtnl| {
        (0..60).for_each(|number| drop(bridge(rtnl, &format!("br{number}"))));
        let socket = NetlinkSocket::open(NetlinkProtocol::Route).unwrap();
        let list = link::list_kind("bridge");
        let wrong =
            |_: &Reply<'_>| Err::<Option<u32>, _>(NetlinkError::Malformed("odd".to_owned()));
        let error = socket.dump(&list, wrong).unwrap_err().to_string();
        assert!(error.contains("odd"), "{error}");
        assert_eq!(socket.dump(&list, link::parse).unwrap().len(), 60);
    });
}
