//! Single frames: those that must not arrive anywhere, and those that must.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde_json::json;

use crate::attack::{Attack, Attacks, arriving};
use crate::packets::{
    ARP, BROADCAST, DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, ICMPV6, IPV4, IPV6, Mac, UDP, arp,
    ethernet, fragment, icmpv6, ipv4, ipv4_fragment, ipv6, neighbour, padding,
    router_advertisement, tagged, udp, udp6,
};
use crate::scene::{At, By, End, Scene, marked4, marked6};
use crate::{headers, link_frames};

pub const SOLICITATION: u8 = 135;
pub const ADVERTISEMENT: u8 = 136;
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
pub const ALL_NODES_MAC: Mac = [0x33, 0x33, 0, 0, 0, 1];
/// Somebody on the Internet.
const STRANGER4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const STRANGER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x51, 0, 0, 0, 0, 7);
/// The host's own address on its uplink.
const NODE4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 11);

fn ipv4_attacks(attacks: &mut Attacks<'_>) {
    let Scene { attacker, victim, bystander, gateway, .. } = *attacks.scene;
    for (who, from) in [
        ("another pod", bystander.v4),
        ("the victim itself", victim.v4),
        ("a pod that does not exist", Ipv4Addr::new(10, 1, 2, 200)),
        ("a pod of another host", Ipv4Addr::new(10, 1, 9, 9)),
        ("the gateway", gateway.v4),
        ("the node", NODE4),
        ("the Internet", STRANGER4),
        ("nobody", Ipv4Addr::UNSPECIFIED),
        ("a loopback address", Ipv4Addr::LOCALHOST),
    ] {
        for (way, to) in [("directly", victim.mac), ("by the gateway", gateway.mac)] {
            // What the kernel's own checks of sources stop when it routes.
            let routed = to == gateway.mac;
            let martian =
                from.is_loopback() || from.is_unspecified() || from == gateway.v4 || from == NODE4;
            if routed && (martian || from == STRANGER4 || from == Ipv4Addr::new(10, 1, 9, 9)) {
                continue;
            }
            let mark = attacks.mark();
            let packet = marked4((from, victim.v4), &mark);
            let name = format!("IPv4 as {who}, {way}");
            attacks.frame(&name, At::Victim, ethernet(to, attacker.mac, IPV4, &packet), &mark);
        }
    }
    let own = (attacker.v4, victim.v4);
    let mark = attacks.mark();
    let packet = marked4(own, &mark);
    let frame = ethernet(victim.mac, bystander.mac, IPV4, &packet);
    attacks.frame("the MAC of another pod", At::Victim, frame, &mark);
    let mark = attacks.mark();
    let frame = ethernet(victim.mac, [2, 0, 0, 0, 0, 7], IPV4, &marked4(own, &mark));
    attacks.frame("a MAC of nobody", At::Victim, frame, &mark);
    let mark = attacks.mark();
    let frame = ethernet(BROADCAST, attacker.mac, IPV4, &marked4(own, &mark));
    attacks.frame("unicast IPv4 in a broadcast frame", At::Victim, frame, &mark);
    for (what, mac, to) in [
        ("all", BROADCAST, Ipv4Addr::BROADCAST),
        ("the subnet", BROADCAST, Ipv4Addr::new(10, 1, 2, 255)),
        ("mDNS", [1, 0, 0x5e, 0, 0, 0xfb], Ipv4Addr::new(224, 0, 0, 251)),
        ("VRRP", [1, 0, 0x5e, 0, 0, 0x12], Ipv4Addr::new(224, 0, 0, 18)),
    ] {
        let mark = attacks.mark();
        let frame = ethernet(mac, attacker.mac, IPV4, &marked4((attacker.v4, to), &mark));
        attacks.frame(&format!("IPv4 to {what}"), At::Victim, frame, &mark);
    }
    // IGMP general query, version 2.
    let query =
        ipv4((attacker.v4, Ipv4Addr::new(224, 0, 0, 1)), 2, &[0x11, 100, 0xee, 0x9b, 0, 0, 0, 0]);
    let frame = ethernet([1, 0, 0x5e, 0, 0, 1], attacker.mac, IPV4, &query);
    attacks.frame("IGMP query", At::Victim, frame, &[0x11, 100, 0xee, 0x9b]);
    let mark = attacks.mark();
    let first = ipv4_fragment((bystander.v4, victim.v4), UDP, 0x2000, &udp((4000, 4001), &mark));
    attacks.at_victim("first fragment as another pod", IPV4, first, &mark);
    let mark = attacks.mark();
    let later = ipv4_fragment((bystander.v4, victim.v4), UDP, 0x0010, &mark);
    attacks.at_victim("later fragment as another pod", IPV4, later, &mark);
    // Redirect for hosts, as the gateway would send it: to 192.0.2.99 by the attacker.
    let mut redirect = vec![5, 1, 0, 0];
    redirect.extend(attacker.v4.octets());
    redirect.extend(ipv4((victim.v4, STRANGER4), UDP, &[0; 8]));
    let packet = ipv4((gateway.v4, victim.v4), 1, &redirect);
    attacks.at_victim("ICMP redirect as the gateway", IPV4, packet, &redirect);
    let mark = attacks.mark();
    let packet = marked4((attacker.v4, Ipv4Addr::LOCALHOST), &mark);
    let frame = ethernet(gateway.mac, attacker.mac, IPV4, &packet);
    attacks.frame("IPv4 to 127.0.0.1 of the host", At::Host, frame, &mark);
}

fn dhcp_attacks(attacks: &mut Attacks<'_>) {
    let Scene { attacker, victim, gateway, .. } = *attacks.scene;
    for (name, mac, from, to) in [
        ("broadcast", BROADCAST, attacker.v4, Ipv4Addr::BROADCAST),
        ("to the client", victim.mac, attacker.v4, victim.v4),
        ("as the gateway", victim.mac, gateway.v4, victim.v4),
    ] {
        let mark = attacks.mark();
        let packet = ipv4((from, to), UDP, &udp((67, 68), &mark));
        let name = format!("DHCP offer, {name}");
        attacks.frame(&name, At::Victim, ethernet(mac, attacker.mac, IPV4, &packet), &mark);
    }
    for (name, pair) in [
        ("link-local", (attacker.link_local(), victim.link_local())),
        ("with its address", (attacker.v6, victim.v6)),
    ] {
        let mark = attacks.mark();
        let packet = ipv6(pair, UDP, 64, &udp6(pair, (547, 546), &mark));
        attacks.at_victim(&format!("DHCPv6 reply, {name}"), IPV6, packet, &mark);
    }
}

fn link_attacks(attacks: &mut Attacks<'_>) {
    let Scene { attacker, victim, bystander, .. } = *attacks.scene;
    let spoofed = |mark: &[u8]| marked4((bystander.v4, victim.v4), mark);
    for (name, tags) in [
        ("802.1Q", &[(0x8100, 5)][..]),
        ("802.1Q priority", &[(0x8100, 0)]),
        ("802.1ad", &[(0x88a8, 5)]),
        ("two tags", &[(0x8100, 5), (0x8100, 6)]),
    ] {
        for own in [true, false] {
            let mark = attacks.mark();
            let packet =
                if own { marked4((attacker.v4, victim.v4), &mark) } else { spoofed(&mark) };
            let frame = tagged(victim.mac, attacker.mac, tags, IPV4, &packet);
            attacks.frame(&format!("{name} with IPv4, own {own}"), At::Victim, frame, &mark);
        }
    }
    for kind in [0x88b5, 0x8847, 0x8863, 0x8864, 0x8137, 0x888e, 0x88cc, 0x9000] {
        let mark = attacks.mark();
        attacks.at_victim(&format!("frame type {kind:#x}"), kind, mark.to_vec(), &mark);
    }
    let mark = attacks.mark();
    let rarp = arp(3, victim.mac, victim.v4, (victim.mac, victim.v4));
    attacks.at_victim("RARP", 0x8035, [&rarp[..], &mark].concat(), &mark);
    // A bridge protocol data unit: 802.3 length, LLC, configuration of a root that beats all.
    let bpdu = [
        0x42, 0x42, 0x03, 0, 0, 0, 0, 0, 0, 0, 0x0a, 0x58, 0xba, 0xdb, 0xad, 0, 0, 0, 0, 0, 0, 0,
        0x0a, 0x58, 0xba, 0xdb, 0xad, 0, 0x80, 1, 0, 0, 20, 0, 2, 0, 15, 0,
    ];
    let frame = ethernet([1, 0x80, 0xc2, 0, 0, 0], attacker.mac, 38, &bpdu);
    attacks.frame("BPDU", At::Victim, frame, &bpdu);
}

fn arp_attacks(attacks: &mut Attacks<'_>) {
    let Scene { attacker, victim, bystander, gateway, .. } = *attacks.scene;
    const REQUEST: u16 = 1;
    const ANSWER: u16 = 2;
    let of_victim = (victim.mac, victim.v4);
    let mut add = |name: &str, mac: Mac, arp: Vec<u8>| {
        let frame = ethernet(mac, attacker.mac, ARP, &arp);
        attacks.frame(&format!("ARP: {name}"), At::Victim, frame, &arp);
    };
    add("answer as the gateway", victim.mac, arp(ANSWER, attacker.mac, gateway.v4, of_victim));
    add("answer as another pod", victim.mac, arp(ANSWER, attacker.mac, bystander.v4, of_victim));
    add(
        "request as the gateway",
        BROADCAST,
        arp(REQUEST, attacker.mac, gateway.v4, ([0; 6], victim.v4)),
    );
    add("request as another pod", victim.mac, arp(REQUEST, attacker.mac, bystander.v4, of_victim));
    add(
        "gratuitous request",
        BROADCAST,
        arp(REQUEST, attacker.mac, gateway.v4, ([0; 6], gateway.v4)),
    );
    add(
        "gratuitous answer",
        BROADCAST,
        arp(ANSWER, attacker.mac, bystander.v4, (BROADCAST, bystander.v4)),
    );
    add(
        "own address, another MAC inside",
        victim.mac,
        arp(ANSWER, bystander.mac, attacker.v4, of_victim),
    );
    add(
        "own address, broadcast MAC inside",
        victim.mac,
        arp(ANSWER, BROADCAST, attacker.v4, of_victim),
    );
    add(
        "foreign address and its MAC inside",
        victim.mac,
        arp(ANSWER, bystander.mac, bystander.v4, of_victim),
    );
    add(
        "probe of the victim's address",
        BROADCAST,
        arp(REQUEST, attacker.mac, Ipv4Addr::UNSPECIFIED, ([0; 6], victim.v4)),
    );
    add("answer of the Internet", victim.mac, arp(ANSWER, attacker.mac, STRANGER4, of_victim));
    add("unknown operation", victim.mac, arp(9, attacker.mac, attacker.v4, of_victim));
    let mut other = arp(ANSWER, attacker.mac, attacker.v4, of_victim);
    other[2..4].copy_from_slice(&[0x86, 0xdd]);
    add("for another protocol", victim.mac, other);
    let by = arp(ANSWER, bystander.mac, bystander.v4, of_victim);
    let frame = ethernet(victim.mac, bystander.mac, ARP, &by);
    attacks.frame("ARP: all as another pod", At::Victim, frame, &by);
}

fn ipv6_attacks(attacks: &mut Attacks<'_>) {
    let Scene { attacker, victim, bystander, gateway, .. } = *attacks.scene;
    for (who, from) in [
        ("another pod", bystander.v6),
        ("another pod, link-local", bystander.link_local()),
        ("the gateway", gateway.v6),
        ("the gateway, link-local", gateway.link_local()),
        ("a pod of another host", "fd00:9::9".parse().unwrap()),
        ("the Internet", STRANGER6),
        ("nobody", Ipv6Addr::UNSPECIFIED),
        ("an address of its choice on the link", "fd00::bad".parse().unwrap()),
        ("an address of its choice, link-local", "fe80::bad".parse().unwrap()),
    ] {
        let mark = attacks.mark();
        let packet = marked6((from, victim.v6), &mark);
        attacks.at_victim(&format!("IPv6 as {who}"), IPV6, packet, &mark);
    }
    let own = (attacker.v6, victim.v6);
    let mark = attacks.mark();
    let frame = ethernet(victim.mac, bystander.mac, IPV6, &marked6(own, &mark));
    attacks.frame("IPv6 with the MAC of another pod", At::Victim, frame, &mark);
    let mark = attacks.mark();
    let frame = ethernet(ALL_NODES_MAC, attacker.mac, IPV6, &marked6(own, &mark));
    attacks.frame("unicast IPv6 in a multicast frame", At::Victim, frame, &mark);
    for (what, mac, to) in [
        ("all nodes", ALL_NODES_MAC, ALL_NODES),
        ("mDNS", [0x33, 0x33, 0, 0, 0, 0xfb], "ff02::fb".parse().unwrap()),
    ] {
        for from in [attacker.v6, attacker.link_local()] {
            let mark = attacks.mark();
            let frame = ethernet(mac, attacker.mac, IPV6, &marked6((from, to), &mark));
            attacks.frame(&format!("IPv6 to {what} from {from}"), At::Victim, frame, &mark);
        }
    }
    let mark = attacks.mark();
    let hidden = padding(UDP, &udp6((bystander.v6, victim.v6), (4000, 4001), &mark));
    let packet = ipv6((bystander.v6, victim.v6), DESTINATION_OPTIONS, 64, &hidden);
    attacks.at_victim("IPv6 as another pod, behind options", IPV6, packet, &mark);
}

/// Every form in which the same ICMPv6 message can come.
fn in_all_forms(
    attacks: &mut Attacks<'_>,
    name: &str,
    to: Mac,
    pair: (Ipv6Addr, Ipv6Addr),
    message: &[u8],
) {
    let from = attacks.scene.attacker.mac;
    let options = padding(ICMPV6, message);
    let (head, tail) = message.split_at(8);
    // Whole groups of 8 bytes in every fragment but the last, and the message's type in the second.
    let in_second = padding(ICMPV6, message);
    let forms: [(&str, Vec<Vec<u8>>); 7] = [
        ("", vec![ipv6(pair, ICMPV6, 255, message)]),
        ("behind hop-by-hop options", vec![ipv6(pair, HOP_BY_HOP, 255, &options)]),
        ("behind destination options", vec![ipv6(pair, DESTINATION_OPTIONS, 255, &options)]),
        (
            "behind many options",
            vec![ipv6(
                pair,
                DESTINATION_OPTIONS,
                255,
                &(0..20).fold(message.to_vec(), |inner, depth| {
                    padding(if depth == 0 { ICMPV6 } else { DESTINATION_OPTIONS }, &inner)
                }),
            )],
        ),
        (
            "as the only fragment",
            vec![ipv6(pair, FRAGMENT, 255, &fragment(ICMPV6, 0, false, message))],
        ),
        (
            "in two fragments",
            vec![
                ipv6(pair, FRAGMENT, 255, &fragment(ICMPV6, 0, true, head)),
                ipv6(pair, FRAGMENT, 255, &fragment(ICMPV6, 8, false, tail)),
            ],
        ),
        (
            "in two fragments, the type in the second",
            vec![
                ipv6(pair, FRAGMENT, 255, &fragment(DESTINATION_OPTIONS, 0, true, &in_second[..8])),
                ipv6(
                    pair,
                    FRAGMENT,
                    255,
                    &fragment(DESTINATION_OPTIONS, 8, false, &in_second[8..]),
                ),
            ],
        ),
    ];
    for (form, packets) in forms {
        let frames = packets.iter().map(|packet| ethernet(to, from, IPV6, packet)).collect();
        // From the addresses on: a router changes what is before them.
        let needles: Vec<&[u8]> = packets.iter().map(|packet| &packet[8..]).collect();
        attacks.frames(&format!("{name} {form}"), At::Victim, frames, &needles);
    }
}

fn ndp_attacks(attacks: &mut Attacks<'_>) {
    let Scene { attacker, victim, bystander, gateway, .. } = *attacks.scene;
    for (who, from) in [("itself", attacker.link_local()), ("the gateway", gateway.link_local())] {
        let pair = (from, ALL_NODES);
        let message = router_advertisement(pair, attacker.mac);
        in_all_forms(attacks, &format!("RA as {who}"), ALL_NODES_MAC, pair, &message);
        let pair = (from, victim.link_local());
        let message = router_advertisement(pair, attacker.mac);
        let packet = ipv6(pair, ICMPV6, 255, &message);
        attacks.at_victim(&format!("RA as {who}, to the victim alone"), IPV6, packet, &message);
        // In a tag, which a pod's kernel takes off if it is of priority alone.
        let pair = (from, ALL_NODES);
        let message = router_advertisement(pair, attacker.mac);
        let packet = ipv6(pair, ICMPV6, 255, &message);
        let frame = tagged(ALL_NODES_MAC, attacker.mac, &[(0x8100, 0)], IPV6, &packet);
        attacks.frame(&format!("RA as {who}, tagged"), At::Victim, frame, &message);
    }
    for (who, target, from) in [
        ("the gateway's address", gateway.v6, attacker.v6),
        ("the gateway's link-local address", gateway.link_local(), attacker.link_local()),
        ("another pod's address", bystander.v6, attacker.v6),
        ("another pod's link-local address", bystander.link_local(), attacker.link_local()),
        ("another pod's address, as it", bystander.v6, bystander.v6),
        ("the gateway's link-local address, as it", gateway.link_local(), gateway.link_local()),
        ("the Internet's", STRANGER6, attacker.v6),
    ] {
        let pair = (from, victim.v6);
        let message = neighbour(pair, ADVERTISEMENT, target, Some(attacker.mac));
        in_all_forms(attacks, &format!("NA of {who}"), victim.mac, pair, &message);
        let pair = (from, ALL_NODES);
        let message = neighbour(pair, ADVERTISEMENT, target, Some(attacker.mac));
        let frame = ethernet(ALL_NODES_MAC, attacker.mac, IPV6, &ipv6(pair, ICMPV6, 255, &message));
        attacks.frame(&format!("NA of {who}, to all"), At::Victim, frame, &message);
    }
    for (who, from) in [
        ("another pod", bystander.v6),
        ("another pod, link-local", bystander.link_local()),
        ("the gateway", gateway.v6),
        ("the gateway, link-local", gateway.link_local()),
    ] {
        let pair = (from, victim.v6);
        let message = neighbour(pair, SOLICITATION, victim.v6, Some(attacker.mac));
        in_all_forms(attacks, &format!("NS as {who}"), victim.mac, pair, &message);
    }
    let own = (attacker.v6, victim.v6);
    for (kind, name) in [(SOLICITATION, "NS"), (ADVERTISEMENT, "NA")] {
        let target = if kind == SOLICITATION { victim.v6 } else { attacker.v6 };
        let message = neighbour(own, kind, target, Some(bystander.mac));
        let packet = ipv6(own, ICMPV6, 255, &message);
        attacks.at_victim(&format!("{name} with the MAC of another"), IPV6, packet, &message);
        // The option of the MAC behind one that nobody knows.
        let mut body = vec![0x20, 0, 0, 0];
        body.extend(target.octets());
        body.extend([14, 1, 1, 2, 3, 4, 5, 6]);
        body.extend([if kind == SOLICITATION { 1 } else { 2 }, 1]);
        body.extend(bystander.mac);
        let message = icmpv6(own, kind, &body);
        let packet = ipv6(own, ICMPV6, 255, &message);
        let name = format!("{name} with the MAC of another in a later option");
        attacks.at_victim(&name, IPV6, packet, &message);
    }
    // No host may use an address that another one announces with DAD.
    for (who, target) in [("address", victim.v6), ("link-local address", victim.link_local())] {
        let pair = (Ipv6Addr::UNSPECIFIED, ALL_NODES);
        let message = neighbour(pair, SOLICITATION, target, None);
        let frame = ethernet(ALL_NODES_MAC, attacker.mac, IPV6, &ipv6(pair, ICMPV6, 255, &message));
        attacks.frame(&format!("probe of the victim's {who}"), At::Victim, frame, &message);
    }
    // Redirect: what goes to the Internet shall go to the attacker.
    let pair = (gateway.link_local(), victim.v6);
    let mut body = vec![0, 0, 0, 0];
    body.extend(attacker.link_local().octets());
    body.extend(STRANGER6.octets());
    let message = icmpv6(pair, 137, &body);
    in_all_forms(attacks, "redirect as the gateway", victim.mac, pair, &message);
    let pair = (attacker.link_local(), victim.v6);
    let message = icmpv6(pair, 137, &body);
    in_all_forms(attacks, "redirect as itself", victim.mac, pair, &message);
    let pair = (attacker.link_local(), "ff02::2".parse().unwrap());
    let message = icmpv6(pair, 133, &[0, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7]);
    let frame =
        ethernet([0x33, 0x33, 0, 0, 0, 2], attacker.mac, IPV6, &ipv6(pair, ICMPV6, 255, &message));
    attacks.frame("router solicitation", At::Victim, frame, &message);
    let pair = (attacker.link_local(), ALL_NODES);
    let mut query = vec![0x27, 0x10, 0, 0];
    query.extend([0; 16]);
    let message = icmpv6(pair, 130, &query);
    // Hop-by-hop: router alert, MLD.
    let alert = [&[ICMPV6, 0, 5, 2, 0, 0, 1, 0][..], &message].concat();
    let frame = ethernet(ALL_NODES_MAC, attacker.mac, IPV6, &ipv6(pair, HOP_BY_HOP, 1, &alert));
    attacks.frame("MLD query", At::Victim, frame, &message);
}

fn all(scene: &Scene) -> Vec<Attack> {
    let mut list = Vec::new();
    for part in [
        ipv4_attacks,
        dhcp_attacks,
        link_attacks,
        arp_attacks,
        ipv6_attacks,
        link_frames::tags,
        link_frames::protocols,
        link_frames::arp_forms,
        link_frames::longer_messages,
        headers::ipv4_forms,
        headers::ipv6_forms,
        headers::dhcp_forms,
        // After its query the bridge floods no group but that of all nodes.
        ndp_attacks,
    ] {
        let mut attacks = Attacks { scene, list: Vec::new() };
        part(&mut attacks);
        list.extend(attacks.list);
    }
    list
}

#[test]
fn no_forged_frame_arrives() {
    let scene = Scene::new(By::Humanz);
    let attacks = all(&scene);
    println!("{} attacks", attacks.len());
    let arrived = arriving(&scene, &attacks);
    assert!(arrived.is_empty(), "{}: {arrived:#?}", arrived.len());
}

#[test]
fn no_forged_frame_arrives_where_pods_are_bridged() {
    let sets = json!([[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00::/64" }]]);
    for more in ["podRouting", "portIsolation"] {
        let mut keys = json!({ "ranges": sets, "podRouting": "bridge" });
        if more == "portIsolation" {
            keys = json!({ "ranges": sets, "hairpinMode": false });
        }
        let scene = Scene::with(By::Humanz, keys);
        let arrived = arriving(&scene, &all(&scene));
        assert!(arrived.is_empty(), "{more}: {arrived:#?}");
    }
}

/// The control: each of them arrives on a bridge without guard.
#[test]
fn every_forged_frame_arrives_with_the_reference_plugins() {
    let scene = Scene::new(By::Reference);
    let attacks = all(&scene);
    let arrived = arriving(&scene, &attacks);
    let names = attacks.iter().map(|attack| &attack.name);
    let stopped: Vec<&String> = names.filter(|name| !arrived.contains(name)).collect();
    assert!(stopped.is_empty(), "{} of {}: {stopped:#?}", stopped.len(), attacks.len());
}

/// What a pod needs, as frames.
fn honest(scene: &Scene) -> Vec<Attack> {
    let Scene { attacker: own, victim, gateway, .. } = *scene;
    let mut attacks = Attacks { scene, list: Vec::new() };
    let solicited = |target: Ipv6Addr| {
        let [.., a, b, c] = target.octets();
        let group = Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c]);
        ([0x33, 0x33, 0xff, a, b, c], group)
    };
    for (name, to) in [("by the other pod's MAC", victim.mac), ("by the gateway", gateway.mac)] {
        let mark = attacks.mark();
        let frame = ethernet(to, own.mac, IPV4, &marked4((own.v4, victim.v4), &mark));
        attacks.frame(&format!("IPv4 {name}"), At::Victim, frame, &mark);
        let mark = attacks.mark();
        let frame = ethernet(to, own.mac, IPV6, &marked6((own.v6, victim.v6), &mark));
        attacks.frame(&format!("IPv6 {name}"), At::Victim, frame, &mark);
        let mark = attacks.mark();
        let hidden = padding(UDP, &udp6((own.v6, victim.v6), (4000, 4001), &mark));
        let packet = ipv6((own.v6, victim.v6), DESTINATION_OPTIONS, 64, &hidden);
        let frame = ethernet(to, own.mac, IPV6, &packet);
        attacks.frame(&format!("IPv6 {name}, with options"), At::Victim, frame, &mark);
        let mark = attacks.mark();
        let echo = icmpv6((own.v6, victim.v6), 128, &[&[0, 7, 0, 1][..], &mark].concat());
        let frame = ethernet(to, own.mac, IPV6, &ipv6((own.v6, victim.v6), ICMPV6, 64, &echo));
        attacks.frame(&format!("echo request {name}"), At::Victim, frame, &mark);
    }
    let pair = (own.v6, victim.v6);
    let data = [0x5a; 40];
    let echo = icmpv6(pair, 128, &[&[0, 7, 0, 1][..], &data].concat());
    for (protocol, whole) in [(UDP, udp6(pair, (4000, 4001), &data)), (ICMPV6, echo)] {
        let (head, tail) = whole.split_at(24);
        let parts = [fragment(protocol, 0, true, head), fragment(protocol, 24, false, tail)];
        let frames =
            parts.map(|part| ethernet(victim.mac, own.mac, IPV6, &ipv6(pair, FRAGMENT, 64, &part)));
        let name = format!("protocol {protocol} in fragments");
        attacks.frames(&name, At::Victim, frames.into(), &[head, tail]);
    }
    let mark = attacks.mark();
    let packet = ipv4((own.v4, victim.v4), UDP, &udp((68, 67), &mark));
    attacks.at_victim("DHCP request to a server", IPV4, packet, &mark);
    let mark = attacks.mark();
    let frame = ethernet(gateway.mac, own.mac, IPV4, &marked4((own.v4, gateway.v4), &mark));
    attacks.frame("IPv4 to the gateway", At::Host, frame, &mark);
    let asks = arp(1, own.mac, own.v4, ([0; 6], victim.v4));
    attacks.frame("ARP request", At::Victim, ethernet(BROADCAST, own.mac, ARP, &asks), &asks);
    attacks.at_victim("ARP request to one", ARP, asks.clone(), &asks);
    let says = arp(2, own.mac, own.v4, (victim.mac, victim.v4));
    attacks.at_victim("ARP answer", ARP, says.clone(), &says);
    let says = arp(2, own.mac, own.v4, (BROADCAST, own.v4));
    attacks.frame("gratuitous ARP", At::Victim, ethernet(BROADCAST, own.mac, ARP, &says), &says);
    let probe = arp(1, own.mac, Ipv4Addr::UNSPECIFIED, ([0; 6], own.v4));
    attacks.frame("ARP probe", At::Victim, ethernet(BROADCAST, own.mac, ARP, &probe), &probe);
    for from in [own.v6, own.link_local()] {
        for (mac, to) in [solicited(victim.v6), (victim.mac, victim.v6)] {
            for option in [Some(own.mac), None] {
                let message = neighbour((from, to), SOLICITATION, victim.v6, option);
                let frame = ethernet(mac, own.mac, IPV6, &ipv6((from, to), ICMPV6, 255, &message));
                attacks.frame(&format!("NS from {from} to {to}"), At::Victim, frame, &message);
            }
        }
        for (mac, to) in [(ALL_NODES_MAC, ALL_NODES), (victim.mac, victim.v6)] {
            let message = neighbour((from, to), ADVERTISEMENT, from, Some(own.mac));
            let frame = ethernet(mac, own.mac, IPV6, &ipv6((from, to), ICMPV6, 255, &message));
            attacks.frame(&format!("NA of {from} to {to}"), At::Victim, frame, &message);
        }
        // Duplicate address detection, with the random number of RFC 7527. To all, for the victim
        // to see it.
        let pair = (Ipv6Addr::UNSPECIFIED, ALL_NODES);
        let mut body = vec![0, 0, 0, 0];
        body.extend(from.octets());
        body.extend([14, 1, 1, 2, 3, 4, 5, 6]);
        let message = icmpv6(pair, SOLICITATION, &body);
        let frame = ethernet(ALL_NODES_MAC, own.mac, IPV6, &ipv6(pair, ICMPV6, 255, &message));
        attacks.frame(&format!("probe of {from}"), At::Victim, frame, &message);
    }
    attacks.list
}

#[test]
fn what_a_pod_needs_arrives() {
    for routing in ["host", "bridge"] {
        let sets = json!([[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00::/64" }]]);
        let scene = Scene::with(By::Humanz, json!({ "ranges": sets, "podRouting": routing }));
        let frames = honest(&scene);
        let arrived = arriving(&scene, &frames);
        let names = frames.iter().map(|frame| &frame.name);
        let stopped: Vec<&String> = names.filter(|name| !arrived.contains(name)).collect();
        assert!(stopped.is_empty(), "{routing}: {stopped:#?}");
    }
}

#[test]
fn what_the_network_allows_arrives() {
    let sets = json!([[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00::/64" }]]);
    let allowed = json!(["10.9.0.0/16", "224.0.0.18/32", "fd09::/64", "ff02::12/128"]);
    let scene = Scene::with(By::Humanz, json!({ "ranges": sets, "allowedAddresses": allowed }));
    let End { mac, v4, v6, .. } = scene.attacker;
    let victim = scene.victim;
    let nested4: Ipv4Addr = "10.9.1.1".parse().unwrap();
    let nested6: Ipv6Addr = "fd09::1".parse().unwrap();
    let mut frames = Attacks { scene: &scene, list: Vec::new() };
    let mark = frames.mark();
    frames.at_victim("nested IPv4", IPV4, marked4((nested4, victim.v4), &mark), &mark);
    let mark = frames.mark();
    frames.at_victim("nested IPv6", IPV6, marked6((nested6, victim.v6), &mark), &mark);
    let says = arp(2, mac, nested4, (victim.mac, victim.v4));
    frames.at_victim("ARP of a nested address", ARP, says.clone(), &says);
    let pair = (v6, victim.v6);
    let says = neighbour(pair, ADVERTISEMENT, nested6, Some(mac));
    frames.at_victim("NA of a nested address", IPV6, ipv6(pair, ICMPV6, 255, &says), &says);
    let mark = frames.mark();
    let vrrp = ipv4((v4, "224.0.0.18".parse().unwrap()), 112, &mark);
    frames.frame("VRRP", At::Victim, ethernet([1, 0, 0x5e, 0, 0, 0x12], mac, IPV4, &vrrp), &mark);
    let names: Vec<String> = frames.list.iter().map(|frame| frame.name.clone()).collect();
    assert_eq!(arriving(&scene, &frames.list), names);
    // And nothing besides.
    let mut frames = Attacks { scene: &scene, list: Vec::new() };
    let mark = frames.mark();
    let other = marked4(("10.10.1.1".parse().unwrap(), victim.v4), &mark);
    frames.at_victim("another address", IPV4, other, &mark);
    let mark = frames.mark();
    let group = ipv4((v4, "224.0.0.251".parse().unwrap()), UDP, &udp((5353, 5353), &mark));
    frames.frame("mDNS", At::Victim, ethernet([1, 0, 0x5e, 0, 0, 0xfb], mac, IPV4, &group), &mark);
    assert_eq!(arriving(&scene, &frames.list), Vec::<String>::new());
}
