//! Pure. Which subnet a host would have, for a dry run.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use crate::lease::claim::{self, Claimant, Step, python};
use crate::lease::error::LeaseError;
use crate::lease::growth;
use crate::lease::identity::Lease;
use crate::lease::records::Alive;
use crate::lease::snapshot::{Snapshot, Stored};
use crate::lease::transaction::Transaction;

/// What claiming would lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Foreseen {
    /// etcd says what it must already.
    Held(Lease),
    /// Keys of this host would be written; it has these subnets already.
    Repaired(Lease),
    /// A subnet would be chosen; another host may be quicker and take this one.
    Chosen(Lease),
}

impl Foreseen {
    /// The subnets in any case.
    pub fn lease(&self) -> &Lease {
        match self {
            Foreseen::Held(lease) | Foreseen::Repaired(lease) | Foreseen::Chosen(lease) => lease,
        }
    }
}

/// What `own` would get if it claimed a subnet now, with `found` in etcd. Writes nothing.
///
/// # Errors
/// Why it would get none.
pub fn foresee(found: &Snapshot, own: &Claimant) -> Result<Foreseen, LeaseError> {
    let (mut found, mut own) = (found.clone(), own.clone());
    own.network.pools = growth::followed(&own.network.pools, &found);
    let alive = Alive::new(&own.identity.machine_id, UNIX_EPOCH);
    let stored = Stored { value: alive.into(), created: 0, modified: 0 };
    if let Step::Refused(error) = claim::next(&found, &own) {
        return Err(error);
    }
    Arc::make_mut(&mut found.alive).insert(own.identity.name.clone(), stored);
    own.shown = true;
    own.ticket = own.ticket.or(Some(1));
    loop {
        let (foreseen, transaction) = match claim::next(&found, &own) {
            Step::Refused(error) => return Err(error),
            Step::Write { lease, fresh: true, .. } => return Ok(Foreseen::Chosen(lease)),
            Step::Write { lease, transaction, .. } => (Foreseen::Repaired(lease), transaction),
            Step::Held(lease) => (Foreseen::Held(lease), Transaction::default()),
            Step::Grow(transaction) => {
                found.written(&own.network.roots, &transaction, found.revision);
                continue;
            }
            Step::ShowLife => unreachable!("the sign of life is shown"),
            // There is no end to the numbers, but to the slots that they must not pass over.
            Step::Draw => {
                own.ticket = own.ticket.map(|ticket| ticket + 1);
                continue;
            }
        };
        let revision = found.revision + 1;
        found.written(&own.network.roots, &transaction, revision);
        if python::taken_by(&found, &own, foreseen.lease()).is_none() {
            return Ok(foreseen);
        }
        let release = claim::release(&found, &own, foreseen.lease());
        found.written(&own.network.roots, &release, revision);
    }
}
