//! Pure. The policy table: what differs from the one found, and the transactions that change it.
//!
//! No state between two of them opens anything: programs and the sets that they look into come first,
//! then everything that decides changes at once, with a new epoch if a running connection may have
//! lost its permission. What nothing uses any longer goes with the next plan.
//!
//! A packet is judged by the rules of the moment in which it came, and by what sets and maps hold when
//! it is looked up. A map that leads to a program of the same transaction leads such a packet to a
//! chain that has no rules yet (measured on Linux 6.18: 2 of 987,332 packets in 318 changes), and a
//! program that goes in the transaction after its last use has none any longer.

mod after;

use std::collections::BTreeSet;

use crate::nft::set::DataType;
use crate::nft::{
    Action, Chain, ElementChange, FoundTable, NftRule, Ruleset, Set, TableEdit, Value,
};
use crate::plan::firewall::{TableChange, TableDifference, changes};
use crate::policy::compile::{EPOCH_SET, FORWARD_CHAIN, INPUT_CHAIN, PolicyTable};

/// The table as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundPolicy {
    pub table: FoundTable,
    /// Its named counters.
    pub counters: BTreeSet<String>,
}

/// What is to be done to the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyPlan {
    pub changes: Vec<TableChange>,
    pub transactions: Vec<Vec<TableEdit>>,
    /// Every connection is judged again.
    pub new_epoch: bool,
}

/// The differences between `wanted` and `found` (`None`: there is no such table), and what makes
/// them good. `first_epoch`: the mark of a table that has none; a random one, because connections may
/// bear marks of an earlier table.
pub fn plan(wanted: &PolicyTable, found: Option<&FoundPolicy>, first_epoch: u32) -> PolicyPlan {
    let Some(found) = found else {
        let ruleset = wanted.ruleset(first_epoch);
        let changes = changes(Some(&ruleset), None);
        return PolicyPlan { changes, transactions: creation(wanted, &ruleset), new_epoch: true };
    };
    let epoch = epoch(wanted, &found.table);
    let present = wanted.ruleset(epoch.unwrap_or(first_epoch));
    let changed = changes(Some(&present), Some(&found.table));
    let missing = |name: &&String| !found.counters.contains(*name);
    let counters: Vec<String> = wanted.counters().iter().filter(missing).cloned().collect();
    let unused: Vec<String> = found.counters.difference(wanted.counters()).cloned().collect();
    if changed.is_empty() && counters.is_empty() && unused.is_empty() {
        return PolicyPlan::default();
    }
    let new_epoch = epoch.is_none() || changed.iter().any(|it| takes_away(wanted, &it.difference));
    let (ruleset, changes) = match epoch.filter(|_| new_epoch) {
        None => (present, changed),
        Some(epoch) => {
            let next = wanted.ruleset(wanted.mark_bits().next(epoch));
            let changed = changes(Some(&next), Some(&found.table));
            (next, changed)
        }
    };
    let differences: Vec<&TableDifference> = changes.iter().map(|it| &it.difference).collect();
    let is_replaced = |difference: &&TableDifference| {
        matches!(difference, TableDifference::SetDiffers(_) | TableDifference::Flowtable(..))
    };
    let transactions = match differences.iter().any(is_replaced) {
        true => vec![replacement(wanted, &ruleset, &found.table)],
        false => steps(&ruleset, &differences, counters, unused),
    };
    PolicyPlan { changes, transactions, new_epoch }
}

/// The mark of the epoch found, if it is one.
fn epoch(wanted: &PolicyTable, found: &FoundTable) -> Option<u32> {
    let set = found.sets.iter().find(|set| set.name == EPOCH_SET)?;
    match set.elements.iter().map(|element| &element.key[..]).collect::<Vec<_>>()[..] {
        [[Value::Bits(mark)]] if wanted.mark_bits().is_epoch(*mark) => Some(*mark),
        _ => None,
    }
}

/// A connection that was allowed may no longer be. Programs, whose chains are new or of no use, say
/// nothing: the maps do that lead to them.
fn takes_away(wanted: &PolicyTable, difference: &TableDifference) -> bool {
    match difference {
        TableDifference::SetForeign(_)
        | TableDifference::ChainForeign(_)
        | TableDifference::SetMissing(_) => false,
        TableDifference::ChainMissing(name) => [FORWARD_CHAIN, INPUT_CHAIN].contains(&&**name),
        TableDifference::Elements(change) => {
            !change.removed.is_empty() || wanted.denies(&change.set)
        }
        _ => true,
    }
}

/// Makes the table where there is none: the chain that the kernel calls comes last, when everything
/// is in place.
fn creation(wanted: &PolicyTable, ruleset: &Ruleset) -> Vec<Vec<TableEdit>> {
    let table = TableEdit::Table { comment: ruleset.comment.clone() };
    let (called, inner): (Vec<&Chain>, Vec<&Chain>) =
        ruleset.chains.iter().partition(|chain| chain.base.is_some());
    let (maps, sets): (Vec<&Set>, Vec<&Set>) = ruleset.sets.iter().partition(|set| is_map(set));
    let counters = wanted.counters().iter().cloned().map(TableEdit::AddCounter);
    let inside = [table]
        .into_iter()
        .chain(counters)
        .chain(sets.into_iter().cloned().map(TableEdit::AddSet))
        .chain(inner.iter().map(|chain| TableEdit::AddChain(empty(chain))))
        .chain(maps.into_iter().cloned().map(TableEdit::AddSet))
        .chain(inner.iter().map(|chain| TableEdit::Rules((*chain).clone())));
    vec![inside.collect(), filled(&called)]
}

/// Everything anew in one transaction, where a name is taken by something of another kind.
fn replacement(wanted: &PolicyTable, ruleset: &Ruleset, found: &FoundTable) -> Vec<TableEdit> {
    let named = || found.sets.iter().filter(|set| !set.is_anonymous);
    let emptied = found.chains.iter().map(|chain| TableEdit::Flush(chain.name.clone()));
    let sets = named().map(|set| TableEdit::RemoveSet(set.name.clone()));
    let chains = found.chains.iter().map(|chain| TableEdit::RemoveChain(chain.name.clone()));
    let flowtables = found.flowtables.iter();
    let flowtables = flowtables.map(|it| TableEdit::RemoveFlowtable(it.name.clone()));
    let removed = emptied.chain(flowtables).chain(sets).chain(chains);
    removed.chain(creation(wanted, ruleset).concat()).collect()
}

fn steps(
    ruleset: &Ruleset,
    differences: &[&TableDifference],
    counters: Vec<String>,
    unused: Vec<String>,
) -> Vec<Vec<TableEdit>> {
    let mut parts = Parts::default();
    differences.iter().for_each(|difference| parts.note(difference));
    let is_missing = |set: &&&Set| parts.missing_sets.contains(&set.name);
    let (maps, sets): (Vec<&Set>, Vec<&Set>) =
        ruleset.sets.iter().filter(|set| is_missing(&set)).partition(|set| is_map(set));
    let rewritten: Vec<&Chain> =
        ruleset.chains.iter().filter(|chain| parts.chains.contains(&chain.name)).collect();
    let first = counters.into_iter().map(TableEdit::AddCounter);
    let (programs, rewritten): (Vec<&Chain>, Vec<&Chain>) =
        rewritten.into_iter().partition(|chain| parts.is_new_program(chain));
    let first = first.chain(sets.into_iter().cloned().map(TableEdit::AddSet));
    let first = first.chain(filled(&programs));
    let (made, refilled): (Vec<_>, Vec<_>) =
        filled(&rewritten).into_iter().partition(|edit| matches!(edit, TableEdit::AddChain(_)));
    let rebased = parts
        .rebased
        .iter()
        .flat_map(|name| [TableEdit::Flush(name.clone()), TableEdit::RemoveChain(name.clone())]);
    let second = rebased
        .chain(made)
        .chain(maps.into_iter().cloned().map(TableEdit::AddSet))
        .chain(refilled)
        .chain(parts.elements.into_iter().map(TableEdit::Elements));
    let awake = parts.is_dormant.then(|| TableEdit::Table { comment: ruleset.comment.clone() });
    let emptied = parts.foreign_chains.iter().cloned().map(TableEdit::Flush);
    let last = emptied
        .chain(parts.foreign_sets.into_iter().map(TableEdit::RemoveSet))
        .chain(parts.foreign_chains.iter().cloned().map(TableEdit::RemoveChain))
        .chain(unused.into_iter().map(TableEdit::RemoveCounter));
    let steps: [Vec<TableEdit>; 3] =
        [first.collect(), second.collect(), awake.into_iter().collect()];
    let steps: Vec<_> = steps.into_iter().filter(|edits| !edits.is_empty()).collect();
    if steps.is_empty() { vec![last.collect()] } else { steps }
}

/// What differs, by what is to be done about it.
#[derive(Default)]
struct Parts {
    missing_sets: BTreeSet<String>,
    elements: Vec<ElementChange>,
    /// To be made, or filled anew.
    chains: BTreeSet<String>,
    missing_chains: BTreeSet<String>,
    /// With another hook.
    rebased: Vec<String>,
    is_dormant: bool,
    foreign_chains: Vec<String>,
    foreign_sets: Vec<String>,
}

impl Parts {
    /// It can be made whole before anything leads to it.
    fn is_new_program(&self, chain: &Chain) -> bool {
        let looks_up = |rule: &NftRule| matches!(rule.action, Action::VerdictMap(..));
        self.missing_chains.contains(&chain.name)
            && chain.base.is_none()
            && !chain.rules.iter().any(looks_up)
    }

    fn note(&mut self, difference: &TableDifference) {
        match difference {
            TableDifference::Dormant => self.is_dormant = true,
            TableDifference::SetMissing(name) => {
                self.missing_sets.insert(name.clone());
            }
            TableDifference::SetForeign(name) => self.foreign_sets.push(name.clone()),
            TableDifference::ChainForeign(name) => self.foreign_chains.push(name.clone()),
            TableDifference::Elements(change) => self.elements.push(change.clone()),
            TableDifference::ChainDiffers(name, ..) => {
                self.rebased.push(name.clone());
                self.chains.insert(name.clone());
            }
            TableDifference::ChainMissing(name) => {
                self.missing_chains.insert(name.clone());
                self.chains.insert(name.clone());
            }
            TableDifference::RuleMissing(name, _)
            | TableDifference::RuleForeign(name, ..)
            | TableDifference::RulesDisordered(name) => {
                self.chains.insert(name.clone());
            }
            TableDifference::Missing
            | TableDifference::Unwanted
            | TableDifference::SetDiffers(_)
            | TableDifference::Flowtable(..) => {}
        }
    }
}

/// Makes the chains where they are missing, and their rules anew.
fn filled(chains: &[&Chain]) -> Vec<TableEdit> {
    let made = chains.iter().map(|chain| TableEdit::AddChain(empty(chain)));
    made.chain(chains.iter().map(|chain| TableEdit::Rules((*chain).clone()))).collect()
}

fn empty(chain: &Chain) -> Chain {
    Chain { rules: Vec::new(), ..chain.clone() }
}

fn is_map(set: &Set) -> bool {
    set.shape.data == Some(DataType::Verdict)
}
