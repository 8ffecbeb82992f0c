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
use crate::lease::blocks::OwnedBlocks;
use crate::lease::blocks::session::{BlockInputs, BlockOwners, BlockSession};
use crate::lease::records::{NodeName, Roots};
use crate::net::{FailureReason, Object, Problem, ProblemKind};
use crate::os::event_loop::{self, EventLoop};
use crate::sources::exchanged::{LEARNED, retry};
use crate::sources::kept_blocks::KeptBlocks;

/// Time between two looks whether what etcd has of other hosts is noted on disk.
const KEEP: Duration = Duration::from_secs(10);

/// Wait before a write is tried again whose conditions did not hold, and between two looks whether the watch shows
/// what was written.
const AGAIN: Duration = Duration::from_millis(500);

/// So long after a write everything is read again, where the watch does not show it: plugins wait for the block.
const UNSEEN: Duration = Duration::from_secs(2);

/// So long a key that etcd refused is a problem, unless it takes one: no pod may need one since, which says nothing.
const REFUSED: Duration = Duration::from_secs(300);

/// How to reach etcd, and where to keep what it has.
#[derive(Clone, Debug)]
pub struct BlocksStart {
    pub etcd: EtcdSettings,
    pub roots: Roots,
    pub host: NodeName,
    pub state_dir: PathBuf,
    /// What holds until [`Blocks::set`].
    pub inputs: BlockInputs,
}

/// Who has which block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlocksUpdate {
    /// This host's.
    pub own: BTreeSet<IpNetwork>,
    /// Those of them that another host had first.
    pub lost: BTreeSet<IpNetwork>,
    pub others: Arc<BTreeMap<NodeName, Vec<IpNetwork>>>,
    /// Of the networks that were known: a block that is part of no other one belongs to no host here.
    pub pools: Vec<IpNetwork>,
    /// etcd was read in this life.
    pub is_read: bool,
    /// Pools of which no block is free.
    pub exhausted: BTreeSet<IpNetwork>,
    /// Why etcd is not followed.
    pub trouble: Option<FailureReason>,
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
    let (inputs, receiver) = latest::channel(start.inputs.clone());
    let event_loop = EventLoop::spawn("blocks", async move |stopped| {
        let etcd = Etcd::new(start.etcd.clone(), start.roots.clone());
        let kept = KeptBlocks::read(&start.state_dir, &start.roots, &start.host);
        let (roots, host) = (start.roots.clone(), start.host.clone());
        let session = BlockSession::new(roots, host, kept.own.clone(), kept.found.clone());
        let mut follower = BlockFollower {
            etcd: &etcd,
            kept,
            start: &start,
            inputs: receiver,
            publish,
            session,
            waits_until: None,
            reads_again: false,
            unseen_since: None,
            trouble: None,
            refused: None,
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
    session: BlockSession,
    /// Other hosts put back what etcd lost.
    waits_until: Option<Instant>,
    /// They have done so.
    reads_again: bool,
    /// A key was put then that the watch has not shown yet.
    unseen_since: Option<Instant>,
    trouble: Option<FailureReason>,
    /// When etcd, which was followed, refused a key of this host last, and why.
    refused: Option<(Instant, FailureReason)>,
    /// As on disk.
    kept: KeptBlocks,
    published: Option<BlocksUpdate>,
}

impl<P: FnMut(BlocksUpdate)> BlockFollower<'_, P> {
    async fn run(&mut self) -> Infallible {
        let mut failures = 0;
        loop {
            let Err(error) = self.follow(&mut failures).await else { continue };
            failures += 1;
            self.trouble = Some(error.into());
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

    /// Reads everything at one revision, and watches from there until everything is to be read again.
    async fn follow(&mut self, failures: &mut u32) -> Result<(), EtcdError> {
        let range = self.start.roots.blocks_range();
        let read = self.etcd.blocks().await;
        if read.is_err() {
            self.refused = None;
        }
        let (found, revision) = read?;
        self.session.read(found, revision);
        self.trouble = None;
        *failures = 0;
        let mut watch = self.etcd.watch_ranges(&[range], revision + 1).await?;
        let mut keep = tokio::time::interval_at(Instant::now() + KEEP, KEEP);
        loop {
            let is_done = self.settle().await?;
            if std::mem::take(&mut self.reads_again) || self.is_unseen() {
                return Ok(());
            }
            tokio::select! {
                changes = watch.next() => {
                    let changes = changes?;
                    if changes.is_empty() {
                        continue;
                    }
                    for change in changes {
                        let created = change.value.is_some().then_some(change.created);
                        self.session.change(&change.key, created, watch.revision);
                    }
                }
                Ok(()) = self.inputs.changed() => {}
                () = sleep(AGAIN), if !is_done => {}
                _ = keep.tick() => drop(self.keep()),
            }
        }
    }

    /// Publishes what there is, and writes this host's keys; false if something is to be tried again. What is
    /// written here counts once the watch has it.
    async fn settle(&mut self) -> Result<bool, EtcdError> {
        let inputs = self.inputs.borrow_and_update().clone();
        let owned = self.session.owned(&inputs.pools);
        self.session.adopt(&owned, &inputs);
        if self.session.waits() && self.waits_until.is_none() {
            log::warn!("etcd lost blocks of networks: hosts put theirs back");
            self.waits_until = Some(Instant::now() + LEARNED);
        }
        if self.waits_until.is_some_and(|until| until <= Instant::now()) {
            self.waits_until = None;
            self.session.waited();
            self.reads_again = true;
        }
        if self.reads_again || !self.note_own() {
            return Ok(false);
        }
        let writes = self.session.writes(&owned, &inputs);
        self.publish_with(&owned);
        let mut is_done = self.waits_until.is_none();
        let is_answered = !writes.is_empty();
        for write in writes {
            if write.takes && self.session.own.contains(&write.block) {
                log::warn!("block {} of this host was gone from etcd: put back", write.block);
            }
            let what = if write.takes { "take a block" } else { "give a block back" };
            match self.etcd.commit(what, &write.transaction).await {
                Ok(Some(_)) => self.session.committed(&write),
                Ok(None) => is_done = false,
                Err(error) => {
                    self.refused = Some((Instant::now(), error.clone().into()));
                    return Err(error);
                }
            }
        }
        if self.refused.take_if(|(at, _)| is_answered || at.elapsed() > REFUSED).is_some() {
            self.publish_with(&owned);
        }
        Ok(is_done && !self.session.is_unseen())
    }

    /// The watch has not shown for too long what was written.
    fn is_unseen(&mut self) -> bool {
        if !self.session.is_unseen() {
            if let Some(since) = self.unseen_since.take().filter(|since| since.elapsed() > AGAIN) {
                log::info!(
                    "etcd showed a block of this host {:?} after it was written",
                    since.elapsed()
                );
            }
            return false;
        }
        let waited = self.unseen_since.get_or_insert_with(Instant::now).elapsed();
        let is_unseen = waited > UNSEEN;
        if is_unseen {
            self.unseen_since = None;
            log::warn!(
                "etcd did not show this host's block {waited:?} after it was written: all blocks are read again"
            );
        }
        is_unseen
    }

    /// Notes this host's blocks; false if that fails: no other host learns of a block that the next start would not know.
    fn note_own(&mut self) -> bool {
        self.kept.own == self.session.own || self.keep()
    }

    fn keep(&mut self) -> bool {
        let BlockSession { own, found, .. } = &self.session;
        let kept = KeptBlocks { own: own.clone(), found: found.clone() };
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
        let owned = self.session.owned(&self.inputs.borrow().pools);
        self.publish_with(&owned);
    }

    fn publish_with(&mut self, owned: &OwnedBlocks) {
        let inputs = self.inputs.borrow();
        let (owners, pools) = (self.session.owners(owned, &inputs), inputs.pools.clone());
        drop(inputs);
        let BlockOwners { own, lost, others, mut problems } = owners;
        let refused = self.refused.as_ref().map(|(_, why)| why.clone().at("etcd took no change"));
        let why = refused.or_else(|| {
            let why = self.trouble.clone()?;
            Some(why.at("not followed; those known before stay"))
        });
        problems.extend(why.map(|why| {
            Problem::of_failure(ProblemKind::Etcd, Object::named("blocks of networks"), why)
        }));
        let mut update = BlocksUpdate {
            own,
            lost,
            is_read: self.session.is_read,
            others: Arc::new(others),
            pools,
            exhausted: self.session.exhausted.clone(),
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
