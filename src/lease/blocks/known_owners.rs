//! Pure. Who has which block, kept while keys change: of ten thousand hosts with twenty blocks each, one change is not
//! followed by a look at all keys.

use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::lease::blocks::{BlockFault, FoundBlocks, MOST_OF_HOST, OwnedBlocks, is_part_of_any};
use crate::lease::records::NodeName;

/// What [`FoundBlocks::owned`] gives, as far as it is known without looking at every key.
#[derive(Clone, Debug, Default)]
pub struct KnownOwners(Option<CachedOwners>);

#[derive(Clone, Debug)]
struct CachedOwners {
    pools: Vec<IpNetwork>,
    owned: Arc<OwnedBlocks>,
    /// When the last of the keys was created.
    latest: i64,
}

impl KnownOwners {
    /// Those of `found`, which nothing was done to since but what this was given.
    pub fn of(&mut self, found: &FoundBlocks, pools: &[IpNetwork]) -> Arc<OwnedBlocks> {
        if let Some(known) = self.0.as_ref().filter(|known| known.pools == pools) {
            return Arc::clone(&known.owned);
        }
        let owned = Arc::new(found.owned(pools));
        let latest = found.iter().map(|(_, _, created)| created).max().unwrap_or(0);
        self.0 = Some(CachedOwners { pools: pools.to_vec(), owned: Arc::clone(&owned), latest });
        owned
    }

    /// All keys may be others now.
    pub fn forget(&mut self) {
        self.0 = None;
    }

    /// The key of a block, `None` for one that is none, was created at `before` and is at `now`; `found` has the latter.
    pub fn follow(
        &mut self,
        found: &FoundBlocks,
        key: Option<(NodeName, IpNetwork)>,
        before: Option<i64>,
        now: Option<i64>,
    ) {
        let Some((host, block)) = key else { return self.forget() };
        match (before, now) {
            (before, now) if before == now => {}
            (None, Some(created)) if found.of(&host).count() <= MOST_OF_HOST => {
                self.put(&host, block, created);
            }
            (Some(_), None) => self.delete(&host, block),
            _ => self.forget(),
        }
    }

    /// One that was created after all others changes nothing about them.
    fn put(&mut self, host: &NodeName, block: IpNetwork, created: i64) {
        let known = self.0.take().filter(|known| created > known.latest);
        self.0 = known.and_then(|mut known| {
            let is_free = known.owned.owner(block).is_none();
            if !is_free || !is_part_of_any(&known.pools, block) {
                return None;
            }
            Arc::make_mut(&mut known.owned).insert(host, block);
            known.latest = created;
            Some(known)
        });
    }

    /// A key that is gone may have kept others from counting.
    fn delete(&mut self, host: &NodeName, block: IpNetwork) {
        let is_hidden = |fault: &BlockFault| {
            matches!(fault, BlockFault::Overlap { .. } | BlockFault::TooMany { .. })
        };
        self.0 = self.0.take().and_then(|mut known| {
            if !known.owned.of(host).contains(&block) || known.owned.faults.iter().any(is_hidden) {
                return None;
            }
            Arc::make_mut(&mut known.owned).remove(host, block);
            Some(known)
        });
    }
}
