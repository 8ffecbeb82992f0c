//! Pure. The table after a transaction of its own, as it would be found.

use crate::nft::{Chain, FoundChain, FoundRule, FoundSet, FoundTable, NftRule, TableEdit};
use crate::plan::policy_table::FoundPolicy;
use crate::policy::compile::POLICY_TABLE;

/// Which handles the kernel gave to rules is not known.
const NO_HANDLE: u64 = 0;

impl FoundPolicy {
    /// A table without anything in it.
    pub fn empty() -> FoundPolicy {
        let table = FoundTable {
            name: POLICY_TABLE.to_owned(),
            dormant: false,
            sets: Vec::new(),
            flowtables: Vec::new(),
            chains: Vec::new(),
        };
        FoundPolicy { table, counters: Default::default() }
    }

    /// Makes it what it is after `edits`.
    pub fn note(&mut self, edits: &[TableEdit]) {
        edits.iter().for_each(|edit| self.note_one(edit));
    }

    fn note_one(&mut self, edit: &TableEdit) {
        let FoundTable { dormant, sets, flowtables, chains, .. } = &mut self.table;
        match edit {
            TableEdit::Table { .. } => *dormant = false,
            TableEdit::AddSet(set) => sets.push(FoundSet {
                name: set.name.clone(),
                shape: Some(set.shape.clone()),
                is_anonymous: false,
                elements: set.elements.clone(),
            }),
            TableEdit::Elements(change) => {
                for set in sets.iter_mut().filter(|set| set.name == change.set) {
                    set.elements.retain(|element| !change.removed.contains(element));
                    set.elements.extend(change.added.iter().cloned());
                }
            }
            TableEdit::AddCounter(name) => {
                self.counters.insert(name.clone());
            }
            TableEdit::AddChain(chain) => {
                if chains.iter().all(|found| found.name != chain.name) {
                    let (name, base) = (chain.name.clone(), chain.base.clone());
                    chains.push(FoundChain { name, base, rules: Vec::new() });
                }
            }
            TableEdit::Rules(chain) => fill(chains, &chain.name, || rules(chain)),
            TableEdit::Flush(name) => fill(chains, name, Vec::new),
            TableEdit::RemoveChain(name) => chains.retain(|chain| chain.name != *name),
            TableEdit::RemoveSet(name) => sets.retain(|set| set.name != *name),
            TableEdit::RemoveFlowtable(name) => flowtables.retain(|found| found.name != *name),
            TableEdit::RemoveCounter(name) => {
                self.counters.remove(name);
            }
        }
    }
}

fn fill(chains: &mut [FoundChain], name: &str, rules: impl Fn() -> Vec<FoundRule>) {
    chains.iter_mut().filter(|chain| chain.name == name).for_each(|chain| chain.rules = rules());
}

fn rules(chain: &Chain) -> Vec<FoundRule> {
    let found = |rule: &NftRule| FoundRule {
        handle: NO_HANDLE,
        comment: Some(rule.comment.clone()),
        fingerprint: Some(rule.fingerprint()),
    };
    chain.rules.iter().map(found).collect()
}
