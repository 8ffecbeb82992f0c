//! The changes that the agent made lately, and a live view of them.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::watch as latest;

/// How many changes are kept, and how many repairs.
const KEPT: usize = 200;

/// A change that was carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    /// Counts from 1.
    pub number: u64,
    pub at: SystemTime,
    /// What, as in the log: `added route 10.1.2.0/24 via 192.0.2.7`.
    pub what: String,
    /// The trigger of the reconcile.
    pub why: String,
    /// It repairs a change by another program.
    pub repair: bool,
}

/// The latest changes.
#[derive(Debug)]
pub struct Journal {
    kept: Mutex<KeptEntries>,
    /// Number of the last change.
    last: latest::Sender<u64>,
}

#[derive(Debug, Default)]
struct KeptEntries {
    changes: VecDeque<JournalEntry>,
    repairs: VecDeque<JournalEntry>,
    last: u64,
}

impl Default for Journal {
    fn default() -> Journal {
        Journal { kept: Mutex::default(), last: latest::channel(0).0 }
    }
}

impl Journal {
    /// Notes changes of one reconcile, in order: what, and whether it is a repair. Only the last ones of
    /// very many are kept.
    pub fn note(&self, what: impl ExactSizeIterator<Item = (String, bool)>, why: &str) {
        if what.len() == 0 {
            return;
        }
        let mut kept = self.kept();
        let at = SystemTime::now();
        let skipped = what.len().saturating_sub(KEPT);
        kept.last += skipped as u64;
        for (what, repair) in what.skip(skipped) {
            kept.last += 1;
            let entry = JournalEntry { number: kept.last, at, what, why: why.to_owned(), repair };
            if repair {
                push(&mut kept.repairs, entry.clone());
            }
            push(&mut kept.changes, entry);
        }
        let last = kept.last;
        drop(kept);
        self.last.send_replace(last);
    }

    /// The latest changes, and the repairs among all, oldest first.
    pub fn all(&self) -> (Vec<JournalEntry>, Vec<JournalEntry>) {
        let kept = self.kept();
        (kept.changes.iter().cloned().collect(), kept.repairs.iter().cloned().collect())
    }

    /// The changes behind number `after` that are still kept, oldest first.
    pub fn after(&self, after: u64) -> Vec<JournalEntry> {
        let kept = self.kept();
        kept.changes.iter().filter(|entry| entry.number > after).cloned().collect()
    }

    /// Subscribes to the number of the last change.
    pub fn follow(&self) -> latest::Receiver<u64> {
        self.last.subscribe()
    }

    fn kept(&self) -> MutexGuard<'_, KeptEntries> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn push(entries: &mut VecDeque<JournalEntry>, entry: JournalEntry) {
    if entries.len() == KEPT {
        entries.pop_front();
    }
    entries.push_back(entry);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(count: usize, repair: bool) -> impl ExactSizeIterator<Item = (String, bool)> {
        (0..count).map(move |number| (format!("line {number}"), repair))
    }

    #[test]
    fn repairs_are_not_crowded_out_by_other_changes() {
        let journal = Journal::default();
        journal.note(lines(2, true), "the kernel changed");
        journal.note(lines(10_000, false), "etcd changed");
        let (changes, repairs) = journal.all();
        assert_eq!((changes.len(), repairs.len()), (KEPT, 2));
        assert_eq!(changes.last().unwrap().number, 10_002);
        assert_eq!(changes.last().unwrap().what, "line 9999");
        assert_eq!(journal.after(10_000).len(), 2);
    }

    #[test]
    fn a_follower_is_woken_by_each_reconcile() {
        let journal = Journal::default();
        let mut follower = journal.follow();
        assert!(!follower.has_changed().unwrap());
        journal.note(lines(0, false), "nothing");
        assert!(!follower.has_changed().unwrap());
        journal.note(lines(3, false), "etcd changed");
        assert_eq!(*follower.borrow_and_update(), 3);
    }
}
