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
    /// Blocks in which a pod has started since the last look: it may have ended before this one.
    used: BTreeSet<IpNetwork>,
    since: BTreeMap<IpNetwork, Instant>,
}

impl EmptyBlocks {
    /// Forgets blocks whose keys are gone: they are as any others.
    pub fn retain(&mut self, own: &BTreeSet<IpNetwork>) {
        self.released.retain(|block| own.contains(block));
        self.since.retain(|block, _| own.contains(block));
    }

    /// A pod of this host starts with `addresses`.
    pub fn note_use(&mut self, own: &BTreeSet<IpNetwork>, addresses: &[IpAddr]) {
        let has_pod = |block: &&IpNetwork| addresses.iter().any(|it| block.contains(*it));
        self.used.extend(own.iter().filter(has_pod));
    }

    /// The blocks that have been empty for `idle`; those that no pod can use at once. One in which a pod came and went
    /// since the last look has been empty from this one on.
    pub fn idle(&mut self, all: &BlockUse, now: Instant, idle: Duration) -> Vec<IpNetwork> {
        let used = std::mem::take(&mut self.used);
        let has_pod = |block: &IpNetwork| all.taken.iter().any(|it| block.contains(*it));
        let is_pin = |block: &IpNetwork| all.pin_ranges.iter().any(|it| contains(*it, *block));
        self.since
            .retain(|block, _| all.own.contains(block) && !has_pod(block) && !used.contains(block));
        self.pinned_used.retain(|block| all.own.contains(block));
        let is_used_pin =
            |block: &&IpNetwork| is_pin(block) && (has_pod(block) || used.contains(*block));
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

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(600);
    const LOOK: Duration = Duration::from_secs(60);

    fn net(text: &str) -> IpNetwork {
        text.parse().unwrap()
    }

    /// When the block 10.32.0.64/26 is given back, in seconds after the first of looks that come every minute, if short
    /// pods start at these times and end before the next look, and the address of a pod is seen at those.
    fn given_back(short: &[u64], seen: &[u64]) -> Option<u64> {
        let own: BTreeSet<IpNetwork> = [net("10.32.0.64/26")].into();
        let served: Vec<IpNetwork> = own.iter().copied().collect();
        let address: [IpAddr; 1] = ["10.32.0.70".parse().unwrap()];
        let (mut blocks, begin) = (EmptyBlocks::default(), Instant::now());
        (0..=60).map(|look| look * LOOK.as_secs()).find(|now| {
            let last = now.saturating_sub(LOOK.as_secs());
            for _ in short.iter().filter(|at| (last..*now).contains(at)) {
                blocks.note_use(&own, &address);
            }
            let all = BlockUse {
                own: &own,
                lost: &BTreeSet::new(),
                served: &served,
                pin_ranges: &[],
                taken: if seen.contains(now) { &address } else { &[] },
                in_sync: true,
                is_followed: true,
            };
            let idle = blocks.idle(&all, begin + Duration::from_secs(*now), IDLE);
            assert!(idle.is_empty() || idle == served);
            !idle.is_empty()
        })
    }

    #[test]
    fn a_block_is_given_back_ten_minutes_after_its_last_pod_was_seen() {
        assert_eq!(given_back(&[], &[]), Some(600));
        assert_eq!(given_back(&[], &[0, 60, 300]), Some(960));
    }

    #[test]
    fn pods_that_come_and_go_between_two_looks_keep_their_block() {
        assert_eq!(given_back(&[541], &[]), Some(1200));
        let every_nine: Vec<u64> = (0..6).map(|nth| nth * 540 + 1).collect();
        assert_eq!(given_back(&every_nine, &[]), Some(2760 + 600));
        let elsewhere: [IpAddr; 1] = ["10.32.0.130".parse().unwrap()];
        let mut blocks = EmptyBlocks::default();
        blocks.note_use(&[net("10.32.0.64/26")].into(), &elsewhere);
        assert!(blocks.used.is_empty());
    }
}
