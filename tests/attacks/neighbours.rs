//! What a pod can do to the tables of others: neighbours, and the bridge's MACs.

use std::collections::BTreeSet;

use crate::packet_socket::PacketSocket;
use crate::packets::{ARP, BROADCAST, ICMPV6, IPV6, arp, ethernet, ipv6, neighbour};
use crate::scene::{At, By, Scene};
use crate::support::Place;

const BOTH: [By; 2] = [By::Humanz, By::Reference];

fn text(mac: [u8; 6]) -> String {
    humanz::net::Mac(mac).to_string()
}

/// The MACs behind a port of the bridge.
fn behind(scene: &Scene, port: &str) -> BTreeSet<String> {
    let shown = scene.run("bridge fdb show br hz0").ok();
    let lines = shown.lines().filter(|line| {
        line.contains(&format!("dev {port} "))
            && !line.contains("permanent")
            && !line.contains("self")
    });
    lines.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

/// The victim's, or the host's, MAC of an address.
fn believed(place: &dyn Place, address: std::net::IpAddr) -> String {
    let shown = place.run(&format!("ip neigh show {address}")).stdout;
    let mut words = shown.split_whitespace().skip_while(|word| *word != "lladdr");
    words.nth(1).unwrap_or_default().to_owned()
}

#[test]
fn a_pod_cannot_take_the_traffic_of_another() {
    for by in BOTH {
        let scene = Scene::new(by);
        let Scene { attacker, victim, bystander, gateway, .. } = scene;
        let pod = scene.pod(&victim);
        let targets: [std::net::IpAddr; 4] =
            [bystander.v4.into(), bystander.v6.into(), gateway.v4.into(), gateway.v6.into()];
        for address in targets {
            pod.run(&format!("ping -n -c 1 -W 10 {address}")).ok();
        }
        let socket = PacketSocket::open(&scene.pod(&attacker), "eth0");
        for address in targets {
            let frame = match address {
                std::net::IpAddr::V4(v4) => {
                    let says = arp(2, attacker.mac, v4, (victim.mac, victim.v4));
                    ethernet(victim.mac, attacker.mac, ARP, &says)
                }
                std::net::IpAddr::V6(v6) => {
                    let pair = (v6, victim.v6);
                    let says = neighbour(pair, 136, v6, Some(attacker.mac));
                    ethernet(victim.mac, attacker.mac, IPV6, &ipv6(pair, ICMPV6, 255, &says))
                }
            };
            // A young entry is not replaced within a second (net.ipv4.neigh.default.locktime).
            let taken = (0..20).any(|_| {
                socket.send(&frame);
                std::thread::sleep(std::time::Duration::from_millis(100));
                believed(&pod, address) == text(attacker.mac)
            });
            assert_eq!(taken, by == By::Reference, "{by:?}: {address}");
        }
    }
}

#[test]
fn the_host_believes_no_arp_or_ndp_about_a_pod() {
    for by in BOTH {
        let scene = Scene::new(by);
        let Scene { attacker, victim, gateway, .. } = scene;
        let v4 = victim.v4.into();
        scene.run(&format!("ping -n -c 1 -W 10 {v4}")).ok();
        let socket = PacketSocket::open(&scene.pod(&attacker), "eth0");
        let says = arp(2, attacker.mac, victim.v4, (gateway.mac, gateway.v4));
        for _ in 0..12 {
            socket.send(&ethernet(gateway.mac, attacker.mac, ARP, &says));
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        let taken = believed(&*scene.host, v4) == text(attacker.mac);
        assert_eq!(taken, by == By::Reference, "{by:?}");
        if by == By::Humanz {
            for address in [v4, victim.v6.into()] {
                let shown = scene.run(&format!("ip neigh show {address}")).ok();
                assert!(shown.contains("PERMANENT"), "{shown}");
            }
        }
    }
}

#[test]
fn a_pod_fills_no_table_of_the_bridge() {
    for by in BOTH {
        let scene = Scene::new(by);
        let Scene { attacker, victim, .. } = scene;
        let (own, other) = (scene.port(&attacker), scene.port(&victim));
        let socket = PacketSocket::open(&scene.pod(&attacker), "eth0");
        let flood = || {
            for number in 0..2000u16 {
                let [high, low] = number.to_be_bytes();
                let mac = [2, 0, 0, 0, high, low];
                let asks = arp(1, mac, attacker.v4, ([0; 6], victim.v4));
                socket.send(&ethernet(BROADCAST, mac, ARP, &asks));
            }
            // The victim's MAC, and the bridge's own way to it.
            let stolen = arp(1, victim.mac, victim.v4, ([0; 6], attacker.v4));
            socket.send(&ethernet(BROADCAST, victim.mac, ARP, &stolen));
        };
        // A busy kernel drops a part of a flood, and answers of the victim take its MAC back.
        let is_full =
            |found: &BTreeSet<String>| found.len() > 1500 && found.contains(&text(victim.mac));
        let taken = (0..20).any(|_| {
            flood();
            std::thread::sleep(std::time::Duration::from_millis(50));
            is_full(&behind(&scene, &own))
        });
        let (found, at_victim) = (behind(&scene, &own), behind(&scene, &other));
        println!("{by:?}: {} MACs behind the attacker's port", found.len());
        if by == By::Reference {
            assert!(taken, "{}", found.len());
        } else {
            assert_eq!(found, BTreeSet::from([text(attacker.mac)]));
            assert_eq!(at_victim, BTreeSet::from([text(victim.mac)]));
        }
    }
}

/// With a MAC that the bridge does not know, a frame goes to every port.
#[test]
fn a_pod_reads_nothing_that_is_not_for_it() {
    for by in BOTH {
        let scene = Scene::new(by);
        let own = scene.attacker;
        let says = arp(2, own.mac, own.v4, ([2, 0, 0, 0, 0, 9], own.v4));
        let frame = ethernet([2, 0, 0, 0, 0, 9], own.mac, ARP, &says);
        let flooded = scene.arrives(&[frame], At::Victim, &[says]);
        assert_eq!(flooded, by == By::Reference, "{by:?}");
    }
}

/// With NET_ADMIN a pod sets its interface as it likes.
#[test]
fn a_pod_that_gives_itself_another_address_or_mac_is_not_received() {
    for by in BOTH {
        let scene = Scene::new(by);
        let Scene { attacker, victim, gateway, .. } = scene;
        let pod = scene.pod(&attacker);
        let asks = |what: &str, from: &str, to: std::net::IpAddr| {
            let answered = pod.run(&format!("ping -n -c 2 -i 0.2 -W 1 -I {from} {to}")).succeeded();
            assert_eq!(answered, by == By::Reference, "{by:?}: {what}");
        };
        pod.run("ip addr add 10.1.2.99/24 dev eth0").ok();
        asks("another IPv4 address", "10.1.2.99", victim.v4.into());
        asks("another IPv4 address, to the gateway", "10.1.2.99", gateway.v4.into());
        pod.run("ip addr add fd00::99/64 dev eth0 nodad").ok();
        asks("another IPv6 address", "fd00::99", victim.v6.into());
        pod.shell("ip link set eth0 down; ip link set eth0 address 02:00:00:00:00:99; ip link set eth0 up").ok();
        asks("another MAC", &attacker.v4.to_string(), victim.v4.into());
    }
}
