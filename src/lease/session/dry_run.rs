//! Pure. The outcome of a claim, with the state machine run on a copy of etcd's content.

use std::time::UNIX_EPOCH;

use crate::lease::error::LeaseError;
use crate::lease::identity::{Claimant, Lease};
use crate::lease::session::machine::{SessionMachine, State};
use crate::lease::session::messages::{Command, Event, Found, SessionExit};
use crate::lease::snapshot::Snapshot;

/// The outcome of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimPreview {
    /// The host holds this lease; its keys are right.
    Held(Lease),
    /// The host has this lease, and keys of it would be written.
    Repaired(Lease),
    /// Subnets would be chosen: these, unless another host is first.
    Chosen(Lease),
}

impl ClaimPreview {
    pub fn lease(&self) -> &Lease {
        match self {
            ClaimPreview::Held(lease)
            | ClaimPreview::Repaired(lease)
            | ClaimPreview::Chosen(lease) => lease,
        }
    }
}

/// The outcome if `own` claimed its subnets now, with `found` in etcd.
///
/// # Errors
/// Why it would get none.
pub fn dry_run_claim(found: &Snapshot, own: Claimant) -> Result<ClaimPreview, LeaseError> {
    const ETCD_LEASE: Option<i64> = Some(1);
    let mut store = found.clone();
    let (configured, attributes) = (own.network.clone(), own.attributes.clone());
    let own_subnets = own.remembered;
    let mut machine = SessionMachine::of(own, None, UNIX_EPOCH);
    let (mut tickets, mut chosen, mut repaired) = (0, false, false);
    let mut command = machine.begin();
    loop {
        let event = match command {
            Command::Read => Event::Found(Box::new(Found {
                snapshot: store.clone(),
                configured: configured.clone(),
                attributes: attributes.clone(),
                // That pods run would only delay the outcome.
                vacated: own_subnets,
                etcd_lease: ETCD_LEASE,
                new_store_id: String::new(),
            })),
            Command::ReadHosts => Event::FoundHosts(Box::new(store.clone())),
            Command::Commit { transaction, .. } => {
                chosen |= machine.chosen.is_some();
                repaired |= matches!(machine.state, State::Claiming(..) | State::ClaimingKey(..));
                let revision = store.revision + 1;
                store.written(&configured.roots, &transaction, revision);
                store.revision = revision;
                Event::Committed(Some(revision))
            }
            Command::AllocateTicket => {
                tickets += 1;
                Event::TicketAllocated(tickets)
            }
            Command::Pause(_) => Event::Elapsed,
            Command::AwaitLease => Event::LeaseKept(ETCD_LEASE),
            Command::Follow(settled) => {
                let lease = settled.lease.unwrap_or_default();
                return Ok(match (chosen, repaired) {
                    (true, _) => ClaimPreview::Chosen(lease),
                    (false, true) => ClaimPreview::Repaired(lease),
                    (false, false) => ClaimPreview::Held(lease),
                });
            }
        };
        command = match machine.next(Ok(event)) {
            Ok(command) => command,
            Err(SessionExit::Refused(error)) => return Err(error),
            Err(SessionExit::Failed(error)) => unreachable!("no command failed: {error}"),
        };
    }
}
