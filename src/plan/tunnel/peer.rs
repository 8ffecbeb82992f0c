//! Pure. A pod subnet behind a tunnel, and the next hop to it.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::net::{Family, IfName, Mac, PerFamily, subnet};
use crate::plan::routes::NextHop;

/// A pod subnet that is reached through a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelPeer {
    pub subnet: IpNetwork,
    /// Of the host; its family is that of the outer packets.
    pub address: IpAddr,
    /// Of its tunnel device.
    pub mac: Mac,
    /// UDP port of its tunnel.
    pub port: u16,
    /// The MTU of outer packets to it, as it published.
    pub mtu_bytes: Option<u32>,
}

/// The name of the device whose outer packets are of that family. The names of pods' host ends begin
/// with `hz`.
pub fn device_name(underlay: Family) -> IfName {
    let name = match underlay {
        Family::V4 => "humanz-vx4",
        Family::V6 => "humanz-vx6",
    };
    name.parse().expect("a name of an interface")
}

/// Bytes that a tunnel adds to a packet: Ethernet 14, VXLAN 8, UDP 8, and 20 or 40 of IP.
///
/// Source: RFC 7348 §5.
pub fn overhead(underlay: Family) -> u32 {
    match underlay {
        Family::V4 => 50,
        Family::V6 => 70,
    }
}

/// The MTU of inner packets for that of outer ones.
pub fn inner_mtu<T>(outer: u32, underlay: Family, pods: &PerFamily<T>) -> u32 {
    less_overhead(outer, overhead(underlay), pods)
}

/// The MTU of inner packets for that of outer ones, which have `overhead` more bytes: never less than the minimum
/// of the pods' families (RFC 8200 §5, RFC 791 §3.1), never more than an IP packet can have.
pub fn less_overhead<T>(outer: u32, overhead: u32, pods: &PerFamily<T>) -> u32 {
    let least = if pods.v6.is_some() { 1280 } else { 576 };
    (outer.min(u16::MAX.into()).saturating_sub(overhead)).max(least)
}

/// The next hop to a pod subnet over a tunnel device, given by index and MTU. `source` is this host's
/// own address among its pods: answers to it return through the tunnel.
pub fn next_hop<T>(
    remote: &TunnelPeer,
    (device, device_mtu): (u32, u32),
    own_subnets: &PerFamily<IpNetwork>,
    pods: &PerFamily<T>,
) -> NextHop {
    let underlay = Family::of(remote.address);
    let family = subnet::family(remote.subnet);
    let theirs = remote.mtu_bytes.map(|outer| inner_mtu(outer, underlay, pods));
    NextHop {
        via: via(remote),
        device,
        source: own_subnets.get(family).map(|subnet| subnet::gateway(*subnet)),
        mtu: theirs.filter(|mtu| *mtu < device_mtu),
        onlink: family == Family::V4,
    }
}

/// The gateway of a pod subnet: the other host's own address among its pods for IPv4; for IPv6 the
/// link-local address of its MAC, because the kernel refuses any other to which it has a route
/// elsewhere (net/ipv6/route.c: ip6_route_check_nh_onlink).
pub fn via(remote: &TunnelPeer) -> IpAddr {
    match subnet::family(remote.subnet) {
        Family::V4 => subnet::gateway(remote.subnet),
        Family::V6 => remote.mac.link_local().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: PerFamily<()> = PerFamily { v4: Some(()), v6: None };
    const BOTH: PerFamily<()> = PerFamily { v4: Some(()), v6: Some(()) };

    #[test]
    fn a_tunnel_takes_fifty_bytes_over_ipv4_and_seventy_over_ipv6() {
        assert_eq!(inner_mtu(1500, Family::V4, &V4), 1450);
        assert_eq!(inner_mtu(1500, Family::V6, &BOTH), 1430);
        assert_eq!(inner_mtu(9000, Family::V6, &V4), 8930);
    }

    #[test]
    fn the_mtu_is_always_one_that_pods_can_have() {
        assert_eq!(inner_mtu(1280, Family::V6, &BOTH), 1280);
        assert_eq!(inner_mtu(0, Family::V4, &V4), 576);
        assert_eq!(inner_mtu(u32::MAX, Family::V4, &V4), 65485);
    }

    fn check(subnet: &str, mtu_bytes: Option<u32>, expected: &str) {
        let remote = TunnelPeer {
            subnet: subnet.parse().unwrap(),
            address: "192.0.2.2".parse().unwrap(),
            mac: "0a:58:0a:f4:02:00".parse().unwrap(),
            port: 10400,
            mtu_bytes,
        };
        let own =
            PerFamily { v4: "10.244.1.0/24".parse().ok(), v6: "fd00:0:0:1::/64".parse().ok() };
        let NextHop { via, source, mtu, onlink, .. } = next_hop(&remote, (7, 8950), &own, &BOTH);
        assert_eq!(format!("{via} from {} {mtu:?} {onlink}", source.unwrap()), expected);
    }

    #[test]
    fn the_next_hop_is_the_other_host_among_its_pods() {
        check("10.244.2.0/24", None, "10.244.2.1 from 10.244.1.1 None true");
        check("fd00:0:0:2::/64", None, "fe80::858:aff:fef4:200 from fd00:0:0:1::1 None false");
    }

    #[test]
    fn a_peer_with_a_smaller_mtu_gets_smaller_packets() {
        check("10.244.2.0/24", Some(1500), "10.244.2.1 from 10.244.1.1 Some(1450) true");
        check("10.244.2.0/24", Some(9000), "10.244.2.1 from 10.244.1.1 None true");
        check("10.244.2.0/24", Some(1), "10.244.2.1 from 10.244.1.1 Some(1280) true");
    }
}
