//! Ten thousand hosts, each with a block of twenty networks: what one of them computes.

use std::collections::BTreeSet;
use std::time::Instant;

use humanz::lease::blocks::known_store::KnownStore;
use humanz::lease::blocks::session::{BlockInputs, BlockSession, WantedBlocks};
use humanz::lease::blocks::{BlockNetwork, FoundBlocks};
use humanz::lease::records::{NodeName, Roots};
use humanz::net::subnet::{self, Pool};
use humanz::sources::KeptBlocks;
use ipnetwork::IpNetwork;

use crate::scale::status;

const HOSTS: u32 = 10_000;

/// Half of them IPv4, half IPv6; each has room for 16,384 blocks at least.
const NETWORKS: u32 = 20;

fn roots() -> Roots {
    Roots { hosts: "/h".to_owned(), counter: "/c".to_owned(), humanz: "/z".to_owned() }
}

fn pool(network: u32) -> Pool {
    let text = match network % 2 {
        0 => format!("10.{}.0.0/12", network / 2 * 16),
        _ => format!("fd00:{network:x}::/98"),
    };
    let pool: IpNetwork = text.parse().unwrap();
    let block = if pool.is_ipv4() { 26 } else { 122 };
    Pool::new(pool, block - pool.prefix()).unwrap()
}

fn host(number: u32) -> NodeName {
    format!("node-{number:05}.example.com").parse().unwrap()
}

/// All keys, in the order of their creation.
fn keys(roots: &Roots) -> impl Iterator<Item = (String, i64)> {
    let pools: Vec<Pool> = (0..NETWORKS).map(pool).collect();
    let each = (0..NETWORKS).flat_map(|network| (0..HOSTS).map(move |number| (network, number)));
    each.zip(1..).map(move |((network, number), created)| {
        let block = pools[network as usize].subnet(number);
        (roots.block(&host(number), block), created)
    })
}

fn inputs(count: usize) -> BlockInputs {
    let wanted = |network| WantedBlocks {
        network: BlockNetwork { name: format!("blue/n{network}"), revision: Some(3) },
        addresses: pool(network).network(),
        pool: pool(network),
        count,
    };
    let store = KnownStore { record: 2, record_created: 2, settings: 1, id: "one".into() };
    BlockInputs {
        are_read: true,
        store: Some(store),
        pools: (0..NETWORKS).map(|network| pool(network).network()).collect(),
        wanted: (0..NETWORKS).map(wanted).collect(),
        ..BlockInputs::default()
    }
}

#[test]
fn a_host_among_ten_thousand_takes_blocks_of_twenty_networks() {
    let (roots, own) = (roots(), host(HOSTS));
    let (before, begun) = (status("RssAnon"), Instant::now());
    let mut found = FoundBlocks::default();
    keys(&roots).for_each(|(key, created)| found.put(&roots, key.as_bytes(), created));
    println!("{} keys parsed in {:?}", HOSTS * NETWORKS, begun.elapsed());
    let nothing = (BTreeSet::new(), FoundBlocks::default());
    let mut session = BlockSession::new(roots.clone(), own.clone(), nothing.0, nothing.1);
    let mut revision = i64::from(HOSTS * NETWORKS);
    session.read(found, revision);
    println!("memory + {} KiB", status("RssAnon").saturating_sub(before));
    let inputs = inputs(1);
    let settle = |session: &mut BlockSession| {
        let begun = Instant::now();
        let owned = session.owned(&inputs.pools);
        assert_eq!(owned.faults, []);
        session.adopt(&owned, &inputs);
        let writes = session.writes(&owned, &inputs);
        writes.iter().for_each(|write| session.committed(write));
        let owners = session.owners(&owned, &inputs);
        println!("{} writes and all owners in {:?}", writes.len(), begun.elapsed());
        assert_eq!(owners.others.len(), HOSTS as usize);
        writes
    };
    let writes = settle(&mut session);
    let taken: BTreeSet<IpNetwork> = writes.iter().map(|write| write.block).collect();
    assert_eq!((writes.len(), taken.len()), (NETWORKS as usize, NETWORKS as usize));
    for block in &taken {
        revision += 1;
        session.change(roots.block(&own, *block).as_bytes(), Some(revision), revision);
    }
    assert!(settle(&mut session).is_empty());
    assert_eq!(session.own, taken);
    // Another host takes the next one: every host learns of it.
    let theirs = (0..HOSTS * 2).map(|slot| pool(0).subnet(HOSTS + slot % 6000));
    let theirs = theirs.into_iter().find(|it| !taken.iter().any(|own| subnet::overlap(*own, *it)));
    let key = roots.block(&host(7), theirs.unwrap());
    session.change(key.as_bytes(), Some(revision + 1), revision + 1);
    assert!(settle(&mut session).is_empty());
    let folder = tempfile::tempdir().unwrap();
    let kept = KeptBlocks { own: session.own.clone(), found: session.found.clone() };
    let begun = Instant::now();
    kept.write(folder.path(), &roots, &own).unwrap();
    let bytes = std::fs::metadata(folder.path().join("blocks.json")).unwrap().len();
    let took = begun.elapsed();
    let begun = Instant::now();
    assert_eq!(KeptBlocks::read(folder.path(), &roots, &own), kept);
    println!("kept in {took:?}, {bytes} bytes, read in {:?}", begun.elapsed());
}
