//! Networks of tenants as objects in etcd, and what plugins go by then.

use std::collections::BTreeSet;

use humanz::net::Family;
use humanz::net::subnet::{self, contains};
use humanz::policy::network_plan::NetworkPlans;
use humanz::policy::{Networks, ObjectSource, TenantNetwork};
use humanz::sources::{StoredPolicies, WrittenValue};

/// Lines `path=value`, the path below the range of policies; a value `-` deletes the key.
pub fn networks(data: &[u8]) {
    let mut stored = StoredPolicies::default();
    for (line, revision) in data.split(|byte| *byte == b'\n').zip(1..=64) {
        let mut halves = line.splitn(2, |byte| *byte == b'=');
        let (path, value) = (halves.next().unwrap_or_default(), halves.next().unwrap_or_default());
        let value = WrittenValue { bytes: value.to_vec(), revision };
        stored.set(path, (value.bytes != b"-").then_some(value));
    }
    let read = stored.read("/p/", ObjectSource::Etcd);
    for problem in &read.problems {
        let text = format!("{} {problem}", problem.subject);
        assert!(text.len() < 4_000 && !text.chars().any(char::is_control), "{text:?}");
    }
    let default = subnet::parse("10.244.0.0/16").expect("a subnet");
    let networks = read.networks.beside(vec![default]);
    networks.iter().for_each(|(_, network)| cut(network));
    let text = serde_json::to_vec(&networks).expect("names are always JSON");
    assert_eq!(serde_json::from_slice::<Networks>(&text).ok().as_ref(), Some(&networks));
    let of = |network: &TenantNetwork| {
        network.pools.iter().map(|pool| pool.pool().subnet(0)).collect::<Vec<_>>()
    };
    let blocks: BTreeSet<_> = networks.iter().flat_map(|(_, network)| of(network)).collect();
    let families = [Family::V4, Family::V6];
    let plans = {
        let closed = Default::default();
        NetworkPlans::of("net", &networks, Some(&read.cluster), &blocks, &families, &closed)
    };
    let overlaps = networks.overlaps();
    for (name, _) in networks.iter() {
        let plan = plans.as_ref().and_then(|plans| plans.get(name));
        let shares = overlaps.iter().any(|it| it.network == *name || it.other == *name);
        assert!(plan.is_none_or(|(_, plan)| plan.refused.is_some() == shares), "{name}: {plan:?}");
    }
    if let Some(plans) = plans {
        super::questions::plans(&plans);
    }
}

/// Its blocks and what is kept for pins are parts of it.
fn cut(network: &TenantNetwork) {
    for pool in network.pools.iter() {
        let (all, blocks) = (pool.network(), pool.pool());
        assert_eq!(all, subnet::masked(all), "bits of a host");
        assert!(blocks.slots() > 1, "{all}: no room");
        for slot in [0, blocks.slots() - 1] {
            let block = blocks.subnet(slot);
            assert!(contains(all, block) && block != all, "{block} of {all}");
        }
    }
    for range in network.pins.iter() {
        assert!(network.networks().any(|pool| contains(pool, *range)), "{range}");
    }
}
