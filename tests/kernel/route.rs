//! Routes, neighbours, and what a refusal says.

use humanz::linux::netlink::NetlinkError;
use humanz::linux::route::{self, Route};
use humanz::linux::{address, neighbour};
use humanz::net::Mac;
use nix::errno::Errno;

use super::{bridge, errno, in_namespace, ip, net};

#[test]
fn a_refusal_names_its_message_and_the_kernels_words() {
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
        assert_eq!(rtnl.way(ip("198.51.100.1")).unwrap(), None, "no way is no error");
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
fn a_neighbour_is_set_over_what_was_believed() {
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
