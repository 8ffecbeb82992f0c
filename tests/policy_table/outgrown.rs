//! A group that outgrows its set: another set, and programs that look into that one.

use std::net::IpAddr;

use humanz::net::Protocol;
use humanz::nft::Nft;
use humanz::plan::policy_table::plan;
use humanz::policy::compile::PolicyTable;
use humanz::policy::{Endpoint, Transport, Tuple, evaluate};

use super::interpreter::Packet;
use super::kernel;
use super::large;
use super::network::alone;
use super::parts::Host;
use super::steps::Kernel;
use super::world::{World, name};

const FIRST_EPOCH: u32 = 7 << 16;

/// Members of other hosts in one group, and the size of its set then: none has less room than before while rules stay.
const STEPS: [(usize, Option<u32>); 7] = [
    (1, Some(64)),
    (64, Some(64)),
    (65, Some(1024)),
    (3, Some(1024)),
    (1024, Some(1024)),
    (1025, None),
    (3, None),
];

/// The pod of the first host may be reached by those of group `app1`, of which other hosts have so many.
fn world(members: usize) -> World {
    let World { mut endpoints, rules, .. } = large::world(1, 4, 1);
    let model = endpoints.pods.iter().find(|pod| pod.host.as_str() == "host2").unwrap().clone();
    endpoints.pods.retain(|pod| pod.host.as_str() == "host1");
    let member = |number: usize| Endpoint {
        name: name(&format!("member{number}")),
        labels: [("app".into(), "app1".into())].into(),
        addresses: vec![member_address(number), format!("fd00:10:2::{number:x}").parse().unwrap()],
        ..model.clone()
    };
    endpoints.pods.extend((0..members).map(member));
    World::new(endpoints, rules)
}

fn member_address(number: usize) -> IpAddr {
    format!("10.245.{}.{}", number / 250 + 1, number % 250 + 2).parse().unwrap()
}

/// From the first members, the last one, and one that is none, to the first pod.
fn connections(world: &World, members: usize) -> Vec<Tuple> {
    let destination = world.endpoints.pods[0].addresses[0];
    let transport = Transport::Port(Protocol::Tcp, 8000);
    let from = [0, members - 1, members].map(member_address);
    from.map(|source| Tuple { source, destination, transport }).into()
}

/// How many elements the set of the group has, and for how many it has room.
fn set(table: &PolicyTable) -> (usize, Option<u32>) {
    let sets = table.sets().values().filter(|set| set.name.starts_with("pods4_"));
    let set = sets.max_by_key(|set| set.elements.len()).unwrap();
    assert!(set.shape.size.is_none_or(|size| set.name.ends_with(&format!("_{size}"))));
    (set.elements.len(), set.shape.size)
}

#[test]
fn a_group_that_grows_and_shrinks_is_never_lost() {
    let (mut host, mut kernel, mut running) = (Host::new(), Kernel::new(), Vec::new());
    for (members, size) in STEPS {
        let world = world(members);
        host.look(&world);
        let wanted = host.tables()[0].clone();
        assert_eq!(set(&wanted), (members, size));
        for _ in 0..2 {
            let found = Some(kernel.found()).filter(|_| !running.is_empty());
            for transaction in plan(&wanted, found.as_ref(), FIRST_EPOCH).transactions {
                kernel.commit(&transaction);
                for tuple in &running {
                    let passes = Packet::first(*tuple).at(0).passes(&kernel.ruleset);
                    assert!(passes, "{members} members: {tuple} in between");
                }
            }
            running = vec![connections(&world, members)[0]];
        }
        for tuple in connections(&world, members) {
            let wanted = evaluate(&world.rules, &world.endpoints, &tuple).allowed();
            assert_eq!(Packet::first(tuple).at(0).passes(&kernel.ruleset), wanted, "{tuple}");
        }
    }
}

#[test]
fn the_kernel_takes_every_size_and_says_it() {
    alone(|| {
        let (nft, mut host) = (Nft::open().unwrap(), Host::new());
        for (members, size) in STEPS {
            host.look(&world(members));
            let wanted = host.tables()[0].clone();
            kernel::bring(&nft, &wanted);
            assert_eq!(set(&wanted), (members, size));
        }
    });
}
