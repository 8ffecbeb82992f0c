//! Pure. Two agents with one name and one machine id: a cloned machine beside its original, or an agent
//! that was killed and its successor.
//!
//! The alive key says which instance of the agent it is of. One that finds the key of another instance
//! asks it to show that it lives, by the contender key. A living agent answers: it writes its alive key
//! again. The one that asked then never serves; without an answer it takes the key over. A living agent
//! may be stalled for seconds, and its etcd lease lives on. The machine that has the address in the node
//! record and is in the boot that this one was in is no copy, and waits for one short window; another one
//! waits until the alive key is gone.

use std::sync::Arc;

use crate::lease::claim;
use crate::lease::error::LeaseError;
use crate::lease::records::{Alive, Contender, Key};
use crate::lease::session::machine::{LivenessCheck, SessionMachine, State};
use crate::lease::session::messages::{Command, Pause, SessionExit};
use crate::lease::snapshot::{Snapshot, Stored};
use crate::lease::transaction::Transaction;
use crate::net::Family;

/// Windows for an answer, each as long as those before it together, that are over before a machine with
/// another address or in another boot takes the name of an agent whose alive key is still kept: twice the
/// life of that key.
const WINDOWS: u32 = 6;

/// The other agent, and what to do.
enum Contention {
    /// The name is this agent's, or free.
    None,
    /// The other agent may live: ask it.
    Ask,
    /// It was asked, and may be stalled.
    Wait,
    /// It answered, and was first.
    Superseded(LeaseError),
    /// This agent was asked by another one and was first: answer.
    Answer(Transaction),
}

impl SessionMachine {
    /// What comes before every other step; `Ok` if nothing does.
    pub(super) fn contend(
        &mut self,
        found: Snapshot,
    ) -> Result<Snapshot, Result<Command, SessionExit>> {
        if self.is_superseded_no_more(&found) {
            self.superseded = None;
            self.asked = None;
        }
        if self.superseded.is_none() {
            match self.contention(&found) {
                Contention::None => return Ok(found),
                Contention::Answer(answer) => {
                    let answering = |transaction| State::Answering(found, transaction);
                    return Err(Ok(self.commit("write the alive key", answer, answering)));
                }
                Contention::Ask => return Err(Ok(self.ask(found))),
                Contention::Wait => return Err(Ok(self.wait_for_answer(&found))),
                Contention::Superseded(error) => self.superseded = Some(error),
            }
        }
        Err(self.stand_back(found))
    }

    /// Whether `mirror` asks for a step of [`Self::contend`].
    pub(super) fn is_contested(&self, mirror: &Snapshot) -> bool {
        match &self.superseded {
            Some(error) => {
                self.trouble.as_ref() != Some(error) || self.is_superseded_no_more(mirror)
            }
            None => !matches!(self.contention(mirror), Contention::None),
        }
    }

    /// The agent that was first is gone, and this one has served before. A copy that never served stays
    /// as it is: the original may only be down.
    fn is_superseded_no_more(&self, found: &Snapshot) -> bool {
        let alive = found.alive.get(&self.own.identity.name);
        let is_gone = !alive.is_some_and(|alive| self.is_same_machine(alive));
        self.superseded.is_some() && self.lease.is_some() && is_gone
    }

    /// Another agent asked and does not serve.
    pub(super) fn copy(&self, found: &Snapshot) -> Option<LeaseError> {
        let host = self.own.identity.name.clone();
        let Contender { machine_id, since, .. } = &*self.contender(found)?.value;
        let (machine_id, since) = (machine_id.to_string(), since.to_string());
        Some(LeaseError::Copied { host, machine_id, since })
    }

    /// Nothing is written, and a host without a lease gets none.
    fn stand_back(&mut self, found: Snapshot) -> Result<Command, SessionExit> {
        let Some(error) = self.superseded.clone() else { return Ok(self.read()) };
        if self.etcd_lease.is_some() && !self.cannot_ask && !self.has_asked(&found) {
            return Ok(self.ask(found));
        }
        match self.lease.clone() {
            Some(lease) => {
                self.trouble = Some(error);
                Ok(self.settle(found, lease))
            }
            None => Err(SessionExit::Refused(error)),
        }
    }

    fn contention(&self, found: &Snapshot) -> Contention {
        let name = &self.own.identity.name;
        let same = |alive: &&Stored<_>| self.is_same_machine(alive);
        let Some(Stored { value: alive, modified, .. }) = found.alive.get(name).filter(same) else {
            return Contention::None;
        };
        if *alive.instance == *self.own.instance {
            return self.answer(found, alive).map_or(Contention::None, Contention::Answer);
        }
        match &self.asked {
            Some(asked) if asked.instance == alive.instance && *modified > asked.modified => {
                Contention::Superseded(self.superseding(found, alive))
            }
            Some(asked) if asked.instance != alive.instance => Contention::Ask,
            Some(asked) if asked.waits >= self.windows(found) => Contention::None,
            Some(_) => Contention::Wait,
            None => Contention::Ask,
        }
    }

    /// Windows for an answer before this agent takes the name.
    fn windows(&self, found: &Snapshot) -> u32 {
        let is_other = self.has_moved(found) || !self.is_same_boot(found);
        if is_other && self.lease.is_none() { WINDOWS } else { 1 }
    }

    /// The node record has another address of a family.
    fn has_moved(&self, found: &Snapshot) -> bool {
        let node = found.nodes.get(&self.own.identity.name);
        let own = &self.own.attributes.addresses;
        let is_other = |family| match (node?.value.addresses.get(family), own.get(family)) {
            (Some(recorded), Some(own)) => Some(recorded != own),
            // A machine that starts may have none of a family yet.
            _ => None,
        };
        Family::BOTH.into_iter().filter_map(is_other).any(|is_other| is_other)
    }

    fn is_same_boot(&self, found: &Snapshot) -> bool {
        let node = found.nodes.get(&self.own.identity.name);
        node.is_some_and(|node| *node.value.boot_id == *self.own.identity.boot_id)
    }

    fn is_same_machine(&self, alive: &Stored<Arc<Alive>>) -> bool {
        *alive.value.machine_id == *self.own.identity.machine_id
    }

    fn superseding(&self, found: &Snapshot, alive: &Alive) -> LeaseError {
        let host = self.own.identity.name.clone();
        let node = found.nodes.get(&host);
        LeaseError::HeldByCopy {
            host,
            machine_id: alive.machine_id.to_string(),
            addresses: node.map(|node| node.value.addresses).unwrap_or_default(),
            since: alive.since.to_string(),
        }
    }

    /// The key of another agent that asks.
    fn contender<'a>(&self, found: &'a Snapshot) -> Option<&'a Stored<Arc<Contender>>> {
        let contender = found.contenders.get(&self.own.identity.name)?;
        let same = *contender.value.machine_id == *self.own.identity.machine_id;
        let other = *contender.value.instance != *self.own.instance;
        (same && other).then_some(contender)
    }

    fn has_asked(&self, found: &Snapshot) -> bool {
        let contender = found.contenders.get(&self.own.identity.name);
        contender.is_some_and(|contender| *contender.value.instance == *self.own.instance)
    }

    /// Writes the alive key again, if an agent asked that has no answer yet.
    fn answer(&self, found: &Snapshot, alive: &Alive) -> Option<Transaction> {
        let asking = &self.contender(found)?.value.instance;
        let lease = self.etcd_lease.filter(|_| alive.answers.as_ref() != Some(asking))?;
        let answers = Some(asking.clone());
        claim::put_alive(found, &self.own, self.since, lease, answers)
    }

    /// Puts the contender key; the wait for the answer follows.
    fn ask(&mut self, found: Snapshot) -> Command {
        let Some(lease) = self.etcd_lease else { return self.await_lease(found) };
        let identity = &self.own.identity;
        let (machine_id, boot_id) = (&identity.machine_id, &identity.boot_id);
        let contender = Contender::new(machine_id, boot_id, &self.own.instance, self.since);
        let mut transaction = Transaction::default();
        let key = Key::Contender(identity.name.clone());
        let text = found.unchanged(&mut transaction, &self.own.network.roots, &key);
        transaction.put_with_lease(text, contender.to_json(), lease);
        let asking = |_| State::Asking(found);
        self.commit("ask the other agent with this name", transaction, asking)
    }

    /// The contender key was put.
    pub(super) fn await_answer(&mut self, found: &Snapshot) -> Command {
        let name = &self.own.identity.name;
        let Some(alive) = found.alive.get(name).filter(|_| self.superseded.is_none()) else {
            return self.read();
        };
        let (instance, modified) = (alive.value.instance.clone(), alive.modified);
        self.asked = Some(LivenessCheck { instance, modified, waits: 0 });
        if self.windows(found) > 1 {
            let (host, since) = (name.clone(), alive.value.since.to_string());
            let moved = self.has_moved(found);
            self.trouble = Some(LeaseError::MayBeCopy { host, since, moved });
        }
        self.wait_for_answer(found)
    }

    fn wait_for_answer(&mut self, found: &Snapshot) -> Command {
        let same_boot = self.is_same_boot(found);
        self.state = State::AwaitingAnswer;
        let asked = self.asked.as_ref();
        let (waits, modified) = asked.map_or((0, 0), |asked| (asked.waits, asked.modified));
        Command::Pause(Pause::Answer { same_boot, waits, modified })
    }

    /// This host may not put the contender key: the alive key is taken over without a question.
    pub(super) fn cannot_ask(&mut self, found: &Snapshot, why: String) -> Command {
        self.cannot_ask = true;
        self.warnings.push(format!("{why}; a copy of this machine would not be noticed"));
        let _pause = self.await_answer(found);
        if let Some(asked) = &mut self.asked {
            asked.waits = WINDOWS;
        }
        self.read()
    }

    /// A window for the answer is over.
    pub(super) fn answer_is_due(&mut self) -> Command {
        if let Some(asked) = &mut self.asked {
            asked.waits += 1;
        }
        self.read()
    }

    /// Deletes this agent's contender key in the transaction that puts its alive key.
    pub(super) fn stop_asking(&self, found: &Snapshot, transaction: &mut Transaction) {
        if self.has_asked(found) {
            let key = Key::Contender(self.own.identity.name.clone());
            let text = found.unchanged(transaction, &self.own.network.roots, &key);
            transaction.delete(text);
        }
    }
}
