//! An ICMP error about a connection passes if its sender is an end of it, whatever mark the connection has.

use std::net::IpAddr;

use humanz::nft::{Hook, Ruleset};
use humanz::policy::compile::compile;
use humanz::policy::{Rules, Transport, Tuple};

use super::interpreter::{Connection, Packet};
use super::random::Random;
use super::world::{OUTSIDE, World};

const EPOCH: u32 = 1 << 16;

/// A host without rules, and addresses of two of its pods.
fn open_host(is_v6: bool) -> (Ruleset, [IpAddr; 2]) {
    let mut world = World::random(&mut Random::new(1));
    world.rules = Rules::default();
    let pods = world.local(0);
    let of = |at: usize| *pods[at].addresses.iter().find(|it| it.is_ipv6() == is_v6).unwrap();
    let addresses = [of(0), of(1)];
    (world.on_host(0, compile).ruleset(EPOCH), addresses)
}

/// An error of `from` about a connection that was judged.
fn error(kind: u8, from: IpAddr, (source, destination): (IpAddr, IpAddr)) -> Packet {
    let transport = Transport::Other(17);
    let connection = Connection { tuple: Tuple { source, destination, transport }, mark: EPOCH };
    Packet {
        source: from,
        destination: source,
        connection: Some(connection),
        error: Some(kind),
        ..Packet::first(connection.tuple)
    }
}

#[test]
fn errors_of_a_connections_ends_pass_and_those_of_other_pods_do_not() {
    for (is_v6, kinds) in [(false, &[3, 4, 5, 11, 12][..]), (true, &[1, 2, 3, 4, 127])] {
        let (table, [pod, third]) = open_host(is_v6);
        let outside: IpAddr = OUTSIDE[usize::from(is_v6)].parse().unwrap();
        for kind in kinds {
            for ends in [(pod, outside), (outside, pod)] {
                for hook in [Hook::FORWARD, Hook::INPUT] {
                    let by = |from| Packet { hook, ..error(*kind, from, ends) };
                    assert!(by(pod).passes(&table), "type {kind} of {pod}, {ends:?}");
                    assert!(by(outside).passes(&table), "type {kind} of {outside}, {ends:?}");
                    let mut foreign = by(third);
                    assert!(!foreign.passes(&table), "type {kind} of {third}, {ends:?}");
                    assert_eq!(foreign.counted, ["foreign"]);
                    // Its host knows no such connection.
                    let mut unknown = Packet { connection: None, ..by(third) };
                    assert!(!unknown.passes(&table), "type {kind} of {third} about nothing");
                }
            }
        }
    }
}
