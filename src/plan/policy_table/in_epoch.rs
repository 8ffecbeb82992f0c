//! Pure. The parts of the wanted table in one epoch.

use crate::nft::{Chain, Set};
use crate::policy::compile::{EPOCH_SET, PolicyTable};

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

    /// Those of this epoch.
    pub fn chains(self) -> [Chain; 2] {
        self.table.epoch_chains(self.epoch)
    }

    pub fn chain(self, name: &str) -> Option<Chain> {
        let common = self.table.chains().get(name).map(|chain| (**chain).clone());
        common.or_else(|| self.chains().into_iter().find(|chain| chain.name == name))
    }
}
