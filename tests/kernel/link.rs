//! Links: bridges, veths, groups.

use std::os::fd::AsRawFd;

use humanz::net::Mac;
use humanz::netlink::NetlinkError;
use humanz::netlink::address;
use humanz::netlink::link::{self, Link, LinkChange, LinkRef, PortFlags, Veth};
use humanz::netlink::route::{self, Route};
use humanz::netlink::rtnl::Rtnl;
use humanz::os::netns::NetNs;
use nix::errno::Errno;

use super::{bridge, errno, in_namespace, ip, name, namespace, net};

/// A veth from `bridge` into `pod`, as the plugin makes it: all in one send.
fn plug(rtnl: &Rtnl, bridge: &Link, host: &str, pod: &NetNs) -> Result<(), NetlinkError> {
    plug_with_mtu(rtnl, bridge, host, pod, 1400)
}

/// A veth of that MTU.
fn plug_with_mtu(
    rtnl: &Rtnl,
    bridge: &Link,
    host: &str,
    pod: &NetNs,
    mtu: u32,
) -> Result<(), NetlinkError> {
    let veth = Veth {
        host: &name(host),
        host_mac: Mac([0x0a, 1, 0, 0, 0, 1]),
        master: bridge.index,
        pod: &name("eth0"),
        pod_mac: Mac([0x0a, 0x58, 10, 1, 0, 2]),
        netns: pod.file().as_raw_fd(),
        mtu,
    };
    let change = LinkChange {
        up: true,
        alias: Some(format!("humanz {host}")),
        port: Some(PortFlags { hairpin: true, isolated: true, locked: true, fixed: true }),
        ..LinkChange::default()
    };
    let host = &name(host);
    rtnl.apply(&[
        link::add_veth(&veth),
        link::change(LinkRef::Name(host), &change),
        link::without_link_local(LinkRef::Name(host)),
    ])
}

#[test]
fn a_bridge_is_created_with_our_mark_and_forwards_at_once() {
    in_namespace(|rtnl| {
        let made = bridge(rtnl, "br0");
        assert_eq!(made.kind.as_deref(), Some("bridge"));
        assert_eq!(made.mac, Some(Mac([0x0a, 0x5a, 0, 0, 0, 1])));
        assert_eq!((made.mtu, made.up, made.delays_ports), (1400, true, false));
        assert_eq!(made.alias.as_deref(), Some("humanz bridge"));
        let again = rtnl.apply(&link::add_bridge(&name("br0"), Mac([2; 6]), 1500, "x"));
        assert_eq!(errno(again), Some(Errno::EEXIST));
    });
}

#[test]
fn spanning_tree_is_noticed_and_turned_off() {
    in_namespace(|rtnl| {
        bridge(rtnl, "br0");
        spanning_tree_on("br0");
        assert!(rtnl.link(&name("br0")).unwrap().unwrap().delays_ports);
        rtnl.apply(&[link::stop_delays(&name("br0"))]).unwrap();
        assert!(!rtnl.link(&name("br0")).unwrap().unwrap().delays_ports);
    });
}

/// Turns spanning tree on, as an administrator would.
fn spanning_tree_on(bridge: &str) {
    let arguments = ["link", "set", bridge, "type", "bridge", "stp_state", "1"];
    let status = std::process::Command::new("ip").args(arguments).status();
    assert!(status.expect("ip of Debian's iproute2 is needed").success());
}

#[test]
fn a_missing_link_is_no_error() {
    in_namespace(|rtnl| {
        assert_eq!(rtnl.link(&name("nothing0")).unwrap(), None);
        assert_eq!(rtnl.link_by_index(4711).unwrap(), None);
        assert_eq!(
            errno(rtnl.apply(&[link::delete(LinkRef::Name(&name("nothing0")))])),
            Some(Errno::ENODEV)
        );
    });
}

#[test]
fn a_veth_is_created_in_the_pod_with_one_message() {
    let pod = namespace();
    in_namespace(|rtnl| {
        let bridge = bridge(rtnl, "br0");
        plug(rtnl, &bridge, "hz1", &pod).unwrap();
        let inside = pod.run(|| Rtnl::open().unwrap()).unwrap();
        let host = rtnl.link(&name("hz1")).unwrap().unwrap();
        let eth0 = inside.link(&name("eth0")).unwrap().unwrap();
        assert_eq!(host.master, Some(bridge.index));
        assert_eq!(
            host.port,
            Some(PortFlags {
                hairpin: true,
                isolated: true,
                locked: humanz_test_support::kernel::locks_ports(),
                fixed: true
            })
        );
        assert_eq!(host.alias.as_deref(), Some("humanz hz1"));
        assert_eq!((host.mtu, eth0.mtu, host.up), (1400, 1400, true));
        assert_eq!(eth0.mac, Some(Mac([0x0a, 0x58, 10, 1, 0, 2])));
        assert_eq!(host.peer_index, Some(eth0.index));
        assert_eq!(eth0.peer_index, Some(host.index));

        let gateway = ip("10.1.0.1");
        inside
            .apply(&[
                address::add(eth0.index, net("10.1.0.2/24")),
                address::add(eth0.index, net("fd00::2/64")),
                link::change(
                    LinkRef::Index(eth0.index),
                    &LinkChange { up: true, ..LinkChange::default() },
                ),
                route::add(&Route {
                    protocol: 4,
                    ..Route::via(net("0.0.0.0/0"), gateway, eth0.index)
                }),
            ])
            .unwrap();
        // At the first look from Linux 6.8 on, which asks the link watch; before, ADD looks again.
        humanz_test_support::soon("both ends are operationally up", || {
            let up = |rtnl: &Rtnl, end: &str| rtnl.link(&name(end)).unwrap().unwrap().oper_up;
            up(&inside, "eth0") && up(rtnl, "hz1")
        });
        assert_eq!(
            rtnl.addresses(Some(host.index)).unwrap(),
            [],
            "a port needs no link-local address"
        );
        let addresses = inside.addresses(Some(eth0.index)).unwrap();
        for wanted in ["10.1.0.2/24", "fd00::2/64"] {
            assert!(addresses.iter().any(|found| found.address == net(wanted)), "{addresses:?}");
        }
        assert_eq!(inside.lookup_route(ip("192.0.2.1")).unwrap().unwrap().gateway, Some(gateway));

        let taken = plug(rtnl, &bridge, "hz2", &pod);
        assert_eq!(errno(taken), Some(Errno::EEXIST), "the pod has an eth0");
        assert_eq!(rtnl.link(&name("hz2")).unwrap(), None, "nothing half made stays");
    });
}

#[test]
fn a_group_of_links_goes_with_one_message() {
    in_namespace(|rtnl| {
        for number in 0..8 {
            let bridge = bridge(rtnl, &format!("br{number}"));
            let group = LinkChange { group: Some(104), ..LinkChange::default() };
            rtnl.apply(&[link::change(LinkRef::Index(bridge.index), &group)]).unwrap();
        }
        rtnl.apply(&[link::delete_group(104)]).unwrap();
        let left = rtnl.links(None).unwrap();
        assert!(left.iter().all(|link| !link.name.as_str().starts_with("br")), "{left:?}");
        assert_eq!(errno(rtnl.apply(&[link::delete_group(104)])), Some(Errno::ENODEV));
    });
}

#[test]
fn a_veth_with_an_mtu_too_small_for_ipv6_is_created() {
    let pod = namespace();
    in_namespace(|rtnl| {
        let bridge = bridge(rtnl, "br0");
        plug_with_mtu(rtnl, &bridge, "hz1", &pod, 1000).unwrap();
        let host = rtnl.link(&name("hz1")).unwrap().unwrap();
        assert_eq!((host.alias.as_deref(), host.up), (Some("humanz hz1"), true));
    });
}
