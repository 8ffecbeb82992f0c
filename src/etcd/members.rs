//! The members of the etcd cluster: one connection at a time, the next one when it fails.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use etcd_client::{Error, GetOptions};
use tokio::sync::{Notify, watch as latest};
use tokio::time::{Instant, timeout};

use crate::etcd::connection::{MemberConnection, Opened, open};
use crate::etcd::failure::Failure;
use crate::etcd::settings::EtcdSettings;
use crate::etcd::tls::files::{Files, Stamp};
use crate::etcd::uptime;
use crate::lease::EtcdError;
use crate::net::{FailureReason, Object, Problem, ProblemKind, hash};
use crate::os::random;

/// Wait before a refused password is tried again, unless the file changes: each attempt costs etcd 50 ms,
/// and every host has that password.
const REFUSED: Duration = Duration::from_secs(10);

/// Wait before refused files are tried again, unless they change.
const TRY_AGAIN: Duration = Duration::from_secs(60);

/// Time between two checks of a connection with a remark: one serializable read.
const RECHECK: Duration = Duration::from_secs(10);

/// A request to one member, which keeps what that answers.
type MemberRequest<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;

/// The members, one of which is in use.
pub struct EtcdMembers {
    settings: RefCell<Rc<EtcdSettings>>,
    /// A key that this host may read.
    probe: String,
    current: Cell<usize>,
    connection: RefCell<Option<MemberConnection>>,
    replaced: Notify,
    renewed: latest::Sender<()>,
    files: RefCell<FileState>,
}

#[derive(Default)]
struct FileState {
    /// Accepted by a member last.
    taken: Files,
    /// The stamp of `taken`.
    stamp: Stamp,
    /// The stamp at the last check.
    seen: Stamp,
    /// When files other than `taken` were refused.
    refused: Option<Instant>,
    /// Refused passwords, with the reason and the time of the next attempt.
    passwords: Vec<(Option<String>, FailureReason, Instant)>,
    faults: Vec<Problem>,
    /// Remark on the connection, and when it was checked.
    remark: Option<(Problem, Instant)>,
}

impl FileState {
    /// Why the password of `files` was refused, if recently.
    fn refusal_of(&self, files: &Files) -> Option<FailureReason> {
        let now = Instant::now();
        let mut refused = self.passwords.iter();
        let found =
            refused.find(|(password, _, until)| *password == files.password && now < *until);
        found.map(|(_, why, _)| why.clone())
    }
}

impl EtcdMembers {
    /// Starts with a random member, so that hosts spread over them. `probe`: a key that this host may
    /// read.
    pub fn new(settings: EtcdSettings, probe: String) -> EtcdMembers {
        let first = random::below(settings.endpoints.len());
        EtcdMembers {
            settings: RefCell::new(Rc::new(settings)),
            probe,
            current: Cell::new(first),
            connection: RefCell::new(None),
            replaced: Notify::new(),
            renewed: latest::Sender::new(()),
            files: RefCell::default(),
        }
    }

    /// Applies other settings: a call under way starts again.
    pub fn replace(&self, settings: EtcdSettings) {
        self.current.set(random::below(settings.endpoints.len()));
        let before = self.settings.replace(Rc::new(settings));
        if before != self.settings() {
            self.files.take();
        }
        self.connection.take();
        self.replaced.notify_waiters();
    }

    /// Notified of each connection that replaced a working one.
    pub fn renewed(&self) -> latest::Receiver<()> {
        self.renewed.subscribe()
    }

    /// The files accepted last, and the problems of files and connection.
    pub fn files(&self) -> (Files, Vec<Problem>) {
        let held = self.files.borrow();
        let remark = held.remark.iter().map(|(remark, _)| remark.clone());
        (held.taken.clone(), held.faults.iter().cloned().chain(remark).collect())
    }

    /// How long the only member has been running; `None` if it does not say. Several may have been apart all the time,
    /// without a leader.
    pub async fn uptime(&self) -> Option<Duration> {
        let list = async |mut member: MemberConnection| member.cluster.member_list().await;
        let members = self.call("list the members", list).await.ok()?.members().len();
        match members {
            1 => uptime::ask(&self.endpoint(), &self.files().0).await,
            _ => None,
        }
    }

    fn settings(&self) -> Rc<EtcdSettings> {
        Rc::clone(&self.settings.borrow())
    }

    pub fn endpoint(&self) -> String {
        self.settings().endpoints.get(self.current.get()).cloned().unwrap_or_default()
    }

    /// The answer to `request` of the first member that gives one, beginning with the one in use.
    /// Each has the configured time. A token that is no longer good is renewed once.
    ///
    /// A request may reach several members: it must be harmless when done twice.
    pub async fn call<T>(
        &self,
        what: &str,
        request: impl AsyncFn(MemberConnection) -> Result<T, Error>,
    ) -> Result<T, EtcdError> {
        let found = RefCell::new(None);
        let (request, kept) = (&request, &found);
        let keep = |member| -> MemberRequest<'_> {
            Box::pin(async move {
                kept.replace(Some(request(member).await?));
                Ok(())
            })
        };
        self.answered(what, &keep).await?;
        let missing = || EtcdError::Unreachable(format!("{what}: no answer").into());
        found.into_inner().ok_or_else(missing)
    }

    /// [`EtcdMembers::call`] but for the answer: compiled once, not for each of dozens of requests.
    async fn answered<'a>(
        &self,
        what: &str,
        request: &(dyn Fn(MemberConnection) -> MemberRequest<'a> + 'a),
    ) -> Result<(), EtcdError> {
        let mut unreachable = Vec::new();
        let mut renewed = false;
        while unreachable.len() < self.settings().endpoints.len().max(1) {
            let (settings, index) = (self.settings(), self.current.get());
            let endpoint = self.endpoint();
            let attempt = tokio::select! {
                attempt = timeout(settings.timeout, self.attempt(request)) => attempt,
                () = self.replaced.notified() => continue,
            };
            let failure = match attempt {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(failure)) => failure,
                Err(_) => {
                    Failure::Member(format!("no answer within {:?}", settings.timeout).into())
                }
            };
            match failure {
                Failure::Request(error) => return Err(error.of(what, &endpoint)),
                Failure::Token(_) if !renewed => {
                    renewed = true;
                    // Users have changed: a refused password may be valid now.
                    self.files.borrow_mut().passwords.clear();
                    self.connection.take();
                }
                Failure::Token(reason) => {
                    let reason = reason.at(format_args!("{what}: etcd {endpoint}"));
                    return Err(EtcdError::Refused(reason));
                }
                Failure::Member(reason) | Failure::Files(reason) | Failure::Login(reason) => {
                    unreachable.push(reason.at(format_args!("etcd {endpoint}")));
                    self.give_up(index);
                }
            }
        }
        Err(EtcdError::Unreachable(FailureReason::joined(unreachable)))
    }

    /// The next call goes to another member.
    pub fn next(&self) {
        self.give_up(self.current.get());
    }

    /// Changes to the next member, unless another call has done so already.
    fn give_up(&self, index: usize) {
        if self.current.get() == index {
            self.connection.take();
            self.current.set((index + 1) % self.settings().endpoints.len().max(1));
        }
    }

    async fn attempt<'a>(
        &self,
        request: &(dyn Fn(MemberConnection) -> MemberRequest<'a> + 'a),
    ) -> Result<(), Failure> {
        let known = self.connection.borrow().clone();
        let member = match known {
            Some(member) => member,
            None => {
                // Rare, and by far the largest future: boxed, that of every call is small.
                let member = Box::pin(self.connect()).await?;
                self.connection.replace(Some(member.clone()));
                member
            }
        };
        let answer = request(member).await;
        answer.map_err(|error| Failure::of(&error, &self.settings()))
    }

    /// A connection with the current files; else one with the certificate and the password accepted last.
    /// Authorities that were removed from their file are not trusted again.
    async fn connect(&self) -> Result<MemberConnection, Failure> {
        let settings = self.settings();
        let stamp = Stamp::of(&settings);
        let (found, faults) = self.read()?;
        let why = match self.open(&found).await {
            Ok(opened) => {
                let faulty = faults.iter().map(still_used).collect();
                // The substitute of a faulty file is not its content.
                let stamp = if faults.is_empty() { stamp } else { Stamp::default() };
                self.take(found, stamp, faulty);
                self.note(opened.remark.map(without_login));
                return Ok(opened.member);
            }
            Err(failure @ (Failure::Files(_) | Failure::Login(_))) => failure,
            Err(other) => return Err(other),
        };
        let taken = self.files.borrow().taken.clone();
        let before = Files { ca: found.ca.clone(), ..taken };
        if before == found || !before.are_complete(&settings, self.speaks_tls()) {
            return Err(why);
        }
        let Ok(opened) = self.open(&before).await else { return Err(why) };
        self.refuse(stamp, vec![self.refused(why)]);
        self.note(opened.remark.map(without_login));
        Ok(opened.member)
    }

    /// Checks the files. Changed ones that are no longer being written are tried with a new connection,
    /// which replaces the one in use if the member accepts them.
    pub async fn check_files(&self) {
        let (settings, index) = (self.settings(), self.current.get());
        let stamp = Stamp::of(&settings);
        if !self.settled(&stamp) || self.connection.borrow().is_none() {
            return;
        }
        let Ok((found, faults)) = self.read() else { return };
        if !faults.is_empty() {
            let faulty = faults.iter().map(still_used);
            return self.refuse(stamp, faulty.collect());
        }
        if found == self.files.borrow().taken {
            return self.take(found, stamp, Vec::new());
        }
        match timeout(settings.timeout, self.open(&found)).await {
            Ok(Ok(opened)) if index == self.current.get() => {
                self.connection.replace(Some(opened.member));
                self.take(found, stamp, Vec::new());
                self.note(opened.remark.map(without_login));
                self.renewed.send_replace(());
                log::info!("etcd {}: reconnected with changed files", self.endpoint());
            }
            Ok(Err(why @ (Failure::Files(_) | Failure::Login(_)))) => {
                self.refuse(stamp, vec![self.refused(why)]);
            }
            // The member does not answer: the next call handles that.
            _ => {}
        }
    }

    /// Checks a connection without login: authentication may have been enabled, which connected clients
    /// do not notice.
    pub async fn check_login(&self) {
        let is_due = |(_, at): &(Problem, Instant)| at.elapsed() >= RECHECK;
        if !self.files.borrow().remark.as_ref().is_some_and(is_due) {
            return;
        }
        if let Some((_, at)) = &mut self.files.borrow_mut().remark {
            *at = Instant::now();
        }
        let (settings, probe) = (self.settings(), self.probe.as_str());
        let request = |mut member: MemberConnection| -> MemberRequest<'_> {
            Box::pin(async move {
                let asked = GetOptions::new().with_serializable().with_count_only();
                member.kv.get(probe, Some(asked)).await.map(drop)
            })
        };
        let answer = timeout(settings.timeout, self.attempt(&request)).await;
        if !matches!(answer, Ok(Err(Failure::Token(_)))) {
            return;
        }
        // Users have changed: a refused password may be valid now.
        self.files.borrow_mut().passwords.clear();
        match timeout(settings.timeout, self.connect()).await {
            Ok(Ok(member)) => {
                self.connection.replace(Some(member));
                self.renewed.send_replace(());
                log::info!("etcd {}: reconnected as its user", self.endpoint());
            }
            Ok(Err(why @ (Failure::Files(_) | Failure::Login(_)))) => {
                let why = why.into_reason();
                let place = format!("etcd {} requires authentication", self.endpoint());
                let fix = "correct ETCD_USER, or write its password to ETCD_PASSWORD_FILE";
                self.note(Some(of_connection(why.at(place), fix)));
            }
            // The member does not answer: the next call handles that.
            _ => {}
        }
    }

    /// The member refuses the files; a connection with their previous content works.
    fn refused(&self, why: Failure) -> Problem {
        let why = why.into_reason().at(format_args!("{GOES_ON}: etcd {}", self.endpoint()));
        of_connection(why, "put good files in place, which are applied without a restart")
    }

    fn note(&self, remark: Option<Problem>) {
        self.files.borrow_mut().remark = remark.map(|remark| (remark, Instant::now()));
    }

    /// The files differ from those in use, are unchanged since the last check, and were not refused
    /// recently.
    fn settled(&self, stamp: &Stamp) -> bool {
        let mut held = self.files.borrow_mut();
        if *stamp != held.seen {
            held.seen = stamp.clone();
            held.refused = None;
            return false;
        }
        let recently = held.refused.is_some_and(|at| at.elapsed() < TRY_AGAIN);
        *stamp != held.stamp && !recently
    }

    fn read(&self) -> Result<(Files, Vec<Problem>), Failure> {
        let (settings, tls) = (self.settings(), self.speaks_tls());
        if tls && settings.ca.is_none() {
            let fix = "set ETCD_CACERT to the file of its authorities";
            return Err(Failure::Member(FailureReason::new("https needs ETCD_CACERT", fix)));
        }
        let (found, faults) = Files::read(&settings, tls, &self.files.borrow().taken);
        match faults.first() {
            Some(fault) if !found.are_complete(&settings, tls) => {
                Err(Failure::Member(fault.clone().into()))
            }
            _ => Ok((found, faults)),
        }
    }

    /// Hash of the configured addresses.
    pub fn addresses(&self) -> u64 {
        hash::stable(&self.settings().endpoints.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn speaks_tls(&self) -> bool {
        self.endpoint().starts_with("https://")
    }

    async fn open(&self, files: &Files) -> Result<Opened, Failure> {
        if let Some(why) = self.files.borrow().refusal_of(files) {
            return Err(Failure::Login(why));
        }
        let settings = self.settings();
        let opened = open(&self.endpoint(), &settings, files, &self.probe).await;
        let failure = match opened {
            Ok(opened) => return Ok(opened),
            Err(error) => {
                let now = SystemTime::now();
                Failure::of_connection(&error, &settings, files, self.speaks_tls(), now)
            }
        };
        if let Failure::Login(why) = &failure {
            let until = Instant::now() + random::jittered(REFUSED);
            let refused = (files.password.clone(), why.clone(), until);
            let mut held = self.files.borrow_mut();
            held.passwords.retain(|(_, _, until)| Instant::now() < *until);
            held.passwords.push(refused);
        }
        Err(failure)
    }

    fn take(&self, files: Files, stamp: Stamp, faults: Vec<Problem>) {
        let mut held = self.files.borrow_mut();
        (held.taken, held.stamp, held.faults) = (files, stamp, faults);
        held.refused = None;
        held.passwords.clear();
    }

    fn refuse(&self, stamp: Stamp, faults: Vec<Problem>) {
        let mut held = self.files.borrow_mut();
        (held.seen, held.refused, held.faults) = (stamp, Some(Instant::now()), faults);
    }
}

/// A faulty file while a connection with its previous content works.
fn still_used(fault: &Problem) -> Problem {
    let fix = fault.fix.as_deref().unwrap_or_default();
    Problem { what: format!("{GOES_ON}: {}", fault.what), ..fault.clone() }
        .with_fix(format!("{fix}; it is applied without a restart"))
}

/// A problem of a login or of files as etcd sees them.
/// `usual`: its fix, if `why` has none of its own.
fn of_connection(why: FailureReason, usual: &str) -> Problem {
    let fix = why.fix.unwrap_or_else(|| usual.to_owned());
    Problem::new(ProblemKind::EtcdFiles, Object::named("files for etcd"), why.what).with_fix(fix)
}

fn without_login(remark: String) -> Problem {
    of_connection(
        remark.into(),
        "etcdctl auth status # enable authentication in etcd, or remove ETCD_USER",
    )
}

/// The consequence of files that cannot be used.
const GOES_ON: &str = "the previous content stays in use";
