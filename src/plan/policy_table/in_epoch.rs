//! Pure. The parts of the wanted table in one epoch.

use crate::nft::{Chain, Set};
use crate::policy::compile::{EPOCH_SET, PolicyTable, STAMP_CHAIN};

/// A table in the epoch with this mark.
#[derive(Clone, Copy)]
pub struct InEpoch<'a> {
    pub table: &'a PolicyTable,
    pub epoch: u32,
}

impl InEpoch<'_> {
    pub fn set(self, name: &str) -> Option<Set> {
        match name {
            EPOCH_SET => Some(self.table.epoch_set(self.epoch)),
            name => self.table.sets().get(name).map(|set| (**set).clone()),
        }
    }

    pub fn chain(self, name: &str) -> Option<Chain> {
        match name {
            STAMP_CHAIN => Some(self.table.stamp(self.epoch)),
            name => self.table.chains().get(name).map(|chain| (**chain).clone()),
        }
    }
}
