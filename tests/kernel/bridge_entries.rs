//! Where a bridge sends frames for a MAC: its own, those of its ports, pinned ones.

use std::os::fd::AsRawFd;

use humanz::net::Mac;
use humanz::netlink::fdb::{self, EntryKind};
use humanz::netlink::link::{self, Link, LinkChange, LinkRef, Veth};
use humanz::netlink::neighbour;
use humanz::netlink::rtnl::Rtnl;
use humanz::os::netns::NetNs;
use nix::errno::Errno;

use super::{bridge, errno, in_namespace, name, namespace};

fn mac(last: u8) -> Mac {
    Mac([0x0a, 0x56, 0, 0, 0, last])
}

/// A port with this MAC.
fn plug(rtnl: &Rtnl, bridge: &Link, last: u8, pod: &NetNs) -> u32 {
    let host = name(&format!("hz{last}"));
    let veth = Veth {
        host: &host,
        host_mac: mac(last),
        master: bridge.index,
        pod: &name(&format!("eth{last}")),
        pod_mac: Mac([0x0a, 0x58, 10, 1, 0, last]),
        netns: pod.file().as_raw_fd(),
        mtu: 1400,
    };
    let up = LinkChange { up: true, ..LinkChange::default() };
    rtnl.apply(&[link::add_veth(&veth), link::change(LinkRef::Name(&host), &up)]).unwrap();
    rtnl.link(&host).unwrap().unwrap().index
}

fn at(rtnl: &Rtnl, bridge: &Link, of: Mac) -> Option<(u32, EntryKind)> {
    let entry = rtnl.bridge_entry(bridge.index, of).unwrap();
    let listed = rtnl.bridge_entries(bridge.index).unwrap();
    assert_eq!(listed.into_iter().find(|entry| entry.mac == of && entry.vlan.is_none()), entry);
    entry.map(|entry| (entry.link, entry.kind))
}

/// What ADD relies on: a pod that starts has the MAC of its port, whoever had it before.
#[test]
fn a_port_that_comes_takes_its_mac_from_whoever_has_it_pinned() {
    let pod = namespace();
    in_namespace(|rtnl| {
        let bridge = bridge(rtnl, "br0");
        let thief = plug(rtnl, &bridge, 1, &pod);
        rtnl.apply(&[neighbour::pin_new(thief, mac(2))]).unwrap();
        assert_eq!(at(rtnl, &bridge, mac(2)), Some((thief, EntryKind::Pinned)));
        let port = plug(rtnl, &bridge, 2, &pod);
        assert_eq!(at(rtnl, &bridge, mac(2)), Some((port, EntryKind::Local)));
        let again = rtnl.apply(&[neighbour::pin_new(thief, mac(2))]);
        assert_eq!(errno(again), Some(Errno::EEXIST));
        assert_eq!(at(rtnl, &bridge, mac(2)), Some((port, EntryKind::Local)));
    });
}

#[test]
fn a_local_mac_that_was_taken_or_lost_is_set_again() {
    let pod = namespace();
    in_namespace(|rtnl| {
        let bridge = bridge(rtnl, "br0");
        let [thief, port] = [1, 2].map(|last| plug(rtnl, &bridge, last, &pod));
        let own = bridge.mac.unwrap();
        for (link, of, is_bridge) in [(port, mac(2), false), (bridge.index, own, true)] {
            assert_eq!(at(rtnl, &bridge, of), Some((link, EntryKind::Local)));
            rtnl.apply(&[neighbour::pin(thief, of)]).unwrap();
            assert_eq!(at(rtnl, &bridge, of), Some((thief, EntryKind::Pinned)), "it matters");
            for _ in 0..2 {
                rtnl.apply(&[fdb::set_local(link, of, is_bridge)]).unwrap();
                assert_eq!(at(rtnl, &bridge, of), Some((link, EntryKind::Local)));
            }
            // With the thief.
            rtnl.apply(&[neighbour::pin(thief, of)]).unwrap();
            let unpin = LinkChange { master: Some(0), ..LinkChange::default() };
            let pin = LinkChange { master: Some(bridge.index), ..LinkChange::default() };
            rtnl.apply(&[unpin, pin].map(|it| link::change(LinkRef::Index(thief), &it))).unwrap();
            assert_eq!(at(rtnl, &bridge, of), None);
            rtnl.apply(&[fdb::set_local(link, of, is_bridge)]).unwrap();
            assert_eq!(at(rtnl, &bridge, of), Some((link, EntryKind::Local)));
        }
        // The port is gone.
        rtnl.apply(&[link::delete(LinkRef::Index(port))]).unwrap();
        let late = rtnl.apply(&[fdb::set_local(port, mac(2), false)]);
        assert_eq!(errno(late), Some(Errno::ENODEV));
    });
}
