//! Networks of tenants on many hosts with one etcd. `TENANT_HOSTS` is another number of hosts, at least 6.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::json;

use crate::etcd::apply;
use crate::support::cni::Failure;
use crate::support::wait::SOON;
use crate::support::{Agent, Cluster, Node, Place, Pod, eventually, soon};
use crate::tenants::{SOON_GIVEN_BACK, blocks, namespace, network, try_add};

const HOSTS: u8 = 12;

/// A pool of so many blocks of eight addresses.
fn subnet(blocks: usize) -> String {
    format!("10.35.0.0/{}", 29 - blocks.ilog2())
}

/// Starts a pod on each of `hosts` at once.
fn add_everywhere<'a>(
    hosts: impl Iterator<Item = &'a Node>,
    name: &str,
) -> Vec<(&'a Node, Result<Pod, Box<Failure>>)> {
    std::thread::scope(|scope| {
        let adding: Vec<_> = hosts
            .map(|host| {
                let pod = format!("blue/{name}");
                (host, scope.spawn(move || try_add(host, &pod, json!({}))))
            })
            .collect();
        adding.into_iter().map(|(host, pod)| (host, pod.join().unwrap())).collect()
    })
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
    for (host, added) in add_everywhere(hosts.iter(), "first") {
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
        let added = add_everywhere(candidates, "next").into_iter();
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
    agents.iter().for_each(Agent::stop);
}
