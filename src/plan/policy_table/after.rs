//! Pure. The table after a transaction of its own, as it would be found.

use std::sync::Arc;

use crate::nft::{Chain, ElementChange, FoundSet, Set, TableEdit};
use crate::plan::policy_table::found::{FoundPolicy, TablePart};
use crate::policy::compile::PolicyTable;

impl FoundPolicy {
    /// Makes it what it is after `edits`, which make it `wanted`, or a part of the way.
    pub fn note(&mut self, edits: &[TableEdit], wanted: &PolicyTable) {
        edits.iter().for_each(|edit| self.note_one(edit, wanted));
        let is_counter = |edit: &TableEdit| {
            matches!(edit, TableEdit::AddCounter(_) | TableEdit::RemoveCounter(_))
        };
        if edits.iter().any(is_counter) {
            self.share_counters(wanted);
        }
    }

    fn note_one(&mut self, edit: &TableEdit, wanted: &PolicyTable) {
        match edit {
            TableEdit::Table { .. } => self.dormant = false,
            TableEdit::AddSet(set) => {
                let made = wanted.sets().get(&set.name).cloned();
                let made = made.unwrap_or_else(|| Arc::new(set.clone()));
                self.sets.insert(set.name.clone(), TablePart::Made(made));
            }
            TableEdit::Elements(change) => self.note_elements(change, wanted),
            TableEdit::AddCounter(name) => {
                Arc::make_mut(&mut self.counters).insert(name.clone());
            }
            TableEdit::AddChain(chain) => {
                let made =
                    || TablePart::Made(Arc::new(Chain { rules: Vec::new(), ..chain.clone() }));
                self.chains.entry(chain.name.clone()).or_insert_with(made);
            }
            TableEdit::Rules(chain) => {
                let made = wanted.chains().get(&chain.name).cloned();
                let made = made.unwrap_or_else(|| Arc::new(chain.clone()));
                self.chains.insert(chain.name.clone(), TablePart::Made(made));
            }
            TableEdit::MoreRules(more) => {
                if let Some(TablePart::Made(chain)) = self.chains.get_mut(&more.name) {
                    Arc::make_mut(chain).rules.extend(more.rules.iter().cloned());
                }
            }
            TableEdit::Flush(name) => match self.chains.get_mut(name) {
                Some(TablePart::Made(chain)) => Arc::make_mut(chain).rules.clear(),
                Some(TablePart::Read(chain)) => chain.rules.clear(),
                None => {}
            },
            TableEdit::RemoveChain(name) => drop(self.chains.remove(name)),
            TableEdit::RemoveSet(name) => drop(self.sets.remove(name)),
            TableEdit::RemoveFlowtable(name) => self.flowtables.retain(|it| it.name != *name),
            TableEdit::RemoveCounter(name) => {
                Arc::make_mut(&mut self.counters).remove(name);
            }
        }
    }

    /// A plan changes a set once: afterwards it is as wanted.
    fn note_elements(&mut self, change: &ElementChange, wanted: &PolicyTable) {
        if let Some(set) = wanted.sets().get(&change.set) {
            self.sets.insert(change.set.clone(), TablePart::Made(Arc::clone(set)));
            return;
        }
        let elements = match self.sets.get_mut(&change.set) {
            Some(TablePart::Made(set)) => &mut Arc::<Set>::make_mut(set).elements,
            Some(TablePart::Read(FoundSet { elements, .. })) => elements,
            None => return,
        };
        elements.retain(|element| !change.removed.contains(element));
        elements.extend(change.added.iter().cloned());
    }
}
