//! Pure. The lease is held: the remaining steps before it is published.

use std::sync::Arc;

use crate::lease::claim::{self, python};
use crate::lease::etcd_error::EtcdError;
use crate::lease::identity::Lease;
use crate::lease::key_owners;
use crate::lease::records::{Key, NodeName};
use crate::lease::restore::{self, Continuity};
use crate::lease::session::machine::{SessionMachine, State};
use crate::lease::session::messages::{Command, Event, Pause, SessionExit, Settled};
use crate::lease::snapshot::Snapshot;
use crate::lease::transaction::Transaction;

impl SessionMachine {
    /// The lease is held. A fresh subnet that is not in use yet is checked once more after a pause,
    /// and released if a host of the Python agent took it too.
    pub(super) fn hold(&mut self, found: Snapshot, lease: Lease) -> Command {
        if let Some(other) = self.given_up_for(&found, &lease) {
            let warning = format!(
                "host {other} with the Python agent took the same subnet: choosing another"
            );
            self.warnings.push(warning);
            self.own.ticket = None;
            let release = claim::release(&found, &self.own, &lease);
            return self.commit("release a subnet", release, |_| State::Idle);
        }
        let chosen = self.chosen.take();
        let unused = self.lease.is_none() && self.own.remembered != lease.subnets;
        if unused && chosen.as_ref() == Some(&lease) && python::any(&found, &self.own.network.roots)
        {
            self.state = State::Probation(found, lease);
            return Command::Pause(Pause::Probation);
        }
        self.held(found, lease)
    }

    /// The fresh subnet was not taken during the pause, by the host keys `now`: other keys do not matter.
    pub(super) fn proved(&mut self, found: Snapshot, lease: Lease, now: Snapshot) -> Command {
        let now = Snapshot { hosts: now.hosts, ..found.clone() };
        let key = Key::Host(self.own.identity.name.clone());
        let revisions = |snapshot: &Snapshot| snapshot.revisions(&self.own.network.roots, &key);
        if revisions(&now) != revisions(&found) || self.given_up_for(&now, &lease).is_some() {
            return self.read();
        }
        self.held(found, lease)
    }

    fn held(&mut self, found: Snapshot, lease: Lease) -> Command {
        if self.own.alive && found.alive.contains_key(&self.own.identity.name) {
            return self.settle(found, lease);
        }
        self.complete(found, lease)
    }

    /// The host with the Python agent for which this host gives up the subnets of `lease`. One that held
    /// them keeps them, closed for new pods, while it could have no others.
    pub(super) fn given_up_for(&self, found: &Snapshot, lease: &Lease) -> Option<NodeName> {
        let other = python::taken_by(found, &self.own, lease)?;
        let held = self.lease.is_some() || self.own.remembered == lease.subnets;
        (!held || claim::has_others_free(found, &self.own, lease)).then_some(other)
    }

    /// Puts the alive key, but does not depend on it.
    fn complete(&mut self, found: Snapshot, lease: Lease) -> Command {
        match self.alive(&found) {
            Some((alive, _)) => {
                let completing = |alive| State::Completing(found, lease, Some(alive));
                self.commit("write the alive key", alive, completing)
            }
            None if self.etcd_lease.is_none() => {
                self.state = State::Completing(found, lease, None);
                Command::AwaitLease
            }
            None => self.settle(found, lease),
        }
    }

    /// The result of [`Self::complete`]: tried again if etcd was not reached, given up if it refused.
    pub(super) fn completed(
        &mut self,
        mut found: Snapshot,
        lease: Lease,
        alive: Option<Transaction>,
        event: Result<Event, EtcdError>,
    ) -> Result<Command, SessionExit> {
        match (alive, event) {
            (Some(alive), Ok(Event::Committed(Some(revision)))) => {
                self.alive_lease = self.etcd_lease;
                self.asked = None;
                found.written(&self.own.network.roots, &alive, revision);
            }
            (None, Ok(Event::LeaseKept(etcd_lease @ Some(_)))) => {
                self.etcd_lease = etcd_lease;
                return Ok(self.complete(found, lease));
            }
            (Some(_), Ok(Event::Committed(None))) => return Ok(self.read()),
            (_, Err(error @ EtcdError::Unreachable(_))) => return Err(error.into()),
            (_, Err(error)) => self.warnings.push(error.to_string()),
            _ => {}
        }
        Ok(self.settle(found, lease))
    }

    pub(super) fn settle(&mut self, found: Snapshot, lease: Lease) -> Command {
        let (own, network) = (&self.own.identity.name, &self.own.network);
        let mut complete = match &mut self.absent {
            Some(absent) => absent.remembered(found, own, network),
            None => found,
        };
        complete.without_record = Arc::new(self.own.without_record.clone());
        if let Some(known) = &self.last_known {
            match restore::continuity(known, &complete) {
                Continuity::Same => key_owners::remember(&mut complete, known),
                Continuity::Rebuilt | Continuity::Lost => {
                    let mut known = Snapshot::clone(known);
                    key_owners::outlive_loss(&mut known);
                    key_owners::remember(&mut complete, &known);
                }
            }
        }
        let snapshot = Arc::new(complete);
        self.last_known = Some(Arc::clone(&snapshot));
        self.own.keep = lease.subnets;
        self.failed = false;
        let changed = self.lease.as_ref() != Some(&lease);
        self.lease = Some(lease.clone());
        let behind = self.progress.revision - snapshot.revision;
        Command::Follow(Settled { lease: changed.then_some(lease), snapshot, behind })
    }
}
