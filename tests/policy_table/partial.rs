//! What one host says of a connection is what `evaluate` says, or that it does not know.

use std::collections::BTreeSet;
use std::net::IpAddr;

use humanz::policy::partial::{Knowledge, PartialDecision};
use humanz::policy::{Direction, Members, Networks, evaluate};

use super::random::Random;
use super::world::{HOSTS, World, subnets};

const WORLDS: u64 = 4000;
const CONNECTIONS: usize = 50;

#[test]
fn one_host_is_right_or_says_that_it_does_not_know() {
    let (mut known, mut unknown) = ([0; 2], 0);
    for seed in 0..WORLDS {
        let mut random = Random::new(seed);
        let world = World::random(&mut random);
        let whole = seed % 2 == 0;
        // A host knows the members that the rules of its own pods need, and may know more.
        let keeps = |random: &mut Random| whole || !random.chance(30);
        let members: Members =
            world.members.clone().into_iter().filter(|_| keeps(&mut random)).collect();
        let pods = world.local(0);
        let own: BTreeSet<IpAddr> = world.endpoints.nodes[0].addresses.iter().copied().collect();
        let here = Knowledge {
            rules: &world.rules,
            pods: &pods,
            subnets: &subnets(0),
            members: &members,
            networks: &Networks::default(),
            own: &own,
        };
        for _ in 0..CONNECTIONS {
            let tuple = world.connection(&mut random);
            let host = |address| world.endpoints.pod(address).map(|pod| pod.host.as_str());
            let is_here = |address| host(address) == Some(HOSTS[0]) || own.contains(&address);
            if !is_here(tuple.source) && !is_here(tuple.destination) {
                continue;
            }
            let judgement = evaluate(&world.rules, &world.endpoints, &tuple);
            for direction in Direction::BOTH {
                let end = match direction {
                    Direction::Ingress => tuple.destination,
                    Direction::Egress => tuple.source,
                };
                let Some(at) = host(end) else { continue };
                let wanted = judgement.end(direction);
                match here.end(&tuple, direction) {
                    PartialDecision::Known(decision) => {
                        let text =
                            format!("seed {seed}, {tuple} {direction}: {decision}, {wanted}");
                        assert_eq!(decision.allowed, wanted.allowed, "{text}");
                        if whole && at == HOSTS[0] {
                            assert_eq!(decision, *wanted, "{text}");
                        }
                        known[usize::from(decision.allowed)] += 1;
                    }
                    PartialDecision::DependsOn(rule) => {
                        assert!(!whole || at != HOSTS[0], "seed {seed}, {tuple}: {rule}");
                        unknown += 1;
                    }
                }
            }
        }
    }
    println!("denied, allowed: {known:?}, not known: {unknown}");
    assert!(known.iter().chain([&unknown]).all(|count| *count > 2_000), "{known:?} {unknown}");
}
