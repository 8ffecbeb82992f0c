//! A pod whose rules are not known reaches nothing and is not reached, wherever its addresses are.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use humanz::nft::{Hook, Ruleset};
use humanz::policy::compile::{HostPolicy, MarkBits, PolicyTable, compile};
use humanz::policy::{Rules, Transport, Tuple};
use ipnetwork::IpNetwork;

use super::interpreter::Packet;
use super::random::Random;
use super::world::{OUTSIDE, World};

fn table(addresses: &[&str], subnets: &[&str]) -> Ruleset {
    compiled(addresses, subnets).ruleset(1 << 16)
}

/// The table of a host without known pods.
pub fn compiled(addresses: &[&str], subnets: &[&str]) -> PolicyTable {
    let addresses: BTreeSet<IpAddr> = addresses.iter().map(|it| it.parse().unwrap()).collect();
    let subnets: Vec<IpNetwork> = subnets.iter().map(|it| it.parse().unwrap()).collect();
    let host = HostPolicy {
        known: &Arc::default(),
        pods: &[],
        addresses: &addresses,
        subnets: &subnets,
        own: &BTreeSet::new(),
        mark_bits: MarkBits::DEFAULT,
        log_group: 71,
    };
    compile(&host)
}

#[test]
fn an_unknown_pod_outside_the_subnets_is_in_quarantine() {
    let pods = ["203.0.113.7", "2001:db8:7::7"];
    for subnets in [&["10.244.1.0/24"][..], &[]] {
        let (judged, control) = (table(&pods, subnets), table(&[], subnets));
        for (pod, other) in pods.into_iter().zip(OUTSIDE) {
            for (from, to) in [(pod, other), (other, pod)] {
                let (source, destination) = (from.parse().unwrap(), to.parse().unwrap());
                let tuple = Tuple { source, destination, transport: Transport::Other(47) };
                assert!(!Packet::first(tuple).passes(&judged), "{tuple} {subnets:?}");
                assert!(Packet::first(tuple).passes(&control), "{tuple} {subnets:?}");
                let mut lost = Packet { connection: None, ..Packet::first(tuple) };
                assert!(!lost.passes(&judged), "{tuple} of no connection");
            }
        }
    }
}

#[test]
fn what_belongs_to_no_connection_reaches_the_own_node_from_pods_without_rules_only() {
    let mut world = World::random(&mut Random::new(1));
    world.rules = Rules::default();
    let open = world.on_host(0, compile).ruleset(1 << 16);
    let pod = world.local(0).remove(0);
    let quarantined = table(&[], &["10.244.1.0/24", "fd00:10:1::/64"]);
    for (source, node) in pod.addresses.iter().zip(["10.244.1.1", "fd00:10:1::1"]) {
        let (source, destination) = (*source, node.parse().unwrap());
        let tuple = Tuple { source, destination, transport: Transport::Icmp { kind: 0, code: 0 } };
        let first = || Packet { hook: Hook::INPUT, ..Packet::first(tuple) };
        let mut invalid = Packet { connection: None, ..first() };
        assert!(!invalid.passes(&quarantined), "{tuple}");
        assert_eq!(invalid.counted, ["untracked"]);
        assert!(Packet { connection: None, ..first() }.passes(&open), "{tuple}");
        let mut untracked = Packet { connection: None, untracked: true, ..first() };
        assert!(untracked.passes(&quarantined), "neighbour discovery, notrack: {tuple}");
    }
}
