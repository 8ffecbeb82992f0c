//! Hosts near and far, with and without tunnels.

use crate::lease::records::Vxlan;
use crate::plan::peer_routes::*;

/// A host whose pods have `subnet` (the network address of its tunnel's MAC), with these addresses.
fn peer(subnets: &[&str], addresses: &[&str]) -> Peer {
    let mut peer = Peer {
        subnets: PerFamily::default(),
        blocks: Vec::new(),
        addresses: per_family(addresses),
        backend: records::Backend::Auto,
        tunnel: None,
        wireguard: None,
        mtu: Some(1500),
        python: addresses.is_empty(),
        alive: true,
    };
    for subnet in subnets {
        let subnet: IpNetwork = subnet.parse().unwrap();
        peer.subnets.set(crate::net::subnet::family(subnet), Some(subnet));
    }
    peer.tunnel = Tunnel::of(&peer.subnets, VXLAN).filter(|_| !peer.python);
    peer
}

const VXLAN: Vxlan = Vxlan { vni: 104, port: 10400 };

fn per_family(addresses: &[&str]) -> PerFamily<IpAddr> {
    let mut found = PerFamily::default();
    for address in addresses {
        let address: IpAddr = address.parse().unwrap();
        found.set(Family::of(address), Some(address));
    }
    found
}

/// This host: what it wants, its addresses, and those it can send from.
struct Host {
    backend: LocalBackend,
    own: PerFamily<IpAddr>,
    underlay: PerFamily<IpAddr>,
    up: bool,
    encryption: LocalEncryption,
}

fn host(backend: LocalBackend) -> Host {
    let own = per_family(&["192.0.2.1", "2001:db8::1"]);
    Host { backend, own, underlay: own, up: true, encryption: LocalEncryption::Off }
}

/// The routes from `host` to `peer`, as `direct …`, `tunnel …` or `! reason`.
fn check(host: &Host, peer: Peer, expected: &[&str]) {
    check_resolved(host, peer, &[], expected);
}

fn routes_to(host: &Host, peer: Peer, resolved: &[&str]) -> PeerRoutes {
    let name: NodeName = "h2".parse().unwrap();
    let peers = BTreeMap::from([(name.clone(), peer)]);
    // An empty text: it does not resolve.
    let addresses = |text: &str| per_family(Some(text).filter(|it| !it.is_empty()).as_slice());
    let resolved = resolved.iter().map(|text| (name.clone(), addresses(text))).collect();
    let connected =
        |prefix: &str, device| Connected { prefix: prefix.parse().unwrap(), device, up: host.up };
    let connected =
        [connected("192.0.2.0/24", 2), connected("192.0.0.0/16", 3), connected("2001:db8::/64", 2)];
    let subnets = PerFamily { v4: "10.1.1.0/24".parse().ok(), v6: None };
    let here = LocalHost {
        backend: host.backend,
        connected: connected.to_vec(),
        own: host.own,
        underlay: host.underlay,
        tunnel: Tunnel::of(&subnets, VXLAN).filter(|_| host.backend != LocalBackend::Direct),
        encryption: host.encryption,
    };
    peer_routes(&peers, &resolved, &here)
}

fn check_resolved(host: &Host, peer: Peer, resolved: &[&str], expected: &[&str]) {
    let peer_routes = routes_to(host, peer, resolved);
    let direct =
        peer_routes.direct.values().map(|hop| format!("direct {} dev {}", hop.via, hop.device));
    let tunnels = peer_routes.remotes.iter();
    let tunnels = tunnels.map(|remote| format!("tunnel {} to {}", remote.subnet, remote.address));
    let encrypted = peer_routes.encrypted.iter();
    let encrypted = encrypted.map(|peer| format!("encrypted to {}:{}", peer.address, peer.port));
    let clear = peer_routes.clear.iter().map(|peer| format!("! {}", peer.problem()));
    let not = peer_routes.unreachable.iter().map(|line| format!("! {}", line.problem()));
    let faults = peer_routes.faults.iter().map(|fault| format!("! {fault}"));
    let lines: Vec<String> =
        direct.chain(tunnels).chain(encrypted).chain(clear).chain(not).chain(faults).collect();
    assert_eq!(lines.len(), expected.len(), "{lines:?}");
    for (line, expected) in lines.iter().zip(expected) {
        let matches =
            if line.starts_with('!') { line.contains(expected) } else { line == expected };
        assert!(matches, "{line} is not {expected}");
    }
}

const V4: &[&str] = &["10.1.2.0/24"];
const BOTH: &[&str] = &["10.1.2.0/24", "fd00:0:0:2::/64"];

#[test]
fn a_host_on_the_segment_is_reached_through_the_nearest_interface() {
    for backend in [LocalBackend::Direct, LocalBackend::Auto] {
        check(&host(backend), peer(V4, &["192.0.2.2"]), &["direct 192.0.2.2 dev 2"]);
        check(&host(backend), peer(V4, &["192.0.3.2"]), &["direct 192.0.3.2 dev 3"]);
    }
}

#[test]
fn a_host_behind_a_router_is_reached_through_its_tunnel() {
    let far = || peer(V4, &["198.51.100.2"]);
    let tunnel = ["tunnel 10.1.2.0/24 to 198.51.100.2"];
    check(&host(LocalBackend::Auto), far(), &tunnel);
    check(&host(LocalBackend::Vxlan), far(), &tunnel);
    check(
        &host(LocalBackend::Direct),
        far(),
        &["198.51.100.2 is not on a segment of this host, and B"],
    );
}

#[test]
fn a_host_without_a_tunnel_is_reached_directly_or_reported() {
    let python = || Peer { backend: records::Backend::Direct, ..peer(V4, &[]) };
    for backend in [LocalBackend::Auto, LocalBackend::Vxlan] {
        let host = host(backend);
        let near = Peer { tunnel: None, ..peer(V4, &["192.0.2.2"]) };
        check(&host, near, &["direct 192.0.2.2 dev 2"]);
        let far = Peer { tunnel: None, ..peer(V4, &["198.51.100.2"]) };
        check(&host, far, &["198.51.100.2 is not on a segment of this host, and the host has no"]);
        check_resolved(&host, python(), &["192.0.2.7"], &["direct 192.0.2.7 dev 2"]);
        check(&host, python(), &["the name h2 is being looked up"]);
        check_resolved(&host, python(), &[""], &["the name h2 does not resolve"]);
    }
}

#[test]
fn a_host_with_a_bad_tunnel_loses_nothing_but_that() {
    let mut near = peer(V4, &["192.0.2.2"]);
    near.tunnel.as_mut().unwrap().port = 0;
    let bad = "its tunnel is ignored: port 0";
    check(&host(LocalBackend::Auto), near.clone(), &["direct 192.0.2.2 dev 2", bad]);
    let far = Peer { addresses: per_family(&["198.51.100.2"]), ..near };
    check(&host(LocalBackend::Auto), far, &["the host has no tunnel", bad]);
}

#[test]
fn a_host_that_requires_tunnels_gets_them_if_the_other_has_some() {
    let wants = Peer { backend: records::Backend::Vxlan, ..peer(V4, &["192.0.2.2"]) };
    let tunnel = ["tunnel 10.1.2.0/24 to 192.0.2.2"];
    check(&host(LocalBackend::Auto), wants.clone(), &tunnel);
    check(&host(LocalBackend::Direct), wants, &["direct 192.0.2.2 dev 2"]);
    check(&host(LocalBackend::Vxlan), peer(V4, &["192.0.2.2"]), &tunnel);
}

#[test]
fn each_family_of_pods_has_its_own_way() {
    check(
        &host(LocalBackend::Auto),
        peer(BOTH, &["192.0.2.2", "2001:db8:9::2"]),
        &["direct 192.0.2.2 dev 2", "tunnel fd00:0:0:2::/64 to 2001:db8:9::2"],
    );
    check(
        &host(LocalBackend::Vxlan),
        peer(BOTH, &["192.0.2.2", "2001:db8:9::2"]),
        &["tunnel 10.1.2.0/24 to 192.0.2.2", "tunnel fd00:0:0:2::/64 to 2001:db8:9::2"],
    );
}

#[test]
fn hosts_that_share_one_family_reach_both_through_it() {
    check(
        &host(LocalBackend::Auto),
        peer(BOTH, &["2001:db8:9::2"]),
        &["tunnel 10.1.2.0/24 to 2001:db8:9::2", "tunnel fd00:0:0:2::/64 to 2001:db8:9::2"],
    );
    check(
        &host(LocalBackend::Auto),
        peer(BOTH, &["192.0.2.2"]),
        &["direct 192.0.2.2 dev 2", "tunnel fd00:0:0:2::/64 to 192.0.2.2"],
    );
    let only_v4 = Host { own: per_family(&["192.0.2.1"]), ..host(LocalBackend::Auto) };
    let only_v4 = Host { underlay: only_v4.own, ..only_v4 };
    check(&only_v4, peer(V4, &["2001:db8:9::2"]), &["no IPv6 address to send to 2001:db8:9::2"]);
}

/// Packets of pods to it would leave with the pod's address, to which a server behind a router has no way.
#[test]
fn an_address_far_away_is_none_of_a_host_nearby_in_whichever_family_its_pods_are() {
    for backend in [LocalBackend::Direct, LocalBackend::Auto] {
        let of = |subnets: &[&str]| {
            let found =
                routes_to(&host(backend), peer(subnets, &["198.51.100.9", "2001:db8::2"]), &[]);
            found.tunnel_only_nodes
        };
        let far: BTreeSet<IpAddr> = ["198.51.100.9".parse().unwrap()].into();
        for subnets in [V4, BOTH, &["fd00:0:0:2::/64"], &[]] {
            assert_eq!(of(subnets), far, "{backend:?}: {subnets:?}");
        }
    }
}

#[test]
fn an_outage_of_the_uplink_is_no_reason_for_a_tunnel() {
    let down = Host { up: false, underlay: PerFamily::default(), ..host(LocalBackend::Auto) };
    check(
        &down,
        peer(V4, &["192.0.2.2"]),
        &["the link to 192.0.2.2 is down; ip link # shows which"],
    );
    let expected = "192.0.2.1 (NODE_IP, if that is set), which no interface that is up has";
    check(&down, peer(V4, &["198.51.100.2"]), &[expected]);
}

#[test]
fn a_host_without_an_address_of_the_family_is_reported() {
    let v6 = peer(&["fd00:0:0:2::/64"], &["192.0.2.2"]);
    check(&host(LocalBackend::Direct), v6, &["no IPv6 address"]);
}

#[test]
fn a_host_that_claims_our_address_is_reported() {
    for backend in [LocalBackend::Direct, LocalBackend::Auto, LocalBackend::Vxlan] {
        check(&host(backend), peer(V4, &["192.0.2.1"]), &["belongs to this host"]);
    }
}

fn encrypting(backend: LocalBackend, encryption: LocalEncryption) -> Host {
    Host { encryption, ..host(backend) }
}

fn with_key(peer: Peer) -> Peer {
    let public_key = crate::net::PublicKey([7; 32]);
    let port = std::num::NonZeroU16::new(7000).unwrap();
    Peer { wireguard: Some(records::WireguardEnd::new(public_key, port)), ..peer }
}

const BOTH_PODS: &[&str] = &["10.1.2.0/24", "fd00:0:0:2::/64"];

#[test]
fn packets_are_encrypted_wherever_the_host_is_and_whatever_the_backend() {
    for backend in [LocalBackend::Direct, LocalBackend::Vxlan, LocalBackend::Auto] {
        for encryption in [LocalEncryption::Strict, LocalEncryption::Preferred] {
            let here = encrypting(backend, encryption);
            for address in ["192.0.2.2", "198.51.100.2"] {
                let wanted = format!("encrypted to {address}:7000");
                check(&here, with_key(peer(BOTH_PODS, &[address])), &[&wanted]);
                check(&here, with_key(peer(BOTH_PODS, &[address, "2001:db8::2"])), &[&wanted]);
            }
            let far = with_key(peer(BOTH_PODS, &["2001:db8:9::2"]));
            check(&here, far, &["encrypted to 2001:db8:9::2:7000"]);
        }
    }
}

#[test]
fn a_host_without_a_key_is_not_reached_in_clear_text_unless_that_is_allowed() {
    let near = || peer(V4, &["192.0.2.2"]);
    let strict = encrypting(LocalBackend::Auto, LocalEncryption::Strict);
    check(
        &strict,
        near(),
        &["! pods of host h2 (10.1.2.0/24) cannot be reached: it publishes no WireGuard key"],
    );
    let preferred = encrypting(LocalBackend::Auto, LocalEncryption::Preferred);
    check(
        &preferred,
        near(),
        &["direct 192.0.2.2 dev 2", "! pods of host h2 are reached in clear text"],
    );
    let python = || peer(V4, &[]);
    check_resolved(
        &strict,
        python(),
        &["192.0.2.2"],
        &["! pods of host h2 (10.1.2.0/24) cannot be reached: it publishes no WireGuard key"],
    );
}

#[test]
fn a_host_that_encrypts_alone_is_reported_where_the_other_does_not() {
    let off = host(LocalBackend::Auto);
    check(
        &off,
        with_key(peer(V4, &["192.0.2.2"])),
        &["direct 192.0.2.2 dev 2", "! host h2 encrypts and this host does not"],
    );
}

#[test]
fn without_an_address_to_send_from_nothing_goes_out_in_clear_text() {
    let mut here = encrypting(LocalBackend::Auto, LocalEncryption::Preferred);
    here.underlay = PerFamily::default();
    check(
        &here,
        with_key(peer(V4, &["192.0.2.2"])),
        &[
            "! pods of host h2 (10.1.2.0/24) cannot be reached: this host's node address is 192.0.2.1",
        ],
    );
}
