//! The table says what `evaluate` says, connection by connection.

use std::collections::BTreeSet;

use humanz::nft::Hook;
use humanz::policy::compile::{compile, counter};
use humanz::policy::{Direction, Judgement, PolicyVerdict, Reason, Tuple, evaluate};

use super::interpreter::Packet;
use super::random::Random;
use super::world::{HOSTS, World};

const WORLDS: u64 = 4000;
const CONNECTIONS: usize = 50;

/// What the table of a host should do: each end that is one of its pods is judged there.
pub fn expected(world: &World, host: usize, tuple: &Tuple, judgement: &Judgement<'_>) -> bool {
    let ends = [(tuple.source, Direction::Egress), (tuple.destination, Direction::Ingress)];
    ends.iter()
        .filter(|(address, _)| world.is_local(host, *address))
        .all(|(_, direction)| judgement.end(*direction).allowed)
}

/// The counters of audited rules that would decide at the ends of a host; the second end is judged only
/// if the first one allows the connection.
fn audited(world: &World, host: usize, tuple: &Tuple, judgement: &Judgement<'_>) -> Vec<String> {
    let mut counters = Vec::new();
    for (address, direction) in
        [(tuple.source, Direction::Egress), (tuple.destination, Direction::Ingress)]
    {
        let end = judgement.end(direction);
        if world.is_local(host, address) {
            counters.extend(end.audit.map(counter));
            if !end.allowed {
                break;
            }
        }
    }
    counters
}

/// The counters of audited rules that counted a packet as allowed or denied.
fn audits(world: &World, packet: &Packet) -> Vec<String> {
    let decide = world.rules.audited().filter(|rule| rule.verdict != PolicyVerdict::Pass);
    let names: BTreeSet<String> = decide.map(counter).collect();
    packet.counted.iter().filter(|name| names.contains(*name)).cloned().collect()
}

#[test]
fn the_table_agrees_with_evaluate() {
    let (mut verdicts, mut to_own_node, mut audits_seen) = ([0; 2], [0; 2], 0);
    for seed in 0..WORLDS {
        let mut random = Random::new(seed);
        let world = World::random(&mut random);
        let tables = [0, 1].map(|host| world.on_host(host, |host| compile(host).ruleset(1 << 16)));
        for _ in 0..CONNECTIONS {
            let tuple = world.connection(&mut random);
            let judgement = evaluate(&world.rules, &world.endpoints, &tuple);
            for (host, table) in tables.iter().enumerate() {
                let wanted = expected(&world, host, &tuple, &judgement);
                let mut packet = Packet::first(tuple).at(host);
                let passes = packet.passes(table);
                assert_eq!(
                    passes, wanted,
                    "seed {seed}, {}, {tuple}: egress {}, ingress {}",
                    HOSTS[host], judgement.egress, judgement.ingress
                );
                let audited = audited(&world, host, &tuple, &judgement);
                assert_eq!(audits(&world, &packet), audited, "seed {seed}, {tuple}");
                audits_seen += audited.len();
                // What passed is not judged again in the same epoch, if it was judged.
                let is_judged = match packet.hook {
                    Hook::INPUT => {
                        world.is_local(host, tuple.source)
                            && judgement.egress.reason != Reason::OwnResolver
                    }
                    hook => hook == Hook::FORWARD,
                };
                assert_eq!(packet.connection.unwrap().mark == 1 << 16, passes && is_judged);
                to_own_node[usize::from(passes)] +=
                    usize::from(packet.hook == Hook::INPUT && is_judged);
                verdicts[usize::from(passes)] += 1;
            }
        }
    }
    println!("denied, allowed: {verdicts:?}; of pods to their own nodes: {to_own_node:?}");
    println!("audited: {audits_seen}");
    assert!(audits_seen > 1_000, "{audits_seen}");
    assert!(to_own_node.iter().all(|count| *count > 500), "{to_own_node:?}");
    assert!(verdicts.iter().all(|count| *count > 10_000), "{verdicts:?}");
}
