//! Blocks of tenants' networks through etcd: which host has which, and the keys of this host's own.
//!
//! All keys stand in one range, which is read and watched: what a host has is decided by all keys that were
//! created up to its own ([`crate::lease::blocks`]), and these it has read when it reads its own.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnetwork::IpNetwork;
use tokio::sync::watch as latest;
use tokio::time::{Instant, sleep, timeout_at};

use crate::etcd::{Etcd, EtcdSettings};
use crate::lease::EtcdError;
use crate::lease::blocks::{FoundBlocks, OwnedBlocks, give_back, take};
use crate::lease::records::{NodeName, Roots};
use crate::lease::transaction::Transaction;
use crate::net::{Object, Problem, ProblemKind, hash, subnet};
use crate::os::event_loop::{self, EventLoop};
use crate::policy::network::NetworkPool;
use crate::sources::exchanged::{HEARD, retry};
use crate::sources::kept_blocks::KeptBlocks;

/// Time between two looks whether what etcd has of other hosts is noted on disk.
const KEEP: Duration = Duration::from_secs(10);

/// Wait before a write is tried again whose conditions did not hold.
const AGAIN: Duration = Duration::from_millis(500);

/// How to reach etcd, and where to keep what it has.
#[derive(Clone, Debug)]
pub struct BlocksStart {
    pub etcd: EtcdSettings,
    pub roots: Roots,
    pub host: NodeName,
    pub state_dir: PathBuf,
}

/// What this host knows and wants.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockInputs {
    /// The revision of this host's record in etcd: nothing is written once another machine has it.
    pub record: Option<i64>,
    /// All pools of networks.
    pub pools: Vec<IpNetwork>,
    pub wanted: Vec<WantedBlocks>,
    /// Parts of the pools that no other blocks are taken of than these of single pods …
    pub pin_ranges: Vec<IpNetwork>,
    /// … each with its network, for people who look at the keys.
    pub pins: BTreeMap<IpNetwork, String>,
    /// Blocks in which no pod runs, and none will start.
    pub released: BTreeSet<IpNetwork>,
}

/// How many blocks of a pool this host wants to have.
#[derive(Clone, Debug, PartialEq)]
pub struct WantedBlocks {
    /// For people who look at the keys.
    pub network: String,
    pub pool: NetworkPool,
    pub count: usize,
}

/// Who has which block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlocksUpdate {
    /// This host's.
    pub own: BTreeSet<IpNetwork>,
    /// Those of them that another host had first.
    pub lost: BTreeSet<IpNetwork>,
    pub others: Arc<BTreeMap<NodeName, Vec<IpNetwork>>>,
    /// etcd was read in this life.
    pub is_read: bool,
    /// Pools of which no block is free.
    pub exhausted: BTreeSet<IpNetwork>,
    /// Why etcd is not followed.
    pub trouble: Option<String>,
    pub problems: Vec<Problem>,
}

/// The running exchange.
#[derive(Debug)]
pub struct Blocks {
    inputs: latest::Sender<BlockInputs>,
    _event_loop: EventLoop,
}

/// Starts it. `publish` is called from its thread and must not block for long; what it was given last holds
/// while etcd is away.
///
/// # Errors
/// The thread or its event loop cannot be created.
pub fn blocks(
    start: BlocksStart,
    publish: impl FnMut(BlocksUpdate) + Send + 'static,
) -> io::Result<Blocks> {
    let (inputs, receiver) = latest::channel(BlockInputs::default());
    let event_loop = EventLoop::spawn("blocks", async move |stopped| {
        let etcd = Etcd::new(start.etcd.clone(), start.roots.clone());
        let KeptBlocks { own, found } =
            KeptBlocks::read(&start.state_dir, &start.roots, &start.host);
        let mut follower = BlockFollower {
            etcd: &etcd,
            kept: KeptBlocks { own: own.clone(), found: found.clone() },
            start: &start,
            inputs: receiver,
            publish,
            own,
            found,
            asked: BTreeSet::new(),
            exhausted: BTreeSet::new(),
            revision: 0,
            waits_until: None,
            trouble: None,
            published: None,
        };
        tokio::select! {
            _ = stopped => {}
            never = follower.run() => match never {},
        }
    })?;
    Ok(Blocks { inputs, _event_loop: event_loop })
}

impl Blocks {
    /// Applies other inputs as soon as etcd answers. Returns at once.
    pub fn set(&self, inputs: BlockInputs) {
        event_loop::send_if_changed(&self.inputs, inputs);
    }
}

struct BlockFollower<'a, P> {
    etcd: &'a Etcd,
    start: &'a BlocksStart,
    inputs: latest::Receiver<BlockInputs>,
    publish: P,
    /// This host's blocks, noted on disk before anybody hears of them.
    own: BTreeSet<IpNetwork>,
    found: FoundBlocks,
    /// Blocks whose keys were put and have not been read yet.
    asked: BTreeSet<IpNetwork>,
    exhausted: BTreeSet<IpNetwork>,
    revision: i64,
    /// Other hosts put back what etcd lost.
    waits_until: Option<Instant>,
    trouble: Option<String>,
    /// As on disk.
    kept: KeptBlocks,
    published: Option<BlocksUpdate>,
}

/// What is to be written next.
enum KeyWrite {
    Take(IpNetwork, Transaction),
    GiveBack(IpNetwork, Transaction),
}

impl<P: FnMut(BlocksUpdate)> BlockFollower<'_, P> {
    async fn run(&mut self) -> Infallible {
        let mut failures = 0;
        loop {
            let Err(error) = self.follow(&mut failures).await;
            failures += 1;
            self.trouble = Some(error.to_string());
            let again = Instant::now() + retry(failures);
            while Instant::now() < again {
                self.publish();
                // Other pools, perhaps.
                let changed = timeout_at(again, self.inputs.changed()).await;
                if let Ok(Err(_)) = changed {
                    std::future::pending::<()>().await;
                }
            }
        }
    }

    /// Reads everything at one revision, and watches from there.
    async fn follow(&mut self, failures: &mut u32) -> Result<Infallible, EtcdError> {
        let (roots, range) = (&self.start.roots, self.start.roots.blocks_range());
        let (mut found, revision) = self.etcd.blocks().await?;
        if revision < self.revision {
            log::warn!("etcd has older blocks of networks than before: hosts put theirs back");
            self.waits_until = Some(Instant::now() + HEARD);
        }
        if self.waits_until.is_some() {
            found.remembering(&self.found, &self.start.host);
        }
        (self.found, self.revision, self.trouble) = (found, revision, None);
        self.asked.clear();
        *failures = 0;
        let mut watch = self.etcd.watch_ranges(&[range], revision + 1).await?;
        let mut keep = tokio::time::interval_at(Instant::now() + KEEP, KEEP);
        loop {
            let is_done = self.settle().await?;
            tokio::select! {
                changes = watch.next() => {
                    let changes = changes?;
                    if changes.is_empty() {
                        continue;
                    }
                    for change in changes {
                        match change.value {
                            Some(_) => self.found.put(roots, &change.key, change.created),
                            None => self.found.delete(roots, &change.key),
                        }
                    }
                    self.revision = self.revision.max(watch.revision);
                }
                changed = self.inputs.changed() => {
                    changed.map_err(|_| EtcdError::Refused("the agent has ended".to_owned()))?;
                }
                () = sleep(AGAIN), if !is_done => {}
                _ = keep.tick() => drop(self.keep()),
            }
        }
    }

    /// Publishes what there is, and writes this host's keys; false if something is to be tried again. What is
    /// written here counts once the watch has it.
    async fn settle(&mut self) -> Result<bool, EtcdError> {
        if self.waits_until.is_some_and(|until| until <= Instant::now()) {
            self.waits_until = None;
            // What nobody put back is gone.
            return Err(EtcdError::Refused("read again what hosts put back".to_owned()));
        }
        let inputs = self.inputs.borrow_and_update().clone();
        let owned = self.found.owned(&inputs.pools);
        self.adopt(&owned, &inputs);
        if !self.note_own() {
            return Ok(false);
        }
        self.exhausted.clear();
        let writes = self.writes(&owned, &inputs);
        self.publish_with(&owned);
        let mut is_done = self.waits_until.is_none();
        for write in writes {
            let (what, block, transaction) = match &write {
                KeyWrite::Take(block, transaction) => ("take a block", block, transaction),
                KeyWrite::GiveBack(block, transaction) => ("give a block back", block, transaction),
            };
            let committed = self.etcd.commit(what, transaction).await?.is_some();
            is_done &= committed;
            if committed && let KeyWrite::Take(..) = &write {
                self.asked.insert(*block);
            }
        }
        Ok(is_done)
    }

    /// Takes over what the keys say of this host's blocks: those that it has, whoever started to take them.
    fn adopt(&mut self, owned: &OwnedBlocks, inputs: &BlockInputs) {
        for (block, _) in self.found.of(&self.start.host) {
            self.asked.remove(&block);
        }
        let is_kept = |block: &&IpNetwork| !inputs.released.contains(*block);
        self.own.extend(owned.of(&self.start.host).iter().filter(is_kept));
        self.own.retain(|block| !inputs.released.contains(block));
    }

    fn writes(&mut self, owned: &OwnedBlocks, inputs: &BlockInputs) -> Vec<KeyWrite> {
        let Some(record) = inputs.record else { return Vec::new() };
        let (roots, host) = (&self.start.roots, &self.start.host);
        let mut writes = Vec::new();
        let keys: BTreeMap<IpNetwork, i64> = self.found.of(host).collect();
        for block in keys.keys() {
            let is_lost = owned.owner(*block).is_some_and(|owner| owner != *host);
            // Another host was faster, or no pod needs it any longer.
            if inputs.released.contains(block) || is_lost && !self.own.contains(block) {
                let given = give_back(roots, host, *block, record);
                writes.push(KeyWrite::GiveBack(*block, given));
            }
        }
        let network = |block: IpNetwork| {
            let of = |it: &&WantedBlocks| subnet::contains(it.pool.network(), block);
            inputs.wanted.iter().find(of).map_or("-", |it| it.network.as_str())
        };
        for block in self.own.iter().filter(|block| !keys.contains_key(*block)) {
            let is_part = inputs.pools.iter().any(|pool| subnet::contains(*pool, *block));
            if is_part && owned.owner(*block).is_none() && !self.asked.contains(block) {
                log::warn!("block {block} of this host was gone from etcd: put back");
                let taken = take(roots, host, *block, network(*block), record);
                writes.push(KeyWrite::Take(*block, taken));
            }
        }
        if self.waits_until.is_none() {
            writes.extend(self.pins(owned, inputs, record));
            writes.extend(self.further(owned, inputs, record));
        }
        writes
    }

    /// Takes the blocks of single pods, as far as no host has them.
    fn pins(&self, owned: &OwnedBlocks, inputs: &BlockInputs, record: i64) -> Vec<KeyWrite> {
        let BlocksStart { roots, host, .. } = self.start;
        let is_free = |block: &IpNetwork| {
            owned.owner(*block).is_none()
                && !self.own.contains(block)
                && !self.asked.contains(block)
                && !inputs.released.contains(block)
        };
        let wanted = inputs.pins.iter().filter(|(block, _)| is_free(block));
        let taken = wanted.map(|(block, network)| {
            KeyWrite::Take(*block, take(roots, host, *block, network, record))
        });
        taken.collect()
    }

    /// Takes the blocks that this host wants beside those that it has or has asked for.
    fn further(&mut self, owned: &OwnedBlocks, inputs: &BlockInputs, record: i64) -> Vec<KeyWrite> {
        let (roots, host) = (&self.start.roots, &self.start.host);
        let is_of_many = |block: &&IpNetwork| {
            !inputs.pin_ranges.iter().any(|range| subnet::contains(*range, **block))
        };
        let mut asked: Vec<IpNetwork> = self.asked.iter().filter(is_of_many).copied().collect();
        let mut writes = Vec::new();
        for WantedBlocks { network, pool, count } in &inputs.wanted {
            let is_part = |block: &&IpNetwork| subnet::contains(pool.network(), **block);
            let has_first = |block: &&IpNetwork| owned.owner(**block).as_ref() == Some(host);
            let own = self.own.iter().filter(is_of_many);
            let had = own.filter(is_part).filter(has_first).count();
            let missing = count.saturating_sub(had + asked.iter().filter(is_part).count());
            for _ in 0..missing {
                let start = hash::stable(&[host.as_str(), network]) as u32;
                let but = [&asked[..], &inputs.pin_ranges].concat();
                let Some(block) = owned.free(&pool.pool(), start, &but) else {
                    self.exhausted.insert(pool.network());
                    break;
                };
                asked.push(block);
                writes.push(KeyWrite::Take(block, take(roots, host, block, network, record)));
            }
        }
        writes
    }

    /// Notes this host's blocks; false if that fails: nobody hears of a block that the next start would not know.
    fn note_own(&mut self) -> bool {
        self.kept.own == self.own || self.keep()
    }

    fn keep(&mut self) -> bool {
        let kept = KeptBlocks { own: self.own.clone(), found: self.found.clone() };
        if kept == self.kept {
            return true;
        }
        let BlocksStart { state_dir, roots, host, .. } = self.start;
        match kept.write(state_dir, roots, host) {
            Ok(()) => {
                self.kept = kept;
                true
            }
            Err(error) => {
                log::error!("keep the blocks of networks for the next start: {error}");
                false
            }
        }
    }

    fn publish(&mut self) {
        let owned = self.found.owned(&self.inputs.borrow().pools);
        self.publish_with(&owned);
    }

    fn publish_with(&mut self, owned: &OwnedBlocks) {
        let host = &self.start.host;
        let is_lost = |block: &&IpNetwork| owned.owner(**block).is_some_and(|owner| owner != *host);
        let mut problems = owned.problems();
        problems.extend(self.trouble.as_ref().map(|why| {
            let what = format!("not followed; those known before stay: {why}");
            Problem::new(ProblemKind::Etcd, Object::named("blocks of networks"), what)
        }));
        let mut others = owned.by_host.clone();
        others.remove(host);
        // A block is this host's until its key is gone.
        let released = &self.inputs.borrow().released;
        let keys = self.found.of(host).map(|(block, _)| block);
        let given_back = keys.filter(|block| released.contains(block));
        let own: BTreeSet<IpNetwork> = self.own.iter().copied().chain(given_back).collect();
        let mut update = BlocksUpdate {
            lost: own.iter().filter(is_lost).copied().collect(),
            own,
            is_read: self.revision > 0,
            others: Arc::new(others),
            exhausted: self.exhausted.clone(),
            trouble: self.trouble.clone(),
            problems,
        };
        if let Some(before) = &self.published
            && before.others == update.others
        {
            update.others = Arc::clone(&before.others);
        }
        if self.published.as_ref() != Some(&update) {
            self.published = Some(update.clone());
            (self.publish)(update);
        }
    }
}
