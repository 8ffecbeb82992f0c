//! Pure. The smallest repair of a table.
//!
//! A table is not written anew to repair a part of it: while the kernel commits a transaction, sets
//! of ranges made in it answer that they hold nothing (measured on Linux 6.18), and a connection that
//! begins then keeps a wrong address for life. Sets that are missing are made, with their elements,
//! in a transaction before the one with the rules that look into them.

use std::collections::BTreeSet;

use crate::nft::{Chain, ElementChange, Ruleset, TableEdit};
use crate::plan::firewall::changes::{TableChange, TableDifference};

/// The smallest repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableRepair {
    Nothing,
    /// Only elements of sets differ: a host joined or left.
    Elements(Vec<ElementChange>),
    /// These transactions, one after the other.
    Edits(Vec<Vec<TableEdit>>),
    /// The whole table is written: it has a flow table, and no sets.
    Replace,
    Delete,
}

/// The smallest repair that makes all `changes` of the table `wanted`.
pub fn repair(wanted: Option<&Ruleset>, changes: &[TableChange]) -> TableRepair {
    let differences: Vec<&TableDifference> =
        changes.iter().map(|change| &change.difference).collect();
    let Some(wanted) = wanted.filter(|_| !differences.is_empty()) else {
        return if differences.is_empty() { TableRepair::Nothing } else { TableRepair::Delete };
    };
    if wanted.flowtable.is_some() {
        return TableRepair::Replace;
    }
    if differences.contains(&&TableDifference::Missing) {
        return TableRepair::Edits(creation(wanted));
    }
    let elements: Vec<ElementChange> = differences.iter().filter_map(elements).collect();
    if elements.len() == differences.len() {
        return TableRepair::Elements(elements);
    }
    let is_dormant = differences.contains(&&TableDifference::Dormant);
    let wake = is_dormant.then(|| vec![table(wanted)]);
    let steps = [missing_sets(wanted, &differences), parts(wanted, &differences)];
    let steps = steps.into_iter().chain(wake);
    TableRepair::Edits(steps.filter(|edits| !edits.is_empty()).collect())
}

/// The transactions that make the table `wanted` where there is none: chains last.
pub fn creation(wanted: &Ruleset) -> Vec<Vec<TableEdit>> {
    let sets = wanted.sets.iter().cloned().map(TableEdit::AddSet);
    let sets = [table(wanted)].into_iter().chain(sets).collect();
    vec![sets, filled(wanted.chains.iter())]
}

fn table(wanted: &Ruleset) -> TableEdit {
    TableEdit::Table { comment: wanted.comment.clone() }
}

fn elements(difference: &&TableDifference) -> Option<ElementChange> {
    match difference {
        TableDifference::Elements(change) => Some(change.clone()),
        _ => None,
    }
}

fn missing_sets(wanted: &Ruleset, differences: &[&TableDifference]) -> Vec<TableEdit> {
    let is_missing =
        |name: &String| differences.contains(&&TableDifference::SetMissing(name.clone()));
    let missing = wanted.sets.iter().filter(|set| is_missing(&set.name));
    missing.cloned().map(TableEdit::AddSet).collect()
}

/// Everything else that differs. Rules go before the sets that they look into and the chains that
/// they call, and come after.
fn parts(wanted: &Ruleset, differences: &[&TableDifference]) -> Vec<TableEdit> {
    let mut emptied = BTreeSet::new();
    let (mut removed_sets, mut removed_chains, mut refilled) = (vec![], vec![], vec![]);
    let (mut replaced_sets, mut changed, mut lacking) = (vec![], vec![], vec![]);
    for difference in differences {
        match difference {
            TableDifference::SetForeign(name) => {
                removed_sets.push(TableEdit::RemoveSet(name.clone()));
            }
            TableDifference::SetDiffers(name) => replaced_sets.push(name),
            TableDifference::Elements(change) => changed.push(TableEdit::Elements(change.clone())),
            TableDifference::ChainForeign(name) => {
                emptied.insert(name);
                removed_chains.push(TableEdit::RemoveChain(name.clone()));
            }
            TableDifference::ChainDiffers(name, ..) => {
                emptied.insert(name);
                removed_chains.push(TableEdit::RemoveChain(name.clone()));
                refilled.push(name);
            }
            TableDifference::ChainMissing(name)
            | TableDifference::RuleMissing(name, _)
            | TableDifference::RuleForeign(name, ..)
            | TableDifference::RulesDisordered(name) => refilled.push(name),
            TableDifference::RulesLacking(chain) => {
                lacking.push(TableEdit::MoreRules(chain.clone()));
            }
            TableDifference::Flowtable(found, _) => {
                let names = found.iter().map(|flowtable| flowtable.name.clone());
                removed_sets.extend(names.map(TableEdit::RemoveFlowtable));
            }
            TableDifference::Missing
            | TableDifference::Unwanted
            | TableDifference::Dormant
            | TableDifference::SetMissing(_) => {}
        }
    }
    let is_missing =
        |chain: &Chain| differences.contains(&&TableDifference::ChainMissing(chain.name.clone()));
    let refilled: Vec<&Chain> = match replaced_sets.is_empty() {
        true => wanted.chains.iter().filter(|chain| refilled.contains(&&chain.name)).collect(),
        // Rules of any chain may look into them.
        false => wanted.chains.iter().collect(),
    };
    emptied.extend(refilled.iter().filter(|chain| !is_missing(chain)).map(|chain| &chain.name));
    let emptied = emptied.into_iter().cloned().map(TableEdit::Flush);
    let is_replaced = |name: &String| replaced_sets.contains(&name);
    let replaced = wanted.sets.iter().filter(|set| is_replaced(&set.name));
    let replaced = replaced
        .flat_map(|set| [TableEdit::RemoveSet(set.name.clone()), TableEdit::AddSet(set.clone())]);
    let edits = emptied.chain(removed_sets).chain(removed_chains).chain(replaced).chain(changed);
    edits.chain(filled(refilled.into_iter())).chain(lacking).collect()
}

/// Makes the chains where they are missing, and their rules anew.
fn filled<'a>(chains: impl Iterator<Item = &'a Chain> + Clone) -> Vec<TableEdit> {
    let empty = |chain: &Chain| Chain { rules: Vec::new(), ..chain.clone() };
    let made = chains.clone().map(|chain| TableEdit::AddChain(empty(chain)));
    made.chain(chains.cloned().map(TableEdit::Rules)).collect()
}
