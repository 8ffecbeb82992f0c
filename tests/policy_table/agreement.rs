//! The table says what `evaluate` says, connection by connection.

use humanz::nft::Hook;
use humanz::policy::compile::compile;
use humanz::policy::{Direction, Judgement, Reason, Tuple, evaluate};

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

#[test]
fn the_table_agrees_with_evaluate() {
    let (mut verdicts, mut to_own_node) = ([0; 2], [0; 2]);
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
    assert!(to_own_node.iter().all(|count| *count > 500), "{to_own_node:?}");
    assert!(verdicts.iter().all(|count| *count > 10_000), "{verdicts:?}");
}
