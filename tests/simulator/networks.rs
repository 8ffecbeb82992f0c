//! Networks of tenants: pods that come and go, the blocks that hosts take for them, and what plugins go by.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use humanz::lease::LeaseError;
use humanz::lease::blocks::empty::{BlockUse, EmptyBlocks};
use humanz::lease::blocks::known_store::KnownStore;
use humanz::lease::blocks::session::{BlockInputs, BlockOwners, WantedBlocks};
use humanz::lease::blocks::{BlockNetwork, FoundBlocks};
use humanz::lease::session::SessionMachine;
use humanz::net::subnet::{self, Pool};
use ipnetwork::IpNetwork;

use super::block_keys::Follower;
use super::flaw::Flaw;
use super::network_objects::{self, KnownNetworks};
use super::world::{REPAIRED, Scheduled, World};

/// Networks, each of [`BLOCKS`] blocks.
pub const NETWORKS: usize = 2;
const BLOCKS: usize = 4;

/// Pods that have room in a block.
const ROOM: usize = 2;

/// A block without pods is given back after so many milliseconds; time between two looks.
const IDLE: u64 = 4_000;
const LOOK: u64 = 1_000;

/// How long a plugin waits for a block, and how often a runtime starts a pod that did not start.
const DEADLINE: u64 = 10_000;
const STARTS: u32 = 4;

/// When, after everything is repaired, pods start that must find room; and when all pods end.
pub const LAST_PODS: u64 = 60_000;
const LAST_CHECK: u64 = 15_000;

/// What happens to pods and blocks.
#[derive(Debug)]
pub enum BlockEvent {
    /// A runtime calls the plugin.
    Add(usize, PodStart),
    /// It takes an address of the block that it has chosen.
    Claim(usize, PodStart, IpNetwork),
    /// The plugin has an address, and looks again at what it went by.
    Claimed(usize, PodStart),
    /// A pod of the host ends.
    End(usize),
    /// The agent looks for empty blocks.
    Look(usize, u32),
    /// The agent receives what its follower of etcd published last.
    Hear(usize, u32),
    LastPods,
    LastCheck,
}

/// A pod on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodStart {
    pub number: u32,
    pub network: usize,
    pub starts: u32,
}

/// What a host has of networks.
#[derive(Default)]
pub struct HostBlocks {
    /// On disk: this host's, and all others.
    pub kept: (BTreeSet<IpNetwork>, FoundBlocks),
    /// The networks that the host has learned of, also on disk.
    pub known: KnownNetworks,
    /// Until a reboot: blocks in which plugins start pods without asking …
    pub plan: BTreeSet<IpNetwork>,
    /// … and the pods there.
    pub pods: BTreeMap<PodStart, Pod>,
    /// While the agent runs.
    pub agent: Option<BlockAgent>,
    /// Other hosts' blocks that this one knew when etcd lost its data.
    pub knew: BTreeSet<(usize, IpNetwork)>,
    /// Networks whose last pods gave up because all blocks were taken.
    without_room: BTreeSet<usize>,
    /// Since when blocks are in use.
    pub since: BTreeMap<IpNetwork, u64>,
}

pub struct Pod {
    pub block: IpNetwork,
    pub ready: bool,
}

/// The parts of an agent that are about blocks.
pub struct BlockAgent {
    pub follower: Follower,
    received: BlockOwners,
    exhausted: BTreeSet<IpNetwork>,
    is_followed: bool,
    is_read: bool,
    empty: EmptyBlocks,
    /// Plugins: the pod, until when, and the blocks that were full.
    waiting: Vec<(PodStart, u64, BTreeSet<IpNetwork>)>,
    looks: bool,
}

pub fn pool(network: usize) -> IpNetwork {
    IpNetwork::new(Ipv4Addr::new(10, 32 + network as u8, 0, 0).into(), 28).expect("a pool")
}

fn clock(start: Instant, now: u64) -> Instant {
    start + Duration::from_millis(now)
}

impl World {
    /// The agent of `host` starts: it serves the blocks that it had.
    pub fn start_blocks(&mut self, host: usize) {
        if !self.has_networks {
            return;
        }
        let name = self.hosts[host].name(self.flaw);
        let (own, found) = self.hosts[host].blocks.kept.clone();
        let received = BlockOwners { own: own.clone(), ..BlockOwners::default() };
        let follower = Follower::new(&self.store.roots, name, own, found);
        self.hosts[host].blocks.agent = Some(BlockAgent {
            follower,
            received,
            exhausted: BTreeSet::new(),
            is_followed: false,
            is_read: false,
            empty: EmptyBlocks::default(),
            waiting: Vec::new(),
            looks: false,
        });
        self.serve_blocks(host);
        self.read_blocks(host);
        self.hear_networks_soon(host);
    }

    /// The agent ends, and with it the waits of plugins.
    pub fn stop_blocks(&mut self, host: usize) {
        let Some(agent) = self.hosts[host].blocks.agent.take() else { return };
        agent.waiting.iter().for_each(|(pod, ..)| self.start_again(host, *pod));
    }

    /// Pods and what is in memory end with the host.
    pub fn reboot_blocks(&mut self, host: usize) {
        let blocks = &mut self.hosts[host].blocks;
        blocks.pods.clear();
        blocks.plan.clear();
        blocks.since.clear();
    }

    pub(super) fn happen_to_blocks(&mut self, event: BlockEvent) {
        match event {
            BlockEvent::Add(host, pod) => self.add_pod(host, pod),
            BlockEvent::Claim(host, pod, block) => self.claim(host, pod, block),
            BlockEvent::Claimed(host, pod) => self.claimed(host, pod),
            BlockEvent::End(host) => self.end_pod(host),
            BlockEvent::Look(host, life) if self.lives(host, life) => self.look(host),
            BlockEvent::Hear(host, life) if self.lives(host, life) => self.hear_blocks(host),
            BlockEvent::LastPods => self.last_pods(),
            BlockEvent::LastCheck => self.last_check(),
            BlockEvent::Look(..) | BlockEvent::Hear(..) => {}
        }
    }

    fn blocks_after(&mut self, delay: u64, event: BlockEvent) {
        self.after(delay, Scheduled::Blocks(event));
    }

    fn hear_blocks(&mut self, host: usize) {
        let Some(agent) = &mut self.hosts[host].blocks.agent else { return };
        let Some(update) = agent.follower.published.clone() else { return };
        (agent.received, agent.exhausted, agent.is_followed) = update;
        agent.is_read |= agent.is_followed;
        agent.empty.retain(&agent.received.own);
        self.serve_blocks(host);
    }

    // The plugin.

    fn add_pod(&mut self, host: usize, pod: PodStart) {
        let is_there = self.hosts[host].exists && !self.hosts[host].left;
        if !is_there || self.is_rebooting(host) || self.has_no_pods {
            return;
        }
        let full = |blocks: &HostBlocks, block: &IpNetwork| {
            blocks.pods.values().filter(|pod| pod.block == *block).count() >= ROOM
        };
        let blocks = &mut self.hosts[host].blocks;
        let of_network = |block: &&IpNetwork| subnet::contains(pool(pod.network), **block);
        let known: Vec<IpNetwork> = blocks.plan.iter().filter(of_network).copied().collect();
        let free = known.iter().find(|block| !full(blocks, block)).copied();
        if let Some(block) = free {
            let delay = self.block_random.between(1, 200);
            return self.blocks_after(delay, BlockEvent::Claim(host, pod, block));
        }
        let until = self.now + DEADLINE;
        match &mut blocks.agent {
            Some(agent) => {
                agent.waiting.push((pod, until, known.into_iter().collect()));
                self.blocks_after(DEADLINE, BlockEvent::Look(host, self.hosts[host].life));
                self.serve_blocks(host);
            }
            None => self.start_again(host, pod),
        }
    }

    fn claim(&mut self, host: usize, pod: PodStart, block: IpNetwork) {
        if !self.is_rebooting(host) && !self.has_no_pods {
            self.hosts[host].blocks.pods.insert(pod, Pod { block, ready: false });
            let delay = self.block_random.between(1, 10);
            self.blocks_after(delay, BlockEvent::Claimed(host, pod));
        }
    }

    fn claimed(&mut self, host: usize, pod: PodStart) {
        let Some(claimed) = self.hosts[host].blocks.pods.get_mut(&pod) else { return };
        claimed.ready = true;
        let block = claimed.block;
        let is_open = self.hosts[host].blocks.plan.contains(&block);
        if !is_open && self.flaw != Flaw::BlockLeftUnderPods {
            self.hosts[host].blocks.pods.remove(&pod);
            return self.blocks_after(1, BlockEvent::Add(host, pod));
        }
        self.note(|_| format!("pod {} starts on h{host} in {block}", pod.number));
        self.judge_block(host, block);
    }

    fn start_again(&mut self, host: usize, pod: PodStart) {
        self.note(|_| format!("pod {} does not start on h{host}", pod.number));
        if pod.starts < STARTS {
            let again = PodStart { starts: pod.starts + 1, ..pod };
            self.blocks_after(2_000, BlockEvent::Add(host, again));
        } else if self.is_full(pod.network) {
            self.hosts[host].blocks.without_room.insert(pod.network);
        }
    }

    /// Hosts have all blocks of the network.
    fn is_full(&self, network: usize) -> bool {
        let blocks = self.store.blocks.iter().map(|(_, block, _)| block);
        let taken: BTreeSet<IpNetwork> =
            blocks.filter(|block| subnet::contains(pool(network), *block)).collect();
        taken.len() >= BLOCKS
    }

    fn end_pod(&mut self, host: usize) {
        let pods = &mut self.hosts[host].blocks.pods;
        let ready: Vec<PodStart> =
            pods.iter().filter(|(_, pod)| pod.ready).map(|(start, _)| *start).collect();
        if !ready.is_empty() {
            let ended = ready[self.block_random.below(ready.len() as u64) as usize];
            self.hosts[host].blocks.pods.remove(&ended);
            self.note(|_| format!("pod {} ends on h{host}", ended.number));
        }
    }

    // The agent.

    /// Writes what plugins go by, answers those that wait, and says what the host wants.
    pub(super) fn serve_blocks(&mut self, host: usize) {
        let life = self.hosts[host].life;
        let machine = self.hosts[host].agent.as_ref().map(|agent| &agent.machine);
        let is_ready = machine.is_some_and(|machine| machine.lease().is_some());
        let is_ready = is_ready || self.hosts[host].uses.is_some();
        if is_ready {
            self.write_plan(host);
            self.answer_plugins(host);
        }
        self.send_block_inputs(host);
        let Some(agent) = &mut self.hosts[host].blocks.agent else { return };
        if !agent.looks && !agent.received.own.is_empty() {
            agent.looks = true;
            self.blocks_after(LOOK, BlockEvent::Look(host, life));
        }
    }

    fn write_plan(&mut self, host: usize) {
        let blocks = &mut self.hosts[host].blocks;
        let Some(agent) = &blocks.agent else { return };
        let (released, lost) = (&agent.empty.released, &agent.received.lost);
        let pools = network_objects::pools(&blocks.known);
        let is_open = |block: &&IpNetwork| {
            let is_part = pools.iter().any(|pool| subnet::contains(*pool, **block));
            is_part && !released.contains(*block) && !lost.contains(*block)
        };
        let plan: BTreeSet<IpNetwork> =
            agent.received.own.iter().filter(is_open).copied().collect();
        let new: Vec<IpNetwork> = plan.difference(&blocks.plan).copied().collect();
        blocks.plan = plan;
        for block in new {
            self.note(|_| format!("pods may start on h{host} in {block}"));
            self.judge_block(host, block);
        }
    }

    fn answer_plugins(&mut self, host: usize) {
        let blocks = &mut self.hosts[host].blocks;
        let Some(agent) = &mut blocks.agent else { return };
        let (now, plan) = (self.now, &blocks.plan);
        let mut answered = Vec::new();
        agent.waiting.retain(|(pod, until, full)| {
            let pool = pool(pod.network);
            let mut of_network = plan.iter().filter(|block| subnet::contains(pool, **block));
            let has_room = of_network.any(|block| !full.contains(block));
            let is_known = blocks.known.contains_key(&pod.network);
            let is_over = *until <= now || !is_known || agent.exhausted.contains(&pool);
            if has_room || is_over {
                answered.push((*pod, has_room));
            }
            !has_room && !is_over
        });
        for (pod, has_room) in answered {
            match has_room {
                true => self.blocks_after(1, BlockEvent::Add(host, pod)),
                false => self.start_again(host, pod),
            }
        }
    }

    fn send_block_inputs(&mut self, host: usize) {
        if self.hosts[host].blocks.agent.is_none() {
            return;
        }
        let name = self.hosts[host].name(self.flaw);
        let machine = self.hosts[host].agent.as_ref().map(|agent| &agent.machine);
        let is_copied =
            |machine: &SessionMachine| machine.trouble().is_some_and(LeaseError::is_of_copy);
        let machine = machine.filter(|it| it.lease().is_some() && !is_copied(it));
        let known = machine.and_then(|machine| machine.last_known());
        let store = known.and_then(|known| KnownStore::of(known, &name));
        let revisions: Vec<_> = (0..NETWORKS).map(|it| self.revision_of(host, it)).collect();
        let blocks = &mut self.hosts[host].blocks;
        let Some(agent) = &mut blocks.agent else { return };
        let own = agent.received.own.iter().filter(|block| {
            !agent.received.lost.contains(*block) && !agent.empty.released.contains(*block)
        });
        let own: Vec<IpNetwork> = own.copied().collect();
        let mut wanted: Vec<WantedBlocks> = Vec::new();
        for (pod, _, full) in &agent.waiting {
            let addresses = pool(pod.network);
            let had = own.iter().filter(|block| subnet::contains(addresses, **block));
            let is_lacking = had.clone().all(|block| full.contains(block));
            let is_known = blocks.known.contains_key(&pod.network);
            if is_lacking && is_known && !wanted.iter().any(|it| it.addresses == addresses) {
                let pool = Pool::new(addresses, 2).expect("a pool");
                let name = network_objects::name(pod.network);
                let network = BlockNetwork { name, revision: revisions[pod.network] };
                wanted.push(WantedBlocks { network, addresses, pool, count: had.count() + 1 });
            }
        }
        let released = agent.empty.released.clone();
        let pools = network_objects::pools(&blocks.known);
        let inputs = BlockInputs { store, pools, wanted, released, ..BlockInputs::default() };
        if agent.follower.inputs != inputs {
            agent.follower.inputs = inputs;
            self.settle_blocks(host);
        }
    }

    fn look(&mut self, host: usize) {
        let (life, start) = (self.hosts[host].life, self.clock);
        let now = clock(start, self.now);
        let blocks = &mut self.hosts[host].blocks;
        let addresses = |blocks: &HostBlocks| -> Vec<IpAddr> {
            blocks.pods.values().map(|pod| pod.block.ip()).collect()
        };
        let taken = addresses(blocks);
        let Some(agent) = &mut blocks.agent else { return };
        let pools = network_objects::pools(&blocks.known);
        let is_part =
            |block: &&IpNetwork| pools.iter().any(|pool| subnet::contains(*pool, **block));
        let served: Vec<IpNetwork> = agent.received.own.iter().filter(is_part).copied().collect();
        let all = BlockUse {
            own: &agent.received.own,
            lost: &agent.received.lost,
            served: &served,
            pin_ranges: &[],
            taken: &taken,
            in_sync: agent.is_read,
            is_followed: agent.is_followed,
        };
        let idle = agent.empty.idle(&all, now, Duration::from_millis(IDLE));
        agent.empty.released.extend(idle.iter().copied());
        agent.looks = !agent.received.own.is_empty();
        let looks = agent.looks;
        if !idle.is_empty() {
            self.write_plan(host);
            let taken = addresses(&self.hosts[host].blocks);
            let used = idle.into_iter().filter(|it| taken.iter().any(|pod| it.contains(*pod)));
            if let Some(agent) = &mut self.hosts[host].blocks.agent {
                agent.empty.keep(used);
            }
        }
        self.serve_blocks(host);
        if looks {
            self.blocks_after(LOOK, BlockEvent::Look(host, life));
        }
    }

    // The end.

    /// Where there is room, a pod starts.
    fn last_pods(&mut self) {
        for host in 0..self.hosts.len() {
            for network in 0..NETWORKS {
                let number = 1_000_000 + (host * NETWORKS + network) as u32;
                self.add_pod(host, PodStart { number, network, starts: 0 });
            }
        }
        self.blocks_after(LAST_CHECK, BlockEvent::LastCheck);
    }

    fn last_check(&mut self) {
        let mut wrong = None;
        for (host, network) in
            (0..self.hosts.len()).flat_map(|it| (0..NETWORKS).map(move |n| (it, n)))
        {
            // A block may have become free after the last start.
            let had_room = !self.hosts[host].blocks.without_room.contains(&network);
            let of_network = |pod: &PodStart| pod.network == network && pod.number >= 1_000_000;
            let runs = self.hosts[host].blocks.pods.keys().any(of_network);
            if !runs && had_room && !self.is_full(network) && self.serves(host) {
                wrong =
                    Some(format!("no pod of n{network} starts on h{host}, where blocks are free"));
            }
        }
        if let Some(wrong) = wrong {
            self.wrong(wrong);
        }
        self.has_no_pods = true;
        for host in &mut self.hosts {
            host.blocks.pods.clear();
            let agent = host.blocks.agent.iter_mut();
            agent.for_each(|agent| agent.waiting.clear());
        }
    }

    /// The host is there and its agent serves it.
    pub fn serves(&self, host: usize) -> bool {
        let it = &self.hosts[host];
        let follows = it.agent.as_ref().is_some_and(|agent| agent.machine.lease().is_some());
        let is_alone = !self.has_copy(host) && it.copy_of.is_none();
        it.exists && !it.left && follows && is_alone && !self.stands_back(host)
    }

    /// The host is switched off, or on its way up.
    fn is_rebooting(&self, host: usize) -> bool {
        self.hosts[host].uses.is_none() && self.hosts[host].agent.is_none()
    }

    pub(super) fn plan_blocks(&mut self) {
        if self.has_networks {
            self.at(REPAIRED + LAST_PODS, Scheduled::Blocks(BlockEvent::LastPods));
        }
    }
}
