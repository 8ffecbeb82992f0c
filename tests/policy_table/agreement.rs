//! The table says what `evaluate` says, connection by connection.

use humanz::policy::compile::compile;
use humanz::policy::{Direction, Judgement, Tuple, evaluate};

use super::interpreter::Packet;
use super::random::Random;
use super::world::{HOSTS, World};

const WORLDS: u64 = 4000;
const CONNECTIONS: usize = 50;

/// What the table of a host should do: each end that is one of its pods is judged there.
pub fn expected(world: &World, host: usize, tuple: &Tuple, judgement: &Judgement<'_>) -> bool {
    let is_local =
        |address| world.endpoints.pod(address).is_some_and(|pod| pod.host.as_str() == HOSTS[host]);
    let ends = [(tuple.source, Direction::Egress), (tuple.destination, Direction::Ingress)];
    ends.iter()
        .filter(|(address, _)| is_local(*address))
        .all(|(_, direction)| judgement.end(*direction).allowed)
}

#[test]
fn the_table_agrees_with_evaluate() {
    let mut verdicts = [0; 2];
    for seed in 0..WORLDS {
        let mut random = Random::new(seed);
        let world = World::random(&mut random);
        let tables = [0, 1].map(|host| world.on_host(host, |host| compile(host).ruleset(1 << 16)));
        for _ in 0..CONNECTIONS {
            let tuple = world.connection(&mut random);
            let judgement = evaluate(&world.rules, &world.endpoints, &tuple);
            for (host, table) in tables.iter().enumerate() {
                let wanted = expected(&world, host, &tuple, &judgement);
                let mut packet = Packet::first(tuple);
                let passes = packet.passes(table);
                assert_eq!(
                    passes, wanted,
                    "seed {seed}, {}, {tuple}: egress {}, ingress {}",
                    HOSTS[host], judgement.egress, judgement.ingress
                );
                // What passed is not judged again in the same epoch.
                assert_eq!(packet.connection.unwrap().mark == 1 << 16, passes);
                verdicts[usize::from(passes)] += 1;
            }
        }
    }
    println!("denied, allowed: {verdicts:?}");
    assert!(verdicts.iter().all(|count| *count > 10_000), "{verdicts:?}");
}
