//! Pure. The keys whose change ends a rest of the watch: a survivor puts back what etcd lost while a new host
//! waits for that, an agent that is asked answers, and a host whose key was taken away notices it.

use crate::lease::records::{Key, NodeName, Roots};
use crate::lease::snapshot::Snapshot;

/// How many there are.
pub const COUNT: usize = 3;

/// The number of the first of their watches; those of the ranges have lower ones.
pub const FIRST: i64 = 3;

/// Watches of single keys, on the stream of the ranges, which also go on while those rest.
#[derive(Debug)]
pub struct UrgentKeys {
    keys: [Key; COUNT],
    changed: [Option<LastChange>; COUNT],
}

/// The last change of a key.
#[derive(Clone, Copy, Debug)]
struct LastChange {
    revision: i64,
    is_deletion: bool,
}

impl UrgentKeys {
    /// The settings of the network; the host key and the contender key of `host`.
    pub fn of(host: &NodeName) -> UrgentKeys {
        let keys = [Key::Config, Key::Host(host.clone()), Key::Contender(host.clone())];
        UrgentKeys { keys, changed: [None; COUNT] }
    }

    /// The keys; the watch of each has the next number after [`FIRST`].
    pub fn keys(&self) -> &[Key; COUNT] {
        &self.keys
    }

    /// Notes a change that the watch `id` reports; `false` if that is none of these.
    pub fn note(&mut self, id: i64, revision: i64, is_deletion: bool) -> bool {
        let index = usize::try_from(id - FIRST).ok();
        let Some(changed) = index.and_then(|index| self.changed.get_mut(index)) else {
            return false;
        };
        *changed = Some(LastChange { revision, is_deletion });
        true
    }

    /// `snapshot` lacks the last change of one of them.
    pub fn are_ahead_of(&self, snapshot: &Snapshot, roots: &Roots) -> bool {
        let is_ahead = |(key, changed): (&Key, &Option<LastChange>)| {
            let Some(LastChange { revision, is_deletion }) = *changed else { return false };
            let known = snapshot.modified(roots, key);
            known < revision && (known != 0 || !is_deletion)
        };
        self.keys.iter().zip(&self.changed).any(is_ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::snapshot::Raw;

    fn roots() -> Roots {
        Roots { hosts: "/h".to_owned(), counter: "/c".to_owned(), humanz: "/z".to_owned() }
    }

    /// Whether the keys of h1 are ahead of a snapshot in which its host key was written at the revision `known` (0: it
    /// is missing), once its watch has reported a change at 9.
    fn is_ahead(known: i64, is_deletion: bool) -> bool {
        let mut snapshot = Snapshot::default();
        if known > 0 {
            let (key, value) = (b"/h/h1".as_slice(), b"10.0.1.0/24".as_slice());
            snapshot.put(&roots(), Raw { key, value, created: known, modified: known });
        }
        let mut keys = UrgentKeys::of(&"h1".parse().unwrap());
        let index = keys.keys().iter().position(|key| matches!(key, Key::Host(_))).unwrap();
        assert!(!keys.are_ahead_of(&snapshot, &roots()), "nothing was reported yet");
        assert!(keys.note(FIRST + index as i64, 9, is_deletion));
        keys.are_ahead_of(&snapshot, &roots())
    }

    #[test]
    fn what_the_snapshot_lacks_is_urgent_and_what_it_has_is_not() {
        assert!(is_ahead(5, false), "written again");
        assert!(is_ahead(0, false), "it is new");
        assert!(is_ahead(5, true), "deleted");
        assert!(!is_ahead(9, false), "this host wrote it");
        assert!(!is_ahead(0, true), "its deletion is known");
        assert!(!is_ahead(12, true), "it was put back since");
    }

    #[test]
    fn the_watches_of_the_ranges_are_none_of_them() {
        let mut keys = UrgentKeys::of(&"h1".parse().unwrap());
        let others = [-1, 0, FIRST - 1, FIRST + COUNT as i64];
        assert!(others.iter().all(|id| !keys.note(*id, 9, false)));
    }
}
