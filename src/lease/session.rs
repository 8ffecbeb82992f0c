//! Pure. The session with etcd as a state machine: commands out, events in.
//!
//! A host obtains and keeps its lease by it. The caller (`etcd/session`; in tests a simulator) decides
//! nothing: it carries out each command and returns its result.

mod claiming;
mod contention;
mod dry_run;
pub mod grace;
mod holding;
mod machine;
mod messages;
mod reading;
mod repair;
mod restoring;
#[cfg(test)]
mod tests;
mod watching;
mod went_back;

use std::sync::Arc;
use std::time::SystemTime;

use crate::lease::claim::{owners, refusal};
use crate::lease::error::LeaseError;
use crate::lease::etcd_error::EtcdError;
use crate::lease::identity::{Claimant, HostAttributes, Identity, Lease, Network};
use crate::lease::saved::Saved;
use crate::lease::snapshot::Snapshot;
pub use dry_run::{ClaimPreview, dry_run_claim};
pub use machine::SessionMachine;
use machine::{Progress, State};
pub use messages::{Command, Event, Found, Pause, SessionExit, Settled};
pub use watching::is_same_store;

/// What the state of an earlier run says against its own lease: whose the subnet is, or is as well.
pub fn dispute(saved: &Saved, identity: Identity, network: Network) -> Option<LeaseError> {
    let saved = Some(saved.clone());
    let (attributes, since) = (HostAttributes::default(), SystemTime::UNIX_EPOCH);
    let machine = SessionMachine::new(identity, attributes, network, saved, since, String::new());
    let (own, found) = (&machine.own, machine.last_known.as_ref()?);
    let lease = Lease { subnets: own.remembered };
    let lost = lease.subnets.iter().find_map(|subnet| {
        let owner = owners::owner(found, own, *subnet)?;
        Some(LeaseError::SubnetLost { subnet: *subnet, owner })
    });
    lost.or_else(|| machine.contradiction(found, &lease))
}

impl SessionMachine {
    /// The machine of the host `identity`, whose agent started at `since` and is this `instance`, which
    /// is random. `saved`: the state of an
    /// earlier run; ignored if it is of another host or another network.
    pub fn new(
        identity: Identity,
        attributes: HostAttributes,
        network: Network,
        saved: Option<Saved>,
        since: SystemTime,
        instance: String,
    ) -> SessionMachine {
        let usable = |snapshot: &Snapshot| refusal::config(snapshot, &network).is_none();
        let saved = saved.filter(|saved| saved.is_of(&identity) && usable(&saved.snapshot));
        let remembered = saved.as_ref().map(|saved| saved.lease.subnets).unwrap_or_default();
        let without_record = saved.as_ref().map(|saved| &*saved.snapshot.without_record);
        let own = Claimant {
            identity,
            attributes,
            network,
            keep: Default::default(),
            remembered,
            vacated: Default::default(),
            without_record: without_record.cloned().unwrap_or_default(),
            leaves_claims: false,
            leaves_key_unclaimed: false,
            ticket: None,
            has_raced: false,
            instance,
            alive: false,
        };
        SessionMachine::of(own, saved.map(|saved| saved.snapshot), since)
    }

    /// What this host claims now.
    pub fn claimant(&self) -> &Claimant {
        &self.own
    }

    /// The snapshot published last, or saved by an earlier run.
    pub fn last_known(&self) -> Option<&Arc<Snapshot>> {
        self.last_known.as_ref()
    }

    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// Where etcd contradicts the lease that this host holds.
    pub fn trouble(&self) -> Option<&LeaseError> {
        self.trouble.as_ref()
    }

    /// What to log, since the last call.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// The first command: after a start, after a failure, or because something changed.
    pub fn begin(&mut self) -> Command {
        self.progress = Progress::default();
        self.read()
    }

    /// The command after `event`.
    ///
    /// # Errors
    /// [`SessionExit`]; continue with [`SessionMachine::begin`].
    pub fn next(&mut self, event: Result<Event, EtcdError>) -> Result<Command, SessionExit> {
        let next = self.step(event);
        self.failed |= matches!(next, Err(SessionExit::Failed(_)));
        if let Err(SessionExit::Refused(error)) = &next
            && (self.lease.is_some() || self.superseded.is_some())
        {
            self.note_refusal(error.clone());
        }
        next
    }

    /// `error` is reported, unless it would open subnets that were closed.
    fn note_refusal(&mut self, error: LeaseError) {
        let own = self.lease.as_ref().map_or(self.own.remembered, |lease| lease.subnets);
        let closes = |error: &LeaseError| !error.disputed(&own).is_empty();
        if closes(&error) || !self.trouble.as_ref().is_some_and(closes) {
            self.trouble = Some(error);
        }
    }

    fn step(&mut self, event: Result<Event, EtcdError>) -> Result<Command, SessionExit> {
        let state = std::mem::replace(&mut self.state, State::Idle);
        match (state, event) {
            (State::Restoring(restoration), event) => self.restored(restoration, event),
            (State::Completing(found, lease, alive), event) => {
                self.completed(found, lease, alive, event)
            }
            (state, Err(error)) => self.failed(state, error),
            (state, Ok(event)) => self.advanced(state, event),
        }
    }

    fn failed(&mut self, state: State, error: EtcdError) -> Result<Command, SessionExit> {
        match (state, error) {
            (State::Configuring(found, _), EtcdError::Denied(why)) if found.config.is_some() => {
                self.stay_narrow(found, why)
            }
            (State::Claiming(found, transaction), EtcdError::Denied(why))
                if transaction.deletes() && !self.own.leaves_claims =>
            {
                self.own.leaves_claims = true;
                self.warnings.push(format!("claims in the name of this host stay: {why}"));
                self.claim(found)
            }
            (State::ClaimingKey(found, _), EtcdError::Denied(why)) => {
                self.leave_key_unclaimed(found, why)
            }
            (State::PuttingAlive(found, ..) | State::Asking(found), EtcdError::NoLease(_)) => {
                Ok(self.await_lease(found))
            }
            (State::TakingBack(found), EtcdError::Denied(why)) => self.cannot_take_back(found, why),
            (State::Asking(found), EtcdError::Denied(why)) => Ok(self.cannot_ask(&found, why)),
            (_, error) => Err(error.into()),
        }
    }

    fn advanced(&mut self, state: State, event: Event) -> Result<Command, SessionExit> {
        match (state, event) {
            (State::AwaitingAnswer, _) => Ok(self.answer_is_due()),
            (State::Asking(found), Event::Committed(Some(_))) => Ok(self.await_answer(&found)),
            (State::Probation(found, lease), Event::Elapsed) => {
                self.state = State::Probation(found, lease);
                Ok(Command::ReadHosts)
            }
            (State::Probation(found, lease), Event::FoundHosts(now)) => {
                Ok(self.proved(found, lease, *now))
            }
            (State::Reading, Event::Found(found)) => self.consider(*found),
            (State::AwaitingLease(found), Event::LeaseKept(etcd_lease)) => {
                self.etcd_lease = etcd_lease;
                self.claim(found)
            }
            (State::Allocating(found), Event::TicketAllocated(ticket)) => {
                self.own.ticket = Some(ticket);
                self.claim(found)
            }
            (State::Claiming(..), Event::Committed(None)) => {
                self.progress.races += 1;
                self.own.has_raced = true;
                // Twice is no accident: many hosts got tickets of slots that are taken.
                if self.progress.races > 1 {
                    self.own.ticket = None;
                }
                Ok(self.pause(Pause::LostRace(self.progress.races)))
            }
            (state, Event::Committed(Some(revision))) => self.committed(state, revision),
            // The snapshot is out of date, or a pause is over.
            _ => Ok(self.read()),
        }
    }
}
