//! Networks of tenants: this host's blocks of them, and plugins that wait for one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnetwork::IpNetwork;

use crate::agent::new_pods::BlockRequest;
use crate::net::Family;
use crate::net::subnet::contains;
use crate::policy::network_plan::{BlockAnswer, DEADLINE, NetworkPlans};
use crate::policy::served::ServedNetworks;
use crate::policy::{Networks, PolicySnapshot};
use crate::sources::{BlocksUpdate, WantedBlocks};

/// Looks at empty blocks in the time after which they are given back.
const LOOKS: u32 = 10;

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
        let own =
            self.heard.own.iter().filter(|block| {
                !self.heard.lost.contains(*block) && !self.released.contains(*block)
            });
        let own: Vec<IpNetwork> = own.copied().collect();
        let mut wanted: Vec<WantedBlocks> = Vec::new();
        for request in &self.waiting {
            let question = &request.question;
            let Some(network) = networks.get(&question.network) else { continue };
            for pool in network.pools.iter() {
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
        let found = self.written.as_ref().and_then(|plans| plans.get(&question.network));
        let Some((name, plan)) = found else {
            return no(format!("network {} is not known on this host", question.network));
        };
        let mut lacking = plan.lacking(&question.full);
        let Some(pool) = lacking.next() else {
            return Some(BlockAnswer { ready: true, why: String::new() });
        };
        let pools = lacking.chain([pool]).collect::<Vec<_>>();
        if let Some(pool) = pools.iter().find(|pool| self.heard.exhausted.contains(*pool)) {
            return no(format!(
                "no block of {pool} (network {name}) is free: hosts have all of them"
            ));
        }
        if let Some(why) = &self.heard.trouble {
            return no(format!("no block of {pool} (network {name}) without etcd: {why}"));
        }
        let is_late = asked_at.elapsed() > DEADLINE.mul_f32(0.9);
        is_late.then(|| BlockAnswer {
            ready: false,
            why: format!("this host got no block of {pool} (network {name}) in time"),
        })
    }

    /// When something is to be done that no event says.
    pub fn due(&self) -> Option<Instant> {
        let late = self.waiting.iter().map(|it| it.asked_at + DEADLINE.mul_f32(0.91)).min();
        late.into_iter().chain(self.look_at).min()
    }

    /// It is time to look for empty blocks.
    pub fn is_due(&mut self, idle: Duration) -> bool {
        let now = Instant::now();
        if self.heard.own.is_empty() {
            self.look_at = None;
            return false;
        }
        let is_due = self.look_at.is_none_or(|at| at <= now);
        if is_due {
            self.look_at = Some(now + (idle / LOOKS).max(Duration::from_millis(100)));
        }
        is_due
    }

    /// The blocks that have been empty for `idle`, where pods have the addresses `taken`; those that nobody can
    /// use at once.
    pub fn idle(&mut self, taken: &[IpAddr], idle: Duration) -> Vec<IpNetwork> {
        let now = Instant::now();
        let is_empty = |block: &IpNetwork| !taken.iter().any(|address| block.contains(*address));
        let own = &self.heard.own;
        self.empty_since.retain(|block, _| own.contains(block) && is_empty(block));
        self.released.retain(|block| own.contains(block));
        let empty = own.iter().filter(|block| is_empty(block) && !self.released.contains(*block));
        let mut found = Vec::new();
        for block in empty {
            let since = *self.empty_since.entry(*block).or_insert(now);
            let is_useless = self.heard.lost.contains(block) || !self.served.blocks.contains(block);
            if now.duration_since(since) >= idle || is_useless && self.served.in_sync {
                found.push(*block);
            }
        }
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
