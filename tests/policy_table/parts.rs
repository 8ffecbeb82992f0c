//! A table that was made part by part, one change after the other, is the one that is made at once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use humanz::nft::TableEdit;
use humanz::plan::policy_table::{FoundPolicy, PolicyPlan, plan};
use humanz::policy::compile::{Compiler, HostPolicy, MarkBits, PolicyTable, compile};
use humanz::policy::{Endpoint, Endpoints, Namespace, PolicySnapshot, Rules, evaluate};

use super::agreement::expected;
use super::interpreter::Packet;
use super::large;
use super::random::Random;
use super::steps::Kernel;
use super::world::{World, name, subnets};

const WORLDS: u64 = 400;
const CHANGES: usize = 12;
const CONNECTIONS: usize = 10;
const FIRST_EPOCH: u32 = 7 << 16;

/// The first host of a world that changes, with the values that its agent keeps from one look to the next.
pub struct Host {
    known: Arc<PolicySnapshot>,
    pods: Vec<Arc<Endpoint>>,
    /// Pods in quarantine, by their addresses.
    others: BTreeSet<IpAddr>,
    compiler: Compiler,
}

impl Host {
    pub fn new() -> Host {
        let (known, compiler) = (Arc::default(), Compiler::default());
        Host { known, pods: Vec::new(), others: BTreeSet::new(), compiler }
    }

    /// What is the same value stays the same in memory.
    pub fn look(&mut self, world: &World) {
        let mut known = (*world.known()).clone();
        known.share(&self.known);
        if known != *self.known {
            self.known = Arc::new(known);
        }
        let pods = world.local(0).into_iter().map(|pod| {
            let same = self.pods.iter().find(|before| ***before == pod);
            same.cloned().unwrap_or_else(|| Arc::new(pod))
        });
        self.pods = pods.collect();
    }

    /// The tables made part by part, and at once.
    pub fn tables(&mut self) -> [PolicyTable; 2] {
        let own = self.pods.iter().flat_map(|pod| &pod.addresses);
        let addresses = own.chain(&self.others).copied().collect();
        let host = HostPolicy {
            known: &self.known,
            pods: &Vec::from_iter(&self.pods),
            addresses: &addresses,
            subnets: &subnets(0),
            own: &BTreeSet::new(),
            mark_bits: MarkBits::DEFAULT,
            log_group: 71,
        };
        [self.compiler.compile(&host).clone(), compile(&host)]
    }
}

/// Something happens: to rules, labels, namespaces, pods of both hosts, or addresses.
fn change(random: &mut Random, world: &mut World) {
    let mut rules: Vec<_> = world.rules.iter().cloned().collect();
    let Endpoints { pods, .. } = &mut world.endpoints;
    let other = World::random(random);
    let place = random.below(pods.len());
    let new = &other.endpoints.pods[place % other.endpoints.pods.len()];
    match random.below(9) {
        0 => rules = other.rules.iter().cloned().collect(),
        1 => rules.extend(other.rules.iter().take(2).cloned()),
        2 => drop((!rules.is_empty()).then(|| rules.remove(random.below(rules.len())))),
        3 => pods[place].labels = new.labels.clone(),
        4 => pods[place].ports = new.ports.clone(),
        5 if pods.len() > 3 => drop(pods.remove(place)),
        6 => {
            pods.push(Endpoint { name: name(&format!("new{}", random.below(999))), ..new.clone() })
        }
        7 => {
            let of = pods[place].namespace.name().clone();
            let labels = other.endpoints.pods[0].labels.clone();
            let namespace = Arc::new(Namespace::new(of.clone(), labels));
            let same = pods.iter_mut().filter(|pod| *pod.namespace.name() == of);
            same.for_each(|pod| pod.namespace = Arc::clone(&namespace));
        }
        8 => pods[place].addresses = vec![random.one(&ADDRESSES).parse().unwrap()],
        _ => {}
    }
    *world = World::new(std::mem::take(&mut world.endpoints), Rules::new(rules));
}

/// In a host's subnets, and outside.
const ADDRESSES: [&str; 4] = ["10.244.1.77", "10.244.2.77", "fd00:10:1::77", "203.0.113.7"];

/// Makes the table of the kernel `wanted`; what is known of it without reading it again is what it is.
fn bring(kernel: &mut Kernel, known: &mut Option<FoundPolicy>, wanted: &PolicyTable) -> usize {
    let mut edits = 0;
    for _ in 0..3 {
        let next = plan(wanted, known.as_ref(), FIRST_EPOCH);
        let known = known.get_or_insert_with(FoundPolicy::empty);
        for transaction in &next.transactions {
            kernel.commit(transaction);
            known.note(transaction, wanted);
            edits += transaction.len();
        }
        let read = kernel.found();
        assert_eq!(plan(wanted, Some(known), 0), plan(wanted, Some(&read), 0));
        assert_eq!(known.counters(), read.counters());
        if next == PolicyPlan::default() {
            break;
        }
    }
    assert_eq!(plan(wanted, known.as_ref(), 0), PolicyPlan::default());
    edits
}

#[test]
fn a_table_made_part_by_part_is_the_one_made_at_once() {
    let (mut verdicts, mut silent) = (BTreeMap::<bool, usize>::new(), 0);
    for seed in 0..WORLDS {
        let mut random = Random::new(seed);
        let mut world = World::random(&mut random);
        let (mut host, mut kernel, mut found) = (Host::new(), Kernel::new(), None);
        for number in 0..CHANGES {
            host.look(&world);
            host.others = match random.chance(20) {
                true => [random.one(&ADDRESSES).parse().unwrap()].into(),
                false => BTreeSet::new(),
            };
            let [by_parts, at_once] = host.tables();
            assert_eq!(by_parts, at_once, "seed {seed}, change {number}");
            silent += usize::from(bring(&mut kernel, &mut found, &by_parts) == 0);
            let unique: BTreeSet<_> =
                world.endpoints.pods.iter().flat_map(|pod| &pod.addresses).collect();
            let all = world.endpoints.pods.iter().map(|pod| pod.addresses.len()).sum::<usize>();
            // `evaluate` knows one pod for each address, with both families.
            let is_plain = unique.len() == all && all == 2 * world.endpoints.pods.len();
            for _ in 0..if is_plain { CONNECTIONS } else { 0 } {
                let tuple = world.connection(&mut random);
                let judgement = evaluate(&world.rules, &world.endpoints, &tuple);
                let wanted = expected(&world, 0, &tuple, &judgement);
                let passes = Packet::first(tuple).at(0).passes(&kernel.ruleset);
                if host.others.is_empty() {
                    assert_eq!(passes, wanted, "seed {seed}, change {number}, {tuple}");
                    *verdicts.entry(passes).or_default() += 1;
                }
            }
            change(&mut random, &mut world);
        }
    }
    println!("denied and allowed {verdicts:?}; changes that change nothing here {silent}");
    assert!(verdicts[&false] > 1_000 && verdicts[&true] > 5_000 && silent > 100, "{verdicts:?}");
}

/// The elements that `plan` adds and removes; it changes nothing else but the epoch.
fn elements(plan: &PolicyPlan) -> [usize; 2] {
    let mut counts = [0, 0];
    for edit in plan.transactions.iter().flatten() {
        match edit {
            TableEdit::Elements(change) if change.set != "epoch" => {
                counts[0] += change.added.len();
                counts[1] += change.removed.len();
            }
            TableEdit::Elements(_) => {}
            TableEdit::Rules(chain) | TableEdit::AddChain(chain)
                if ["judged", "stamp"].contains(&&*chain.name) => {}
            other => panic!("{other:?}"),
        }
    }
    counts
}

/// So many parts of the two are not the same in memory.
fn renewed(before: &PolicyTable, after: &PolicyTable) -> usize {
    let sets = after.sets().iter().filter(|(name, set)| {
        before.sets().get(*name).is_none_or(|before| !Arc::ptr_eq(before, set))
    });
    let chains = after.chains().iter().filter(|(name, chain)| {
        before.chains().get(*name).is_none_or(|before| !Arc::ptr_eq(before, chain))
    });
    sets.count() + chains.count()
}

#[test]
fn a_change_touches_its_own_parts_alone() {
    let mut world = large::world(250, 1000, 3);
    let mut host = Host::new();
    let mut look = |world: &World| {
        host.look(world);
        host.tables()[0].clone()
    };
    let mut last = look(&world);
    let mut found = FoundPolicy::empty();
    plan(&last, None, FIRST_EPOCH).transactions.iter().for_each(|edits| found.note(edits, &last));
    let mut check = |world: &World, what: &str, wanted: [usize; 2], parts: usize| {
        let table = look(world);
        let plan = plan(&table, Some(&found), 0);
        assert_eq!(elements(&plan), wanted, "{what}");
        assert!(plan.transactions.len() <= 1, "{what}");
        plan.transactions.iter().for_each(|edits| found.note(edits, &table));
        assert!(renewed(&last, &table) <= parts, "{what}: {}", renewed(&last, &table));
        last = table;
    };
    check(&world, "nothing", [0, 0], 0);
    // Of both families: in, out, self, and three sets of peers.
    let pod = |world: &World, place: usize, addresses: [&str; 2]| Endpoint {
        name: name("more"),
        addresses: addresses.map(|text| text.parse().unwrap()).into(),
        ..world.endpoints.pods[place].clone()
    };
    let local = pod(&world, 7, ["10.244.1.252", "fd00:10:1::ffff"]);
    world.endpoints.pods.insert(7, local);
    let next = |world: &World| World::new(world.endpoints.clone(), world.rules.clone());
    check(&next(&world), "a pod of this host", [8, 0], 12);
    world.endpoints.pods.remove(7);
    check(&next(&world), "the same less", [0, 8], 12);
    let remote = pod(&world, 250 + 8, ["10.245.99.9", "fd00:10:2::ffff"]);
    world.endpoints.pods.push(remote);
    check(&next(&world), "a pod of another host", [2, 0], 2);
    world.endpoints.pods.pop();
    check(&next(&world), "the same less", [0, 2], 2);
}
