//! Pure. The table as it was found, and what differs from the one wanted.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::nft::{
    Chain, Element, Flowtable, FoundChain, FoundRule, FoundSet, FoundTable, NftRule, Set, Shape,
};
use crate::plan::firewall::{TableDifference, chain_differences, set_difference};
use crate::plan::policy_table::in_epoch::InEpoch;
use crate::policy::compile::{EPOCH_CHAINS, EPOCH_SET, POLICY_TABLE, PolicyTable};

/// The table as it was found, or as it is after what was done to it here.
#[derive(Clone, Debug)]
pub struct FoundPolicy {
    pub(super) dormant: bool,
    pub(super) flowtables: Vec<Flowtable>,
    pub(super) sets: BTreeMap<String, TablePart<Set, FoundSet>>,
    pub(super) chains: BTreeMap<String, TablePart<Chain, FoundChain>>,
    pub(super) counters: Arc<BTreeSet<String>>,
}

/// A set or chain.
#[derive(Clone, Debug)]
pub(super) enum TablePart<M, R> {
    /// As a compiler made it.
    Made(Arc<M>),
    /// As it was read.
    Read(R),
}

/// Which handles the kernel gave to rules that were made here is not known.
const NO_HANDLE: u64 = 0;

impl FoundPolicy {
    /// A set without a name of its own belongs to a rule and goes with it.
    pub fn new(table: FoundTable, counters: BTreeSet<String>) -> FoundPolicy {
        let FoundTable { dormant, sets, flowtables, chains, .. } = table;
        let named = sets.into_iter().filter(|set| !set.is_anonymous);
        FoundPolicy {
            dormant,
            flowtables,
            sets: named.map(|set| (set.name.clone(), TablePart::Read(set))).collect(),
            chains: chains.into_iter().map(|it| (it.name.clone(), TablePart::Read(it))).collect(),
            counters: Arc::new(counters),
        }
    }

    /// A table without anything in it.
    pub fn empty() -> FoundPolicy {
        FoundPolicy {
            dormant: false,
            flowtables: Vec::new(),
            sets: BTreeMap::new(),
            chains: BTreeMap::new(),
            counters: Arc::default(),
        }
    }

    /// As the kernel would say it, but for the handles of rules.
    pub fn table(&self) -> FoundTable {
        let sets = self.sets.values().map(|set| match set {
            TablePart::Made(set) => FoundSet {
                name: set.name.clone(),
                shape: Some(set.shape.clone()),
                is_anonymous: false,
                elements: set.elements.clone(),
            },
            TablePart::Read(set) => set.clone(),
        });
        let chains = self.chains.values().map(|chain| match chain {
            TablePart::Made(chain) => read_back(chain),
            TablePart::Read(chain) => chain.clone(),
        });
        FoundTable {
            name: POLICY_TABLE.to_owned(),
            dormant: self.dormant,
            sets: sets.collect(),
            flowtables: self.flowtables.clone(),
            chains: chains.collect(),
        }
    }

    pub fn counters(&self) -> &Arc<BTreeSet<String>> {
        &self.counters
    }

    /// What was read and is as in `wanted` becomes the same values.
    pub fn share(&mut self, wanted: &PolicyTable) {
        for (name, set) in wanted.sets() {
            let found = self.sets.get_mut(name);
            if let Some(found) = found.filter(|found| set_differences(set, found).is_none()) {
                *found = TablePart::Made(Arc::clone(set));
            }
        }
        for (name, chain) in wanted.chains() {
            let found = self.chains.get_mut(name);
            if let Some(found) = found.filter(|it| rules_differences(chain, it).is_empty()) {
                *found = TablePart::Made(Arc::clone(chain));
            }
        }
        self.share_counters(wanted);
    }

    pub(super) fn share_counters(&mut self, wanted: &PolicyTable) {
        if self.counters == *wanted.counters() {
            self.counters = Arc::clone(wanted.counters());
        }
    }

    /// Everything but what depends on the epoch.
    pub(super) fn differences(&self, wanted: &PolicyTable) -> Vec<TableDifference> {
        let mut differences = Vec::new();
        differences.extend(self.dormant.then_some(TableDifference::Dormant));
        if !self.flowtables.is_empty() {
            differences.push(TableDifference::Flowtable(self.flowtables.clone(), None));
        }
        for (name, wanted, found) in changed(wanted.sets(), &self.sets) {
            differences.extend(match (wanted, found) {
                (Some(wanted), Some(found)) => set_differences(wanted, found),
                (Some(_), None) => Some(TableDifference::SetMissing(name.clone())),
                (None, _) if name == EPOCH_SET => None,
                (None, _) => Some(TableDifference::SetForeign(name.clone())),
            });
        }
        for (name, wanted, found) in changed(wanted.chains(), &self.chains) {
            differences.extend(match (wanted, found) {
                (Some(wanted), Some(found)) => rules_differences(wanted, found),
                (Some(_), None) => vec![TableDifference::ChainMissing(name.clone())],
                (None, _) if EPOCH_CHAINS.contains(&&**name) => Vec::new(),
                (None, _) => vec![TableDifference::ChainForeign(name.clone())],
            });
        }
        differences
    }

    /// What depends on the epoch.
    pub(super) fn differences_of_epoch(&self, wanted: InEpoch<'_>) -> Vec<TableDifference> {
        let set = wanted.table.epoch_set(wanted.epoch);
        let set = match self.sets.get(EPOCH_SET) {
            Some(found) => set_differences(&Arc::new(set), found),
            None => Some(TableDifference::SetMissing(EPOCH_SET.to_owned())),
        };
        let chains =
            wanted.chains().into_iter().flat_map(|chain| match self.chains.get(&chain.name) {
                Some(found) => rules_differences(&Arc::new(chain), found),
                None => vec![TableDifference::ChainMissing(chain.name)],
            });
        set.into_iter().chain(chains).collect()
    }

    /// The shape of a set, if it could be read, and its elements.
    pub(super) fn set(&self, name: &str) -> Option<(Option<&Shape>, &BTreeSet<Element>)> {
        Some(match self.sets.get(name)? {
            TablePart::Made(set) => (Some(&set.shape), &set.elements),
            TablePart::Read(set) => (set.shape.as_ref(), &set.elements),
        })
    }

    pub(super) fn set_names(&self) -> impl Iterator<Item = &String> {
        self.sets.keys()
    }

    pub(super) fn chain_names(&self) -> impl Iterator<Item = &String> {
        self.chains.keys()
    }

    pub(super) fn flowtables(&self) -> &[Flowtable] {
        &self.flowtables
    }
}

fn set_differences(wanted: &Arc<Set>, found: &TablePart<Set, FoundSet>) -> Option<TableDifference> {
    match found {
        TablePart::Made(found) if Arc::ptr_eq(found, wanted) => None,
        TablePart::Made(found) => set_difference(wanted, (Some(&found.shape), &found.elements)),
        TablePart::Read(found) => set_difference(wanted, (found.shape.as_ref(), &found.elements)),
    }
}

fn rules_differences(
    wanted: &Arc<Chain>,
    found: &TablePart<Chain, FoundChain>,
) -> Vec<TableDifference> {
    match found {
        TablePart::Made(found) if Arc::ptr_eq(found, wanted) || found == wanted => Vec::new(),
        TablePart::Made(found) => chain_differences(wanted, &read_back(found)),
        TablePart::Read(found) => chain_differences(wanted, found),
    }
}

fn read_back(chain: &Chain) -> FoundChain {
    let rule = |rule: &NftRule| FoundRule {
        handle: NO_HANDLE,
        comment: Some(rule.comment.clone()),
        fingerprint: Some(rule.fingerprint()),
    };
    let rules = chain.rules.iter().map(rule).collect();
    FoundChain { name: chain.name.clone(), base: chain.base.clone(), rules }
}

/// A part's name, the part as it is wanted, and as it was found.
type BothParts<'a, M, R> = (&'a String, Option<&'a Arc<M>>, Option<&'a TablePart<M, R>>);

/// The parts of both by name, in its order, but for those that are the same in memory.
fn changed<'a, M, R>(
    wanted: &'a BTreeMap<String, Arc<M>>,
    found: &'a BTreeMap<String, TablePart<M, R>>,
) -> impl Iterator<Item = BothParts<'a, M, R>> {
    let (mut wanted, mut found) = (wanted.iter().peekable(), found.iter().peekable());
    std::iter::from_fn(move || {
        while let (Some((_, part)), Some((_, TablePart::Made(made)))) =
            (wanted.peek(), found.peek())
            && Arc::ptr_eq(part, made)
        {
            wanted.next();
            found.next();
        }
        let order = match (wanted.peek(), found.peek()) {
            (Some((wanted, _)), Some((found, _))) => wanted.cmp(found),
            (Some(_), None) => Ordering::Less,
            (None, _) => Ordering::Greater,
        };
        let one = if order.is_le() { wanted.next() } else { None };
        let other = if order.is_ge() { found.next() } else { None };
        let name = one.map(|(name, _)| name).or(other.map(|(name, _)| name))?;
        Some((name, one.map(|(_, part)| part), other.map(|(_, part)| part)))
    })
}
