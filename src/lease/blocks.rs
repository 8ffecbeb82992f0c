//! Pure. Blocks of tenants' networks, which hosts have beside their own subnets.
//!
//! A host creates a key below its own name for each block, where no other role may write. Ownership is
//! decided by creation: of two keys with common addresses the one that was created first counts, on every host,
//! and no later write changes that. A host uses a block only once it has read its own key, and with it every key
//! that was created before.

pub mod empty;
pub mod held;
pub mod known_owners;
pub mod known_store;
pub mod session;

use std::collections::{BTreeMap, BTreeSet};

use ipnetwork::IpNetwork;

use crate::lease::blocks::known_store::KnownStore;
use crate::lease::choose::free_slot;
use crate::lease::peers::Owners;
use crate::lease::records::{Key, NodeName, Roots};
use crate::lease::transaction::Transaction;
use crate::net::problem::{LISTED_FIRST, capped};
use crate::net::shell::word;
use crate::net::shown::shown;
use crate::net::subnet::{self, Pool};
use crate::net::{Object, Problem, ProblemKind};

/// Blocks of one host that count, and keys of one host that are kept: a bridge has 1,023 ports.
const MOST_OF_HOST: usize = 1024;

/// Keys that are no blocks and are kept.
const MOST_MALFORMED: usize = 100;

/// Characters of such a key that are kept.
const KEY_SHOWN: usize = 200;

/// Faults that become problems.
const PROBLEMS: usize = 50;

/// The keys of blocks in etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundBlocks {
    /// Each with the revision of its creation.
    by_host: BTreeMap<NodeName, BTreeMap<IpNetwork, i64>>,
    malformed: BTreeSet<Box<str>>,
}

/// Who has which block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedBlocks {
    pub by_host: BTreeMap<NodeName, Vec<IpNetwork>>,
    pub faults: Vec<BlockFault>,
    owners: Owners,
}

/// A key of a block that does not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockFault {
    #[error(
        "host {host}: block {block} is ignored: it overlaps {theirs} of host {owner}, which had it first"
    )]
    Overlap { host: NodeName, block: IpNetwork, owner: NodeName, theirs: IpNetwork },
    #[error("host {host}: block {block} is ignored: it is part of no network")]
    Outside { host: NodeName, block: IpNetwork },
    #[error("host {host}: the blocks after its first {MOST_OF_HOST} are ignored")]
    TooMany { host: NodeName },
    #[error("etcd key {0:?} is not the block of a host")]
    Malformed(Box<str>),
}

impl FoundBlocks {
    /// Applies the put of a key that was created at the revision `created`. Its value is for people.
    pub fn put(&mut self, roots: &Roots, key: &[u8], created: i64) {
        let Some((host, block)) = roots.held_block(key) else {
            if self.malformed.len() < MOST_MALFORMED {
                self.malformed.insert(shown(&String::from_utf8_lossy(key), KEY_SHOWN).into());
            }
            return;
        };
        let held = self.by_host.entry(host).or_default();
        // Those that were created first count, also here.
        if held.len() <= MOST_OF_HOST || held.contains_key(&block) {
            held.insert(block, created);
        }
    }

    /// Applies the deletion of a key.
    pub fn delete(&mut self, roots: &Roots, key: &[u8]) {
        let Some((host, block)) = roots.held_block(key) else {
            let text: Box<str> = shown(&String::from_utf8_lossy(key), KEY_SHOWN).into();
            self.malformed.remove(&text);
            return;
        };
        if let Some(held) = self.by_host.get_mut(&host) {
            held.remove(&block);
            if held.is_empty() {
                self.by_host.remove(&host);
            }
        }
    }

    /// All of them: host, block, and when its key was created.
    pub fn iter(&self) -> impl Iterator<Item = (&NodeName, IpNetwork, i64)> {
        let all = self.by_host.iter();
        all.flat_map(|(host, held)| held.iter().map(move |(block, at)| (host, *block, *at)))
    }

    /// When the key of `block` of `host` was created, if it is there.
    pub fn created(&self, host: &NodeName, block: IpNetwork) -> Option<i64> {
        self.by_host.get(host)?.get(&block).copied()
    }

    /// The blocks in the keys of `host`, and when they were created.
    pub fn of(&self, host: &NodeName) -> impl Iterator<Item = (IpNetwork, i64)> {
        let held = self.by_host.get(host).into_iter().flatten();
        held.map(|(block, created)| (*block, *created))
    }

    /// With what `before` has of other hosts than `own` and this does not: etcd lost its data, and those hosts
    /// put it back.
    pub fn remembering(&mut self, before: &FoundBlocks, own: &NodeName) {
        for (host, blocks) in before.by_host.iter().filter(|(host, _)| *host != own) {
            let held = self.by_host.entry(host.clone()).or_default();
            for (block, created) in blocks {
                held.entry(*block).or_insert(*created);
            }
        }
    }

    /// Who has which block, where networks have the pools `pools`.
    pub fn owned(&self, pools: &[IpNetwork]) -> OwnedBlocks {
        let mut found: Vec<(i64, &NodeName, IpNetwork)> = Vec::new();
        let mut owned = OwnedBlocks::default();
        for (host, blocks) in &self.by_host {
            let mut held: Vec<_> = blocks.iter().map(|(block, at)| (*at, host, *block)).collect();
            if held.len() > MOST_OF_HOST {
                held.sort_unstable();
                held.truncate(MOST_OF_HOST);
                owned.faults.push(BlockFault::TooMany { host: host.clone() });
            }
            found.append(&mut held);
        }
        found.sort_unstable();
        for (_, host, block) in found {
            if !is_part_of_any(pools, block) {
                owned.faults.push(BlockFault::Outside { host: host.clone(), block });
                continue;
            }
            if let Some((theirs, owner)) = owned.owners.overlapping(block) {
                let host = host.clone();
                owned.faults.push(BlockFault::Overlap { host, block, owner, theirs });
                continue;
            }
            owned.insert(host, block);
        }
        owned.faults.extend(self.malformed.iter().cloned().map(BlockFault::Malformed));
        owned
    }
}

/// It is a proper part of one of these pools.
fn is_part_of_any(pools: &[IpNetwork], block: IpNetwork) -> bool {
    pools.iter().any(|pool| subnet::contains(*pool, block) && *pool != block)
}

impl OwnedBlocks {
    /// `host` has `block`, after those that it has.
    fn insert(&mut self, host: &NodeName, block: IpNetwork) {
        self.owners.by_first.insert(block.network(), (block, host.clone()));
        self.by_host.entry(host.clone()).or_default().push(block);
    }

    fn remove(&mut self, host: &NodeName, block: IpNetwork) {
        self.owners.by_first.remove(&block.network());
        let Some(held) = self.by_host.get_mut(host) else { return };
        held.retain(|own| *own != block);
        if held.is_empty() {
            self.by_host.remove(host);
        }
    }

    /// The blocks of `host`, those first that it had first.
    pub fn of(&self, host: &NodeName) -> &[IpNetwork] {
        self.by_host.get(host).map(Vec::as_slice).unwrap_or_default()
    }

    /// The host that has an address of `block`.
    pub fn owner(&self, block: IpNetwork) -> Option<NodeName> {
        self.owners.overlapping(block).map(|(_, owner)| owner)
    }

    /// A block of `pool` that no host has: the first from slot `start` on, wrapping once. Hosts that start at
    /// different slots seldom want the same one. `but`: addresses that are no part of it, as of
    /// blocks that are asked for at this moment.
    pub fn free(&self, pool: &Pool, start: u32, but: &[IpNetwork]) -> Option<IpNetwork> {
        let held = self.owners.touching(pool.network());
        let mut taken: Vec<_> =
            held.chain(but.iter().copied()).filter_map(|block| pool.slots_of(block)).collect();
        taken.sort_unstable();
        let (last, start) = (pool.slots() - 1, start % pool.slots());
        let free = free_slot(start..=last, &taken);
        let free = free.or_else(|| start.checked_sub(1).and_then(|to| free_slot(0..=to, &taken)));
        free.map(|slot| pool.subnet(slot))
    }

    /// The faults but those of this host's `lost` blocks, of many of them the first.
    pub fn problems(&self, own: &NodeName, lost: &BTreeSet<IpNetwork>) -> Vec<Problem> {
        let is_other = |fault: &&BlockFault| {
            let BlockFault::Overlap { host, block, .. } = fault else { return true };
            host != own || !lost.contains(block)
        };
        let problems = self.faults.iter().filter(is_other).map(BlockFault::problem);
        capped(problems, PROBLEMS, ProblemKind::OtherHost, "further blocks of hosts", LISTED_FIRST)
    }
}

impl BlockFault {
    pub fn problem(&self) -> Problem {
        let (subject, fix) = match self {
            BlockFault::Overlap { host, block, .. } => (
                Object::Host(host.clone()),
                format!(
                    "humanz-agent nodes show {host} # hosts take free blocks only: somebody wrote the key; delete that for {block}"
                ),
            ),
            BlockFault::Outside { host, .. } => (
                Object::Host(host.clone()),
                "humanz-agent net ls # if its network was removed, apply it again until its pods are gone".to_owned(),
            ),
            BlockFault::TooMany { host } => (
                Object::Host(host.clone()),
                format!("humanz-agent nodes show {host} # look at its keys: no host has room for so many pods"),
            ),
            BlockFault::Malformed(key) => {
                (Object::Key(key.to_string()), format!("etcdctl del {}", word(key)))
            }
        };
        Problem::new(ProblemKind::OtherHost, subject, self.to_string()).with_fix(fix)
    }
}

/// A block in which pods of this host have addresses belongs to another host, `owner`.
pub fn lost(block: IpNetwork, network: &str, owner: &NodeName) -> Problem {
    let what = format!(
        "block {block} of network {network}, in which pods of this host have addresses, belongs to host {owner} in \
         etcd; this host keeps it for them, and no new pod starts in it"
    );
    let fix = format!(
        "humanz-agent pods # lists those pods: end them, in their place others get addresses of another block; or, \
         if host {owner} no longer exists: humanz-agent nodes rm {owner}"
    );
    Problem::new(ProblemKind::Lease, Object::named(format!("block {block}")), what).with_fix(fix)
}

/// The network that a host takes a block of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockNetwork {
    /// `tenant/name`, also for people who look at the keys.
    pub name: String,
    /// The revision of its object in etcd that the host goes by; `None`: whatever has become of it.
    pub revision: Option<i64>,
}

/// Takes `block` of `network`, if in `store` neither the record of `host` has changed, so that it is this machine's, nor
/// the settings, so that no other host has noticed a loss of data that this one has not; and if the network has not
/// been removed, or given other addresses or pins, since the host has learned of it.
pub fn take(
    roots: &Roots,
    host: &NodeName,
    block: IpNetwork,
    network: &BlockNetwork,
    store: &KnownStore,
) -> Transaction {
    let (mut transaction, key) = (Transaction::default(), roots.block(host, block));
    transaction.unchanged(roots.key(&Key::Node(host.clone())), store.record);
    transaction.unchanged(roots.key(&Key::Config), store.settings);
    if let Some(revision) = network.revision {
        transaction.unchanged(roots.network(&network.name), revision);
    }
    transaction.unchanged(&key, 0);
    transaction.put(key, &network.name);
    transaction
}

/// Gives `block` back, if the record of `host` has not changed since the revision `record`, and if its key is the one that was created then.
pub fn give_back(
    roots: &Roots,
    host: &NodeName,
    (block, created): (IpNetwork, i64),
    record: i64,
) -> Transaction {
    let (mut transaction, key) = (Transaction::default(), roots.block(host, block));
    transaction.unchanged(roots.key(&Key::Node(host.clone())), record);
    transaction.created(&key, created);
    transaction.delete(key);
    transaction
}

#[cfg(test)]
mod tests;
