//! Networks of tenants: this host's blocks of them, and plugins that wait for one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnetwork::IpNetwork;

use crate::agent::new_pods::BlockRequest;
use crate::net::Family;
use crate::net::subnet::contains;
use crate::policy::network::NetworkPool;
use crate::policy::network_plan::{BlockAnswer, BlockQuestion, DEADLINE, NetworkPlans};
use crate::policy::served::ServedNetworks;
use crate::policy::{Networks, PinnedAddress, PodName, PolicySnapshot, pin};
use crate::sources::{BlocksUpdate, WantedBlocks};

/// Looks at empty blocks in the time after which they are given back.
const LOOKS: u32 = 10;

/// Time between two looks whether pods with fixed addresses still run: another host waits for them.
const PIN_LOOKS: Duration = Duration::from_millis(500);

/// How long a plugin waits for a fixed address that another host has: until the pod has ended there.
const PIN_WAIT: Duration = Duration::from_secs(4);

/// After this time without its pod a fixed address is given back that a plugin asked for and did not use.
const PIN_UNUSED: Duration = Duration::from_secs(3);

/// What plugins go by follows from this.
#[derive(Clone, Debug)]
pub struct PlansFrom {
    /// There may be networks of tenants.
    pub exchanges: bool,
    pub known: Option<Arc<PolicySnapshot>>,
    pub open: BTreeSet<IpNetwork>,
    pub families: Vec<Family>,
}

impl PlansFrom {
    pub fn is_same(&self, other: &PlansFrom) -> bool {
        let is_same = match (&self.known, &other.known) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        let own = (self.exchanges, &self.open, &self.families);
        is_same && own == (other.exchanges, &other.open, &other.families)
    }
}

#[derive(Debug, Default)]
pub struct HostNetworks {
    pub heard: BlocksUpdate,
    pub served: ServedNetworks,
    /// Blocks whose gateways and routes are as they should be.
    pub in_place: BTreeSet<IpNetwork>,
    /// Blocks that no pod may start in from now on.
    pub released: BTreeSet<IpNetwork>,
    /// Blocks of pods with fixed addresses, in which those have been.
    pinned_used: BTreeSet<IpNetwork>,
    empty_since: BTreeMap<IpNetwork, Instant>,
    waiting: Vec<BlockRequest>,
    /// As plugins find them.
    pub written: Option<NetworkPlans>,
    /// What that follows from; `None` before anything was written.
    pub written_from: Option<PlansFrom>,
    /// When to look for empty blocks.
    look_at: Option<Instant>,
}

impl HostNetworks {
    /// As they were when the agent stopped.
    pub fn kept(heard: BlocksUpdate, served: ServedNetworks) -> HostNetworks {
        HostNetworks { heard, served, ..HostNetworks::default() }
    }

    /// Takes over what hosts have.
    pub fn hear(&mut self, update: BlocksUpdate) {
        // Once its key is gone, a block is as any other.
        self.released.retain(|block| update.own.contains(block));
        self.empty_since.retain(|block, _| update.own.contains(block));
        let is_read = self.heard.is_read || update.is_read;
        self.heard = BlocksUpdate { is_read, ..update };
    }

    /// Blocks in which pods may start.
    pub fn open(&self) -> BTreeSet<IpNetwork> {
        let is_open = |block: &&IpNetwork| {
            self.in_place.contains(*block)
                && !self.released.contains(*block)
                && !self.heard.lost.contains(*block)
        };
        self.served.blocks.iter().filter(is_open).copied().collect()
    }

    pub fn ask(&mut self, request: BlockRequest) {
        self.waiting.push(request);
    }

    /// Blocks that plugins wait for: one more where all that this host has are full.
    pub fn wanted(&self, networks: &Networks) -> Vec<WantedBlocks> {
        let own = self.heard.own.iter().filter(|block| {
            !self.heard.lost.contains(*block)
                && !self.released.contains(*block)
                && !self.served.is_pin(block)
        });
        let own: Vec<IpNetwork> = own.copied().collect();
        let mut wanted: Vec<WantedBlocks> = Vec::new();
        for request in &self.waiting {
            let question = &request.question;
            let Some(network) = networks.get(&question.network) else { continue };
            let pinned = pinned(networks, question);
            let is_open =
                |pool: &&NetworkPool| !pinned.iter().any(|it| pool.network().contains(it.address));
            for pool in network.pools.iter().filter(is_open) {
                let had = own.iter().filter(|block| contains(pool.network(), **block));
                let is_lacking = had.clone().all(|block| question.full.contains(block));
                if is_lacking && !wanted.iter().any(|it| it.pool == *pool) {
                    let network = question.network.to_string();
                    let count = had.count() + 1;
                    wanted.push(WantedBlocks { network, pool: *pool, count });
                }
            }
        }
        wanted
    }

    /// Blocks for pods with fixed addresses whose plugins wait, each with its network. A pod's first address
    /// comes first, on every host: of two hosts none has one while the other has another one.
    pub fn pins(&self, networks: &Networks) -> BTreeMap<IpNetwork, String> {
        let questions = self.waiting.iter().map(|request| &request.question);
        let has = |it: &PinnedAddress| self.heard.own.contains(&it.block());
        let pinned = questions
            .filter_map(|question| pinned(networks, question).into_iter().find(|it| !has(it)));
        pinned.map(|it| (it.block(), it.network.to_string())).collect()
    }

    /// Answers the plugins whose network has an address now, according to what is written, and those that wait
    /// in vain.
    pub fn answer(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        for request in waiting {
            match self.answer_to(&request) {
                Some(answer) => request.answer(&answer),
                None => self.waiting.push(request),
            }
        }
    }

    fn answer_to(
        &self,
        BlockRequest { question, asked_at, .. }: &BlockRequest,
    ) -> Option<BlockAnswer> {
        let no = |why: String| Some(BlockAnswer { ready: false, why });
        let BlockQuestion { network: name, full, pinned } = question;
        let plans = self.written.as_ref();
        let lacking = plans.and_then(|plans| plans.lacking(name, full, pinned.as_ref()));
        let Some(lacking) = lacking else {
            return no(format!("network {name} is not known on this host"));
        };
        let Some(what) = lacking.first() else {
            return Some(BlockAnswer { ready: true, why: String::new() });
        };
        let full = lacking.pools.iter().find(|pool| self.heard.exhausted.contains(*pool));
        if let Some(pool) = full {
            return no(format!(
                "no block of {pool} (network {name}) is free: hosts have all of them"
            ));
        }
        if let Some(why) = &self.heard.trouble {
            return no(format!("this host gets no {what} (network {name}) without etcd: {why}"));
        }
        let (waited, pod) = (asked_at.elapsed(), pinned.as_ref());
        if waited >= PIN_WAIT
            && let Some(why) = lacking.pinned.iter().find_map(|it| self.taken(*it, pod))
        {
            return no(why);
        }
        let is_late = waited > DEADLINE.mul_f32(0.9);
        is_late.then(|| BlockAnswer {
            ready: false,
            why: format!("this host got no {what} (network {name}) in time"),
        })
    }

    /// Who has the fixed address of `pod`, and what to do.
    fn taken(&self, address: IpAddr, pod: Option<&PodName>) -> Option<String> {
        let has = |block: &&IpNetwork| block.contains(address);
        let others = self.heard.others.iter();
        let mut others = others.filter_map(|(host, all)| Some((Some(host), all.iter().find(has)?)));
        let own = || Some((None, self.heard.own.iter().find(has)?));
        let (host, block) = others.next().or_else(own)?;
        let holder = host.map_or("this host".to_owned(), |host| format!("host {host}"));
        match host.zip(pod) {
            Some((host, pod)) if pin::block(address) == *block => Some(format!(
                "{holder} has {address}: end the pod there and let its agent run; if that host is gone, \
                 humanz-agent nodes rm {host}, or humanz-agent pin release {pod} --force"
            )),
            None if pin::block(address) == *block => None,
            _ => Some(format!(
                "{holder} has block {block}, in which {address} lies, from before it was kept for pins: end its \
                 pods there, or pin another address"
            )),
        }
    }

    /// When something is to be done that no event says.
    pub fn due(&self) -> Option<Instant> {
        let now = Instant::now();
        let late = self.waiting.iter().flat_map(|it| {
            let answers = [it.asked_at + PIN_WAIT, it.asked_at + DEADLINE.mul_f32(0.91)];
            answers.into_iter().find(|at| *at > now).or(Some(now))
        });
        let late = late.min();
        late.into_iter().chain(self.look_at).min()
    }

    /// It is time to look for empty blocks.
    pub fn is_due(&mut self, idle: Duration) -> bool {
        let now = Instant::now();
        if self.heard.own.is_empty() {
            self.look_at = None;
            return false;
        }
        let has_pins = self.heard.own.iter().any(|block| self.served.is_pin(block));
        let every = if has_pins { PIN_LOOKS.min(idle / LOOKS) } else { idle / LOOKS };
        let next = now + every.max(Duration::from_millis(100));
        let is_due = self.look_at.is_none_or(|at| at <= now);
        // The next look may be of a time without pins.
        self.look_at = if is_due { Some(next) } else { self.look_at.min(Some(next)) };
        is_due
    }

    /// The blocks that have been empty for `idle`, where pods have the addresses `taken`; those that nobody can
    /// use at once.
    pub fn idle(&mut self, taken: &[IpAddr], idle: Duration) -> Vec<IpNetwork> {
        let now = Instant::now();
        let is_empty = |block: &IpNetwork| !taken.iter().any(|address| block.contains(*address));
        let own = &self.heard.own;
        self.empty_since.retain(|block, _| own.contains(block) && is_empty(block));
        self.pinned_used.retain(|block| own.contains(block));
        let is_used_pin = |block: &&IpNetwork| self.served.is_pin(block) && !is_empty(block);
        self.pinned_used.extend(own.iter().filter(is_used_pin));
        let empty = own.iter().filter(|block| is_empty(block) && !self.released.contains(*block));
        let mut found = Vec::new();
        for block in empty {
            let since = *self.empty_since.entry(*block).or_insert(now);
            let is_useless = self.heard.lost.contains(block) || !self.served.blocks.contains(block);
            let is_over = match self.served.is_pin(block) {
                // Without etcd the pod starts again here alone.
                true if self.heard.trouble.is_some() || !self.heard.is_read => false,
                true if self.pinned_used.contains(block) => true,
                true => now.duration_since(since) >= PIN_UNUSED,
                false => now.duration_since(since) >= idle,
            };
            if is_over || is_useless && self.served.in_sync {
                found.push(*block);
            }
        }
        // What has it later is new, and so is the time without a pod.
        self.pinned_used.retain(|block| !found.contains(block));
        self.empty_since.retain(|block, _| !found.contains(block));
        found
    }

    /// A pod has just started in them.
    pub fn keep(&mut self, blocks: impl IntoIterator<Item = IpNetwork>) {
        for block in blocks {
            self.released.remove(&block);
            self.empty_since.remove(&block);
        }
    }
}

/// The fixed addresses that the question is about.
fn pinned(networks: &Networks, question: &BlockQuestion) -> Vec<PinnedAddress> {
    let Some(pod) = &question.pinned else { return Vec::new() };
    let placed = networks.placed_pins().remove(pod).and_then(Result::ok).unwrap_or_default();
    placed.into_iter().filter(|it| it.network == question.network).collect()
}
