//! Pure. Maps and sets made entry by entry.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

/// A map or a set.
pub trait Ordered<T>: Default + Extend<T> {}

impl<K: Ord, V> Ordered<(K, V)> for BTreeMap<K, V> {}

impl<T: Ord> Ordered<T> for BTreeSet<T> {}

impl Ordered<(String, Value)> for Map<String, Value> {}

/// `collect` for a map or a set.
pub trait Gather: Iterator + Sized {
    /// Inserts one entry after the other. `collect` sorts all of them first, which is the better way for thousands of
    /// entries, and 4 kB of code for each type of them.
    fn gather<C: Ordered<Self::Item>>(self) -> C {
        let mut all = C::default();
        all.extend(self);
        all
    }
}

impl<I: Iterator> Gather for I {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_entry_replaces_an_earlier_one_as_with_collect() {
        let entries = [(2, 'b'), (1, 'a'), (2, 'c')];
        let gathered: BTreeMap<i32, char> = entries.into_iter().gather();
        assert_eq!(gathered, entries.into_iter().collect());
        assert_eq!([3, 1, 3].into_iter().gather::<BTreeSet<i32>>(), [1, 3].into());
    }
}
