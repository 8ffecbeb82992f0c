//! Pure. The dialogue with etcd by which a host gets its lease and keeps it: after each answer, the
//! next question.
//!
//! Who asks (the registry; in tests, a simulator) decides nothing: it carries out what is asked,
//! waits, and hands in the answer.

mod lost;
mod repair;
mod words;

use std::sync::Arc;
use std::time::SystemTime;

use super::claim::{self, Claimant, Step, python, refusal};
use super::error::LeaseError;
use super::growth;
use super::identity::{Attributes, Identity, Lease, Network};
use super::records::Key;
use super::registry::EtcdError;
use super::restore::{self, Continuity};
use super::saved::Saved;
use super::snapshot::Snapshot;
use super::transaction::Transaction;
use lost::Lost;
pub use words::{Answer, End, Found, Pause, Question, Settled};

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

    /// A transaction was made.
    fn written(&mut self, place: Place, revision: i64) -> Result<Question, End> {
        let (mut found, transaction) = match place {
            Place::Founding(found, transaction) | Place::Widening(found, transaction) => {
                (found, transaction)
            }
            Place::Claiming(found, transaction) => {
                self.tell_repair(&found, &transaction);
                (found, transaction)
            }
            Place::Showing(found, transaction, lease) => {
                self.shown_with = Some(lease);
                (found, transaction)
            }
            _ => return Ok(self.read()),
        };
        found.written(&self.own.network.roots, &transaction, revision);
        self.claim(found)
    }

    /// Tells what was put back of a lease that is held.
    fn tell_repair(&self, found: &Snapshot, transaction: &Transaction) {
        let known = self.known.as_ref().filter(|_| self.lease.is_some());
        let roots = &self.own.network.roots;
        if let Some(line) = known.and_then(|known| repair::told(known, found, roots, transaction)) {
            log::warn!("{line}");
        }
    }

    /// Everything was read.
    fn consider(&mut self, found: Found) -> Result<Question, End> {
        let Found { snapshot: found, told, attributes, kept, mark } = found;
        self.own.network = self.network(told, &found);
        self.own.attributes = attributes;
        self.kept = kept;
        self.mark = mark;
        let network = &self.own.network;
        let known = self.known.clone();
        let lost = known.filter(|known| restore::continuity(known, &found) == Continuity::Lost);
        if lost.is_none() && found.modified(&network.roots, &Key::Config) == 0 {
            if !std::mem::replace(&mut self.so_far.waited, true) {
                return Ok(self.pause(Pause::Grace));
            }
            let settings = self.settings();
            let founding = |transaction| Place::Founding(found, transaction);
            return Ok(self.commit("write the settings of the network", settings, founding));
        }
        self.so_far.waited = false;
        match lost.filter(|_| refusal::config(&found, network).is_none()) {
            Some(known) => {
                let lost = Lost::new(known, found, network, &self.mark);
                Ok(self.ask_back(Box::new(lost)))
            }
            None => self.claim(found),
        }
    }

    /// Writes the settings of the network, unless another host does.
    fn settings(&self) -> Transaction {
        let key = self.own.network.key(&Key::Config);
        let mut transaction = Transaction::default();
        transaction.unchanged(&key, 0);
        transaction.put(key, self.own.network.config(&self.mark).to_json());
        transaction
    }

    /// The network that this host was told, as wide as it is by now.
    fn network(&self, told: Network, found: &Snapshot) -> Network {
        let mut pools = growth::followed(&told.pools, found);
        if let Some(known) = &self.known {
            pools = growth::followed(&pools, known);
        }
        Network { pools, ..told }
    }

    /// Whatever the claim needs next, given that etcd holds `found`.
    fn claim(&mut self, found: Snapshot) -> Result<Question, End> {
        self.own.shown = self.kept.is_some() && self.kept == self.shown_with;
        match claim::next(&found, &self.own) {
            Step::Held(lease) => {
                self.trouble = None;
                self.held(found, lease)
            }
            Step::Refused(error) => {
                let lease = self.withstand(error)?;
                self.held(found, lease)
            }
            Step::Grow(growth) => {
                let widening = |transaction| Place::Widening(found, transaction);
                Ok(self.commit("widen the pool of the network", growth, widening))
            }
            Step::ShowLife => match self.life(&found) {
                Some((life, lease)) => {
                    let showing = |transaction| Place::Showing(found, transaction, lease);
                    Ok(self.commit("write the sign of life", life, showing))
                }
                None => Ok(self.await_lease(found)),
            },
            Step::Draw if self.failed && !self.so_far.waited_for_survivors => {
                self.so_far.waited_for_survivors = true;
                Ok(self.pause(Pause::Grace))
            }
            Step::Draw => {
                self.place = Place::Drawing(found);
                Ok(Question::Draw)
            }
            Step::Write { transaction, lease, fresh } => {
                if fresh {
                    self.chosen = Some(lease);
                }
                let claiming = |transaction| Place::Claiming(found, transaction);
                Ok(self.commit("claim this host's subnet", transaction, claiming))
            }
        }
    }

    fn await_lease(&mut self, found: Snapshot) -> Question {
        self.place = Place::Awaiting(found);
        Question::AwaitLease
    }

    /// What puts the sign of life, and the etcd lease it goes with, if there is one and nobody
    /// else has the name.
    fn life(&self, found: &Snapshot) -> Option<(Transaction, i64)> {
        let lease = self.kept?;
        Some((claim::show_life(found, &self.own, self.since, lease)?, lease))
    }

    /// Goes on with the lease this host has, if etcd only disagrees about that.
    fn withstand(&mut self, error: LeaseError) -> Result<Lease, End> {
        let about_lease = matches!(
            error,
            LeaseError::SubnetLost { .. }
                | LeaseError::HeldByOther { .. }
                | LeaseError::CannotGrow { .. }
        );
        match self.lease.clone().filter(|_| about_lease) {
            Some(lease) => {
                self.trouble = Some(error);
                Ok(lease)
            }
            None => Err(End::Refused(error)),
        }
    }

    /// The lease is held. A subnet that this host chose and has not used yet is given back if a host
    /// of the Python agent took it too, and looked at once more if it was chosen just now.
    fn held(&mut self, found: Snapshot, lease: Lease) -> Result<Question, End> {
        if let Some(other) = python::taken_by(&found, &self.own, &lease) {
            log::warn!("host {other} of the Python agent took this host's number: taking another");
            self.own.ticket = None;
            let release = claim::release(&found, &self.own, &lease);
            return Ok(self.commit("give a subnet back", release, |_| Place::Start));
        }
        let chosen = self.chosen.take();
        let unused = self.lease.is_none() && self.own.remembered != lease.subnets;
        if unused && chosen.as_ref() == Some(&lease) && python::exist(&found) {
            return Ok(self.pause(Pause::Probation));
        }
        if self.own.shown && found.alive.contains_key(&self.own.identity.name) {
            return Ok(self.settle(found, lease));
        }
        Ok(self.complete(found, lease))
    }

    /// Puts the sign of life, but does not depend on it.
    fn complete(&mut self, found: Snapshot, lease: Lease) -> Question {
        match self.life(&found) {
            Some((life, _)) => {
                let completing = |life| Place::Completing(found, lease, Some(life));
                self.commit("write the sign of life", life, completing)
            }
            None if self.kept.is_none() => {
                self.place = Place::Completing(found, lease, None);
                Question::AwaitLease
            }
            None => self.settle(found, lease),
        }
    }

    /// The sign of life was put, or not. If etcd was not reached, it is tried again; if it refused, all
    /// else goes on.
    fn completed(
        &mut self,
        mut found: Snapshot,
        lease: Lease,
        life: Option<Transaction>,
        answer: Result<Answer, EtcdError>,
    ) -> Result<Question, End> {
        match (life, answer) {
            (Some(life), Ok(Answer::Committed(Some(revision)))) => {
                self.shown_with = self.kept;
                found.written(&self.own.network.roots, &life, revision);
            }
            (None, Ok(Answer::Kept(kept @ Some(_)))) => {
                self.kept = kept;
                return Ok(self.complete(found, lease));
            }
            (Some(_), Ok(Answer::Committed(None))) => return Ok(self.read()),
            (_, Err(error @ EtcdError::Unreachable(_))) => return Err(error.into()),
            (_, Err(error)) => log::warn!("{error}"),
            _ => {}
        }
        Ok(self.settle(found, lease))
    }

    fn settle(&mut self, found: Snapshot, lease: Lease) -> Question {
        let (own, network) = (&self.own.identity.name, &self.own.network);
        let complete = match &mut self.absent {
            Some(absent) => {
                *absent = restore::still_absent(absent, &found);
                restore::remembering(absent, found, own, network)
            }
            None => found,
        };
        let snapshot = Arc::new(complete);
        self.known = Some(Arc::clone(&snapshot));
        self.own.keep = lease.subnets;
        self.failed = false;
        let changed = self.lease.as_ref() != Some(&lease);
        self.lease = Some(lease.clone());
        Question::Follow(Settled { lease: changed.then_some(lease), snapshot })
    }

    /// Nothing must be written because of `mirror`, which the watch brought, and it may be published.
    pub fn agrees(&self, mirror: &Snapshot) -> bool {
        let Some(known) = &self.known else { return false };
        let own = &self.own.identity.name;
        let sign_lost = known.alive.contains_key(own) && !mirror.alive.contains_key(own);
        let followed = growth::followed(&self.own.network.pools, mirror);
        let settled = followed == self.own.network.pools
            && match claim::next(mirror, &self.own) {
                Step::Held(_) => self.trouble.is_none(),
                Step::Refused(error) => self.trouble.as_ref() == Some(&error),
                _ => false,
            };
        settled && !sign_lost && restore::continuity(known, mirror) == Continuity::Same
    }

    /// `mirror`, to be published, if it says anything new.
    pub fn learn(&mut self, mirror: &Snapshot) -> Option<Arc<Snapshot>> {
        if self.known.as_ref().is_some_and(|known| mirror.says_the_same(known)) {
            return None;
        }
        let snapshot = Arc::new(mirror.clone());
        self.known = Some(Arc::clone(&snapshot));
        Some(snapshot)
    }
}

/// The settings of the network are still those of `mirror`, given that etcd says they were
/// `modified` at that revision: hosts were removed, and not the store. Of keys that are deleted
/// together, the watch of one root may tell before the other.
pub fn is_same_store(mirror: &Snapshot, modified: i64) -> bool {
    mirror.config.as_ref().is_some_and(|config| config.modified == modified)
}
