//! Invariants of blocks: no address range is in two hosts' use, and none is kept without pods.

use std::collections::BTreeSet;

use humanz::lease::records::NodeName;
use humanz::net::subnet;
use ipnetwork::IpNetwork;

use super::judge::{SURVIVORS, Violation};
use super::networks::HostBlocks;
use super::world::World;

impl HostBlocks {
    /// Blocks with pods, or in which pods may start at any time.
    fn in_use(&self) -> BTreeSet<IpNetwork> {
        let ready = self.pods.values().filter(|pod| pod.ready).map(|pod| pod.block);
        ready.chain(self.plan.iter().copied()).collect()
    }
}

impl World {
    /// `host` begins to use `block`.
    pub fn judge_block(&mut self, host: usize, block: IpNetwork) {
        for other in &mut self.hosts {
            let in_use = other.blocks.in_use();
            other.blocks.since.retain(|block, _| in_use.contains(block));
        }
        let now = self.now;
        let since = *self.hosts[host].blocks.since.entry(block).or_insert(now);
        let own = self.hosts[host].identity();
        let others = self.hosts.iter().filter(|other| other.identity() != own && !other.left);
        let others = others.filter(|other| !self.is_replaced(other.number));
        let clash = others
            .flat_map(|other| other.blocks.in_use().into_iter().map(move |theirs| (other, theirs)))
            .find(|(_, theirs)| subnet::overlap(*theirs, block))
            .map(|(other, theirs)| (other.number, theirs));
        let Some((other, theirs)) = clash.filter(|_| !self.is_replaced(host)) else { return };
        let other_since = self.hosts[other].blocks.since.get(&theirs).copied().unwrap_or(now);
        let (victim, taker) = if other_since <= since {
            ((other, other_since), host)
        } else {
            ((host, since), other)
        };
        let unavoidable = self.is_block_unrecoverable(victim, taker, block);
        let what = format!("h{host} and h{other} both use block {block}");
        self.wrong.get_or_insert(Violation { what, unavoidable });
    }

    /// Another machine with the same name and machine id has its subnet and its blocks, for a moment at least: it
    /// knows nothing of the pods here.
    fn is_replaced(&self, host: usize) -> bool {
        let own = self.hosts[host].identity();
        let mut twins = self.hosts.iter().filter(|it| it.number != host && it.identity() == own);
        twins.any(|it| it.agent.as_ref().is_some_and(|agent| agent.machine.lease().is_some()))
    }

    /// etcd lost the key of the block while its host could not put it back, or the host that took it had not known
    /// of it: keys of a host are written by nobody else.
    fn is_block_unrecoverable(
        &self,
        (victim, since): (usize, u64),
        taker: usize,
        block: IpNetwork,
    ) -> bool {
        let Some(lost) = self.lost.filter(|lost| *lost >= since) else { return false };
        let knew = self.hosts[taker].blocks.knew.contains(&(victim, block));
        let host = &self.hosts[victim];
        let is_disturbed = host.agent.is_none() || host.cut.is_some() || host.disturbed >= lost;
        // Without a record of its own it writes no key.
        let has_record = self.store.read().nodes.contains_key(&host.name(self.flaw));
        let is_new = self.restored && self.now < self.back.max(lost) + SURVIVORS;
        !knew || is_disturbed || is_new || !has_record
    }

    /// etcd is about to lose its data.
    pub fn note_known_blocks(&mut self) {
        let names: Vec<(usize, NodeName)> =
            self.hosts.iter().map(|host| (host.number, host.name(self.flaw))).collect();
        for host in &mut self.hosts {
            let blocks = &mut host.blocks;
            let found = match &blocks.agent {
                Some(agent) => &agent.follower.session.found,
                None => &blocks.kept.1,
            };
            let of = |number: usize, name| found.of(name).map(move |(block, _)| (number, block));
            let known = names.iter().flat_map(|(number, name)| of(*number, name));
            blocks.knew.extend(known);
        }
    }

    /// The keys of blocks of a host that left are deleted with its others.
    pub fn remove_blocks(&mut self, host: &NodeName) {
        let prefix = self.store.roots.blocks_of(host);
        let below = self.store.keys.keys().filter(|key| key.starts_with(&prefix));
        let keys: Vec<String> = below.cloned().collect();
        self.store.delete_now(&keys);
        self.notify_block_watches();
    }

    /// All pods have ended: hosts have given back all blocks.
    pub fn judge_blocks_at_rest(&mut self) {
        let mut wrong = None;
        for host in (0..self.hosts.len()).filter(|host| self.serves(*host)) {
            let name = self.hosts[host].name(self.flaw);
            let kept = self.store.blocks.of(&name).map(|(block, _)| block).next();
            let plan = self.hosts[host].blocks.plan.first().copied();
            if let Some(block) = kept.or(plan) {
                wrong = Some(format!("at rest, h{host} keeps block {block} without pods"));
            }
        }
        if let Some(wrong) = wrong {
            self.wrong(wrong);
        }
    }
}
