//! Asks etcd what the dialogue wants to know, and watches it in between; over and over.

mod follow;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{oneshot, watch as latest};
use tokio::time::{sleep, timeout};

use crate::etcd::client::Etcd;
use crate::etcd::contact::Contact;
use crate::etcd::error::EtcdError;
use crate::etcd::rows::{self, Rows};
use crate::etcd::{STOP_WITHIN, Setup, Start, Update, files, liveness};
use crate::lease::error::LeaseError;
use crate::lease::identity::Attributes;
use crate::lease::session::{Answer, Dialogue, End, Found, Pause, Question, Settled};
use crate::os::random;

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
    pub contact: Arc<Contact>,
    /// Served by a session while it runs.
    pub rows: Arc<Rows>,
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
    let Start { identity, attributes, known, .. } = start;
    let since = SystemTime::now();
    let (contact, rows, name) =
        (Arc::clone(&told.contact), Arc::clone(&told.rows), identity.name.clone());
    let (moving, lively) = (told.setup.clone(), told.setup.clone());
    let session = Session {
        etcd: &etcd,
        dialogue: Dialogue::new(identity, attributes, network, known, since),
        trouble: None,
        state: State::Disconnected(BTreeSet::new()),
        kept: kept.clone(),
        told,
        publish: say,
    };
    // Etcd moves before anybody asks it again.
    tokio::select! { biased;
        _ = follow_etcd(&etcd, moving) => {}
        () = session.run() => {}
        _ = liveness::keep(&etcd, kept_alive, lively, &contact) => {}
        _ = files::follow(&etcd, say) => {}
        _ = rows::keep(&etcd, &rows, &name, kept.clone()) => {}
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
    dialogue: Dialogue,
    /// What was said last of where etcd does not agree.
    trouble: Option<LeaseError>,
    state: State,
    /// The etcd lease that is kept alive.
    kept: latest::Receiver<Option<i64>>,
    told: Told,
    publish: P,
}

/// What was said about the connection.
enum State {
    Connected,
    /// With every reason told since it is so: reasons that take turns are told once.
    Disconnected(BTreeSet<String>),
}

impl<P: FnMut(Update)> Session<'_, P> {
    async fn run(mut self) {
        let mut attempts = 0;
        loop {
            let Err(end) = self.serve(&mut attempts).await;
            match end {
                End::Refused(error) if self.dialogue.lease().is_none() => {
                    return (self.publish)(Update::Fatal(error));
                }
                End::Refused(_) => {}
                End::Failed(error) => {
                    self.told.contact.failed(&error);
                    self.tell_disconnected(error.to_string());
                }
            }
            attempts += 1;
            sleep(self.pause(attempts)).await;
        }
    }

    /// Serves until something breaks; `attempts` is set back once etcd has answered.
    async fn serve(&mut self, attempts: &mut u32) -> Result<Infallible, End> {
        loop {
            let Settled { lease, snapshot } = self.settle().await?;
            *attempts = 0;
            self.tell_connected();
            if let Some(lease) = lease {
                (self.publish)(Update::Lease(lease));
            }
            (self.publish)(Update::Snapshot(Arc::clone(&snapshot)));
            self.follow(Arc::unwrap_or_clone(snapshot)).await?;
        }
    }

    /// Reads everything and writes what must be, until nothing must be written.
    async fn settle(&mut self) -> Result<Settled, End> {
        let mut question = self.dialogue.begin();
        loop {
            self.told.contact.beat.beat();
            if let Question::Follow(settled) = question {
                return Ok(settled);
            }
            let answer = self.ask(question).await;
            let next = self.dialogue.next(answer);
            self.tell_trouble();
            question = next?;
        }
    }

    async fn ask(&mut self, question: Question) -> Result<Answer, EtcdError> {
        Ok(match question {
            Question::Read => {
                let told = self.told.setup.borrow_and_update().network.clone();
                let attributes = self.told.attributes.borrow_and_update().clone();
                let kept = *self.kept.borrow_and_update();
                let (snapshot, mark) = (self.etcd.read().await?, random::mark());
                self.told.contact.heard();
                Answer::Found(Box::new(Found { snapshot, told, attributes, kept, mark }))
            }
            Question::Commit { what, transaction } => {
                Answer::Committed(self.etcd.commit(what, &transaction).await?)
            }
            Question::Draw => Answer::Drawn(self.etcd.draw().await?),
            Question::Pause(pause) => {
                sleep(match pause {
                    Pause::Grace => GRACE,
                    Pause::Probation => PROBATION,
                    Pause::LostRace(races) => random::up_to(LOST_RACE * 2u32.pow(races.min(6))),
                })
                .await;
                Answer::Passed
            }
            Question::AwaitLease => {
                // Whether it came is seen when it is used.
                drop(timeout(RETRY, self.kept.changed()).await);
                Answer::Kept(*self.kept.borrow_and_update())
            }
            Question::Follow(_) => Answer::Passed,
        })
    }

    /// How long to wait after that many failed attempts.
    fn pause(&self, attempts: u32) -> Duration {
        self.spread() + random::jittered(RETRY.min(Duration::from_millis(50) * attempts * attempts))
    }

    /// How long to wait so that all hosts do not read everything at once.
    fn spread(&self) -> Duration {
        let hosts = self.dialogue.known().map_or(0, |known| known.hosts.len());
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

    fn tell_trouble(&mut self) {
        if self.trouble.as_ref() != self.dialogue.trouble() {
            self.trouble = self.dialogue.trouble().cloned();
            (self.publish)(Update::Trouble(self.trouble.clone()));
        }
    }
}
