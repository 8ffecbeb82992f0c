//! Pure. Whether a transaction made the guard of one new port, as an ADD does, and nothing else.

use std::collections::BTreeSet;

use crate::nft::frame::notice::FrameNotice;
use crate::plan::guard::layout::{Guard, TABLE};
use crate::plan::guard::sets::{sets, shaped};

/// The transactions of tables of the family `netdev`, as they are learned of.
#[derive(Debug, Default)]
pub struct Transactions {
    /// The messages of the one that goes on, while it may be of an ADD.
    pending: Vec<FrameNotice>,
    is_foreign: bool,
}

/// So many messages are not of an ADD.
const MOST: usize = 32;

impl Transactions {
    pub fn receive(&mut self, notice: FrameNotice) {
        self.is_foreign |= notice == FrameNotice::Other || self.pending.len() >= MOST;
        if !self.is_foreign {
            self.pending.push(notice);
        }
    }

    /// The transaction is at its end: it was one of an ADD.
    pub fn end(&mut self) -> bool {
        let Transactions { pending, is_foreign } = std::mem::take(self);
        !is_foreign && is_of_add(&pending)
    }
}

/// One chain of a pod with the one rule of a guard, and elements of one device.
fn is_of_add(notices: &[FrameNotice]) -> bool {
    let sets: Vec<_> = sets().into_iter().chain([shaped()]).collect();
    let (mut chains, mut rules) = (BTreeSet::new(), Vec::new());
    let mut devices: BTreeSet<u32> = BTreeSet::new();
    for notice in notices {
        match notice {
            FrameNotice::DeviceChain { table, name } if table == TABLE => {
                chains.insert(name);
            }
            FrameNotice::Rule { table, chain, fingerprint: Some(_) } if table == TABLE => {
                rules.push(chain);
            }
            FrameNotice::Elements { table, set, indexes }
                if table == TABLE && sets.iter().any(|of| of.name == *set) =>
            {
                devices.extend(indexes.iter().copied());
            }
            _ => return false,
        }
    }
    let is_one = |chain: &&String| rules[..] == [*chain] && Guard::is_device(chain);
    chains.len() == 1 && chains.iter().all(is_one) && devices.len() == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add() -> Vec<FrameNotice> {
        let (table, name) = (TABLE.to_owned(), "hz1".to_owned());
        let elements = |set: &str| FrameNotice::Elements {
            table: table.clone(),
            set: set.to_owned(),
            indexes: vec![7],
        };
        vec![
            elements("own4"),
            elements("mac"),
            FrameNotice::DeviceChain { table: table.clone(), name: name.clone() },
            FrameNotice::Rule { table: table.clone(), chain: name, fingerprint: Some(1) },
        ]
    }

    fn check(notices: Vec<FrameNotice>) -> bool {
        let mut transactions = Transactions::default();
        notices.into_iter().for_each(|notice| transactions.receive(notice));
        let is_of_add = transactions.end();
        assert!(!transactions.end(), "nothing is left of it");
        is_of_add
    }

    #[test]
    fn only_the_whole_of_one_add_is_one() {
        assert!(check(add()));
        for left_out in [0..2, 2..3, 3..4] {
            let mut partial = add();
            partial.drain(left_out.clone());
            assert!(!check(partial), "{left_out:?}");
        }
        assert!(!check([add(), vec![FrameNotice::Other]].concat()));
        assert!(!check([vec![FrameNotice::Other], add()].concat()));
        assert!(!check((0..20).flat_map(|_| add()).collect()));
    }

    #[test]
    fn whatever_is_of_others_is_not_one() {
        let (table, name) = (|| TABLE.to_owned(), || "hz1".to_owned());
        let own =
            |indexes| FrameNotice::Elements { table: table(), set: "own4".to_owned(), indexes };
        let rule = |chain: &str, fingerprint| FrameNotice::Rule {
            table: table(),
            chain: chain.to_owned(),
            fingerprint,
        };
        for foreign in [
            rule("hz1", None),
            rule("hz1", Some(2)),
            rule("routed-2", Some(2)),
            own(vec![8]),
            own(vec![7, 8]),
            FrameNotice::Elements {
                table: table(),
                set: "dropped-mac".to_owned(),
                indexes: vec![7],
            },
            FrameNotice::Elements {
                table: "other".to_owned(),
                set: "own4".to_owned(),
                indexes: vec![7],
            },
            FrameNotice::DeviceChain { table: table(), name: "hz2".to_owned() },
            FrameNotice::DeviceChain { table: "other".to_owned(), name: name() },
        ] {
            assert!(!check([add(), vec![foreign.clone()]].concat()), "{foreign:?}");
        }
        assert!(check([add(), vec![own(vec![7])]].concat()));
    }
}
