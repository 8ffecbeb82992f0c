//! From one table to the next: no step opens anything, and a running connection that loses its
//! permission is cut by the last one.

use std::collections::BTreeSet;

use humanz::nft::{
    Action, Data, FoundChain, FoundRule, FoundSet, FoundTable, Match, Ruleset, Set, TableEdit,
    Verdict,
};
use humanz::plan::firewall::{TableChange, TableDifference};
use humanz::plan::policy_table::{FoundPolicy, PolicyPlan, plan};
use humanz::policy::compile::{POLICY_TABLE, PolicyTable, compile};
use humanz::policy::{Rules, Tuple};

use super::interpreter::Packet;
use super::random::Random;
use super::world::World;

const WORLDS: u64 = 1500;
const CONNECTIONS: usize = 25;
const FIRST_EPOCH: u32 = 7 << 16;

/// A table as the kernel keeps it.
#[derive(Clone)]
pub struct Kernel {
    pub ruleset: Ruleset,
    counters: BTreeSet<String>,
}

impl Kernel {
    pub fn new() -> Kernel {
        let ruleset = Ruleset {
            table: POLICY_TABLE.to_owned(),
            comment: String::new(),
            sets: Vec::new(),
            flowtable: None,
            chains: Vec::new(),
        };
        Kernel { ruleset, counters: BTreeSet::new() }
    }

    pub fn found(&self) -> FoundPolicy {
        let sets = self.ruleset.sets.iter().map(|set| FoundSet {
            name: set.name.clone(),
            shape: Some(set.shape.clone()),
            is_anonymous: false,
            elements: set.elements.clone(),
        });
        let chains = self.ruleset.chains.iter().map(|chain| FoundChain {
            name: chain.name.clone(),
            base: chain.base.clone(),
            rules: (1..)
                .zip(&chain.rules)
                .map(|(handle, rule)| FoundRule {
                    handle,
                    comment: Some(rule.comment.clone()),
                    fingerprint: Some(rule.fingerprint()),
                })
                .collect(),
        });
        let table = FoundTable {
            name: POLICY_TABLE.to_owned(),
            dormant: false,
            sets: sets.collect(),
            flowtables: Vec::new(),
            chains: chains.collect(),
        };
        FoundPolicy::new(table, self.counters.clone())
    }

    /// One transaction, refused as the kernel refuses.
    pub fn commit(&mut self, edits: &[TableEdit]) {
        let Ruleset { sets, chains, .. } = &mut self.ruleset;
        for edit in edits {
            match edit {
                TableEdit::Table { .. } => {}
                TableEdit::AddCounter(name) => assert!(self.counters.insert(name.clone())),
                TableEdit::RemoveCounter(name) => assert!(self.counters.remove(name)),
                TableEdit::AddSet(set) => {
                    assert!(sets.iter().all(|found| found.name != set.name), "{}", set.name);
                    check_size(set);
                    sets.push(set.clone());
                }
                TableEdit::RemoveSet(name) => sets.retain(|set| set.name != *name),
                TableEdit::Elements(change) => {
                    let set = sets.iter_mut().find(|set| set.name == change.set).unwrap();
                    change.removed.iter().for_each(|gone| assert!(set.elements.remove(gone)));
                    for new in &change.added {
                        assert!(set.elements.iter().all(|found| found.key != new.key));
                        set.elements.insert(new.clone());
                    }
                    check_size(set);
                }
                TableEdit::AddChain(chain) => {
                    if chains.iter().all(|found| found.name != chain.name) {
                        chains.push(chain.clone());
                    }
                }
                TableEdit::Rules(chain) => {
                    let found = chains.iter_mut().find(|found| found.name == chain.name).unwrap();
                    found.rules = chain.rules.clone();
                }
                TableEdit::MoreRules(chain) => {
                    let found = chains.iter_mut().find(|found| found.name == chain.name).unwrap();
                    found.rules.extend(chain.rules.iter().cloned());
                }
                TableEdit::Flush(name) => {
                    chains.iter_mut().find(|found| found.name == *name).unwrap().rules.clear();
                }
                TableEdit::RemoveChain(name) => chains.retain(|chain| chain.name != *name),
                TableEdit::RemoveFlowtable(name) => panic!("flow table {name}"),
            }
        }
        self.check_references();
    }

    /// Nothing refers to what is not there.
    fn check_references(&self) {
        let is_chain = |verdict: &Verdict| match verdict {
            Verdict::Jump(name) | Verdict::Goto(name) => {
                assert!(self.ruleset.chains.iter().any(|chain| chain.name == *name), "{name}");
            }
            _ => {}
        };
        let is_set = |name: &String| {
            assert!(self.ruleset.sets.iter().any(|set| set.name == *name), "{name}")
        };
        for rule in self.ruleset.chains.iter().flat_map(|chain| &chain.rules) {
            for condition in &rule.matches {
                match condition {
                    Match::In(_, set) | Match::NotIn(_, set) | Match::AllIn(_, set) => is_set(set),
                    _ => {}
                }
            }
            match &rule.action {
                Action::Verdict(verdict) => is_chain(verdict),
                Action::Count(counter, verdict) => {
                    assert!(self.counters.contains(counter), "{counter}");
                    is_chain(verdict);
                }
                Action::Deny(_, counter) => assert!(self.counters.contains(counter), "{counter}"),
                Action::VerdictMap(_, map) => is_set(map),
                _ => {}
            }
        }
        for element in self.ruleset.sets.iter().flat_map(|set| &set.elements) {
            if let Some(Data::Verdict(verdict)) = &element.data {
                is_chain(verdict);
            }
        }
    }

    fn passes(&self, tuple: Tuple) -> bool {
        Packet::first(tuple).at(0).passes(&self.ruleset)
    }
}

fn check_size(set: &Set) {
    let size = set.shape.size.map_or(usize::MAX, |size| size as usize);
    assert!(set.elements.len() <= size, "{} is full", set.name);
}

fn table(world: &World) -> PolicyTable {
    world.on_host(0, compile)
}

fn carry_out(kernel: &mut Kernel, plan: &PolicyPlan, mut between: impl FnMut(&Kernel)) {
    for edits in &plan.transactions {
        kernel.commit(edits);
        between(kernel);
    }
}

/// The world as it is after something happened.
fn next(random: &mut Random, world: &World) -> World {
    let mut endpoints = world.endpoints.clone();
    let mut rules: Vec<_> = world.rules.iter().cloned().collect();
    let other = World::random(random);
    match random.below(5) {
        0 => return World { endpoints, rules: other.rules, members: world.members.clone() },
        1 => {
            let place = random.below(endpoints.pods.len());
            endpoints.pods[place].labels = other.endpoints.pods[place].labels.clone();
        }
        2 => drop(endpoints.pods.remove(random.below(endpoints.pods.len()))),
        3 => rules.extend(other.rules.iter().take(2).cloned()),
        _ => drop((!rules.is_empty()).then(|| rules.remove(random.below(rules.len())))),
    }
    World::new(endpoints, Rules::new(rules))
}

/// Nothing that is wanted leads to it.
fn is_of_no_use(change: &TableChange) -> bool {
    matches!(change.difference, TableDifference::SetForeign(_) | TableDifference::ChainForeign(_))
}

#[test]
fn no_step_opens_what_is_denied_before_and_after() {
    let (mut cut, mut kept, mut in_place) = (0, 0, 0);
    for seed in 0..WORLDS {
        let mut random = Random::new(seed);
        let before = World::random(&mut random);
        let after = next(&mut random, &before);
        // A pod that comes is a pod that goes, backwards.
        let backwards = random.chance(30);
        let (before, after) = if backwards { (after, before) } else { (before, after) };
        let mut kernel = Kernel::new();
        let wanted = table(&after);
        // What is of no use any longer is left for a while, and may be wanted again.
        let earlier = match random.below(3) {
            0 => table(&next(&mut random, &before)),
            1 => wanted.clone(),
            _ => table(&before),
        };
        carry_out(&mut kernel, &plan(&earlier, None, FIRST_EPOCH), |_| {});
        let then = plan(&table(&before), Some(&kernel.found()), FIRST_EPOCH);
        carry_out(&mut kernel, &then, |_| {});
        let plan = plan(&wanted, Some(&kernel.found()), FIRST_EPOCH);
        in_place += usize::from(!plan.transactions.is_empty() && !plan.new_epoch);
        let tuples: Vec<Tuple> = (0..CONNECTIONS).map(|_| before.connection(&mut random)).collect();
        let mut running: Vec<Packet> =
            tuples.iter().map(|tuple| Packet::first(*tuple).at(0)).collect();
        let allowed: Vec<bool> =
            running.iter_mut().map(|packet| packet.passes(&kernel.ruleset)).collect();
        let mut done = kernel.clone();
        carry_out(&mut done, &plan, |_| {});
        let rest = super::steps::plan(&wanted, Some(&done.found()), FIRST_EPOCH);
        assert!(!rest.new_epoch, "seed {seed}");
        // Whoever does not wait for the rest finds everything in force.
        let mut at_once = Kernel::new();
        carry_out(&mut at_once, &super::steps::plan(&wanted, None, FIRST_EPOCH), |_| {});
        for tuple in &tuples {
            assert_eq!(done.passes(*tuple), at_once.passes(*tuple), "seed {seed}: {tuple}");
        }
        assert!(rest.changes.iter().all(is_of_no_use), "seed {seed}: {:?}", rest.changes);
        carry_out(&mut kernel, &plan, |step| {
            for (tuple, allowed) in tuples.iter().zip(&allowed) {
                let between = *allowed || done.passes(*tuple);
                assert!(between || !step.passes(*tuple), "seed {seed}: {tuple} passes in between");
            }
        });
        for (packet, allowed) in running.iter_mut().zip(&allowed).filter(|(_, allowed)| **allowed) {
            let tuple = packet.connection.unwrap().tuple;
            let goes_on = packet.passes(&kernel.ruleset);
            assert_eq!(goes_on, kernel.passes(tuple), "seed {seed}: {tuple} ran, {allowed}");
            if goes_on { kept += 1 } else { cut += 1 }
        }
        carry_out(&mut kernel, &rest, |_| {});
        let again = super::steps::plan(&wanted, Some(&kernel.found()), FIRST_EPOCH);
        assert_eq!(again, PolicyPlan::default(), "seed {seed}");
    }
    println!("running connections cut {cut}, kept {kept}; changes without a new epoch {in_place}");
    assert!(cut > 200 && kept > 1000 && in_place > 20, "{cut} {kept} {in_place}");
}

#[test]
fn a_new_epoch_is_one_change_to_read_about_unless_the_one_before_was_damaged() {
    let is_of_epoch = |change: &&TableChange| {
        let text = change.difference.to_string();
        ["set epoch", "chain judged", "chain stamp"].iter().any(|part| text.contains(part))
    };
    let mut epochs = 0;
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let before = World::random(&mut random);
        let wanted = table(&next(&mut random, &before));
        let mut kernel = Kernel::new();
        carry_out(&mut kernel, &plan(&table(&before), None, FIRST_EPOCH), |_| {});
        let whole = plan(&wanted, Some(&kernel.found()), FIRST_EPOCH);
        if !whole.new_epoch {
            continue;
        }
        epochs += 1;
        assert_eq!(whole.changes.iter().filter(is_of_epoch).count(), 1, "{:?}", whole.changes);
        let judged = kernel.ruleset.chains.iter_mut().find(|chain| chain.name == "judged");
        judged.unwrap().rules.clear();
        let repair = plan(&wanted, Some(&kernel.found()), FIRST_EPOCH);
        let said: Vec<String> =
            repair.changes.iter().filter(is_of_epoch).map(|it| it.difference.to_string()).collect();
        assert!(said.iter().any(|text| text.contains("chain judged")), "{said:?}");
        carry_out(&mut kernel, &repair, |_| {});
    }
    assert!(epochs > 50, "{epochs}");
}

#[test]
fn before_the_first_table_is_whole_the_kernel_does_not_call_it() {
    let world = World::random(&mut Random::new(3));
    let plan = plan(&table(&world), None, FIRST_EPOCH);
    let mut kernel = Kernel::new();
    kernel.commit(&plan.transactions[0]);
    assert!(kernel.ruleset.chains.iter().all(|chain| chain.base.is_none()));
    kernel.commit(&plan.transactions[1]);
    assert_eq!(plan.transactions.len(), 2);
    assert_eq!(plan.changes.len(), 1);
}

#[test]
fn a_pod_whose_rules_are_not_known_is_in_quarantine() {
    let mut world = World::random(&mut Random::new(1));
    world.rules = Rules::default();
    let (tuple, pod) = (0..)
        .map(|seed| world.connection(&mut Random::new(seed)))
        .find_map(|tuple| Some((tuple, world.endpoints.pod(tuple.source)?.clone())))
        .unwrap();
    let host = if pod.host.as_str() == "host1" { 0 } else { 1 };
    let table = |world: &World| world.on_host(host, compile).ruleset(FIRST_EPOCH);
    assert!(Packet::first(tuple).at(host).passes(&table(&world)));
    world.endpoints.pods.retain(|it| *it != pod);
    assert!(!Packet::first(tuple).at(host).passes(&table(&world)));
    // A packet of no connection reaches pods without rules only.
    let mut lost = Packet { connection: None, ..Packet::first(tuple) };
    assert!(!lost.passes(&table(&world)));
}
