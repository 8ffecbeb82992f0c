//! Pure. The dialogue with etcd by which a host gets its lease and keeps it: after each answer, the
//! next question.
//!
//! Who asks (the registry; in tests, a simulator) decides nothing: it carries out what is asked,
//! waits, and hands in the answer.

mod claiming;
mod holding;
mod lost;
mod messages;
mod mirror;
mod reading;
mod repair;

use std::sync::Arc;
use std::time::SystemTime;

use crate::etcd::EtcdError;
use crate::lease::claim::{Claimant, refusal};
use crate::lease::error::LeaseError;
use crate::lease::identity::{Attributes, Identity, Lease, Network};
use crate::lease::saved::Saved;
use crate::lease::session::lost::Lost;
use crate::lease::snapshot::Snapshot;
use crate::lease::transaction::Transaction;
pub use messages::{Answer, End, Found, Pause, Question, Settled};
pub use mirror::is_same_store;

/// One host's side of the dialogue.
#[derive(Clone, Debug)]
pub struct Dialogue {
    own: Claimant,
    /// When the agent began.
    since: SystemTime,
    /// What was published last, or saved by an earlier life.
    known: Option<Arc<Snapshot>>,
    /// Hosts that were lost with the data of etcd and that this host may not put back.
    absent: Option<Snapshot>,
    lease: Option<Lease>,
    trouble: Option<LeaseError>,
    /// The etcd lease that is kept alive, as far as is known here.
    kept: Option<i64>,
    /// The one with which the sign of life was put.
    shown_with: Option<i64>,
    /// What was chosen last. It may be claimed even if no answer said so, and a host of the Python
    /// agent may be taking it.
    chosen: Option<Lease>,
    mark: String,
    /// etcd did not answer before: perhaps it came back with the data of a backup.
    failed: bool,
    so_far: SoFar,
    place: Place,
}

/// What happened since the beginning.
#[derive(Clone, Debug, Default)]
struct SoFar {
    /// An empty etcd was left alone for a while.
    waited: bool,
    /// One that had just come back was.
    waited_for_survivors: bool,
    /// How often another host was quicker.
    races: u32,
}

/// Which question was asked last.
#[derive(Clone, Debug)]
enum Place {
    /// None yet, or one whose answer changes nothing: everything is read (again).
    Start,
    Reading,
    /// Lost hosts are being put back.
    PuttingBack(Box<Lost>),
    /// The settings of the network.
    Founding(Snapshot, Transaction),
    /// Something that must be so before the claim.
    Widening(Snapshot, Transaction),
    Showing(Snapshot, Transaction, i64),
    Awaiting(Snapshot),
    Drawing(Snapshot),
    Claiming(Snapshot, Transaction),
    /// The sign of life, when all else is done: nothing depends on it.
    Completing(Snapshot, Lease, Option<Transaction>),
}

impl Dialogue {
    /// The dialogue of the host `identity` in `network` since `since`. `known`: what it knew when
    /// its agent last ran; what another host knew, or of another network, is left aside.
    pub fn new(
        identity: Identity,
        attributes: Attributes,
        network: Network,
        known: Option<Saved>,
        since: SystemTime,
    ) -> Dialogue {
        let usable = |snapshot: &Snapshot| refusal::config(snapshot, &network).is_none();
        let known = known.filter(|saved| saved.is_of(&identity) && usable(&saved.snapshot));
        let remembered = known.as_ref().map(|saved| saved.lease.subnets).unwrap_or_default();
        let own = Claimant {
            identity,
            attributes,
            network,
            keep: Default::default(),
            remembered,
            ticket: None,
            shown: false,
        };
        Dialogue {
            own,
            since,
            known: known.map(|saved| saved.snapshot),
            absent: None,
            lease: None,
            trouble: None,
            kept: None,
            shown_with: None,
            chosen: None,
            mark: String::new(),
            failed: false,
            so_far: SoFar::default(),
            place: Place::Start,
        }
    }

    /// What this host claims, as it is now.
    pub fn claimant(&self) -> &Claimant {
        &self.own
    }

    /// What was published last, or saved by an earlier life.
    pub fn known(&self) -> Option<&Arc<Snapshot>> {
        self.known.as_ref()
    }

    /// This host's lease, once it has one.
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// Where etcd does not agree with what this host holds, if so.
    pub fn trouble(&self) -> Option<&LeaseError> {
        self.trouble.as_ref()
    }

    /// The first question: after a start, after a failure, or because something changed.
    pub fn begin(&mut self) -> Question {
        self.so_far = SoFar::default();
        self.read()
    }

    /// The question after `answer`.
    ///
    /// # Errors
    /// [`End`]; go on with [`Dialogue::begin`].
    pub fn next(&mut self, answer: Result<Answer, EtcdError>) -> Result<Question, End> {
        let next = self.take(answer);
        self.failed |= matches!(next, Err(End::Failed(_)));
        if let Err(End::Refused(error)) = &next
            && self.lease.is_some()
        {
            self.trouble = Some(error.clone());
        }
        next
    }

    fn read(&mut self) -> Question {
        self.place = Place::Reading;
        Question::Read
    }

    fn pause(&mut self, pause: Pause) -> Question {
        self.place = Place::Start;
        Question::Pause(pause)
    }

    fn commit(
        &mut self,
        what: &'static str,
        transaction: Transaction,
        place: impl FnOnce(Transaction) -> Place,
    ) -> Question {
        self.place = place(transaction.clone());
        Question::Commit { what, transaction }
    }

    /// Takes an answer to where it belongs.
    fn take(&mut self, answer: Result<Answer, EtcdError>) -> Result<Question, End> {
        let place = std::mem::replace(&mut self.place, Place::Start);
        match (place, answer) {
            (Place::PuttingBack(lost), answer) => self.put_back(lost, answer),
            (Place::Completing(found, lease, life), answer) => {
                self.completed(found, lease, life, answer)
            }
            (Place::Showing(found, ..), Err(EtcdError::NoLease(_))) => Ok(self.await_lease(found)),
            (_, Err(error)) => Err(error.into()),
            (Place::Reading, Ok(Answer::Found(found))) => self.consider(*found),
            (Place::Awaiting(found), Ok(Answer::Kept(kept))) => {
                self.kept = kept;
                self.claim(found)
            }
            (Place::Drawing(found), Ok(Answer::Drawn(ticket))) => {
                self.own.ticket = Some(ticket);
                self.claim(found)
            }
            (Place::Claiming(..), Ok(Answer::Committed(None))) => {
                self.so_far.races += 1;
                Ok(self.pause(Pause::LostRace(self.so_far.races)))
            }
            (place, Ok(Answer::Committed(Some(revision)))) => self.written(place, revision),
            // What was read is not true any more, or time passed: everything is read again.
            (_, Ok(_)) => Ok(self.read()),
        }
    }
}
