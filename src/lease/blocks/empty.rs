//! Pure. Blocks without pods: when a host gives them back.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnetwork::IpNetwork;

use crate::net::subnet::contains;

/// After this time without its pod a fixed address is given back that a plugin asked for and did not use.
const PIN_UNUSED: Duration = Duration::from_secs(3);

/// What decides about the blocks of a host.
#[derive(Clone, Copy, Debug)]
pub struct BlockUse<'a> {
    pub own: &'a BTreeSet<IpNetwork>,
    /// Those of them that another host had first.
    pub lost: &'a BTreeSet<IpNetwork>,
    /// Those of them that are parts of networks.
    pub served: &'a [IpNetwork],
    /// Blocks in these are of one pod each.
    pub pin_ranges: &'a [IpNetwork],
    /// Addresses of pods.
    pub taken: &'a [IpAddr],
    /// etcd has said in this life who has which block …
    pub in_sync: bool,
    /// … and is followed.
    pub is_followed: bool,
}

/// Blocks on their way back.
#[derive(Clone, Debug, Default)]
pub struct EmptyBlocks {
    /// Blocks that no pod may start in from now on.
    pub released: BTreeSet<IpNetwork>,
    /// Blocks of pods with fixed addresses, in which those have been.
    pinned_used: BTreeSet<IpNetwork>,
    since: BTreeMap<IpNetwork, Instant>,
}

impl EmptyBlocks {
    /// Forgets blocks whose keys are gone: they are as any others.
    pub fn hear(&mut self, own: &BTreeSet<IpNetwork>) {
        self.released.retain(|block| own.contains(block));
        self.since.retain(|block, _| own.contains(block));
    }

    /// The blocks that have been empty for `idle`; those that nobody can use at once.
    pub fn idle(&mut self, all: &BlockUse, now: Instant, idle: Duration) -> Vec<IpNetwork> {
        let has_pod = |block: &IpNetwork| all.taken.iter().any(|it| block.contains(*it));
        let is_pin = |block: &IpNetwork| all.pin_ranges.iter().any(|it| contains(*it, *block));
        self.since.retain(|block, _| all.own.contains(block) && !has_pod(block));
        self.pinned_used.retain(|block| all.own.contains(block));
        let is_used_pin = |block: &&IpNetwork| is_pin(block) && has_pod(block);
        self.pinned_used.extend(all.own.iter().filter(is_used_pin));
        let empty = all.own.iter().filter(|it| !has_pod(it) && !self.released.contains(*it));
        let mut found = Vec::new();
        for block in empty {
            let since = *self.since.entry(*block).or_insert(now);
            let is_useless = all.lost.contains(block) || !all.served.contains(block);
            let is_over = match is_pin(block) {
                // Without etcd the pod starts again here alone.
                true if !all.is_followed => false,
                true if self.pinned_used.contains(block) => true,
                true => now.duration_since(since) >= PIN_UNUSED,
                false => now.duration_since(since) >= idle,
            };
            if is_over || is_useless && all.in_sync {
                found.push(*block);
            }
        }
        // What has it later is new, and so is the time without a pod.
        self.pinned_used.retain(|block| !found.contains(block));
        self.since.retain(|block, _| !found.contains(block));
        found
    }

    /// A pod has just started in them.
    pub fn keep(&mut self, blocks: impl IntoIterator<Item = IpNetwork>) {
        for block in blocks {
            self.released.remove(&block);
            self.since.remove(&block);
        }
    }
}
