//! The rtnetlink layer against the real kernel. Every test works in fresh network namespaces, on a
//! thread that ends there; root, or `unshare -rnm`, is all it needs.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;

use humanz::linux::events::{Event, Events};
use humanz::linux::link::{self, Change, Link, Port, Veth, Which};
use humanz::linux::netlink::{NetlinkError, Protocol};
use humanz::linux::netns::{NetNs, NetNsError};
use humanz::linux::route::{self, Route};
use humanz::linux::rtnl::Rtnl;
use humanz::linux::{address, files, neighbour, sysctl};
use humanz::net::{IfName, Mac};
use ipnetwork::IpNetwork;
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};

/// Runs `test` in a fresh network namespace.
fn in_namespace<T: Send>(test: impl FnOnce(&Rtnl) -> T + Send) -> T {
    let inside = || {
        unshare(CloneFlags::CLONE_NEWNET)
            .expect("make a network namespace: run the tests as root or under unshare -rnm");
        test(&Rtnl::open().unwrap())
    };
    thread::scope(|scope| scope.spawn(inside).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A namespace that lives as long as the value.
fn namespace() -> NetNs {
    in_namespace(|_| NetNs::current().unwrap())
}

fn name(text: &str) -> IfName {
    text.parse().unwrap()
}

fn net(text: &str) -> IpNetwork {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn bridge(rtnl: &Rtnl, text: &str) -> Link {
    let mac = Mac([0x0a, 0x5a, 0, 0, 0, 1]);
    rtnl.apply(&link::add_bridge(&name(text), mac, 1400, "humanz bridge")).unwrap();
    rtnl.link(&name(text)).unwrap().unwrap()
}

fn errno(result: Result<(), NetlinkError>) -> Option<Errno> {
    result.unwrap_err().errno()
}

/// A veth from `bridge` into `pod`, as the plugin makes it: all in one send.
fn plug(rtnl: &Rtnl, bridge: &Link, host: &str, pod: &NetNs) -> Result<(), NetlinkError> {
    let veth = Veth {
        host: &name(host),
        host_mac: Mac([0x0a, 1, 0, 0, 0, 1]),
        master: bridge.index,
        pod: &name("eth0"),
        pod_mac: Mac([0x0a, 0x58, 10, 1, 0, 2]),
        netns: pod.file().as_raw_fd(),
        mtu: 1400,
    };
    let change = Change {
        up: true,
        alias: Some(format!("humanz {host}")),
        port: Some(Port { hairpin: true, isolated: true }),
        no_link_local: true,
        ..Change::default()
    };
    rtnl.apply(&[link::add_veth(&veth), link::change(Which::Name(&name(host)), &change)])
}

#[test]
fn a_bridge_is_made_marked_and_forwards_at_once() {
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
fn a_link_that_is_not_there_is_no_error() {
    in_namespace(|rtnl| {
        assert_eq!(rtnl.link(&name("nothing0")).unwrap(), None);
        assert_eq!(rtnl.link_by_index(4711).unwrap(), None);
        assert_eq!(
            errno(rtnl.apply(&[link::delete(Which::Name(&name("nothing0")))])),
            Some(Errno::ENODEV)
        );
    });
}

#[test]
fn a_veth_is_made_in_place_with_one_send() {
    let pod = namespace();
    in_namespace(|rtnl| {
        let bridge = bridge(rtnl, "br0");
        plug(rtnl, &bridge, "hz1", &pod).unwrap();
        let inside = pod.run(|| Rtnl::open().unwrap()).unwrap();
        let host = rtnl.link(&name("hz1")).unwrap().unwrap();
        let eth0 = inside.link(&name("eth0")).unwrap().unwrap();
        assert_eq!(host.master, Some(bridge.index));
        assert_eq!(host.port, Some(Port { hairpin: true, isolated: true }));
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
                link::change(Which::Index(eth0.index), &Change { up: true, ..Change::default() }),
                route::add(&Route {
                    protocol: 4,
                    ..Route::via(net("0.0.0.0/0"), gateway, eth0.index)
                }),
            ])
            .unwrap();
        assert!(inside.link(&name("eth0")).unwrap().unwrap().oper_up, "up when ADD returns");
        assert!(rtnl.link(&name("hz1")).unwrap().unwrap().oper_up);
        assert_eq!(
            rtnl.addresses(Some(host.index)).unwrap(),
            [],
            "a port needs no link-local address"
        );
        let addresses = inside.addresses(Some(eth0.index)).unwrap();
        for wanted in ["10.1.0.2/24", "fd00::2/64"] {
            assert!(addresses.iter().any(|found| found.address == net(wanted)), "{addresses:?}");
        }
        assert_eq!(inside.way(ip("192.0.2.1")).unwrap().unwrap().gateway, Some(gateway));

        let taken = plug(rtnl, &bridge, "hz2", &pod);
        assert_eq!(errno(taken), Some(Errno::EEXIST), "the pod has an eth0");
        assert_eq!(rtnl.link(&name("hz2")).unwrap(), None, "nothing half made stays");
    });
}

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
fn a_group_of_links_goes_with_one_message() {
    in_namespace(|rtnl| {
        for number in 0..8 {
            let bridge = bridge(rtnl, &format!("br{number}"));
            let group = Change { group: Some(104), ..Change::default() };
            rtnl.apply(&[link::change(Which::Index(bridge.index), &group)]).unwrap();
        }
        rtnl.apply(&[link::delete_group(104)]).unwrap();
        let left = rtnl.links(None).unwrap();
        assert!(left.iter().all(|link| !link.name.as_str().starts_with("br")), "{left:?}");
        assert_eq!(errno(rtnl.apply(&[link::delete_group(104)])), Some(Errno::ENODEV));
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

#[test]
fn events_tell_where_to_look() {
    in_namespace(|rtnl| {
        let (sender, receiver) = channel();
        let mut events = Events::open(Protocol::Route).unwrap();
        thread::spawn(move || {
            while let Ok(batch) = events.wait() {
                for event in batch {
                    sender.send(event).ok();
                }
            }
        });
        let bridge = bridge(rtnl, "br0");
        rtnl.apply(&[
            address::add(bridge.index, net("192.0.2.1/24")),
            route::add(&Route::via(net("10.1.2.0/24"), ip("192.0.2.7"), bridge.index)),
            route::delete(&Route::via(net("10.1.2.0/24"), ip("192.0.2.7"), bridge.index)),
        ])
        .unwrap();
        let mut wanted = vec![
            Event::Link { name: name("br0") },
            Event::Address { index: bridge.index },
            Event::Route { protocol: route::PROTOCOL, gone: false },
            Event::Route { protocol: route::PROTOCOL, gone: true },
        ];
        while !wanted.is_empty() {
            let event = receiver.recv_timeout(std::time::Duration::from_secs(5)).expect("an event");
            wanted.retain(|wanted| *wanted != event);
        }
    });
}

#[test]
fn lost_events_say_that_they_were_lost() {
    in_namespace(|rtnl| {
        let mut events = Events::open(Protocol::Route).unwrap();
        let bridge = bridge(rtnl, "br0");
        rtnl.apply(&[address::add(bridge.index, net("10.0.0.1/8"))]).unwrap();
        let hosts = (0..30_000u32).map(|n| Route {
            gateway: None,
            ..Route::via(
                IpNetwork::new(ip("10.1.0.0"), 32).map(|_| host(n)).unwrap(),
                ip("10.0.0.2"),
                bridge.index,
            )
        });
        let messages: Vec<_> = hosts.map(|route| route::add(&route)).collect();
        rtnl.apply(&messages).unwrap();
        let mut lost = false;
        for _ in 0..100_000 {
            if events.wait().unwrap().contains(&Event::Lost) {
                lost = true;
                break;
            }
        }
        assert!(lost);
    });
}

fn host(number: u32) -> IpNetwork {
    let address = u32::from_be_bytes([10, 1, 0, 0]) + number;
    IpNetwork::new(IpAddr::V4(address.into()), 32).unwrap()
}

#[test]
fn a_path_that_is_no_namespace_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let left = dir.path().join("left");
    std::fs::write(&left, "").unwrap();
    assert!(matches!(NetNs::open(&left), Err(NetNsError::NotANamespace(_))));
    assert!(matches!(NetNs::open(&dir.path().join("none")), Err(NetNsError::Missing(_))));
    assert!(matches!(NetNs::open(Path::new("/proc/4194304/ns/net")), Err(NetNsError::Missing(_))));
}

#[test]
fn a_namespace_is_itself_under_every_path() {
    let own = NetNs::current().unwrap();
    let by_process = format!("/proc/{}/ns/net", std::process::id());
    assert!(own.is(&NetNs::open(Path::new(&by_process)).unwrap()).unwrap());
    assert!(!own.is(&namespace()).unwrap());
}

#[test]
fn work_in_a_namespace_leaves_the_caller_where_it_was() {
    let other = namespace();
    let before = NetNs::current().unwrap();
    let inside = other.run(|| NetNs::current().unwrap()).unwrap();
    assert!(inside.is(&other).unwrap());
    assert!(before.is(&NetNs::current().unwrap()).unwrap());
}

#[test]
fn a_sysctl_is_written_in_its_namespace_only() {
    let key = "net/ipv4/ip_forward";
    let outside = sysctl::read(key).unwrap();
    namespace()
        .run(|| {
            let other = if sysctl::read(key).unwrap() == "1" { "0" } else { "1" };
            sysctl::write(key, other).unwrap();
            assert_eq!(sysctl::read(key).unwrap(), other);
        })
        .unwrap();
    assert_eq!(sysctl::read(key).unwrap(), outside);
    assert!(sysctl::read("net/ipv4/no_such_key").unwrap_err().is_missing());
}

#[test]
fn a_file_is_replaced_whole_and_leaves_nothing_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b.conf");
    files::replace(&path, b"one", 0o600).unwrap();
    files::replace_watched(&path, b"two", 0o600).unwrap();
    assert!(files::holds(&path, b"two") && !files::holds(&path, b"one"));
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    files::replace_link(Path::new("b.conf"), &dir.path().join("a/link")).unwrap();
    files::replace_link(Path::new("b.conf"), &dir.path().join("a/link")).unwrap();
    let mut names: Vec<_> = std::fs::read_dir(dir.path().join("a"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["b.conf", "link"]);
    files::remove(&path).unwrap();
    files::remove(&path).unwrap();
    let text = files::replace(&dir.path().join("a/link/x"), b"", 0o600).unwrap_err().to_string();
    assert!(text.contains("a/link"), "{text}");
}

#[test]
fn a_running_executable_is_replaced_by_a_copy() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("sleep");
    files::copy_executable(Path::new("/bin/sleep"), &copy).unwrap();
    let mut child = std::process::Command::new(&copy).arg("60").spawn().unwrap();
    assert!(files::is_copy(Path::new("/bin/sleep"), &copy).unwrap());
    let replaced = files::copy_executable(Path::new("/bin/true"), &copy);
    child.kill().unwrap();
    child.wait().unwrap();
    replaced.unwrap();
    assert!(!files::is_copy(Path::new("/bin/sleep"), &copy).unwrap());
}
