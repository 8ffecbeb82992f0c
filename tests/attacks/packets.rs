//! Frames, byte by byte.

use std::net::{Ipv4Addr, Ipv6Addr};

pub type Mac = [u8; 6];

pub const BROADCAST: Mac = [0xff; 6];
pub const IPV4: u16 = 0x0800;
pub const ARP: u16 = 0x0806;
pub const IPV6: u16 = 0x86dd;

pub const HOP_BY_HOP: u8 = 0;
pub const UDP: u8 = 17;
pub const FRAGMENT: u8 = 44;
pub const ICMPV6: u8 = 58;
pub const DESTINATION_OPTIONS: u8 = 60;

pub fn ethernet(to: Mac, from: Mac, kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = [&to[..], &from, &kind.to_be_bytes(), payload].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

/// With tags of these types and identifiers, the outermost first.
pub fn tagged(to: Mac, from: Mac, tags: &[(u16, u16)], kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = [to, from].concat();
    for (tag, id) in tags {
        frame.extend(tag.to_be_bytes());
        frame.extend(id.to_be_bytes());
    }
    frame.extend(kind.to_be_bytes());
    frame.extend(payload);
    frame.resize(frame.len().max(64), 0);
    frame
}

pub fn arp(operation: u16, mac: Mac, ip: Ipv4Addr, target: (Mac, Ipv4Addr)) -> Vec<u8> {
    let [high, low] = operation.to_be_bytes();
    let head = [0, 1, 8, 0, 6, 4, high, low];
    [&head[..], &mac, &ip.octets(), &target.0, &target.1.octets()].concat()
}

/// Source and destination.
pub type Pair4 = (Ipv4Addr, Ipv4Addr);
pub type Pair6 = (Ipv6Addr, Ipv6Addr);

pub fn ipv4((from, to): Pair4, protocol: u8, payload: &[u8]) -> Vec<u8> {
    ipv4_fragment((from, to), protocol, 0x4000, payload)
}

/// `fragment`: flags and offset.
pub fn ipv4_fragment((from, to): Pair4, protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
    let [high, low] = fragment.to_be_bytes();
    let mut head = vec![0x45, 0, length[0], length[1], 0, 7, high, low, 64, protocol, 0, 0];
    head.extend(from.octets());
    head.extend(to.octets());
    let sum = checksum(&head).to_be_bytes();
    head[10..12].copy_from_slice(&sum);
    [&head, payload].concat()
}

/// `options`: whole words of 4 bytes, at most 40.
pub fn ipv4_options(pair: Pair4, protocol: u8, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut packet = ipv4(pair, protocol, &[options, payload].concat());
    let length = 20 + options.len();
    packet[0] = 0x40 | u8::try_from(length / 4).unwrap();
    packet[10..12].copy_from_slice(&[0, 0]);
    let sum = checksum(&packet[..length]).to_be_bytes();
    packet[10..12].copy_from_slice(&sum);
    packet
}

pub fn ipv6((from, to): Pair6, next: u8, hop_limit: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [0x60, 0, 0, 0, length[0], length[1], next, hop_limit];
    [&head[..], &from.octets(), &to.octets(), payload].concat()
}

/// UDP without a checksum.
pub fn udp((from, to): (u16, u16), data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + data.len()).unwrap();
    let mut packet = [from, to, length, 0].map(u16::to_be_bytes).concat();
    packet.extend(data);
    packet
}

pub fn udp6(pair: Pair6, ports: (u16, u16), data: &[u8]) -> Vec<u8> {
    with_checksum(pair, UDP, 6, udp(ports, data))
}

/// `body`: what follows the checksum.
pub fn icmpv6(pair: Pair6, kind: u8, body: &[u8]) -> Vec<u8> {
    with_checksum(pair, ICMPV6, 2, [&[kind, 0, 0, 0], body].concat())
}

/// Neighbour solicitation (135) or advertisement (136, solicited, override) with the option of a MAC.
pub fn neighbour(pair: Pair6, kind: u8, target: Ipv6Addr, mac: Option<Mac>) -> Vec<u8> {
    let (flags, option) = if kind == 135 { (0, 1) } else { (0x60, 2) };
    let mut body = vec![flags, 0, 0, 0];
    body.extend(target.octets());
    if let Some(mac) = mac {
        body.extend([option, 1]);
        body.extend(mac);
    }
    icmpv6(pair, kind, &body)
}

/// Router advertisement: default router for half an hour, and a prefix for addresses.
pub fn router_advertisement(pair: Pair6, mac: Mac) -> Vec<u8> {
    let mut body = vec![64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0];
    body.extend([1, 1]);
    body.extend(mac);
    body.extend([3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0, 0, 0x0e, 0x10, 0, 0, 0, 0]);
    body.extend("2001:db8:bad::".parse::<Ipv6Addr>().unwrap().octets());
    icmpv6(pair, 134, &body)
}

/// An extension header of 8 bytes that says nothing (PadN), before `next`.
pub fn padding(next: u8, payload: &[u8]) -> Vec<u8> {
    [&[next, 0, 1, 4, 0, 0, 0, 0], payload].concat()
}

/// A fragment header before `next`: offset in bytes, and whether more follow.
pub fn fragment(next: u8, offset: u16, more: bool, payload: &[u8]) -> Vec<u8> {
    let [high, low] = (offset | u16::from(more)).to_be_bytes();
    [&[next, 0, high, low, 0, 0, 0, 9], payload].concat()
}

fn with_checksum((from, to): Pair6, protocol: u8, at: usize, mut packet: Vec<u8>) -> Vec<u8> {
    let length = u32::try_from(packet.len()).unwrap().to_be_bytes();
    let pseudo =
        [&from.octets()[..], &to.octets(), &length, &[0, 0, 0, protocol], &packet].concat();
    let sum = checksum(&pseudo).to_be_bytes();
    packet[at..at + 2].copy_from_slice(&sum);
    packet
}

/// RFC 1071.
pub fn checksum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
