//! Tags, other protocols than IP, and every form of ARP.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::attack::Attacks;
use crate::frames::{ALL_NODES, ALL_NODES_MAC};
use crate::packets::{
    ARP, BROADCAST, ICMPV6, IPV4, IPV6, Mac, arp, ethernet, icmpv6, ipv6, neighbour,
    router_advertisement, tagged,
};
use crate::scene::{At, End, Scene, marked4};

/// Tags in tags, and such as carry priority alone: a kernel takes those off.
pub fn tags(attacks: &mut Attacks<'_>) {
    let Scene { attacker, victim, gateway, .. } = *attacks.scene;
    const C: u16 = 0x8100;
    const S: u16 = 0x88a8;
    let stacks: [(&str, &[(u16, u16)]); 9] = [
        ("802.1Q in 802.1ad", &[(S, 5), (C, 6)]),
        ("802.1ad in 802.1Q", &[(C, 5), (S, 6)]),
        ("802.1ad in 802.1ad", &[(S, 5), (S, 6)]),
        ("802.1ad priority", &[(S, 0)]),
        ("priority in priority", &[(C, 0), (C, 0)]),
        ("802.1Q in 802.1ad priority", &[(S, 0), (C, 5)]),
        ("priority with its highest bits", &[(C, 0xf000)]),
        ("three tags", &[(C, 5), (C, 6), (C, 7)]),
        ("QinQ of before 802.1ad", &[(0x9100, 5), (C, 6)]),
    ];
    for (name, stack) in stacks {
        let mark = attacks.mark();
        let packet = marked4((attacker.v4, victim.v4), &mark);
        let frame = tagged(victim.mac, attacker.mac, stack, IPV4, &packet);
        attacks.frame(&format!("{name}: IPv4"), At::Victim, frame, &mark);
        let pair = (gateway.link_local(), ALL_NODES);
        let message = router_advertisement(pair, attacker.mac);
        let packet = ipv6(pair, ICMPV6, 255, &message);
        let frame = tagged(ALL_NODES_MAC, attacker.mac, stack, IPV6, &packet);
        attacks.frame(&format!("{name}: RA"), At::Victim, frame, &message);
        let says = arp(2, attacker.mac, gateway.v4, (victim.mac, victim.v4));
        let frame = tagged(victim.mac, attacker.mac, stack, ARP, &says);
        attacks.frame(&format!("{name}: ARP as the gateway"), At::Victim, frame, &says);
    }
}

/// What switches and other networks say to each other, and IP in 802.2.
pub fn protocols(attacks: &mut Attacks<'_>) {
    let Scene { attacker, victim, gateway, .. } = *attacks.scene;
    /// To the nearest bridges: Linux forwards it where STP is off.
    const BRIDGES: Mac = [1, 0x80, 0xc2, 0, 0, 0];
    const CISCO: Mac = [1, 0, 0x0c, 0xcc, 0xcc, 0xcc];
    const CISCO_TREE: Mac = [1, 0, 0x0c, 0xcc, 0xcc, 0xcd];
    for (name, kind, to) in [
        ("LLDP", 0x88cc, BRIDGES),
        ("pause", 0x8808, victim.mac),
        ("LACP", 0x8809, victim.mac),
        ("MACsec", 0x88e5, victim.mac),
        ("provider backbone bridge", 0x88e7, victim.mac),
        ("802.1BR", 0x893f, victim.mac),
        ("VN-tag", 0x8926, victim.mac),
        ("precision time", 0x88f7, [1, 0x1b, 0x19, 0, 0, 0]),
        ("multiple registration", 0x88f5, [1, 0x80, 0xc2, 0, 0, 0x21]),
        ("TRILL", 0x22f3, victim.mac),
        ("FCoE", 0x8906, victim.mac),
        ("RoCE", 0x8915, victim.mac),
        ("Ethernet in Ethernet", 0x6558, victim.mac),
        ("network service header", 0x894f, victim.mac),
        ("wake-on-LAN", 0x0842, BROADCAST),
        ("batman", 0x4305, BROADCAST),
        ("the smallest type", 0x0600, victim.mac),
        ("the largest type", 0xffff, victim.mac),
    ] {
        let mark = attacks.mark();
        let frame = ethernet(to, attacker.mac, kind, &mark);
        attacks.frame(name, At::Victim, frame, &mark);
    }
    // LLC and SNAP behind a length: Cisco's trees and discovery, then IPv4.
    for (name, to, snap) in [
        ("PVST", CISCO_TREE, [0xaa, 0xaa, 3, 0, 0, 0x0c, 1, 0x0b]),
        ("CDP", CISCO, [0xaa, 0xaa, 3, 0, 0, 0x0c, 0x20, 0]),
        ("VTP", CISCO, [0xaa, 0xaa, 3, 0, 0, 0x0c, 0x20, 3]),
        ("IS-IS", [1, 0x80, 0xc2, 0, 0, 0x14], [0xfe, 0xfe, 3, 0x83, 0, 0, 0, 0]),
        ("IPX", BROADCAST, [0xff, 0xff, 0, 0x30, 0, 0, 0, 0]),
    ] {
        let mark = attacks.mark();
        let frame = ethernet(to, attacker.mac, 16, &[snap, mark].concat());
        attacks.frame(name, At::Victim, frame, &mark);
    }
    let mark = attacks.mark();
    let packet = marked4((attacker.v4, victim.v4), &mark);
    let snap = [&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0][..], &packet].concat();
    let length = u16::try_from(snap.len()).unwrap();
    attacks.at_victim("IPv4 in SNAP", length, snap, &mark);
    let mark = attacks.mark();
    let frame = [&victim.mac[..], &attacker.mac, &[0x88, 0xb5], &mark].concat();
    attacks.frame("less than the shortest frame", At::Victim, frame, &mark);
    for (whose, mac) in [
        ("the bridge", gateway.mac),
        ("the host's end", attacks.scene.port_mac(&attacker)),
        ("a virtual router", [0, 0, 0x5e, 0, 1, 7]),
    ] {
        let mark = attacks.mark();
        let packet = marked4((attacker.v4, victim.v4), &mark);
        let frame = ethernet(victim.mac, mac, IPV4, &packet);
        attacks.frame(&format!("the MAC of {whose}"), At::Victim, frame, &mark);
    }
}

/// Lengths that do not fit, other hardware, unusual operations and senders.
pub fn arp_forms(attacks: &mut Attacks<'_>) {
    let Scene { attacker, victim, bystander, gateway, .. } = *attacks.scene;
    let End { mac, v4, .. } = attacker;
    const REQUEST: u16 = 1;
    const ANSWER: u16 = 2;
    let of_victim = (victim.mac, victim.v4);
    let mut add = |name: &str, to: Mac, arp: Vec<u8>| {
        let frame = ethernet(to, mac, ARP, &arp);
        attacks.frame(&format!("ARP: {name}"), At::Victim, frame, &arp);
    };
    for (who, sender) in [
        ("the node", Ipv4Addr::new(192, 0, 2, 11)),
        ("the victim", victim.v4),
        ("the metadata service", Ipv4Addr::new(169, 254, 169, 254)),
        ("a loopback address", Ipv4Addr::LOCALHOST),
        ("everybody", Ipv4Addr::BROADCAST),
        ("a group", Ipv4Addr::new(224, 0, 0, 1)),
        ("a pod of another host", Ipv4Addr::new(10, 1, 9, 9)),
    ] {
        for (operation, form) in [(REQUEST, "request"), (ANSWER, "answer")] {
            let says = arp(operation, mac, sender, of_victim);
            add(&format!("{form} as {who}"), victim.mac, says);
            let says = arp(operation, mac, sender, (BROADCAST, sender));
            add(&format!("gratuitous {form} as {who}"), BROADCAST, says);
        }
    }
    add("answer of nobody", victim.mac, arp(ANSWER, mac, Ipv4Addr::UNSPECIFIED, of_victim));
    // Each with own addresses where they stand for IPv4, and the gateway's where the lengths put them.
    let with = |at: usize, bytes: &[u8]| {
        let mut says = arp(ANSWER, mac, v4, of_victim);
        says[at..at + bytes.len()].copy_from_slice(bytes);
        says.extend(arp(ANSWER, mac, gateway.v4, of_victim));
        says
    };
    add("hardware addresses of 8 bytes", victim.mac, with(4, &[8]));
    add("hardware addresses of no bytes", victim.mac, with(4, &[0]));
    add("protocol addresses of 16 bytes", victim.mac, with(5, &[16]));
    add("protocol addresses of no bytes", victim.mac, with(5, &[0]));
    add("all lengths 255", victim.mac, with(4, &[255, 255]));
    add("802 hardware", victim.mac, with(0, &[0, 6]));
    add("InfiniBand hardware", victim.mac, with(0, &[0, 32]));
    add("for IPv4 in a trailer", victim.mac, with(2, &[0x10, 1]));
    for operation in [0, 3, 4, 8, 0x0101, 0xffff] {
        let says = with(6, &u16::to_be_bytes(operation));
        add(&format!("operation {operation}"), victim.mac, says);
    }
    let by = arp(REQUEST, bystander.mac, v4, ([0; 6], victim.v4));
    add("request with another pod's MAC inside", BROADCAST, by);
    let by = arp(REQUEST, [0; 6], v4, ([0; 6], victim.v4));
    add("request with no MAC inside", BROADCAST, by);
    let by = arp(ANSWER, [1, 0, 0x5e, 0, 0, 1], v4, of_victim);
    add("answer with the MAC of a group inside", victim.mac, by);
    let probe = arp(REQUEST, bystander.mac, Ipv4Addr::UNSPECIFIED, ([0; 6], v4));
    add("probe with another pod's MAC inside", BROADCAST, probe);
    let mark = attacks.mark();
    let head = [0, 1, 8, 0, 6, 4, 0, 2];
    let frame = [&victim.mac[..], &mac, &ARP.to_be_bytes(), &head, &mark].concat();
    attacks.frame("ARP: cut off", At::Victim, frame, &mark);
    for operation in [3, 4] {
        let mark = attacks.mark();
        let says = [&arp(operation, victim.mac, victim.v4, of_victim)[..], &mark].concat();
        let frame = ethernet(BROADCAST, mac, 0x8035, &says);
        attacks.frame(&format!("RARP {operation} to all"), At::Victim, frame, &mark);
    }
}

/// What two pods could say to each other past the policies, behind messages that are right.
pub fn longer_messages(attacks: &mut Attacks<'_>) {
    let Scene { attacker, victim, .. } = *attacks.scene;
    for length in [19, 1400] {
        let mark = attacks.mark();
        let says = arp(1, attacker.mac, attacker.v4, (victim.mac, victim.v4));
        let says = [&says[..], &vec![7; length - mark.len()], &mark].concat();
        attacks.at_victim(&format!("ARP with {length} bytes behind it"), ARP, says, &mark);
    }
    for length in [8, 1400] {
        let pair = (attacker.v6, victim.v6);
        let mark = attacks.mark();
        let says = neighbour(pair, 135, victim.v6, Some(attacker.mac));
        let packet = ipv6(pair, ICMPV6, 255, &says);
        let packet = [&packet[..], &vec![7; length - mark.len()], &mark].concat();
        attacks.at_victim(&format!("NS with {length} bytes behind it"), IPV6, packet, &mark);
    }
    let pair = (Ipv6Addr::UNSPECIFIED, victim.v6);
    let mark = attacks.mark();
    let mut body = vec![0; 4];
    body.extend(attacker.v6.octets());
    // A nonce of four times 8 bytes.
    body.extend([14, 4]);
    body.extend([7; 22]);
    body.extend(mark);
    let packet = ipv6(pair, ICMPV6, 255, &icmpv6(pair, 135, &body));
    attacks.at_victim("a probe with a long nonce", IPV6, packet, &mark);
}
