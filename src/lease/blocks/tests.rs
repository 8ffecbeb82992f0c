use proptest::prelude::*;

use super::session::{BlockInputs, BlockSession, WantedBlocks};
use super::*;
use crate::lease::transaction::{Condition, Write};

const POOLS: [&str; 2] = ["10.32.0.0/16", "10.33.0.0/24"];

fn roots() -> Roots {
    Roots { hosts: "/h".to_owned(), counter: "/c".to_owned(), humanz: "/z".to_owned() }
}

fn pools() -> Vec<IpNetwork> {
    POOLS.map(|pool| pool.parse().unwrap()).into()
}

fn found(keys: &[(&str, i64)]) -> FoundBlocks {
    let mut found = FoundBlocks::default();
    keys.iter().for_each(|(key, created)| found.put(&roots(), key.as_bytes(), *created));
    found
}

/// Owners as `h1 10.32.0.0/26`, then faults.
fn check(keys: &[(&str, i64)], owners: &[&str], faults: &[&str]) {
    let owned = found(keys).owned(&pools());
    let found: Vec<String> = owned
        .by_host
        .iter()
        .flat_map(|(host, blocks)| blocks.iter().map(move |block| format!("{host} {block}")))
        .collect();
    assert_eq!(found, owners);
    let found: Vec<String> = owned.faults.iter().map(ToString::to_string).collect();
    assert_eq!(found, faults);
}

#[test]
fn the_key_that_was_created_first_counts() {
    check(
        &[("/z-blocks/h1/10.32.0.64-26", 9), ("/z-blocks/h2/10.32.0.64-26", 7)],
        &["h2 10.32.0.64/26"],
        &[
            "host h1: block 10.32.0.64/26 is ignored: it overlaps 10.32.0.64/26 of host h2, which had it first",
        ],
    );
    check(
        &[("/z-blocks/evil/10.32.0.0-17", 9), ("/z-blocks/h2/10.32.0.64-26", 7)],
        &["h2 10.32.0.64/26"],
        &[
            "host evil: block 10.32.0.0/17 is ignored: it overlaps 10.32.0.64/26 of host h2, which had it first",
        ],
    );
    // One transaction creates one key; a store that was copied key by key is still decided the same everywhere.
    check(
        &[("/z-blocks/h2/10.32.0.64-26", 7), ("/z-blocks/h1/10.32.0.64-26", 7)],
        &["h1 10.32.0.64/26"],
        &[
            "host h2: block 10.32.0.64/26 is ignored: it overlaps 10.32.0.64/26 of host h1, which had it first",
        ],
    );
}

#[test]
fn what_is_no_part_of_a_network_does_not_count() {
    check(
        &[
            ("/z-blocks/h1/10.244.1.0-24", 3),
            ("/z-blocks/h1/10.33.0.0-24", 4),
            ("/z-blocks/h1/0.0.0.0-0", 5),
            ("/z-blocks/h1/fd00::-64", 6),
            ("/z-blocks/h1/10.33.0.192-26", 7),
        ],
        &["h1 10.33.0.192/26"],
        &[
            "host h1: block 10.244.1.0/24 is ignored: it is part of no network",
            "host h1: block 10.33.0.0/24 is ignored: it is part of no network",
            "host h1: block 0.0.0.0/0 is ignored: it is part of no network",
            "host h1: block fd00::/64 is ignored: it is part of no network",
        ],
    );
}

#[test]
fn hostile_keys_are_few_and_short_and_go_when_they_are_deleted() {
    let mut all = FoundBlocks::default();
    let key = |number: u32| format!("/z-blocks/\u{1b}[2J{number}{}", "x".repeat(1 << 16));
    (0..1000).for_each(|number| all.put(&roots(), key(number).as_bytes(), 3));
    let problems = all.owned(&pools()).problems(&"h1".parse().unwrap(), &BTreeSet::new());
    assert_eq!(problems.len(), 51);
    assert!(problems.iter().all(|problem| problem.to_string().len() < 1000));
    assert!(problems.iter().all(|problem| !problem.to_string().contains('\u{1b}')));
    (0..1000).for_each(|number| all.delete(&roots(), key(number).as_bytes()));
    assert_eq!(all.owned(&pools()).faults, []);
}

#[test]
fn a_host_with_very_many_keys_keeps_the_first_and_stops_no_other_host() {
    let mut all = found(&[("/z-blocks/h2/10.32.255.252-30", 90_000)]);
    for number in 0..5000u32 {
        let key = format!("/z-blocks/evil/10.32.{}.{}-30", number / 64, number % 64 * 4);
        all.put(&roots(), key.as_bytes(), i64::from(number) + 1);
    }
    let owned = all.owned(&pools());
    assert_eq!(owned.of(&"evil".parse().unwrap()).len(), MOST_OF_HOST);
    assert_eq!(owned.of(&"h2".parse().unwrap()).len(), 1);
    assert_eq!(owned.faults, [BlockFault::TooMany { host: "evil".parse().unwrap() }]);
}

#[test]
fn what_etcd_lost_is_remembered_of_others_alone() {
    let own: NodeName = "h1".parse().unwrap();
    let before = found(&[("/z-blocks/h1/10.32.0.0-26", 3), ("/z-blocks/h2/10.32.0.64-26", 4)]);
    let mut now = found(&[("/z-blocks/h3/10.32.0.64-26", 2)]);
    now.remembering(&before, &own);
    assert_eq!(now.of(&own).next(), None);
    assert_eq!(now.of(&"h2".parse().unwrap()).collect::<Vec<_>>().len(), 1);
}

#[test]
fn a_block_is_taken_by_creation_and_given_back_by_its_host() {
    let (host, block) = ("h1".parse().unwrap(), "10.32.0.64/26".parse().unwrap());
    let taken = take(&roots(), &host, block, &front(Some(5)), &store(8));
    assert_eq!(
        taken.needs(),
        "write /z-blocks/h1/10.32.0.64-26; read /z-blocks/h1/10.32.0.64-26, /z-policies/Network/blue/front, \
         /z/config, /z/nodes/h1"
    );
    // The network is as the host knows it.
    let key = "/z-policies/Network/blue/front".to_owned();
    assert!(taken.conditions.contains(&Condition::Unchanged { key, modified: 5 }));
    let given = give_back(&roots(), &host, (block, 9), 8);
    // A request that etcd makes late takes no block away that this host has again.
    let key = roots().block(&host, block);
    assert!(given.conditions.contains(&Condition::Created { key, created: 9 }));
    assert!(given.deletes() && !taken.deletes());
}

#[test]
fn free_blocks_are_found_from_a_slot_on_the_first_one_included() {
    let pool = Pool::new("10.33.0.0/24".parse().unwrap(), 2).unwrap();
    let all = [
        ("/z-blocks/h1/10.33.0.64-26", 3),
        ("/z-blocks/h2/10.33.0.128-26", 4),
        ("/z-blocks/h3/10.33.0.192-26", 5),
    ];
    let free = |keys: &[(&str, i64)], start, but: &[&str]| {
        let but: Vec<IpNetwork> = but.iter().map(|text| text.parse().unwrap()).collect();
        let block = found(keys).owned(&pools()).free(&pool, start, &but);
        block.map(|block| block.to_string())
    };
    assert_eq!(free(&[], 0, &[]).as_deref(), Some("10.33.0.0/26"));
    assert_eq!(free(&[], 7, &[]).as_deref(), Some("10.33.0.192/26"));
    assert_eq!(free(&all[..1], 1, &[]).as_deref(), Some("10.33.0.128/26"));
    assert_eq!(free(&all, 2, &[]).as_deref(), Some("10.33.0.0/26"));
    assert_eq!(free(&all, 2, &["10.33.0.0/26"]), None);
    assert_eq!(
        free(&[("/z-blocks/h1/10.33.0.128-25", 3)], 3, &[]).as_deref(),
        Some("10.33.0.0/26")
    );
}

proptest! {
    /// Hosts take blocks by what they saw at some earlier revision; whoever reads all keys up to its own finds
    /// one owner for each address, and the first one stays it, whatever is written later.
    #[test]
    fn no_address_has_two_owners(writes in proptest::collection::vec((0u8..5, 0u32..64, 24u8..=28), 1..60)) {
        let mut all = FoundBlocks::default();
        let mut had: BTreeMap<NodeName, Vec<IpNetwork>> = BTreeMap::new();
        for (revision, (host, slot, prefix)) in (1i64..).zip(writes) {
            let host: NodeName = format!("h{host}").parse().unwrap();
            let first = std::net::Ipv4Addr::from(0x0a20_0000 + slot * 16);
            let block = subnet::masked(IpNetwork::new(first.into(), prefix).unwrap());
            let key = roots().block(&host, block);
            if all.of(&host).any(|(held, _)| held == block) {
                continue;
            }
            all.put(&roots(), key.as_bytes(), revision);
            let owned = all.owned(&pools());
            let blocks: Vec<IpNetwork> = owned.by_host.values().flatten().copied().collect();
            for (place, one) in blocks.iter().enumerate() {
                prop_assert!(blocks[..place].iter().all(|other| !subnet::overlap(*one, *other)));
            }
            for (host, blocks) in &had {
                prop_assert!(owned.of(host).starts_with(blocks), "{host} lost what it had");
            }
            had = owned.by_host;
        }
    }
}

proptest! {
    /// Keys come, go, are written again, lie over each other and are no blocks: what is known of owners is what
    /// all keys say.
    #[test]
    fn known_owners_are_those_of_all_keys(
        changes in proptest::collection::vec((0u8..4, 0u32..32, 25u8..=28, 0u8..8), 1..80),
    ) {
        let (mut session, _) = session();
        for (revision, (host, slot, prefix, what)) in (1i64..).zip(changes) {
            let host: NodeName = format!("h{host}").parse().unwrap();
            let first = std::net::Ipv4Addr::from(0x0a20_ff00 + slot * 16);
            let block = subnet::masked(IpNetwork::new(first.into(), prefix).unwrap());
            let key = roots().block(&host, block);
            let created = session.found.created(&host, block).unwrap_or(revision);
            match what {
                0 => session.change(b"/z-blocks/none", Some(revision), revision),
                1 => session.change(key.as_bytes(), Some(revision), revision),
                2..=4 => session.change(key.as_bytes(), None, revision),
                _ => session.change(key.as_bytes(), Some(created), revision),
            }
            let pools = if what == 7 { pools() } else { pools()[..1].to_vec() };
            prop_assert_eq!(&*session.owned(&pools), &session.found.owned(&pools));
        }
    }
}

fn front(revision: Option<i64>) -> BlockNetwork {
    BlockNetwork { name: "blue/front".into(), revision }
}

/// Its record is as written at that revision.
fn store(record: i64) -> KnownStore {
    KnownStore { record, record_created: 2, settings: 1, id: "one".into() }
}

/// A host `h1` that wants a block of the second pool.
fn session() -> (BlockSession, BlockInputs) {
    let host: NodeName = "h1".parse().unwrap();
    let session = BlockSession::new(roots(), host, BTreeSet::new(), FoundBlocks::default());
    let addresses: IpNetwork = POOLS[1].parse().unwrap();
    let pool = Pool::new(addresses, 2).unwrap();
    let wanted = vec![WantedBlocks { network: front(Some(4)), addresses, pool, count: 1 }];
    let inputs = BlockInputs {
        store: Some(store(2)),
        pools: pools(),
        are_read: true,
        wanted,
        ..BlockInputs::default()
    };
    (session, inputs)
}

/// What `session` writes next: `+10.33.0.0/26`, `-10.33.0.0/26`.
fn writes(session: &mut BlockSession, inputs: &BlockInputs) -> Vec<String> {
    let owned = session.owned(&inputs.pools);
    session.adopt(&owned, inputs);
    let writes = session.writes(&owned, inputs);
    writes.iter().for_each(|write| session.committed(write));
    let sign = |takes| if takes { '+' } else { '-' };
    writes.iter().map(|write| format!("{}{}", sign(write.takes), write.block)).collect()
}

#[test]
fn a_block_whose_key_was_deleted_before_it_was_read_is_asked_for_again() {
    let (mut session, inputs) = session();
    session.read(FoundBlocks::default(), 5);
    let first = writes(&mut session, &inputs);
    assert_eq!(first.len(), 1);
    assert_eq!(writes(&mut session, &inputs), Vec::<String>::new(), "it is asked for");
    let block: IpNetwork = first[0][1..].parse().unwrap();
    let key = roots().block(&"h1".parse().unwrap(), block);
    session.change(key.as_bytes(), Some(6), 7);
    session.change(key.as_bytes(), None, 7);
    assert_eq!(writes(&mut session, &inputs), first);
}

#[test]
fn a_key_of_this_host_in_an_older_snapshot_is_not_its_block_again() {
    let (mut session, mut inputs) = session();
    inputs.wanted.clear();
    session.read(FoundBlocks::default(), 50);
    session.read(found(&[("/z-blocks/h1/10.33.0.64-26", 7)]), 9);
    assert!(session.waits());
    assert_eq!(writes(&mut session, &inputs), ["-10.33.0.64/26"]);
    assert!(session.own.is_empty());
}

#[test]
fn a_host_whose_keys_are_gone_puts_them_back_and_takes_none_until_others_had_the_time_to() {
    let (mut session, inputs) = session();
    let own = "/z-blocks/h1/10.32.0.64-26";
    session.read(found(&[(own, 7), ("/z-blocks/h2/10.33.0.0-26", 8)]), 9);
    assert_eq!(writes(&mut session, &inputs).len(), 1);
    session.read(FoundBlocks::default(), 30);
    assert!(session.waits());
    assert_eq!(session.found.owned(&pools()).of(&"h2".parse().unwrap()).len(), 1, "it is known");
    let owned = session.found.owned(&inputs.pools);
    let back = session.writes(&owned, &inputs);
    let network = |it: &Condition| {
        let Condition::Unchanged { key, .. } = it else { return false };
        key.starts_with("/z-policies/")
    };
    // Networks may be lost with the blocks, and pods run on.
    assert!(!back.iter().flat_map(|it| &it.transaction.conditions).any(network));
    assert_eq!(writes(&mut session, &inputs), ["+10.32.0.64/26"]);
}

/// The networks' objects may be lost with the blocks: those that come back find whose they are.
#[test]
fn a_key_that_is_put_back_names_its_network_although_no_pod_waits() {
    let (mut session, mut inputs) = session();
    inputs.wanted.clear();
    session.read(found(&[("/z-blocks/h1/10.32.0.64-26", 7)]), 9);
    assert_eq!(writes(&mut session, &inputs), Vec::<String>::new());
    session.read(FoundBlocks::default(), 30);
    let put = |inputs: &BlockInputs| {
        let writes = session.clone().writes(&session.found.owned(&inputs.pools), inputs);
        writes.into_iter().flat_map(|it| it.transaction.writes).find_map(|write| match write {
            Write::Put { value, .. } => Some(value),
            _ => None,
        })
    };
    assert_eq!(put(&inputs).as_deref(), Some("-"), "no host knows the network");
    inputs.names = vec![(POOLS[0].parse().unwrap(), "blue/front".to_owned())];
    assert_eq!(put(&inputs).as_deref(), Some("blue/front"));
}

#[test]
fn a_host_whose_record_was_not_lost_waits_all_the_same_once_etcd_was_rebuilt() {
    let (mut session, mut inputs) = session();
    inputs.wanted.clear();
    session.read(FoundBlocks::default(), 5);
    assert!(writes(&mut session, &inputs).is_empty() && !session.waits());
    inputs.store = Some(KnownStore { settings: 7, ..store(2) });
    assert!(
        writes(&mut session, &inputs).is_empty() && !session.waits(),
        "only the pool has grown"
    );
    inputs.store = Some(KnownStore { settings: 8, id: "two".into(), ..store(2) });
    assert!(writes(&mut session, &inputs).is_empty() && session.waits());
}

#[test]
fn a_block_of_pods_that_another_host_has_is_a_problem_until_they_are_gone() {
    let (mut session, mut inputs) = session();
    inputs.wanted.clear();
    inputs.names = vec![(POOLS[0].parse().unwrap(), "blue/front".to_owned())];
    let [own, theirs] = ["h1", "h9"].map(|host| format!("/z-blocks/{host}/10.32.0.64-26"));
    let problems = |session: &mut BlockSession, inputs: &BlockInputs| -> Vec<String> {
        let owned = session.owned(&inputs.pools);
        session.adopt(&owned, inputs);
        let problems = session.owners(&owned, inputs).problems;
        problems
            .iter()
            .map(|it| format!("{}: {}: {}", it.kind.name(), it.subject, it.what))
            .collect()
    };
    session.read(found(&[(&own, 7)]), 9);
    assert!(problems(&mut session, &inputs).is_empty());
    let wanted = "lease: block 10.32.0.64/26: block 10.32.0.64/26 of network blue/front, in which pods of this host have \
        addresses, belongs to host h9 in etcd; this host keeps it for them, and no new pod starts in it";
    session.read(found(&[(&theirs, 20)]), 21);
    assert_eq!(problems(&mut session, &inputs), [wanted]);
    // A key of its own that came later is no second problem.
    session.change(own.as_bytes(), Some(22), 22);
    assert_eq!(problems(&mut session, &inputs), [wanted]);
    let mut without_pods = inputs.clone();
    without_pods.released.insert("10.32.0.64/26".parse().unwrap());
    assert!(problems(&mut session.clone(), &without_pods).is_empty());
    session.change(own.as_bytes(), None, 23);
    session.change(theirs.as_bytes(), None, 24);
    assert!(problems(&mut session, &inputs).is_empty());
}
