//! Events of the kernel: rtnetlink notifications.

use std::net::IpAddr;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use humanz::net::Mac;
use humanz::netlink::NetlinkProtocol;
use humanz::netlink::events::{Events, KernelEvent, LinkState};
use humanz::netlink::route::{self, Route};
use humanz::netlink::{address, neighbour};
use ipnetwork::IpNetwork;

use super::{bridge, in_namespace, ip, name, net};

/// Longer than anything takes here.
const SOON: Duration = Duration::from_secs(20);

#[test]
fn events_select_the_scope_of_a_reconcile() {
    in_namespace(|rtnl| {
        let (sender, receiver) = channel();
        let mut events = Events::open(NetlinkProtocol::Route).unwrap();
        thread::spawn(move || {
            while let Ok(batch) = events.wait(SOON) {
                for event in batch {
                    sender.send(event).ok();
                }
            }
        });
        let bridge = bridge(rtnl, "br0");
        let sender = rtnl.port().unwrap();
        assert_ne!(sender, 0);
        rtnl.apply(&[
            address::add(bridge.index, net("192.0.2.1/24")),
            route::add(&Route::via(net("10.1.2.0/24"), ip("192.0.2.7"), bridge.index)),
            route::delete(&Route::via(net("10.1.2.0/24"), ip("192.0.2.7"), bridge.index)),
            route::add(&Route::via(net("0.0.0.0/0"), ip("192.0.2.7"), bridge.index)),
            neighbour::set(bridge.index, ip("192.0.2.7"), Mac([2, 0, 0, 0, 0, 7])),
            neighbour::delete(bridge.index, ip("192.0.2.7")),
        ])
        .unwrap();
        let mut wanted = vec![
            KernelEvent::Link { name: name("br0"), index: bridge.index, now: LinkState::Alone },
            KernelEvent::NeighbourGone { index: bridge.index },
            KernelEvent::Address { index: bridge.index },
            KernelEvent::Neighbour { index: bridge.index, sender },
            route_event("10.1.2.0/24", false, sender),
            route_event("10.1.2.0/24", true, sender),
            route_event("0.0.0.0/0", false, sender),
        ];
        while !wanted.is_empty() {
            let event = receiver.recv_timeout(std::time::Duration::from_secs(5)).expect("an event");
            wanted.retain(|wanted| *wanted != event);
        }
    });
}

#[test]
fn disabled_forwarding_is_an_event_and_a_new_link_is_not() {
    in_namespace(|rtnl| {
        let expect_event = |key: &str| {
            let path = format!("/proc/sys/net/{key}");
            std::fs::write(&path, "0").unwrap();
            let mut events = Events::open(NetlinkProtocol::Route).unwrap();
            // A new link does not forward.
            bridge(rtnl, &format!("br{}", path.len()));
            std::fs::write(&path, "1").unwrap();
            let event = |index| KernelEvent::Address { index };
            let last = bridge(rtnl, &format!("last{}", path.len())).index;
            rtnl.apply(&[address::add(last, net("192.0.2.1/24"))]).unwrap();
            let mut before = Vec::new();
            while !before.contains(&event(last)) {
                before.extend(events.wait(SOON).unwrap());
            }
            assert!(!before.contains(&KernelEvent::ForwardingOff), "{key}: {before:?}");
            std::fs::write(&path, "0").unwrap();
            while !events.wait(SOON).unwrap().contains(&KernelEvent::ForwardingOff) {}
        };
        expect_event("ipv4/ip_forward");
        expect_event("ipv6/conf/all/forwarding");
    });
}

#[test]
fn lost_events_are_reported_as_lost() {
    in_namespace(|rtnl| {
        let mut events = Events::open(NetlinkProtocol::Route).unwrap();
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
            if events.wait(SOON).unwrap().contains(&KernelEvent::Lost) {
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
fn a_change_of_nftables_is_an_event() {
    in_namespace(|_| {
        let (sender, receiver) = channel();
        let mut events = Events::open(NetlinkProtocol::Netfilter).unwrap();
        thread::spawn(move || sender.send(events.wait(SOON).map_err(|error| error.to_string())));
        let status = std::process::Command::new("nft").args(["add", "table", "inet", "t"]).status();
        assert!(status.expect("nft of Debian's nftables is needed").success());
        let received = receiver.recv_timeout(std::time::Duration::from_secs(5)).expect("an event");
        assert!(matches!(received.unwrap()[..], [KernelEvent::Nftables { sender }] if sender != 0));
    });
}

fn route_event(destination: &str, gone: bool, sender: u32) -> KernelEvent {
    let destination: IpNetwork = net(destination);
    let default = destination.prefix() == 0;
    KernelEvent::Route { protocol: route::PROTOCOL, default, gone, destination, sender }
}
