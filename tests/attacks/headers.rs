//! Headers that hide what a packet is or who sent it: options, extensions, fragments, packets in packets.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::attack::Attacks;
use crate::frames::{ADVERTISEMENT, ALL_NODES, ALL_NODES_MAC};
use crate::packets::{
    DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, ICMPV6, IPV4, IPV6, Pair6, UDP, ethernet, fragment,
    icmpv6, ipv4, ipv4_fragment, ipv4_options, ipv6, neighbour, padding, router_advertisement, udp,
    udp6,
};
use crate::scene::{At, Scene, marked4, marked6};

const ROUTING: u8 = 43;
/// Protocols that carry packets: IPv4, IPv6, GRE, Ethernet, PPP.
const CARRIERS: [(u8, &str); 5] =
    [(4, "IPv4"), (41, "IPv6"), (47, "GRE"), (97, "Ethernet in IP"), (115, "L2TP")];

/// Options, wrong lengths and versions, and packets in packets, as another pod.
pub fn ipv4_forms(attacks: &mut Attacks<'_>) {
    let Scene { attacker, victim, bystander, .. } = *attacks.scene;
    let forged = (bystander.v4, victim.v4);
    let [a, b, c, d] = attacker.v4.octets();
    for (name, options) in [
        ("loose source routing", vec![131, 7, 4, a, b, c, d, 1]),
        ("strict source routing", vec![137, 7, 4, a, b, c, d, 1]),
        ("record route", vec![7, 7, 4, 0, 0, 0, 0, 1]),
        ("timestamps", vec![68, 8, 5, 0, 0, 0, 0, 0]),
        ("router alert", vec![148, 4, 0, 0]),
        ("security", vec![134, 8, 0, 0, 0, 1, 1, 1]),
        ("an end and its own address behind", vec![0, 0, 0, 0, a, b, c, d]),
        ("forty bytes", vec![1; 40]),
    ] {
        let mark = attacks.mark();
        let packet = ipv4_options(forged, UDP, &options, &udp((4000, 4001), &mark));
        attacks.at_victim(&format!("IPv4 options: {name}"), IPV4, packet, &mark);
    }
    for (name, at, bytes) in [
        ("a header of no bytes", 0, &[0x40][..]),
        ("a header of 16 bytes", 0, &[0x44]),
        ("a header longer than the packet", 0, &[0x4f]),
        ("version 6", 0, &[0x65]),
        ("version 0", 0, &[0x05]),
        ("a length of zero", 2, &[0, 0]),
        ("a length of its header alone", 2, &[0, 20]),
        ("a length beyond the frame", 2, &[0xff, 0xff]),
        ("the reserved flag", 6, &[0x80]),
        ("the last offset of a fragment", 6, &[0x1f, 0xff]),
        ("more behind the last offset", 6, &[0x3f, 0xff]),
    ] {
        let mark = attacks.mark();
        let mut packet = marked4(forged, &mark);
        packet[at..at + bytes.len()].copy_from_slice(bytes);
        attacks.at_victim(&format!("IPv4 with {name}"), IPV4, packet, &mark);
    }
    let mark = attacks.mark();
    let frame = [&victim.mac[..], &attacker.mac, &IPV4.to_be_bytes(), &[0x45, 0], &mark].concat();
    attacks.frame("IPv4 cut off", At::Victim, frame, &mark);
    for (who, from) in [
        ("a group", Ipv4Addr::new(224, 0, 0, 1)),
        ("everybody", Ipv4Addr::BROADCAST),
        ("the whole subnet", Ipv4Addr::new(10, 1, 2, 255)),
        ("the subnet itself", Ipv4Addr::new(10, 1, 2, 0)),
        ("a link-local address", Ipv4Addr::new(169, 254, 3, 4)),
        ("the metadata service", Ipv4Addr::new(169, 254, 169, 254)),
        ("a class E address", Ipv4Addr::new(240, 0, 0, 1)),
        ("this network", Ipv4Addr::new(0, 1, 2, 3)),
    ] {
        let mark = attacks.mark();
        let packet = marked4((from, victim.v4), &mark);
        attacks.at_victim(&format!("IPv4 as {who}"), IPV4, packet, &mark);
    }
    for (number, name) in CARRIERS {
        let mark = attacks.mark();
        let packet = ipv4(forged, number, &marked4((victim.v4, bystander.v4), &mark));
        attacks.at_victim(&format!("{name} in IPv4 as another pod"), IPV4, packet, &mark);
    }
    for (what, to) in [("a group", Ipv4Addr::new(224, 0, 0, 251)), ("all", Ipv4Addr::BROADCAST)] {
        let mark = attacks.mark();
        let packet = marked4((attacker.v4, to), &mark);
        attacks.at_victim(&format!("IPv4 to {what} in a frame to one"), IPV4, packet, &mark);
    }
    let mark = attacks.mark();
    let vrrp = ipv4((attacker.v4, Ipv4Addr::new(224, 0, 0, 18)), 112, &mark);
    let frame = ethernet([1, 0, 0x5e, 0, 0, 0x12], attacker.mac, IPV4, &vrrp);
    attacks.frame("VRRP advertisement", At::Victim, frame, &mark);
    let mark = attacks.mark();
    let packet = marked6((bystander.v6, victim.v6), &mark);
    attacks.at_victim("IPv6 in a frame of IPv4", IPV4, packet, &mark);
}

/// Sources of every kind, packets in packets, and NDP behind every kind of extension header.
pub fn ipv6_forms(attacks: &mut Attacks<'_>) {
    let Scene { attacker, victim, bystander, gateway, .. } = *attacks.scene;
    for (who, from) in [
        ("an IPv4-mapped address of another pod", bystander.v4.to_ipv6_mapped()),
        ("its own IPv4-mapped address", attacker.v4.to_ipv6_mapped()),
        ("a loopback address", Ipv6Addr::LOCALHOST),
        ("all nodes", ALL_NODES),
        ("a 6to4 address", "2002:c000:20b::1".parse().unwrap()),
        ("an IPv4-compatible address", attacker.v4.to_ipv6_compatible()),
        ("its own link-local address", attacker.link_local()),
        ("the discard prefix", "100::1".parse().unwrap()),
        ("a site-local address", "fec0::1".parse().unwrap()),
    ] {
        let mark = attacks.mark();
        let packet = marked6((from, victim.v6), &mark);
        attacks.at_victim(&format!("IPv6 as {who}"), IPV6, packet, &mark);
    }
    let forged = (bystander.v6, victim.v6);
    for (number, name) in CARRIERS {
        let mark = attacks.mark();
        let packet = ipv6(forged, number, 64, &marked4((victim.v4, bystander.v4), &mark));
        attacks.at_victim(&format!("{name} in IPv6 as another pod"), IPV6, packet, &mark);
    }
    for (name, at, bytes) in [
        ("version 4", 0, &[0x45][..]),
        ("a length of zero", 4, &[0, 0]),
        ("a length beyond the frame", 4, &[0xff, 0xff]),
        ("no next header", 6, &[59]),
        ("an unknown next header", 6, &[253]),
    ] {
        let mark = attacks.mark();
        let mut packet = marked6(forged, &mark);
        packet[at..at + bytes.len()].copy_from_slice(bytes);
        attacks.at_victim(&format!("IPv6 with {name}"), IPV6, packet, &mark);
    }
    let mark = attacks.mark();
    let to = [0x33, 0x33, 0, 0, 0, 0x12];
    let vrrp = ipv6((attacker.link_local(), "ff02::12".parse().unwrap()), 112, 255, &mark);
    attacks.frame("VRRP for IPv6", At::Victim, ethernet(to, attacker.mac, IPV6, &vrrp), &mark);
    let mark = attacks.mark();
    let packet = marked4((bystander.v4, victim.v4), &mark);
    attacks.at_victim("IPv4 in a frame of IPv6", IPV6, packet, &mark);
    let pair = (gateway.link_local(), ALL_NODES);
    let message = router_advertisement(pair, attacker.mac);
    in_more_forms(attacks, "RA as the gateway", ALL_NODES_MAC, pair, &message);
    for (who, from) in [("itself", attacker.v6), ("the gateway", gateway.link_local())] {
        let pair = (from, victim.v6);
        let message = router_advertisement(pair, attacker.mac);
        let name = format!("RA as {who} to one");
        in_more_forms(attacks, &name, victim.mac, pair, &message);
        let message = neighbour(pair, ADVERTISEMENT, gateway.v6, Some(attacker.mac));
        let name = format!("NA as {who} of the gateway");
        in_more_forms(attacks, &name, victim.mac, pair, &message);
        let mut body = vec![0, 0, 0, 0];
        body.extend(attacker.link_local().octets());
        body.extend(bystander.v6.octets());
        let message = icmpv6(pair, 137, &body);
        in_more_forms(attacks, &format!("redirect as {who}"), victim.mac, pair, &message);
    }
}

/// What a client of DHCP takes for its server's answer, from any port and behind any header.
pub fn dhcp_forms(attacks: &mut Attacks<'_>) {
    let Scene { attacker, victim, .. } = *attacks.scene;
    let own = (attacker.v4, victim.v4);
    for from in [67, 68, 53, 4000] {
        let mark = attacks.mark();
        let packet = ipv4(own, UDP, &udp((from, 68), &mark));
        attacks.at_victim(&format!("DHCP offer from port {from}"), IPV4, packet, &mark);
    }
    let mark = attacks.mark();
    let packet = ipv4_options(own, UDP, &[1; 8], &udp((67, 68), &mark));
    attacks.at_victim("DHCP offer behind options", IPV4, packet, &mark);
    let mark = attacks.mark();
    let datagram = udp((67, 68), &[&mark[..], &[0; 8]].concat());
    let (head, tail) = datagram.split_at(16);
    let packets = [(0x2000, head), (2, tail)].map(|(at, part)| ipv4_fragment(own, UDP, at, part));
    let frames = packets.map(|packet| ethernet(victim.mac, attacker.mac, IPV4, &packet));
    attacks.frames("DHCP offer in fragments", At::Victim, frames.into(), &[&mark]);
    let own = (attacker.v6, victim.v6);
    for from in [547, 546, 53, 4000] {
        let mark = attacks.mark();
        let packet = ipv6(own, UDP, 64, &udp6(own, (from, 546), &mark));
        attacks.at_victim(&format!("DHCPv6 reply from port {from}"), IPV6, packet, &mark);
    }
    let mark = attacks.mark();
    let reply = udp6(own, (547, 546), &[&[0; 8][..], &mark].concat());
    in_more_forms_of(attacks, UDP, "DHCPv6 reply", (victim.mac, own), &reply);
}

fn in_more_forms(
    attacks: &mut Attacks<'_>,
    name: &str,
    to: crate::packets::Mac,
    pair: Pair6,
    message: &[u8],
) {
    in_more_forms_of(attacks, ICMPV6, name, (to, pair), message);
}

/// Behind other extension headers than options, behind several kinds, and in fragments whose
/// headers do not agree.
fn in_more_forms_of(
    attacks: &mut Attacks<'_>,
    protocol: u8,
    name: &str,
    (to, pair): (crate::packets::Mac, Pair6),
    message: &[u8],
) {
    let from = attacks.scene.attacker.mac;
    let hop_limit = if protocol == ICMPV6 { 255 } else { 64 };
    let packet = |next: u8, payload: &[u8]| ipv6(pair, next, hop_limit, payload);
    let routing = |next: u8, kind: u8, payload: &[u8]| {
        [&[next, 0, kind, 0, 0, 0, 0, 0][..], payload].concat()
    };
    let whole = |next: u8, payload: &[u8]| fragment(next, 0, false, payload);
    // An option to be skipped by whoever does not know it.
    let hidden = [&[protocol, 0, 0x1e, 4, b'h', b'i', b'd', b'e'][..], message].concat();
    let (hidden_head, hidden_tail) = hidden.split_at(8);
    let (head, tail) = message.split_at(16);
    let twice = whole(FRAGMENT, &whole(protocol, message));
    let forms: Vec<(&str, Vec<Vec<u8>>)> = vec![
        ("behind routing type 0", vec![packet(ROUTING, &routing(protocol, 0, message))]),
        ("behind routing type 4", vec![packet(ROUTING, &routing(protocol, 4, message))]),
        (
            "behind hop-by-hop and destination options",
            vec![packet(HOP_BY_HOP, &padding(DESTINATION_OPTIONS, &padding(protocol, message)))],
        ),
        (
            "behind options in an only fragment",
            vec![packet(FRAGMENT, &whole(DESTINATION_OPTIONS, &padding(protocol, message)))],
        ),
        (
            "in an only fragment behind options",
            vec![packet(HOP_BY_HOP, &padding(FRAGMENT, &whole(protocol, message)))],
        ),
        ("in two fragment headers", vec![packet(FRAGMENT, &twice)]),
        (
            "in fragments behind options",
            vec![
                packet(HOP_BY_HOP, &padding(FRAGMENT, &fragment(protocol, 0, true, head))),
                packet(HOP_BY_HOP, &padding(FRAGMENT, &fragment(protocol, 16, false, tail))),
            ],
        ),
        (
            "in fragments, its header in one that says UDP",
            vec![
                packet(FRAGMENT, &fragment(DESTINATION_OPTIONS, 0, true, hidden_head)),
                packet(FRAGMENT, &fragment(UDP, 8, false, hidden_tail)),
            ],
        ),
        (
            "in fragments behind options, its header in one that says TCP",
            vec![
                packet(
                    HOP_BY_HOP,
                    &padding(FRAGMENT, &fragment(DESTINATION_OPTIONS, 0, true, hidden_head)),
                ),
                packet(HOP_BY_HOP, &padding(FRAGMENT, &fragment(6, 8, false, hidden_tail))),
            ],
        ),
        (
            "in fragments, the last one first, its header in it",
            vec![
                packet(FRAGMENT, &fragment(UDP, 8, false, hidden_tail)),
                packet(FRAGMENT, &fragment(DESTINATION_OPTIONS, 0, true, hidden_head)),
            ],
        ),
    ];
    for (form, packets) in forms {
        let frames = packets.iter().map(|packet| ethernet(to, from, IPV6, packet)).collect();
        // A bridge that snoops multicast drops these.
        if to[0] & 1 == 1 && form.starts_with("in fragments behind options") {
            continue;
        }
        // In parts: a host on the way may put fragments together, and cut them again.
        let mut needles = vec![head, tail];
        needles.extend(form.contains("its header in").then_some(&hidden_head[2..]));
        attacks.frames(&format!("{name} {form}"), At::Victim, frames, &needles);
    }
}
