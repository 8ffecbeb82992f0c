//! Networks as objects in etcd: an operator removes them while no host has a block of them, and applies them again.
//! Hosts learn of that later, each at its time. Losses of data spare these objects: what hosts do about that has its
//! own tests.

use std::collections::BTreeMap;

use humanz::lease::transaction::{Transaction, Write};
use humanz::net::subnet;
use ipnetwork::IpNetwork;

use super::flaw::Flaw;
use super::networks::{NETWORKS, pool};
use super::world::{Scheduled, World};

/// An operator tries so often to remove a network that hosts have blocks of.
const TRIES: u32 = 20;
const TRY_AGAIN: u64 = 300;

/// A host that does not reach etcd looks again after this.
const LOOK_AGAIN: u64 = 500;

/// Networks that there are, and the revisions at which they were written.
pub type KnownNetworks = BTreeMap<usize, i64>;

#[derive(Debug)]
pub enum ObjectEvent {
    /// The operator removes the network, if no host has a block of it.
    Remove(usize, u32),
    /// All networks are applied.
    Apply,
    /// The watch of a host has delivered everything.
    Heard(usize, u32),
}

/// The name of a network, as in a key of its block.
pub fn name(network: usize) -> String {
    format!("blue/n{network}")
}

/// Its pool and nothing else is there of networks that are known.
pub fn pools(known: &KnownNetworks) -> Vec<IpNetwork> {
    known.keys().map(|network| pool(*network)).collect()
}

impl World {
    pub(super) fn happen_to_objects(&mut self, event: ObjectEvent) {
        match event {
            ObjectEvent::Remove(network, tries) => self.remove_network(network, tries),
            ObjectEvent::Apply => self.apply_networks(),
            ObjectEvent::Heard(host, life) if self.lives(host, life) => self.hear_networks(host),
            ObjectEvent::Heard(..) => {}
        }
    }

    fn objects_after(&mut self, delay: u64, event: ObjectEvent) {
        self.after(delay, Scheduled::Objects(event));
    }

    fn networks_in_etcd(&self) -> KnownNetworks {
        let revision = |network| {
            let stored = self.store.keys.get(&self.store.roots.network(&name(network)));
            stored.map(|stored| (network, stored.modified))
        };
        (0..NETWORKS).filter_map(revision).collect()
    }

    pub(super) fn apply_networks(&mut self) {
        if !self.has_networks {
            return;
        }
        let there = self.networks_in_etcd();
        for network in (0..NETWORKS).filter(|network| !there.contains_key(network)) {
            self.store.put_now(&self.store.roots.network(&name(network)), "");
        }
        self.notify_of_networks();
    }

    fn notify_of_networks(&mut self) {
        for host in 0..self.hosts.len() {
            let life = self.hosts[host].life;
            let delay = self.block_random.between(2, 1_500);
            self.objects_after(delay, ObjectEvent::Heard(host, life));
        }
    }

    /// As `net rm` does: in one transaction with a look at all keys of blocks. After a loss of data nobody knows who
    /// has blocks.
    fn remove_network(&mut self, network: usize, tries: u32) {
        if self.lost.is_some() || self.repaired || !self.has_networks {
            return;
        }
        let is_part = |block| subnet::overlap(pool(network), block);
        let is_held = self.store.blocks.iter().any(|(_, block, _)| is_part(block));
        if !self.up || is_held {
            if tries < TRIES {
                self.objects_after(TRY_AGAIN, ObjectEvent::Remove(network, tries + 1));
            }
            return;
        }
        self.note(|_| format!("network n{network} is removed"));
        self.store.delete_now(&[self.store.roots.network(&name(network))]);
        self.notify_of_networks();
        let delay = self.block_random.between(200, 4_000);
        self.objects_after(delay, ObjectEvent::Apply);
    }

    /// The agent has started, or etcd has other data.
    pub(super) fn hear_networks_soon(&mut self, host: usize) {
        let life = self.hosts[host].life;
        let delay = self.block_random.between(2, 300);
        self.objects_after(delay, ObjectEvent::Heard(host, life));
    }

    fn hear_networks(&mut self, host: usize) {
        if !self.up || self.hosts[host].cut.is_some() {
            let life = self.hosts[host].life;
            return self.objects_after(LOOK_AGAIN, ObjectEvent::Heard(host, life));
        }
        let known = self.networks_in_etcd();
        if self.hosts[host].blocks.known != known {
            self.hosts[host].blocks.known = known;
            self.serve_blocks(host);
        }
    }

    /// What a block is taken of is there: a new network may have its addresses by now. A host's own blocks are put back
    /// whatever has become of their networks.
    pub(super) fn judge_taken(&mut self, host: usize, transaction: &Transaction) {
        let there = self.networks_in_etcd();
        for write in &transaction.writes {
            let Write::Put { key, .. } = write else { continue };
            let Some((_, block)) = self.store.roots.held_block(key.as_bytes()) else { continue };
            let is_back = self.hosts[host].blocks.kept.0.contains(&block);
            let is_there = pools(&there).iter().any(|pool| subnet::contains(*pool, block));
            if !is_back && !is_there && self.store.judge(transaction).is_some() {
                self.wrong(format!("h{host} takes {block} of a network that was removed"));
            }
        }
    }

    /// The revision by which a host takes blocks of a network that it knows.
    pub(super) fn revision_of(&self, host: usize, network: usize) -> Option<i64> {
        let known = self.hosts[host].blocks.known.get(&network).copied();
        known.filter(|_| self.flaw != Flaw::NetworkNotCompared)
    }
}
