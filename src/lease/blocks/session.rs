//! Pure. What a host does about its blocks: which count as its own, and which keys it writes next. The caller has
//! the clock and the connection to etcd, and notes on disk what is this host's before anybody uses it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::lease::blocks::known_owners::KnownOwners;
use crate::lease::blocks::known_store::KnownStore;
use crate::lease::blocks::{
    self, BlockNetwork, FoundBlocks, OwnedBlocks, PROBLEMS, give_back, take,
};
use crate::lease::records::{NodeName, Roots};
use crate::lease::transaction::Transaction;
use crate::net::gather::Gather;
use crate::net::problem::{LISTED_FIRST, capped};
use crate::net::subnet::{self, Pool};
use crate::net::{Problem, ProblemKind, hash};

/// What this host knows and wants.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockInputs {
    /// `None`: nothing is written.
    pub store: Option<KnownStore>,
    /// All pools of networks …
    pub pools: Vec<IpNetwork>,
    /// … as etcd has them, not as they were kept on disk: a block that is part of none is a fault.
    pub are_read: bool,
    /// Pools with their networks, for the keys of blocks that etcd has lost.
    pub names: Vec<(IpNetwork, String)>,
    pub wanted: Vec<WantedBlocks>,
    /// Parts of the pools that no other blocks are taken of than these of single pods …
    pub pin_ranges: Vec<IpNetwork>,
    /// … each with its network.
    pub pins: BTreeMap<IpNetwork, BlockNetwork>,
    /// Blocks in which no pod runs, and none will start.
    pub released: BTreeSet<IpNetwork>,
}

impl BlockInputs {
    /// The name of the network of `block`; `-` where it is not known.
    fn network(&self, block: IpNetwork) -> &str {
        let of = |(pool, _): &&(IpNetwork, String)| subnet::contains(*pool, block);
        self.names.iter().find(of).map_or("-", |(_, name)| name.as_str())
    }
}

/// How many blocks of a pool this host wants to have.
#[derive(Clone, Debug, PartialEq)]
pub struct WantedBlocks {
    pub network: BlockNetwork,
    /// All addresses of the network in this family …
    pub addresses: IpNetwork,
    /// … and those that blocks are cut from.
    pub pool: Pool,
    pub count: usize,
}

/// One host's blocks through etcd.
#[derive(Clone, Debug)]
pub struct BlockSession {
    roots: Roots,
    host: NodeName,
    /// This host's blocks.
    pub own: BTreeSet<IpNetwork>,
    pub found: FoundBlocks,
    /// Of `found`.
    owners: KnownOwners,
    /// Blocks that this host had before, by keys of an older snapshot: others may have had them since.
    stale: BTreeSet<IpNetwork>,
    /// Blocks whose keys were put and have not been read yet.
    asked: BTreeSet<IpNetwork>,
    /// Pools of which no block is free.
    pub exhausted: BTreeSet<IpNetwork>,
    /// etcd was read in this life.
    pub is_read: bool,
    /// Of etcd, when it was read last; before that of the latest key that is known.
    revision: i64,
    store: Option<KnownStore>,
    /// Other hosts put back what etcd lost: no block is taken.
    waits: bool,
}

/// A key of this host that is to be written, or deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockWrite {
    pub block: IpNetwork,
    pub takes: bool,
    pub transaction: Transaction,
}

/// Who has which block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockOwners {
    /// This host's.
    pub own: BTreeSet<IpNetwork>,
    /// Those of them that another host had first.
    pub lost: BTreeSet<IpNetwork>,
    pub others: BTreeMap<NodeName, Vec<IpNetwork>>,
    pub problems: Vec<Problem>,
}

impl BlockSession {
    /// `own` and `found`: as they were when the agent stopped.
    pub fn new(
        roots: Roots,
        host: NodeName,
        own: BTreeSet<IpNetwork>,
        found: FoundBlocks,
    ) -> BlockSession {
        BlockSession {
            roots,
            host,
            own,
            revision: found.iter().map(|(_, _, created)| created).max().unwrap_or(0),
            found,
            owners: KnownOwners::default(),
            is_read: false,
            store: None,
            stale: BTreeSet::new(),
            asked: BTreeSet::new(),
            exhausted: BTreeSet::new(),
            waits: false,
        }
    }

    /// Takes over all keys, as they were at `revision`. If etcd lost some, [`BlockSession::waited`] follows once
    /// hosts have put back theirs.
    pub fn read(&mut self, mut found: FoundBlocks, revision: i64) {
        let went_back = revision < self.revision;
        let had = |block: &IpNetwork| self.found.of(&self.host).any(|(known, _)| known == *block);
        let has = |block: &IpNetwork| found.of(&self.host).any(|(known, _)| known == *block);
        let is_gone = self.own.iter().any(|block| had(block) && !has(block));
        self.waits |= went_back || is_gone;
        if self.waits {
            found.remembering(&self.found, &self.host);
        }
        (self.found, self.revision) = (found, revision);
        self.owners.forget();
        self.asked.clear();
        if went_back {
            let keys = self.found.of(&self.host).map(|(block, _)| block);
            self.stale = keys.filter(|block| !self.own.contains(block)).gather();
        }
        self.is_read = true;
    }

    /// What no host put back is gone: everything is to be read again.
    pub fn waited(&mut self) {
        self.waits = false;
    }

    pub fn waits(&self) -> bool {
        self.waits
    }

    /// Applies a change: a key that was created at that revision, or deleted.
    pub fn change(&mut self, key: &[u8], created: Option<i64>, revision: i64) {
        let held = self.roots.held_block(key);
        let at = |found: &FoundBlocks| held.as_ref().and_then(|it| found.created(&it.0, it.1));
        let before = at(&self.found);
        match created {
            Some(created) => self.found.put(&self.roots, key, created),
            None => {
                let gone = held.as_ref().filter(|(host, _)| *host == self.host);
                if let Some((_, block)) = gone {
                    // This host deletes keys only of blocks that are not its own any more.
                    self.waits |= self.own.contains(block);
                    self.asked.remove(block);
                }
                self.found.delete(&self.roots, key);
            }
        }
        let now = at(&self.found);
        self.owners.follow(&self.found, held, before, now);
        self.revision = self.revision.max(revision);
    }

    /// Who has which block, where networks have the pools `pools`.
    pub fn owned(&mut self, pools: &[IpNetwork]) -> Arc<OwnedBlocks> {
        self.owners.of(&self.found, pools)
    }

    /// Takes over what the keys say of this host's blocks: those that it has, whoever started to take them. Before
    /// [`BlockSession::waits`] is looked at.
    pub fn adopt(&mut self, owned: &OwnedBlocks, inputs: &BlockInputs) {
        if let Some(store) = &inputs.store {
            let before = self.store.replace(store.clone());
            self.waits |= before.is_some_and(|before| store.is_rebuilt(&before));
        }
        let keys: BTreeSet<IpNetwork> = self.found.of(&self.host).map(|(block, _)| block).gather();
        self.asked.retain(|block| !keys.contains(block));
        self.stale.retain(|block| keys.contains(block));
        let is_kept = |it: &&IpNetwork| !inputs.released.contains(*it) && !self.stale.contains(*it);
        self.own.extend(owned.of(&self.host).iter().filter(is_kept));
        self.own.retain(|block| !inputs.released.contains(block));
    }

    /// What is to be written next. What is written counts once the watch has it.
    pub fn writes(&mut self, owned: &OwnedBlocks, inputs: &BlockInputs) -> Vec<BlockWrite> {
        self.exhausted.clear();
        let Some(store) = &inputs.store else { return Vec::new() };
        let mut writes = Vec::new();
        let keys: BTreeMap<IpNetwork, i64> = self.found.of(&self.host).gather();
        for (block, created) in &keys {
            let is_lost = owned.owner(*block).is_some_and(|owner| owner != self.host);
            let is_unused = inputs.released.contains(block) || self.stale.contains(block);
            // Another host was faster, or no pod needs it any longer.
            if is_unused || is_lost && !self.own.contains(block) {
                let transaction =
                    give_back(&self.roots, &self.host, (*block, *created), store.record);
                writes.push(BlockWrite { block: *block, takes: false, transaction });
            }
        }
        for block in self.own.iter().filter(|block| !keys.contains_key(*block)) {
            let is_part = inputs.pools.iter().any(|pool| subnet::contains(*pool, *block));
            if is_part && owned.owner(*block).is_none() && !self.asked.contains(block) {
                // Pods may run in it, whatever has become of the network.
                let network =
                    BlockNetwork { name: inputs.network(*block).to_owned(), revision: None };
                writes.push(self.take(*block, &network, store));
            }
        }
        if !self.waits {
            writes.extend(self.pins(owned, inputs, store));
            writes.extend(self.further(owned, inputs, store));
        }
        writes
    }

    /// The transaction of `write` was made.
    pub fn committed(&mut self, write: &BlockWrite) {
        if write.takes {
            self.asked.insert(write.block);
        }
    }

    /// A key was put that was not read since.
    pub fn is_unseen(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Who has which block, as others are to know it.
    pub fn owners(&self, owned: &OwnedBlocks, inputs: &BlockInputs) -> BlockOwners {
        let mut others = owned.by_host.clone();
        others.remove(&self.host);
        // A block is this host's until its key is gone.
        let keys = self.found.of(&self.host).map(|(block, _)| block);
        let given_back = keys.filter(|block| inputs.released.contains(block));
        let own: BTreeSet<IpNetwork> = self.own.iter().copied().chain(given_back).gather();
        let owner = |block: &IpNetwork| owned.owner(*block).filter(|owner| *owner != self.host);
        let lost = own.iter().filter(|block| owner(block).is_some()).copied().gather();
        // What is given back belongs to no host any more, and what has no pod is given back at once.
        let kept = self.own.iter().filter_map(|block| Some((*block, owner(block)?)));
        let lasting = kept.map(|(block, owner)| blocks::lost(block, inputs.network(block), &owner));
        let further = "further blocks of this host";
        let mut problems = capped(lasting, PROBLEMS, ProblemKind::Lease, further, LISTED_FIRST);
        if inputs.are_read {
            problems.extend(owned.problems(&self.host, &lost));
        }
        BlockOwners { own, lost, others, problems }
    }

    fn take(&self, block: IpNetwork, network: &BlockNetwork, store: &KnownStore) -> BlockWrite {
        let transaction = take(&self.roots, &self.host, block, network, store);
        BlockWrite { block, takes: true, transaction }
    }

    /// Takes the blocks of single pods, as far as no host has them.
    fn pins(
        &self,
        owned: &OwnedBlocks,
        inputs: &BlockInputs,
        store: &KnownStore,
    ) -> Vec<BlockWrite> {
        let is_free = |block: &IpNetwork| {
            owned.owner(*block).is_none()
                && !self.own.contains(block)
                && !self.asked.contains(block)
                && !inputs.released.contains(block)
        };
        let wanted = inputs.pins.iter().filter(|(block, _)| is_free(block));
        wanted.map(|(block, network)| self.take(*block, network, store)).collect()
    }

    /// Takes the blocks that this host wants beside those that it has or has asked for.
    fn further(
        &mut self,
        owned: &OwnedBlocks,
        inputs: &BlockInputs,
        store: &KnownStore,
    ) -> Vec<BlockWrite> {
        let is_of_many = |block: &&IpNetwork| {
            !inputs.pin_ranges.iter().any(|range| subnet::contains(*range, **block))
        };
        let mut asked: Vec<IpNetwork> = self.asked.iter().filter(is_of_many).copied().collect();
        let mut writes = Vec::new();
        for WantedBlocks { network, addresses, pool, count } in &inputs.wanted {
            let is_part = |block: &&IpNetwork| subnet::contains(*addresses, **block);
            let has_first = |block: &&IpNetwork| owned.owner(**block).as_ref() == Some(&self.host);
            let own = self.own.iter().filter(is_of_many);
            let had = own.filter(is_part).filter(has_first).count();
            let missing = count.saturating_sub(had + asked.iter().filter(is_part).count());
            for _ in 0..missing {
                let start = hash::stable(&[self.host.as_str(), &network.name]) as u32;
                let but = [&asked[..], &inputs.pin_ranges].concat();
                let Some(block) = owned.free(pool, start, &but) else {
                    self.exhausted.insert(*addresses);
                    break;
                };
                asked.push(block);
                writes.push(self.take(block, network, store));
            }
        }
        writes
    }
}
