//! Read, claim, restore, watch; over and over.

mod follow;
mod write;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{oneshot, watch as latest};
use tokio::time::{sleep, timeout};

use super::client::Etcd;
use super::error::EtcdError;
use super::{STOP_WITHIN, Setup, Start, Update, files, liveness, random};
use crate::lease::claim::{self, Claimant, Step, python, refusal};
use crate::lease::error::LeaseError;
use crate::lease::growth;
use crate::lease::identity::{Attributes, Lease, Network};
use crate::lease::records::Key;
use crate::lease::restore::{self, Continuity};
use crate::lease::snapshot::Snapshot;
use crate::linux::beat::Beat;

/// Longest time between two attempts while etcd does not answer.
const RETRY: Duration = Duration::from_millis(500);

/// Hosts that read again at once after an interruption; more of them take up to 1 ms each longer.
const AT_ONCE: usize = 100;

/// How long a host that knows nothing leaves an empty etcd alone. Much longer than [`RETRY`], so that
/// a survivor of a loss of data has put the keys back before a new host takes one of the subnets.
const GRACE: Duration = Duration::from_secs(2);

/// How long a fresh subnet is held back if there are hosts of the Python agent, which take a number
/// and write their key in two steps.
const PROBATION: Duration = Duration::from_secs(2);

/// Longest time before another attempt after a lost race; doubled for each one lost, six times.
const LOST_RACE: Duration = Duration::from_millis(10);

/// What the agent tells a session while it runs.
pub struct Told {
    pub setup: latest::Receiver<Setup>,
    pub attributes: latest::Receiver<Attributes>,
    /// Told by a session while it runs.
    pub beat: Arc<Beat>,
}

/// Runs the registry until `stopped` or a fatal error.
pub async fn run(
    start: Start,
    told: Told,
    stopped: &mut oneshot::Receiver<()>,
    publish: impl FnMut(Update),
) {
    let publish = RefCell::new(publish);
    let say = |update| (publish.borrow_mut())(update);
    let Setup { etcd, network } = told.setup.borrow().clone();
    let etcd = Etcd::new(etcd, network.roots.clone());
    let (kept_alive, kept) = latest::channel(None);
    let usable = |snapshot: &Snapshot| refusal::config(snapshot, &network).is_none();
    let known = start.known.filter(|saved| saved.is_of(&start.identity) && usable(&saved.snapshot));
    let own = Claimant {
        identity: start.identity,
        attributes: start.attributes,
        network,
        keep: Default::default(),
        remembered: known.as_ref().map(|saved| saved.lease.subnets).unwrap_or_default(),
        ticket: None,
        shown: false,
    };
    let (moving, lively) = (told.setup.clone(), told.setup.clone());
    let session = Session {
        etcd: &etcd,
        own,
        known: known.map(|saved| saved.snapshot),
        absent: None,
        lease: None,
        trouble: None,
        state: State::Disconnected(BTreeSet::new()),
        kept: kept.clone(),
        shown_with: None,
        told,
        since: SystemTime::now(),
        publish: say,
    };
    // Etcd moves before anybody asks it again.
    tokio::select! { biased;
        _ = follow_etcd(&etcd, moving) => {}
        () = session.run() => {}
        _ = liveness::keep(&etcd, kept_alive, lively) => {}
        _ = files::follow(&etcd, say) => {}
        _ = stopped => {}
    }
    let lease = *kept.borrow();
    if let Some(lease) = lease
        && let Ok(Err(error)) = timeout(STOP_WITHIN, etcd.revoke(lease)).await
    {
        log::debug!("{error}");
    }
}

/// Reaches etcd in the way that was told last.
async fn follow_etcd(etcd: &Etcd, mut setup: latest::Receiver<Setup>) -> Infallible {
    setup.mark_unchanged();
    while setup.changed().await.is_ok() {
        etcd.reconnect(setup.borrow_and_update().etcd.clone());
    }
    // Nobody will tell any more: the agent is gone, and `stopped` ends all of this.
    std::future::pending().await
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
    told: Told,
    since: SystemTime,
    publish: P,
}

/// What happened while a session settles.
#[derive(Default)]
struct SoFar {
    /// An empty etcd was left alone for a while.
    waited: bool,
    /// How often another host was quicker.
    races: u32,
    /// A subnet that a host of the Python agent may be taking.
    on_probation: Option<Lease>,
}

/// What was said about the connection.
enum State {
    Connected,
    /// With every reason told since it is so: reasons that take turns are told once.
    Disconnected(BTreeSet<String>),
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
                End::Failed(error) => self.tell_disconnected(error.to_string()),
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
            self.tell_connected();
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
        let mut so_far = SoFar::default();
        loop {
            self.told.beat.beat();
            self.told.setup.mark_unchanged();
            let found = self.etcd.read().await?;
            self.own.network = self.network(&found);
            if let Some(settled) = self.settle_on(found, &mut so_far).await? {
                return Ok(settled);
            }
        }
    }

    /// Writes what must be, given that etcd holds `found`; `None`: it must be read again.
    async fn settle_on(
        &mut self,
        mut found: Snapshot,
        so_far: &mut SoFar,
    ) -> Result<Option<(Snapshot, Lease)>, End> {
        let known = self.known.as_deref();
        let lost =
            known.is_some_and(|known| restore::continuity(known, &found) == Continuity::Lost);
        if lost && refusal::config(&found, &self.own.network).is_none() {
            self.put_back(&found).await?;
            return Ok(None);
        }
        if !lost && found.modified(&self.own.network.roots, &Key::Config) == 0 {
            if !std::mem::replace(&mut so_far.waited, true) {
                sleep(GRACE).await;
                return Ok(None);
            }
            if !self.found_network(&mut found).await? {
                return Ok(None);
            }
        }
        let lease = loop {
            self.own.attributes = self.told.attributes.borrow_and_update().clone();
            let kept = *self.kept.borrow_and_update();
            self.own.shown = kept.is_some() && kept == self.shown_with;
            match claim::next(&found, &self.own) {
                Step::Held(lease) => {
                    self.tell_trouble(None);
                    break lease;
                }
                Step::Refused(error) => break self.withstand(error)?,
                Step::Grow(growth) => {
                    if !self.commit("widen the pool of the network", &growth, &mut found).await? {
                        return Ok(None);
                    }
                }
                Step::ShowLife => {
                    if !self.show_life(&mut found).await? {
                        return Ok(None);
                    }
                }
                Step::Draw => self.own.ticket = Some(self.etcd.draw().await?),
                Step::Write { transaction, lease, fresh } => {
                    if !self.commit("claim this host's subnet", &transaction, &mut found).await? {
                        so_far.races += 1;
                        sleep(random::up_to(LOST_RACE * 2u32.pow(so_far.races.min(6)))).await;
                        return Ok(None);
                    }
                    if fresh && python::exist(&found) {
                        so_far.on_probation = Some(lease);
                        sleep(PROBATION).await;
                        return Ok(None);
                    }
                }
            }
        };
        if let Some(fresh) = so_far.on_probation.take()
            && self.give_way(&found, &fresh).await?
        {
            return Ok(None);
        }
        Ok(Some((self.complete(found).await, lease)))
    }

    /// The network that this host was told, as wide as it is by now.
    fn network(&self, found: &Snapshot) -> Network {
        let told = self.told.setup.borrow().network.clone();
        let mut pools = growth::followed(&told.pools, found);
        if let Some(known) = &self.known {
            pools = growth::followed(&pools, known);
        }
        Network { pools, ..told }
    }

    /// Goes on with the lease this host has, if etcd only disagrees about that.
    fn withstand(&mut self, error: LeaseError) -> Result<Lease, End> {
        let about_lease = matches!(
            error,
            LeaseError::SubnetLost { .. }
                | LeaseError::HeldByOther { .. }
                | LeaseError::CannotGrow { .. }
        );
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
        self.spread() + random::jittered(RETRY.min(Duration::from_millis(50) * attempts * attempts))
    }

    /// How long to wait so that all hosts do not read everything at once.
    fn spread(&self) -> Duration {
        let hosts = self.known.as_ref().map_or(0, |known| known.hosts.len());
        random::up_to(Duration::from_millis(hosts.saturating_sub(AT_ONCE) as u64))
    }

    fn tell_connected(&mut self) {
        if let State::Disconnected(_) = std::mem::replace(&mut self.state, State::Connected) {
            let endpoint = self.etcd.endpoint();
            (self.publish)(Update::Connected { endpoint });
        }
    }

    fn tell_disconnected(&mut self, why: String) {
        if let State::Connected = self.state {
            self.state = State::Disconnected(BTreeSet::new());
        }
        if let State::Disconnected(told) = &mut self.state
            && told.insert(why.clone())
        {
            (self.publish)(Update::Disconnected { why });
        }
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
