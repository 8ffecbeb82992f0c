//! Networks of tenants on many hosts with one etcd. `TENANT_HOSTS` is another number of hosts, at least 6: `make soak`
//! takes 50.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::json;

use crate::etcd::apply;
use crate::support::cni::Failure;
use crate::support::wait::SOON;
use crate::support::{Agent, Cluster, Node, Place, Pod, eventually, soon};
use crate::tenants::{
    SOON_GIVEN_BACK, blocks, is_apart, namespace, network, reaches, try_add, two_tenants,
};

const HOSTS: u8 = 12;

/// What an agent has for plugins.
const PLANS: &str = "/run/humanz/ipam/.networks.json";

/// A pool of so many blocks of eight addresses.
fn subnet(blocks: usize) -> String {
    format!("10.35.0.0/{}", 29 - blocks.ilog2())
}

/// Starts a pod on each of `hosts` at once.
fn add_everywhere<'a>(
    hosts: impl Iterator<Item = &'a Node>,
    pod: &str,
) -> Vec<(&'a Node, Result<Pod, Box<Failure>>)> {
    std::thread::scope(|scope| {
        let adding: Vec<_> =
            hosts.map(|host| (host, scope.spawn(move || decided(host, pod)))).collect();
        adding.into_iter().map(|(host, pod)| (host, pod.join().unwrap())).collect()
    })
}

/// As a runtime does, which tries again where an agent had no time to answer: all of them share this machine.
fn decided(host: &Node, pod: &str) -> Result<Pod, Box<Failure>> {
    eventually("an answer of the agent", 3 * SOON, || {
        let added = try_add(host, pod, json!({}));
        let late = added.as_ref().err().map(ToString::to_string);
        let is_late = |why: &String| why.contains("does not answer") || why.contains("in time");
        match late.filter(is_late) {
            Some(why) => {
                host.run(&format!("ip netns del {}", pod.replace('/', "-")));
                Err(why)
            }
            None => Ok(added),
        }
    })
}

/// A pod of each tenant on each host reaches the one of its tenant on the next host, and none of the other tenant, there
/// and on its own host.
fn tenants_are_apart(hosts: &[Node]) {
    apply(&hosts[0], &two_tenants());
    let knows = |host: &&Node| host.read(PLANS).is_some_and(|text| text.contains("fd00:33::/64"));
    soon("the networks on every host", || hosts.iter().filter(knows).count() == hosts.len());
    let start = |pod: &str| -> Vec<Pod> {
        let added = add_everywhere(hosts.iter(), pod).into_iter();
        added.map(|(host, pod)| pod.unwrap_or_else(|e| panic!("{}: {e}", host.name()))).collect()
    };
    let (blue, red) = (start("blue/of"), start("red/of"));
    let all = blue.iter().chain(&red);
    let addresses: BTreeSet<IpAddr> = all.clone().flat_map(Place::addresses).collect();
    assert_eq!(addresses.len(), 4 * hosts.len());
    std::thread::scope(|scope| {
        for here in 0..hosts.len() {
            let (blue, red) = (&blue, &red);
            scope.spawn(move || {
                let next = (here + 1) % blue.len();
                for (own, other) in [(blue, red), (red, blue)] {
                    let what = format!("{} reaches its tenant", own[here].label());
                    soon(&what, || reaches(&own[here], &own[next]));
                    for to in [&other[here], &other[next]] {
                        let (from, name) = (own[here].label(), to.label());
                        assert!(is_apart(&own[here], to), "{from} reaches {name}");
                    }
                }
            });
        }
    });
    blue.into_iter().chain(red).for_each(Pod::delete);
    println!("{} hosts, {} pods of two tenants", hosts.len(), 2 * hosts.len());
}

/// No two keys are about one address.
fn are_apart(cluster: &Cluster) -> bool {
    let held = blocks(cluster);
    let each: BTreeSet<&str> = held.iter().filter_map(|key| Some(key.split_once('/')?.1)).collect();
    each.len() == held.len()
}

#[test]
fn of_many_hosts_as_many_have_pods_as_there_are_blocks() {
    let given = std::env::var("TENANT_HOSTS").ok().and_then(|text| text.parse().ok());
    let cluster = Cluster::new(given.unwrap_or(HOSTS));
    let hosts = &cluster.hosts[..];
    // A power of two, half of the hosts at most: a pool has no other number of blocks.
    let room = 1 << (hosts.len() / 2).ilog2();
    let pool = subnet(room);
    let small = json!({"subnets": [pool], "blocks": {"v4": 29}});
    apply(
        &hosts[0],
        &[
            network("blue/small", small),
            namespace("blue", json!({"tenant": "blue", "network": "small"})),
        ],
    );
    let agents = cluster.start_agents(SOON_GIVEN_BACK);
    let (mut running, mut without) = (Vec::new(), Vec::new());
    for (host, added) in add_everywhere(hosts.iter(), "blue/first") {
        match added {
            Ok(pod) => running.push((host, pod)),
            Err(refused) => {
                assert_eq!(refused.code, 11, "{refused}");
                assert!(refused.to_string().contains(&format!("no block of {pool}")), "{refused}");
                without.push(host);
            }
        }
    }
    assert_eq!((running.len(), without.len()), (room, hosts.len() - room));
    let addresses: BTreeSet<IpAddr> = running.iter().map(|(_, pod)| pod.v4()).collect();
    assert_eq!(addresses.len(), room);
    soon("a key for each", || blocks(&cluster).len() == room && are_apart(&cluster));

    // A host that nobody reaches keeps its block, and starts pods there.
    let (away, pod) = running.remove(0);
    cluster.set_cable(away, false);
    let (first, freed) = running.remove(0);
    freed.delete();
    let next = eventually("the block that is free to have a pod again", SOON, || {
        let candidates = without.iter().copied();
        let added = add_everywhere(candidates, "blue/next").into_iter();
        let (got, refused): (Vec<_>, Vec<_>) = added.partition(|(_, added)| added.is_ok());
        refused.iter().for_each(|(host, _)| drop(host.run("ip netns del blue-next")));
        assert!(got.len() <= 1, "one block was free, and {} hosts have it", got.len());
        got.into_iter().next().ok_or_else(|| "none has it".to_owned())
    });
    assert_ne!(next.1.as_ref().ok().map(Pod::v4), Some(pod.v4()));
    let alone = try_add(away, "blue/alone", json!({})).unwrap();
    assert_ne!(alone.v4(), pod.v4());
    cluster.set_cable(away, true);

    // Everything ends: nothing is left, and the host that lost the race gets a block.
    pod.delete();
    alone.delete();
    running.into_iter().for_each(|(_, pod)| pod.delete());
    next.1.unwrap_or_else(|error| panic!("{error}")).delete();
    soon("all blocks to be given back", || blocks(&cluster).is_empty());
    let later = eventually("a block for the first again", SOON, || {
        first.run("ip netns del blue-later");
        try_add(first, "blue/later", json!({})).map_err(|error| error.to_string())
    });
    later.delete();
    tenants_are_apart(hosts);
    agents.iter().for_each(Agent::stop);
}
