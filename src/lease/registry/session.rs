//! Read, claim, restore, watch; over and over.

mod follow;
mod write;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{oneshot, watch as latest};
use tokio::time::{sleep, timeout};

use super::client::Etcd;
use super::error::EtcdError;
use super::{STOP_WITHIN, Start, Update, liveness, random};
use crate::lease::claim::{self, Claimant, Step, python, refusal};
use crate::lease::error::LeaseError;
use crate::lease::identity::{Attributes, Lease};
use crate::lease::records::Key;
use crate::lease::restore::{self, Continuity};
use crate::lease::snapshot::Snapshot;

/// Longest time between two attempts while etcd does not answer.
const RETRY: Duration = Duration::from_millis(500);

/// Hosts that read again at once after an interruption; more of them take 1 ms each longer.
const AT_ONCE: usize = 100;

/// How long a host that knows nothing leaves an empty etcd alone. Much longer than [`RETRY`], so that
/// a survivor of a loss of data has put the keys back before a new host takes one of the subnets.
const GRACE: Duration = Duration::from_millis(1500);

/// How long a fresh subnet is held back if there are hosts of the Python agent, which take a number
/// and write their key in two steps.
const PROBATION: Duration = Duration::from_secs(2);

/// Longest time between two attempts after a lost race, for each one lost.
const LOST_RACE: Duration = Duration::from_millis(10);

/// Runs the registry until `stopped` or a fatal error.
pub async fn run(
    start: Start,
    attributes: latest::Receiver<Attributes>,
    stopped: oneshot::Receiver<()>,
    publish: impl FnMut(Update),
) {
    let etcd = Etcd::new(start.etcd, start.network.roots.clone());
    let (kept_alive, kept) = latest::channel(None);
    let usable = |snapshot: &Snapshot| refusal::config(snapshot, &start.network).is_none();
    let known = start.known.filter(|saved| saved.is_of(&start.identity) && usable(&saved.snapshot));
    let own = Claimant {
        identity: start.identity,
        attributes: start.attributes,
        network: start.network,
        keep: Default::default(),
        remembered: known.as_ref().map(|saved| saved.lease.subnets).unwrap_or_default(),
        ticket: None,
        shown: false,
    };
    let session = Session {
        etcd: &etcd,
        own,
        known: known.map(|saved| saved.snapshot),
        absent: None,
        lease: None,
        trouble: None,
        state: State::Unknown,
        kept: kept.clone(),
        shown_with: None,
        attributes,
        since: SystemTime::now(),
        publish,
    };
    tokio::select! {
        () = session.run() => {}
        _ = liveness::keep(&etcd, kept_alive) => {}
        _ = stopped => {}
    }
    let lease = *kept.borrow();
    if let Some(lease) = lease
        && let Ok(Err(error)) = timeout(STOP_WITHIN, etcd.revoke(lease)).await
    {
        log::debug!("{error}");
    }
}

struct Session<'a, P> {
    etcd: &'a Etcd,
    own: Claimant,
    /// What was published last, or saved by an earlier life.
    known: Option<Arc<Snapshot>>,
    /// Hosts that were lost with the data of etcd and that this host may not put back.
    absent: Option<Snapshot>,
    lease: Option<Lease>,
    trouble: Option<LeaseError>,
    state: State,
    /// The etcd lease that is kept alive.
    kept: latest::Receiver<Option<i64>>,
    /// The one with which the sign of life was put.
    shown_with: Option<i64>,
    attributes: latest::Receiver<Attributes>,
    since: SystemTime,
    publish: P,
}

/// What was said last about the connection.
#[derive(PartialEq)]
enum State {
    Unknown,
    Connected,
    Disconnected(String),
}

/// Why it cannot go on as it is.
enum End {
    Failed(EtcdError),
    Refused(LeaseError),
}

impl From<EtcdError> for End {
    fn from(error: EtcdError) -> End {
        End::Failed(error)
    }
}

impl<P: FnMut(Update)> Session<'_, P> {
    async fn run(mut self) {
        let mut attempts = 0;
        loop {
            let Err(end) = self.serve(&mut attempts).await;
            match end {
                End::Refused(error) if self.lease.is_none() => {
                    return (self.publish)(Update::Fatal(error));
                }
                End::Refused(error) => self.tell_trouble(Some(error)),
                End::Failed(error) => self.tell_state(State::Disconnected(error.to_string())),
            }
            attempts += 1;
            sleep(self.pause(attempts)).await;
        }
    }

    /// Serves until something breaks; `attempts` is set back once etcd has answered.
    async fn serve(&mut self, attempts: &mut u32) -> Result<Infallible, End> {
        loop {
            let (found, lease) = self.settle().await?;
            *attempts = 0;
            self.tell_state(State::Connected);
            if self.lease.as_ref() != Some(&lease) {
                self.own.keep = lease.subnets;
                self.lease = Some(lease.clone());
                (self.publish)(Update::Lease(lease));
            }
            self.tell_snapshot(&found);
            self.follow(found).await?;
        }
    }

    /// Reads everything and writes what must be, until nothing must be written.
    async fn settle(&mut self) -> Result<(Snapshot, Lease), End> {
        let (mut waited, mut races, mut on_probation) = (false, 0, None);
        loop {
            let found = self.etcd.read().await?;
            self.own.attributes = self.attributes.borrow_and_update().clone();
            let kept = *self.kept.borrow_and_update();
            self.own.shown = kept.is_some() && kept == self.shown_with;
            let known = self.known.as_deref();
            let lost =
                known.is_some_and(|known| restore::continuity(known, &found) == Continuity::Lost);
            if !lost && found.modified(&self.own.network.roots, &Key::Config) == 0 {
                if std::mem::replace(&mut waited, true) {
                    self.found_network(&found).await?;
                } else {
                    sleep(GRACE).await;
                }
                continue;
            }
            if lost && refusal::config(&found, &self.own.network).is_none() {
                self.put_back(&found).await?;
                continue;
            }
            let lease = match claim::next(&found, &self.own) {
                Step::Held(lease) => {
                    self.tell_trouble(None);
                    lease
                }
                Step::Refused(error) => self.withstand(error)?,
                Step::ShowLife => {
                    self.show_life(&found).await?;
                    continue;
                }
                Step::Draw => {
                    self.own.ticket = Some(self.etcd.draw().await?);
                    continue;
                }
                Step::Write { transaction, lease, fresh } => {
                    if !self.etcd.commit("claim this host's subnet", &transaction).await? {
                        races += 1;
                        sleep(random::jittered(LOST_RACE * races)).await;
                    } else if fresh && python::exist(&found) {
                        on_probation = Some(lease);
                        sleep(PROBATION).await;
                    }
                    continue;
                }
            };
            if let Some(fresh) = on_probation.take()
                && self.give_way(&found, &fresh).await?
            {
                continue;
            }
            return Ok((self.complete(found).await, lease));
        }
    }

    /// Goes on with the lease this host has, if etcd only disagrees about that.
    fn withstand(&mut self, error: LeaseError) -> Result<Lease, End> {
        let about_lease =
            matches!(error, LeaseError::SubnetLost { .. } | LeaseError::HeldByOther { .. });
        match &self.lease {
            Some(lease) if about_lease => {
                let lease = lease.clone();
                self.tell_trouble(Some(error));
                Ok(lease)
            }
            _ => Err(End::Refused(error)),
        }
    }

    /// How long to wait after that many failed attempts.
    fn pause(&self, attempts: u32) -> Duration {
        let hosts = self.known.as_ref().map_or(0, |known| known.hosts.len());
        let spread = Duration::from_millis(random::below(hosts.saturating_sub(AT_ONCE) + 1) as u64);
        spread + random::jittered(RETRY.min(Duration::from_millis(50) * attempts * attempts))
    }

    fn tell_state(&mut self, state: State) {
        if self.state == state {
            return;
        }
        (self.publish)(match &state {
            State::Disconnected(why) => Update::Disconnected { why: why.clone() },
            _ => Update::Connected { endpoint: self.etcd.endpoint().to_owned() },
        });
        self.state = state;
    }

    fn tell_trouble(&mut self, trouble: Option<LeaseError>) {
        if self.trouble != trouble {
            self.trouble = trouble.clone();
            (self.publish)(Update::Trouble(trouble));
        }
    }

    fn tell_snapshot(&mut self, snapshot: &Snapshot) {
        let snapshot = Arc::new(snapshot.clone());
        self.known = Some(Arc::clone(&snapshot));
        (self.publish)(Update::Snapshot(snapshot));
    }
}
