//! With NET_ADMIN: further interfaces, addresses and MACs of a pod, and its reports of groups to the bridge.

use std::net::Ipv4Addr;

use crate::packet_socket::PacketSocket;
use crate::packets::{ICMPV6, IPV4, IPV6, ethernet, icmpv6, ipv4_options, ipv6};
use crate::scene::{By, Scene};
use crate::support::{Place, PluginHost};

const BOTH: [By; 2] = [By::Humanz, By::Reference];

/// Each makes an interface `x0` beside or upon `eth0`.
const INTERFACES: [(&str, &str); 4] = [
    ("macvlan", "ip link add x0 link eth0 type macvlan mode bridge"),
    ("macvlan of its own", "ip link add x0 link eth0 type macvlan mode private"),
    ("ipvlan", "ip link add x0 link eth0 type ipvlan mode l2"),
    (
        "bridge",
        "ip link add br0 address 02:00:00:00:0b:0b type bridge; ip link set br0 up
         ip link add x0 type veth peer name x1; ip link set x1 master br0 up
         ip link set eth0 master br0",
    ),
];

/// The kernel here has links of that kind.
fn has(kind: &str) -> bool {
    let host = PluginHost::new();
    host.run("ip link add base type veth peer name other").ok();
    host.run(&format!("ip link add x0 link base type {kind}")).succeeded()
}

#[test]
fn further_interfaces_of_a_pod_are_not_received() {
    for (name, script) in INTERFACES {
        if name == "ipvlan" && !has("ipvlan") {
            println!("this kernel has no ipvlan");
            continue;
        }
        for by in BOTH {
            let scene = Scene::new(by);
            let Scene { attacker, victim, .. } = scene;
            let pod = scene.pod(&attacker);
            pod.shell(script).ok();
            // Its own rules do not keep answers from it.
            pod.shell("sysctl -q -w net.ipv6.conf.x0.accept_dad=0; ip link set x0 up").ok();
            pod.run("ip addr add 10.1.2.77/24 dev x0").ok();
            pod.run("ip addr add fd00::77/64 dev x0 nodad").ok();
            pod.shell("ip route del 10.1.2.0/24 dev eth0; ip -6 route del fd00::/64 dev eth0").ok();
            for to in [victim.v4.to_string(), victim.v6.to_string()] {
                let received = (0..if by == By::Reference { 10 } else { 1 })
                    .any(|_| pod.run(&format!("ping -n -c 2 -i 0.2 -W 1 {to}")).succeeded());
                assert_eq!(received, by == By::Reference, "{by:?}: {name}: {to}");
            }
        }
    }
}

/// Two pods that agree on a network of their own beside the one they have.
#[test]
fn pods_have_no_vlan_of_their_own_between_them() {
    if !has("vlan id 5") {
        return println!("this kernel has no VLANs; frames with tags are in link_frames");
    }
    for by in BOTH {
        for protocol in ["802.1Q", "802.1ad"] {
            let scene = Scene::new(by);
            let pods = [scene.pod(&scene.attacker), scene.pod(&scene.victim)];
            for (index, pod) in pods.iter().enumerate() {
                pod.run(&format!("ip link add v5 link eth0 type vlan protocol {protocol} id 5"))
                    .ok();
                pod.run(&format!("ip addr add 192.168.5.{}/24 dev v5", index + 1)).ok();
                pod.run("ip link set v5 up").ok();
            }
            let received = pods[0].run("ping -n -c 2 -i 0.2 -W 1 192.168.5.2").succeeded();
            assert_eq!(received, by == By::Reference, "{by:?}: {protocol}");
        }
    }
}

/// Other names, promiscuous mode, other settings of its own: nothing that is not for it.
#[test]
fn a_pod_that_changes_its_interface_keeps_its_guard() {
    let scene = Scene::new(By::Humanz);
    let Scene { attacker, victim, .. } = scene;
    let pod = scene.pod(&attacker);
    pod.shell(
        "ip link set eth0 promisc on; ip link set eth0 allmulticast on; ip link set eth0 down
         ip link set eth0 name net0; ip link set net0 alias 'humanz net victim eth0'
         ip link set net0 mtu 1400; ip link set net0 group 7; ip link set net0 up
         ip addr add 10.1.2.99/24 dev net0",
    )
    .ok();
    let ping = |from: &str| {
        pod.run(&format!("ping -n -c 2 -i 0.2 -W 1 -I {from} {}", victim.v4)).succeeded()
    };
    assert!(!ping("10.1.2.99"));
    assert!(ping(&attacker.v4.to_string()), "its own address");
    // Into the host's namespace and back: the veth is a new one for neither.
    pod.shell("tc qdisc add dev net0 clsact; ip link set net0 down; ip link set net0 up").ok();
    assert!(!ping("10.1.2.99"));
}

/// Reports of groups fill the table of the bridge, which sends other pods' groups to the reporter.
#[test]
fn a_pod_fills_no_multicast_table_of_the_bridge() {
    for by in BOTH {
        let scene = Scene::new(by);
        let own = scene.attacker;
        let socket = PacketSocket::open(&scene.pod(&own), "eth0");
        let groups = |text: &str| {
            let shown = scene.run("bridge mdb show dev hz0").ok();
            shown.lines().filter(|line| line.contains(text)).count()
        };
        let flood = || {
            for number in 0..200u8 {
                let group = Ipv4Addr::new(239, 1, 1, number);
                // IGMP version 2: report, with the router alert that RFC 2236 asks for.
                let mut report = vec![0x16, 0, 0, 0];
                report.extend(group.octets());
                let sum = crate::packets::checksum(&report).to_be_bytes();
                report[2..4].copy_from_slice(&sum);
                let packet = ipv4_options((own.v4, group), 2, &[148, 4, 0, 0], &report);
                let mac = [1, 0, 0x5e, 1, 1, number];
                socket.send(&ethernet(mac, own.mac, IPV4, &packet));
                let group: std::net::Ipv6Addr = format!("ff15::{number:x}:1").parse().unwrap();
                let pair = (own.link_local(), group);
                let message = icmpv6(pair, 131, &[&[0, 0, 0, 0][..], &group.octets()].concat());
                let alert = [&[ICMPV6, 0, 5, 2, 0, 0, 1, 0][..], &message].concat();
                let mac = [0x33, 0x33, 0, number, 0, 1];
                let hop_by_hop = crate::packets::HOP_BY_HOP;
                let packet = ipv6(pair, hop_by_hop, 1, &alert);
                socket.send(&ethernet(mac, own.mac, IPV6, &packet));
            }
        };
        let full = (0..20).any(|_| {
            flood();
            std::thread::sleep(std::time::Duration::from_millis(20));
            groups("239.1.1.") > 100 && groups("ff15::") > 100
        });
        let found = (groups("239.1.1."), groups("ff15::"));
        match by {
            By::Reference => assert!(full, "{found:?}"),
            By::Humanz => assert_eq!(found, (0, 0)),
        }
    }
}
