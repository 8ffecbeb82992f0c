//! Networks of tenants: this host's blocks of them, and what plugins go by.

mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnetwork::IpNetwork;

use crate::agent::networks::waiting::WaitingPlugins;
use crate::agent::new_pods::BlockRequest;
use crate::inspect::pods::room;
use crate::lease::Snapshot;
use crate::lease::blocks::BlockNetwork;
use crate::lease::blocks::empty::{BlockUse, EmptyBlocks};
use crate::lease::blocks::session::WantedBlocks;
use crate::net::Family;
use crate::net::gather::Gather;
use crate::net::subnet::contains;
use crate::policy::network_plan::NetworkPlans;
use crate::policy::served::ServedNetworks;
use crate::policy::{Networks, PolicySnapshot, Scoped};
use crate::sources::BlocksUpdate;

/// Looks at empty blocks in the time after which they are given back.
const LOOKS: u32 = 10;

/// Time between two looks whether pods with fixed addresses still run: another host waits for them.
const PIN_LOOKS: Duration = Duration::from_millis(500);

/// What plugins go by follows from this.
#[derive(Clone, Debug)]
pub struct PlansFrom {
    /// There may be networks of tenants.
    pub exchanges: bool,
    pub known: Option<Arc<PolicySnapshot>>,
    pub open: BTreeSet<IpNetwork>,
    pub families: Vec<Family>,
    /// Networks that no pod starts in here, and why.
    pub closed: Arc<BTreeMap<Scoped, String>>,
}

/// What closes networks with addresses of hosts follows from this.
#[derive(Clone, Debug)]
pub struct ClosedFrom {
    pub known: Arc<PolicySnapshot>,
    pub hosts: Option<Arc<Snapshot>>,
    /// Prefixes on this host's interfaces.
    pub segments: Vec<IpNetwork>,
}

impl ClosedFrom {
    pub fn is_same(&self, other: &ClosedFrom) -> bool {
        let nodes = |of: &ClosedFrom| of.hosts.as_ref().map(|found| Arc::as_ptr(&found.nodes));
        let is_known = Arc::ptr_eq(&self.known, &other.known);
        let are_known = is_known || self.known.networks == other.known.networks;
        are_known && nodes(self) == nodes(other) && self.segments == other.segments
    }
}

impl PlansFrom {
    pub fn is_same(&self, other: &PlansFrom) -> bool {
        let known = |of: &PlansFrom| of.known.as_ref().map(Arc::as_ptr);
        let own = (self.exchanges, &self.open, &self.families, &self.closed);
        let others = (other.exchanges, &other.open, &other.families, &other.closed);
        known(self) == known(other) && own == others
    }
}

#[derive(Debug, Default)]
pub struct HostNetworks {
    pub received: BlocksUpdate,
    pub served: ServedNetworks,
    /// Blocks whose gateways and routes are as they should be.
    pub in_place: BTreeSet<IpNetwork>,
    /// Policies of before did not hold at the start: no pod begins before etcd has said whose its blocks are.
    pub unconfirmed: bool,
    pub empty: EmptyBlocks,
    waiting: WaitingPlugins,
    /// As plugins find them.
    pub written: Option<NetworkPlans>,
    /// The file's number then, and the time of its last change: seconds, and nanoseconds.
    pub written_as: Option<(u64, i64, i64)>,
    /// What that follows from; `None` before anything was written.
    pub written_from: Option<PlansFrom>,
    /// Networks with addresses of hosts, and why no pod starts there.
    pub closed: Arc<BTreeMap<Scoped, String>>,
    pub closed_from: Option<ClosedFrom>,
    /// Pools of which plugins got no block since hosts have all of them, and how many they had then.
    full: Vec<(IpNetwork, usize)>,
    /// When to look for empty blocks.
    look_at: Option<Instant>,
}

impl HostNetworks {
    /// As they were when the agent stopped.
    pub fn kept(received: BlocksUpdate, served: ServedNetworks) -> HostNetworks {
        HostNetworks { received, served, ..HostNetworks::default() }
    }

    /// Takes over what hosts have.
    pub fn receive(&mut self, update: BlocksUpdate) {
        self.empty.retain(&update.own);
        let is_read = self.received.is_read || update.is_read;
        self.received = BlocksUpdate { is_read, ..update };
        let (received, served) = (&self.received, &self.served);
        let blocks = |pool: &IpNetwork| {
            let all = received.own.iter().chain(received.others.values().flatten());
            all.filter(|block| contains(*pool, **block) && !served.is_pin(block)).count()
        };
        self.full.retain(|(pool, had)| {
            let is_asked_again = received.exhausted.contains(pool);
            !is_asked_again && received.pools.contains(pool) && blocks(pool) >= *had
        });
        self.full.extend(received.exhausted.iter().map(|pool| (*pool, blocks(pool))));
    }

    /// Plugins got no block of some pool, and nobody gave one back since.
    pub fn lacks_blocks(&self) -> bool {
        !self.full.is_empty()
    }

    /// The pools without an address for the next pod, where pods have the addresses `taken`: plugins got no block,
    /// and those that this host has are full.
    pub fn full_pools(&self, taken: &[IpAddr]) -> impl Iterator<Item = IpNetwork> {
        let has_room = |block: &&IpNetwork| room(**block, taken).is_some_and(|(_, free)| free > 0);
        let open: Vec<IpNetwork> = self.for_any_pod().filter(has_room).copied().collect();
        let pools = self.full.iter().map(|(pool, _)| *pool);
        pools.filter(move |pool| !open.iter().any(|block| contains(*pool, *block)))
    }

    /// etcd has said since the agent started which blocks this host has, or does not answer: what is on disk
    /// holds then. Without blocks there is nothing to say.
    pub fn is_confirmed(&self) -> bool {
        self.received.own.is_empty() || self.served.in_sync || self.received.trouble.is_some()
    }

    /// Blocks that this host has and is not about to give back.
    pub fn held(&self) -> BTreeSet<IpNetwork> {
        self.received.own.difference(&self.empty.released).copied().gather()
    }

    /// Blocks in which pods may start.
    pub fn open(&self) -> BTreeSet<IpNetwork> {
        let is_open = |block: &&IpNetwork| {
            !self.unconfirmed
                && self.in_place.contains(*block)
                && !self.empty.released.contains(*block)
                && !self.received.lost.contains(*block)
        };
        self.served.blocks.iter().filter(is_open).copied().gather()
    }

    pub fn ask(&mut self, request: BlockRequest) {
        self.waiting.ask(request);
    }

    /// Blocks that plugins wait for: one more where all that this host has are full.
    pub fn wanted(&self, networks: &Networks) -> Vec<WantedBlocks> {
        let own: Vec<IpNetwork> = self.for_any_pod().copied().collect();
        self.waiting.wanted(networks, self.written.as_ref(), &own)
    }

    /// This host's blocks that are not kept for a pod with a fixed address, and stay.
    fn for_any_pod(&self) -> impl Iterator<Item = &IpNetwork> {
        self.received.own.iter().filter(|block| {
            !self.received.lost.contains(*block)
                && !self.empty.released.contains(*block)
                && !self.served.is_pin(block)
        })
    }

    /// Blocks for pods with fixed addresses whose plugins wait, each with its network.
    pub fn pins(&self, networks: &Networks) -> BTreeMap<IpNetwork, BlockNetwork> {
        self.waiting.pins(networks, self.written.as_ref(), &self.received.own)
    }

    /// Answers plugins according to what is written.
    pub fn answer(&mut self) {
        self.waiting.answer(self.written.as_ref(), &self.received);
    }

    /// When something is to be done that no event says.
    pub fn due(&self) -> Option<Instant> {
        self.waiting.due().into_iter().chain(self.look_at).min()
    }

    /// It is time to look for empty blocks.
    pub fn is_due(&mut self, idle: Duration) -> bool {
        let now = Instant::now();
        if self.received.own.is_empty() {
            self.look_at = None;
            return false;
        }
        let has_pins = self.received.own.iter().any(|block| self.served.is_pin(block));
        let every = if has_pins { PIN_LOOKS.min(idle / LOOKS) } else { idle / LOOKS };
        let next = now + every.max(Duration::from_millis(100));
        let is_due = self.look_at.is_none_or(|at| at <= now);
        // The next look may be of a time without pins.
        self.look_at = if is_due { Some(next) } else { self.look_at.min(Some(next)) };
        is_due
    }

    /// A pod starts with `addresses`.
    pub fn note_use(&mut self, addresses: &[IpAddr]) {
        self.empty.note_use(&self.received.own, addresses);
    }

    /// The blocks that have been empty for `idle`, where pods have the addresses `taken`.
    pub fn idle(&mut self, taken: &[IpAddr], idle: Duration) -> Vec<IpNetwork> {
        let all = BlockUse {
            own: &self.received.own,
            lost: &self.received.lost,
            served: &self.served.blocks,
            pin_ranges: &self.served.pin_ranges,
            taken,
            in_sync: self.served.in_sync,
            is_followed: self.received.is_read && self.received.trouble.is_none(),
        };
        self.empty.idle(&all, Instant::now(), idle)
    }
}
