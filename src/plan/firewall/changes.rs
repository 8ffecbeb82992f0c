//! Pure. The differences between the table found and the one wanted.

use std::collections::BTreeSet;

use crate::net::gather::Gather;
use crate::nft::{
    Base, Chain, Element, ElementChange, Flowtable, FoundChain, FoundRule, FoundTable, NftRule,
    Ruleset, Set, Shape,
};

/// One difference between the table wanted and the table found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableChange {
    pub table: String,
    pub difference: TableDifference,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableDifference {
    Missing,
    Unwanted,
    /// The table is switched off.
    Dormant,
    ChainMissing(String),
    /// A chain that is not wanted.
    ChainForeign(String),
    /// The hook or policy of a chain: as found and as wanted.
    ChainDiffers(String, String, String),
    /// Chain and rule.
    RuleMissing(String, String),
    /// A rule that is not wanted: chain, handle, and comment if it has one.
    RuleForeign(String, u64, Option<String>),
    /// These rules are missing in a chain whose other rules stay, wanted or not.
    RulesLacking(Chain),
    /// The rules of a chain are in another order.
    RulesDisordered(String),
    SetMissing(String),
    /// A set that is not wanted.
    SetForeign(String),
    /// A set of another type.
    SetDiffers(String),
    Elements(ElementChange),
    /// The flow tables as found and as wanted.
    Flowtable(Vec<Flowtable>, Option<Flowtable>),
}

/// What differs between `wanted` (`None`: no table) and `found` (`None`: there is none).
pub fn changes(wanted: Option<&Ruleset>, found: Option<&FoundTable>) -> Vec<TableChange> {
    let (table, differences) = match (wanted, found) {
        (None, None) => return Vec::new(),
        (None, Some(found)) => (&found.name, vec![TableDifference::Unwanted]),
        (Some(wanted), None) => (&wanted.table, vec![TableDifference::Missing]),
        (Some(wanted), Some(found)) => (&wanted.table, differences(wanted, found)),
    };
    let change = |difference| TableChange { table: table.clone(), difference };
    differences.into_iter().map(change).collect()
}

fn differences(wanted: &Ruleset, found: &FoundTable) -> Vec<TableDifference> {
    let mut differences = Vec::new();
    if found.dormant {
        differences.push(TableDifference::Dormant);
    }
    for set in &wanted.sets {
        let present = found.sets.iter().find(|present| present.name == set.name);
        differences.extend(match present {
            Some(present) => set_difference(set, (present.shape.as_ref(), &present.elements)),
            None => Some(TableDifference::SetMissing(set.name.clone())),
        });
    }
    let flowtables: Vec<&Flowtable> = wanted.flowtable.iter().collect();
    if !found.flowtables.iter().eq(flowtables.iter().copied()) {
        let found = found.flowtables.clone();
        differences.push(TableDifference::Flowtable(found, wanted.flowtable.clone()));
    }
    for chain in &wanted.chains {
        match found.chains.iter().find(|present| present.name == chain.name) {
            Some(present) => differences.extend(chain_differences(chain, present)),
            None => differences.push(TableDifference::ChainMissing(chain.name.clone())),
        }
    }
    // One without a name belongs to a rule and goes with it.
    for set in found.sets.iter().filter(|set| !set.is_anonymous) {
        if !wanted.sets.iter().any(|wanted| wanted.name == set.name) {
            differences.push(TableDifference::SetForeign(set.name.clone()));
        }
    }
    for chain in &found.chains {
        if !wanted.chains.iter().any(|wanted| wanted.name == chain.name) {
            differences.push(TableDifference::ChainForeign(chain.name.clone()));
        }
    }
    differences
}

/// What differs between a set and the one found, of this shape with these elements.
pub fn set_difference(
    wanted: &Set,
    (shape, elements): (Option<&Shape>, &BTreeSet<Element>),
) -> Option<TableDifference> {
    let name = || wanted.name.clone();
    if shape != Some(&wanted.shape) {
        return Some(TableDifference::SetDiffers(name()));
    }
    if wanted.elements == *elements {
        return None;
    }
    let lacking = |all: &BTreeSet<Element>, from: &BTreeSet<Element>| {
        all.difference(from).cloned().gather::<BTreeSet<_>>()
    };
    let added = lacking(&wanted.elements, elements);
    let removed = match elements.len() + added.len() == wanted.elements.len() {
        true => BTreeSet::new(),
        false => lacking(elements, &wanted.elements),
    };
    let shape = wanted.shape.clone();
    Some(TableDifference::Elements(ElementChange { set: name(), shape, added, removed }))
}

/// What differs between a chain and the one found.
pub fn chain_differences(wanted: &Chain, found: &FoundChain) -> Vec<TableDifference> {
    let name = || wanted.name.clone();
    let mut differences = Vec::new();
    if found.base != wanted.base {
        let text = |base: &Option<Base>| {
            base.as_ref().map_or_else(|| "no hook".to_owned(), ToString::to_string)
        };
        let (is, wanted) = (text(&found.base), text(&wanted.base));
        differences.push(TableDifference::ChainDiffers(name(), is, wanted));
    }
    differences.extend(rule_differences(wanted, &found.rules));
    differences
}

fn rule_differences(wanted: &Chain, found: &[FoundRule]) -> Vec<TableDifference> {
    let name = || wanted.name.clone();
    let prints: Vec<Option<u64>> =
        wanted.rules.iter().map(|rule| Some(rule.fingerprint())).collect();
    let present: Vec<Option<u64>> = found.iter().map(|rule| rule.fingerprint).collect();
    if prints == present {
        return Vec::new();
    }
    let missing = |(rule, print): (&NftRule, &Option<u64>)| {
        (!present.contains(print)).then(|| TableDifference::RuleMissing(name(), rule.to_string()))
    };
    let mut differences: Vec<_> = wanted.rules.iter().zip(&prints).filter_map(missing).collect();
    for (place, rule) in found.iter().enumerate() {
        let again = present[..place].contains(&rule.fingerprint);
        if again || !prints.contains(&rule.fingerprint) {
            let comment = rule.comment.clone();
            differences.push(TableDifference::RuleForeign(name(), rule.handle, comment));
        }
    }
    if differences.is_empty() {
        differences.push(TableDifference::RulesDisordered(name()));
    }
    differences
}

#[cfg(test)]
mod tests;
