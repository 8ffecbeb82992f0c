//! Pure. Sets that are made once and compared often.

use std::ops::Deref;

use serde::{Deserialize, Serialize};

/// Elements beside each other, in order, each once. Equal, ordered and written as a `BTreeSet` of them: but with 1,000
/// policies a fifth of what one peer more took was comparing such sets, node by node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent, bound(deserialize = "T: Deserialize<'de> + Ord"))]
pub struct Sorted<T>(#[serde(deserialize_with = "sorted")] Box<[T]>);

impl<T> Default for Sorted<T> {
    fn default() -> Sorted<T> {
        Sorted(Box::default())
    }
}

impl<T> Deref for Sorted<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: Ord> FromIterator<T> for Sorted<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Sorted<T> {
        let mut elements = Vec::from_iter(elements);
        elements.sort_unstable();
        elements.dedup();
        Sorted(elements.into())
    }
}

impl<T: Ord, const N: usize> From<[T; N]> for Sorted<T> {
    fn from(elements: [T; N]) -> Sorted<T> {
        elements.into_iter().collect()
    }
}

fn sorted<'de, T, D>(deserializer: D) -> Result<Box<[T]>, D::Error>
where
    T: Deserialize<'de> + Ord,
    D: serde::Deserializer<'de>,
{
    Vec::deserialize(deserializer).map(|elements| Sorted::from_iter(elements).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::collections::BTreeSet;

    #[test]
    fn they_are_equal_ordered_and_written_as_ordered_sets_are() {
        let all = [&[][..], &[1], &[2, 1, 2], &[1, 2], &[1, 3], &[3], &[1, 2, 3]];
        for one in all {
            let set = BTreeSet::from_iter(one.to_vec());
            let sorted = Sorted::from_iter(one.to_vec());
            assert_eq!(sorted.to_vec(), Vec::from_iter(set.clone()));
            let text = serde_json::to_string(&sorted).unwrap();
            assert_eq!(text, serde_json::to_string(&set).unwrap());
            let unordered = serde_json::to_string(one).unwrap();
            assert_eq!(serde_json::from_str::<Sorted<i32>>(&unordered).unwrap(), sorted);
            for other in all {
                let [others, their] = [other, other].map(|other| other.iter().copied());
                let (others, their) = (others.collect(), their.collect());
                assert_eq!(sorted.cmp(&their), set.cmp(&others), "{one:?} {other:?}");
            }
        }
    }
}
