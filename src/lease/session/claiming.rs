//! Pure. The steps of a claim until the lease is held.

use crate::lease::claim::{self, Step, python};
use crate::lease::error::LeaseError;
use crate::lease::identity::Lease;
use crate::lease::records::NodeName;
use crate::lease::session::machine::{SessionMachine, State};
use crate::lease::session::messages::{Command, Pause, SessionExit};
use crate::lease::session::repair;
use crate::lease::snapshot::Snapshot;
use crate::lease::transaction::Transaction;
use crate::net::gather::Gather;

impl SessionMachine {
    /// The next command of the claim, given that etcd holds `found`.
    pub(super) fn claim(&mut self, found: Snapshot) -> Result<Command, SessionExit> {
        let found = match self.contend(found) {
            Ok(found) => found,
            Err(next) => return next,
        };
        let alive = found.alive.get(&self.own.identity.name);
        let is_ours = alive.is_none_or(|alive| *alive.value.instance == *self.own.instance);
        let has_lease = self.etcd_lease.is_some() && self.etcd_lease == self.alive_lease;
        self.own.alive = has_lease && is_ours;
        self.note_lost_records(&found);
        Ok(match claim::next(&found, &self.own) {
            Step::Held(lease) => {
                self.trouble = self.contradiction(&found, &lease);
                self.hold(found, lease)
            }
            Step::Refused(error) => return self.refused(found, error),
            Step::Grow(growth) => {
                let growing = |transaction| State::Configuring(found, transaction);
                self.commit("widen the pool of the network", growth, growing)
            }
            Step::PutAlive => match self.alive(&found) {
                Some((alive, lease)) => {
                    let putting = |transaction| State::PuttingAlive(found, transaction, lease);
                    self.commit("write the alive key", alive, putting)
                }
                None => self.await_lease(found),
            },
            Step::AllocateTicket if self.failed && !self.progress.waited_for_survivors => {
                self.progress.waited_for_survivors = true;
                self.pause(Pause::Grace)
            }
            Step::AllocateTicket => {
                self.state = State::Allocating(found);
                Command::AllocateTicket
            }
            Step::ClaimKey(transaction) => {
                let claiming = |transaction| State::ClaimingKey(found, transaction);
                self.commit("claim this host's WireGuard key", transaction, claiming)
            }
            Step::Write { transaction, lease, fresh } => {
                if fresh {
                    self.chosen = Some(lease);
                }
                let claiming = |transaction| State::Claiming(found, transaction);
                self.commit("claim this host's subnet", transaction, claiming)
            }
        })
    }

    /// Takes back what a host has that was removed; else keeps the lease that this host serves.
    fn refused(&mut self, found: Snapshot, error: LeaseError) -> Result<Command, SessionExit> {
        if let Some(transaction) = self.take_back(&found, &error) {
            let back = "taken back, because etcd was restored from an older snapshot";
            self.warnings.push(format!("{error}: {back}"));
            let taking = |_| State::TakingBack(found);
            let what = "delete the keys of a host that was removed";
            return Ok(self.commit(what, transaction, taking));
        }
        let lease = self.keep_lease_on_conflict(&found, error)?;
        Ok(self.hold(found, lease))
    }

    /// A stolen host deletes its node record to look like one of the Python agent, for which the others give way.
    pub(super) fn note_lost_records(&mut self, found: &Snapshot) {
        let Some(known) = self.last_known.as_deref() else { return };
        let had_one = |host: &&NodeName| {
            known.nodes.contains_key(*host) || self.own.without_record.contains(*host)
        };
        let roots = &self.own.network.roots;
        let without = found.hosts.keys().filter(|host| python::is_python(found, roots, host));
        self.own.without_record = without.filter(had_one).cloned().gather();
    }

    /// This host may not widen the pool of the network: it goes on with the narrow one.
    pub(super) fn stay_narrow(
        &mut self,
        found: Snapshot,
        why: String,
    ) -> Result<Command, SessionExit> {
        self.warnings.push(format!("{why}; the pool of the network stays as it is"));
        let narrow = found.config.as_ref().map(|config| config.value.pools()).unwrap_or_default();
        for (family, pool) in narrow.entries() {
            self.own.network.pools.set(family, Some(*pool));
        }
        self.claim(found)
    }

    /// This host may not claim its WireGuard key: it publishes the key without.
    pub(super) fn leave_key_unclaimed(
        &mut self,
        found: Snapshot,
        why: String,
    ) -> Result<Command, SessionExit> {
        self.own.leaves_key_unclaimed = true;
        if self.cannot_claim_key.as_ref() != Some(&why) {
            self.warnings.push(format!("the WireGuard key of this host is not claimed: {why}"));
            self.cannot_claim_key = Some(why);
        }
        self.claim(found)
    }

    /// A transaction was committed.
    pub(super) fn committed(
        &mut self,
        state: State,
        revision: i64,
    ) -> Result<Command, SessionExit> {
        self.progress.revision = revision;
        let (mut found, transaction) = match state {
            State::Configuring(found, transaction) => (found, transaction),
            State::Claiming(found, transaction) | State::ClaimingKey(found, transaction) => {
                self.warn_of_repair(&found, &transaction);
                (found, transaction)
            }
            State::PuttingAlive(found, transaction, lease) => {
                self.alive_lease = Some(lease);
                self.asked = None;
                (found, transaction)
            }
            State::Answering(found, transaction) => {
                self.alive_lease = self.etcd_lease;
                self.asked = None;
                (found, transaction)
            }
            _ => return Ok(self.read()),
        };
        found.written(&self.own.network.roots, &transaction, revision);
        self.claim(found)
    }

    /// Warns of foreign changes to the keys of a lease that is held.
    fn warn_of_repair(&mut self, found: &Snapshot, transaction: &Transaction) {
        let last_known = self.last_known.as_ref().filter(|_| self.lease.is_some());
        let roots = &self.own.network.roots;
        let describe = |known| repair::describe(known, found, roots, transaction);
        self.warnings.extend(last_known.and_then(|known| describe(known)));
    }

    /// What contradicts `lease`, although its keys are right.
    pub(super) fn contradiction(&self, found: &Snapshot, lease: &Lease) -> Option<LeaseError> {
        let host = || self.own.identity.name.clone();
        let shared = python::sharing(found, &self.own, lease);
        let shared =
            shared.map(|(subnet, other)| LeaseError::SubnetShared { subnet, host: host(), other });
        shared.or_else(|| self.copy(found)).or_else(|| self.report_went_back(found))
    }

    /// `error`, or what closes a subnet of `lease`, if `error` closes none.
    pub(super) fn worse(&self, found: &Snapshot, lease: &Lease, error: LeaseError) -> LeaseError {
        if !error.disputed(&lease.subnets).is_empty() {
            return error;
        }
        let other = self.contradiction(found, lease);
        other.filter(|other| !other.disputed(&lease.subnets).is_empty()).unwrap_or(error)
    }

    /// The lease this host has, if `error` only contradicts that one.
    fn keep_lease_on_conflict(
        &mut self,
        found: &Snapshot,
        error: LeaseError,
    ) -> Result<Lease, SessionExit> {
        let about_lease = matches!(
            error,
            LeaseError::SubnetLost { .. }
                | LeaseError::HeldByOther { .. }
                | LeaseError::CannotGrow { .. }
        );
        // The pods of an earlier run of the agent may still be there.
        let remembered = Some(self.own.remembered).filter(|subnets| !subnets.is_empty());
        let at_start =
            matches!(error, LeaseError::SubnetLost { .. } | LeaseError::CannotGrow { .. });
        let remembered = remembered.filter(|_| at_start);
        let lease = self.lease.clone().or(remembered.map(|subnets| Lease { subnets }));
        match lease.filter(|_| about_lease) {
            Some(lease) => {
                self.trouble = Some(self.worse(found, &lease, error));
                Ok(lease)
            }
            None => Err(SessionExit::Refused(error)),
        }
    }

    /// Puts the alive key, and with which etcd lease; `None` without one, or if another machine has
    /// the name.
    pub(super) fn alive(&self, found: &Snapshot) -> Option<(Transaction, i64)> {
        let lease = self.etcd_lease?;
        let mut alive = claim::put_alive(found, &self.own, self.since, lease, None)?;
        self.stop_asking(found, &mut alive);
        Some((alive, lease))
    }
}
