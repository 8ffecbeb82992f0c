//! Keys of blocks between a host and etcd: the host's decisions, what is on its way, and the watch.

use std::collections::{BTreeSet, VecDeque};

use humanz::lease::blocks::session::{BlockInputs, BlockOwners, BlockSession, BlockWrite};
use humanz::lease::blocks::{FoundBlocks, OwnedBlocks};
use humanz::lease::records::{NodeName, Roots};
use humanz::lease::transaction::Transaction;
use ipnetwork::IpNetwork;

use super::flaw::Flaw;
use super::networks::BlockEvent;
use super::world::{Scheduled, TIMEOUT, World};

/// How long hosts wait until the others have put back what etcd lost.
const LEARNED: u64 = 15_000;

/// A write is tried again after this; what is on disk of other hosts is this old at most.
const AGAIN: u64 = 500;
const KEEP: u64 = 10_000;

/// What happens to the keys of blocks.
#[derive(Debug)]
pub enum KeyEvent {
    Execute(Box<BlockCall>),
    /// The answer: all keys and the revision, or whether the transaction was made.
    Answer(usize, u32, u32, Option<KeyAnswer>),
    /// The watch of that store has delivered everything up to a revision.
    Heard(usize, u32, u32, i64),
    Retry(usize, u32, u32),
    Again(usize, u32, u32),
    Waited(usize, u32),
    Broken(usize, u32),
}

#[derive(Debug)]
pub enum KeyAnswer {
    Found(Box<FoundBlocks>, i64),
    Committed(bool),
}

#[derive(Clone, Debug)]
pub struct BlockCall {
    host: usize,
    life: u32,
    sequence: u32,
    /// `None`: everything is read.
    transaction: Option<Transaction>,
    answered: bool,
}

/// The follower of an agent.
pub struct Follower {
    pub session: BlockSession,
    pub inputs: BlockInputs,
    state: FollowerState,
    sequence: u32,
    failures: u32,
    /// Up to where the watch was applied.
    seen: i64,
    /// Up to where it was delivered.
    delivered: i64,
    waits: bool,
    pub published: Option<(BlockOwners, BTreeSet<IpNetwork>, bool)>,
    kept_at: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum FollowerState {
    Rests,
    Reads,
    /// It watches the store of that number.
    Watches(u32),
    Commits(u32, VecDeque<BlockWrite>, bool),
}

impl Follower {
    pub fn new(
        roots: &Roots,
        host: NodeName,
        own: BTreeSet<IpNetwork>,
        found: FoundBlocks,
    ) -> Follower {
        Follower {
            session: BlockSession::new(roots.clone(), host, own, found),
            inputs: BlockInputs::default(),
            state: FollowerState::Rests,
            sequence: 0,
            failures: 0,
            seen: 0,
            delivered: 0,
            waits: false,
            published: None,
            kept_at: 0,
        }
    }
}

impl World {
    pub(super) fn happen_to_keys(&mut self, event: KeyEvent) {
        match event {
            KeyEvent::Execute(call) => self.execute_block(*call),
            KeyEvent::Answer(host, life, sequence, answer) if self.lives(host, life) => {
                self.answer_block(host, sequence, answer);
            }
            KeyEvent::Heard(host, life, epoch, revision) if self.lives(host, life) => {
                self.blocks_received(host, epoch, revision);
            }
            KeyEvent::Retry(host, life, sequence)
                if self.lives(host, life) && self.is_at(host, sequence) =>
            {
                self.read_blocks(host);
            }
            KeyEvent::Again(host, life, sequence)
                if self.lives(host, life) && self.is_at(host, sequence) =>
            {
                self.settle_blocks(host);
            }
            KeyEvent::Waited(host, life) if self.lives(host, life) => self.blocks_waited(host),
            KeyEvent::Broken(host, life) if self.lives(host, life) => self.blocks_broken(host),
            _ => {}
        }
    }

    fn keys_after(&mut self, delay: u64, event: KeyEvent) {
        self.after(delay, Scheduled::Keys(event));
    }

    fn follower(&mut self, host: usize) -> Option<&mut Follower> {
        self.hosts[host].blocks.agent.as_mut().map(|agent| &mut agent.follower)
    }

    fn is_at(&mut self, host: usize, sequence: u32) -> bool {
        self.follower(host).is_some_and(|follower| follower.sequence == sequence)
    }

    /// Everything is read.
    pub fn read_blocks(&mut self, host: usize) {
        let Some(follower) = self.follower(host) else { return };
        follower.state = FollowerState::Reads;
        self.send_block(host, None);
    }

    /// Sends a transaction, or the question for everything, which may be lost, delayed or duplicated.
    fn send_block(&mut self, host: usize, transaction: Option<Transaction>) {
        let life = self.hosts[host].life;
        let Some(follower) = self.follower(host) else { return };
        follower.sequence += 1;
        let sequence = follower.sequence;
        let failed = || KeyEvent::Answer(host, life, sequence, None);
        let call = BlockCall { host, life, sequence, transaction, answered: true };
        let unanswered = BlockCall { answered: false, ..call.clone() };
        if self.hosts[host].cut.is_some() || !self.up {
            let delay = if self.up { TIMEOUT } else { self.block_random.between(1, 50) };
            return self.keys_after(delay, failed());
        }
        let delay = self.block_random.between(1, 8);
        if self.repaired || !self.block_random.happens(self.script.faults) {
            return self.keys_after(delay, KeyEvent::Execute(Box::new(call)));
        }
        self.hosts[host].disturbed = self.hosts[host].disturbed.max(self.now + TIMEOUT);
        let late = self.block_random.between(TIMEOUT, 3 * TIMEOUT);
        match self.block_random.below(4) {
            0 => self.keys_after(TIMEOUT, failed()),
            1 => {
                self.keys_after(delay, KeyEvent::Execute(Box::new(unanswered)));
                self.keys_after(TIMEOUT, failed());
            }
            2 => {
                self.keys_after(late, KeyEvent::Execute(Box::new(unanswered)));
                self.keys_after(TIMEOUT, failed());
            }
            _ => {
                self.keys_after(delay, KeyEvent::Execute(Box::new(call)));
                self.keys_after(late, KeyEvent::Execute(Box::new(unanswered)));
            }
        }
    }

    fn execute_block(&mut self, call: BlockCall) {
        let BlockCall { host, life, sequence, .. } = call;
        if !self.up || self.hosts[host].cut.is_some() {
            if call.answered {
                self.keys_after(3_000, KeyEvent::Answer(host, life, sequence, None));
            }
            return;
        }
        let answer = match &call.transaction {
            None => KeyAnswer::Found(Box::new(self.store.blocks.clone()), self.store.revision),
            Some(transaction) => {
                self.judge_transaction(host, transaction);
                self.judge_taken(host, transaction);
                let made = self.store.commit(transaction).ok().flatten();
                let name = |world: &World| world.hosts[host].name(world.flaw);
                self.note(|world| format!("{}: {:?}: {made:?}", name(world), transaction.writes));
                if made.is_some() {
                    self.notify_block_watches();
                }
                KeyAnswer::Committed(made.is_some())
            }
        };
        if call.answered {
            let delay = self.block_random.between(1, 8);
            self.keys_after(delay, KeyEvent::Answer(host, life, sequence, Some(answer)));
        }
    }

    fn answer_block(&mut self, host: usize, sequence: u32, answer: Option<KeyAnswer>) {
        let (epoch, flaw) = (self.epoch, self.flaw);
        let Some(follower) = self.follower(host).filter(|it| it.sequence == sequence) else {
            return;
        };
        match (answer, &mut follower.state) {
            (Some(KeyAnswer::Found(found, revision)), FollowerState::Reads) => {
                follower.session.read(FoundBlocks::clone(&found), revision);
                if flaw == Flaw::BlocksNotRemembered {
                    follower.session.waited();
                    follower.session.read(*found, revision);
                }
                (follower.seen, follower.delivered, follower.failures) = (revision, revision, 0);
                follower.state = FollowerState::Watches(epoch);
                let life = self.hosts[host].life;
                let current = self.store.revision;
                self.keys_after(1, KeyEvent::Heard(host, life, epoch, current));
                self.settle_blocks(host);
            }
            (Some(KeyAnswer::Committed(made)), FollowerState::Commits(_, rest, is_done)) => {
                *is_done &= made;
                let write = rest.pop_front();
                if let Some(write) = write.filter(|_| made) {
                    follower.session.committed(&write);
                    if flaw == Flaw::BlockUsedBeforeRead && write.takes {
                        follower.session.own.insert(write.block);
                    }
                }
                self.commit_next(host);
            }
            (None, _) => self.rest_blocks(host),
            _ => {}
        }
    }

    /// Etcd is not reached; what is known is published.
    fn rest_blocks(&mut self, host: usize) {
        let life = self.hosts[host].life;
        let Some(follower) = self.follower(host) else { return };
        follower.state = FollowerState::Rests;
        follower.failures += 1;
        follower.sequence += 1;
        let longest = (200 << follower.failures.min(8)).min(10_000);
        let sequence = follower.sequence;
        let delay = self.block_random.between(longest / 2, longest);
        self.keys_after(delay, KeyEvent::Retry(host, life, sequence));
        self.settle_blocks(host);
    }

    /// Takes over what is known, publishes it, and writes this host's keys.
    pub fn settle_blocks(&mut self, host: usize) {
        let (now, flaw, life) = (self.now, self.flaw, self.hosts[host].life);
        let blocks = &mut self.hosts[host].blocks;
        let Some(agent) = &mut blocks.agent else { return };
        let follower = &mut agent.follower;
        let inputs = follower.inputs.clone();
        let owned = owned(flaw, &mut follower.session, &inputs.pools);
        let FollowerState::Watches(epoch) = follower.state else {
            if follower.state == FollowerState::Rests {
                self.publish_blocks(host, &owned, false);
            }
            return;
        };
        follower.session.adopt(&owned, &inputs);
        if flaw == Flaw::BlocksNotRemembered {
            follower.session.waited();
        }
        let begins_to_wait = follower.session.waits() && !follower.waits;
        follower.waits = follower.session.waits();
        let is_noted = blocks.kept.0 == follower.session.own;
        if !is_noted || now - follower.kept_at > KEEP {
            blocks.kept = (follower.session.own.clone(), follower.session.found.clone());
            follower.kept_at = now;
        }
        let writes = VecDeque::from(follower.session.writes(&owned, &inputs));
        let is_done = !follower.waits;
        follower.state = FollowerState::Commits(epoch, writes, is_done);
        if begins_to_wait {
            self.note(|_| format!("h{host} waits for blocks that hosts put back"));
            self.keys_after(LEARNED, KeyEvent::Waited(host, life));
        }
        self.publish_blocks(host, &owned, true);
        self.commit_next(host);
    }

    fn commit_next(&mut self, host: usize) {
        let life = self.hosts[host].life;
        let Some(follower) = self.follower(host) else { return };
        let FollowerState::Commits(epoch, writes, is_done) = &follower.state else { return };
        let (epoch, is_done, next) = (*epoch, *is_done, writes.front().cloned());
        if let Some(write) = next {
            return self.send_block(host, Some(write.transaction));
        }
        follower.state = FollowerState::Watches(epoch);
        follower.sequence += 1;
        let (sequence, delivered, seen) = (follower.sequence, follower.delivered, follower.seen);
        if !is_done {
            self.keys_after(AGAIN, KeyEvent::Again(host, life, sequence));
        }
        if delivered > seen {
            self.keys_after(0, KeyEvent::Heard(host, life, epoch, delivered));
        }
    }

    fn publish_blocks(&mut self, host: usize, owned: &OwnedBlocks, is_followed: bool) {
        let life = self.hosts[host].life;
        let Some(follower) = self.follower(host) else { return };
        let owners = follower.session.owners(owned, &follower.inputs);
        let update = (owners, follower.session.exhausted.clone(), is_followed);
        if follower.published.as_ref() != Some(&update) {
            follower.published = Some(update);
            let delay = self.block_random.between(1, 10);
            self.after(delay, Scheduled::Blocks(BlockEvent::Hear(host, life)));
        }
    }

    // The watch.

    pub(super) fn notify_block_watches(&mut self) {
        let (epoch, revision) = (self.epoch, self.store.revision);
        for host in 0..self.hosts.len() {
            if self.hosts[host].blocks.agent.is_some() && self.hosts[host].cut.is_none() {
                let delay = self.block_random.between(2, 30);
                let life = self.hosts[host].life;
                self.keys_after(delay, KeyEvent::Heard(host, life, epoch, revision));
            }
        }
    }

    fn blocks_received(&mut self, host: usize, of: u32, revision: i64) {
        let (epoch, compacted) = (self.epoch, self.store.compacted);
        let is_reached = self.up && self.hosts[host].cut.is_none();
        let log = &self.store.block_log;
        let Some(agent) = &mut self.hosts[host].blocks.agent else { return };
        let follower = &mut agent.follower;
        let watched = match &follower.state {
            FollowerState::Watches(store) | FollowerState::Commits(store, ..) => *store,
            _ => return,
        };
        if watched != of || !is_reached {
            return;
        }
        if of != epoch || compacted > follower.seen + 1 && follower.seen < revision {
            return self.rest_blocks(host);
        }
        follower.delivered = follower.delivered.max(revision);
        if follower.state != FollowerState::Watches(of) {
            return;
        }
        let first = log.partition_point(|(at, ..)| *at <= follower.seen);
        let new = log[first..].iter().take_while(|(at, ..)| *at <= follower.delivered);
        for (at, key, created) in new {
            follower.session.change(key.as_bytes(), *created, *at);
        }
        follower.seen = follower.delivered;
        self.settle_blocks(host);
    }

    /// The connection of the watch breaks: the host is cut off, or etcd has started anew.
    pub(super) fn blocks_broken(&mut self, host: usize) {
        let is_away = !self.up || self.hosts[host].cut.is_some();
        let epoch = self.epoch;
        let Some(follower) = self.follower(host) else { return };
        let is_stale = match &follower.state {
            FollowerState::Watches(of) => is_away || *of != epoch,
            _ => false,
        };
        if is_stale {
            self.rest_blocks(host);
        }
    }

    pub(super) fn blocks_cut(&mut self, host: usize) {
        let (delay, life) = (self.block_random.between(3_000, 30_000), self.hosts[host].life);
        self.keys_after(delay, KeyEvent::Broken(host, life));
    }

    /// Hears what it missed.
    pub(super) fn blocks_heal(&mut self, host: usize) {
        let (life, epoch, revision) = (self.hosts[host].life, self.epoch, self.store.revision);
        self.keys_after(5, KeyEvent::Heard(host, life, epoch, revision));
        self.keys_after(5, KeyEvent::Broken(host, life));
    }

    fn blocks_waited(&mut self, host: usize) {
        let Some(follower) = self.follower(host) else { return };
        follower.session.waited();
        follower.waits = false;
        self.rest_blocks(host);
    }
}

/// Who has which block for a host with that flaw.
fn owned(flaw: Flaw, session: &mut BlockSession, pools: &[IpNetwork]) -> OwnedBlocks {
    let known = session.owned(pools);
    let found = &session.found;
    assert_eq!(*known, found.owned(pools), "the owners that are known are those of all keys");
    if flaw != Flaw::LatestBlockCounts {
        return OwnedBlocks::clone(&known);
    }
    let roots = super::host::roots();
    let mut turned = FoundBlocks::default();
    for (host, block, created) in found.iter() {
        turned.put(&roots, roots.block(host, block).as_bytes(), -created);
    }
    turned.owned(pools)
}
