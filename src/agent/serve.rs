//! The loop: waits for a reason to look, looks, mends.

mod addresses;
mod files;
mod pools;
mod reload;
mod tell;
mod updates;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use ipnetwork::IpNetwork;
use nix::sys::signal::Signal;

use crate::agent::cleanup;
use crate::agent::exit::{self, Exit};
use crate::agent::host::{Facts, Own};
use crate::agent::keep::{Pass, World};
use crate::agent::known::Known;
use crate::agent::local::Board;
use crate::agent::local::addresses::{addresses, scarce};
use crate::agent::local::known::Etcd;
use crate::agent::local::serve::Server;
use crate::agent::names::{self, Names};
use crate::agent::notify;
use crate::agent::origin::{Origin, Texts};
use crate::agent::pass::{self, Seen};
use crate::agent::report::{Report, Standing};
use crate::agent::settings::{Backend, Settings};
use crate::agent::source::Source;
use crate::agent::wake::{Look, Wake, Why};
use crate::lease::Resolved;
use crate::lease::error::LeaseError;
use crate::lease::records::NodeName;
use crate::lease::snapshot::Snapshot;
use crate::lease::{Attributes, Peers};
use crate::linux::beat::{self, Beat};
use crate::net::PerFamily;

pub use files::Files;

/// Quiet time after a pass: a storm of events costs one pass each 20 ms, a single one waits for
/// nothing.
pub const SETTLE: Duration = Duration::from_millis(20);

/// First wait before a failed pass is tried again; doubled up to the resync interval.
const RETRY: Duration = Duration::from_secs(1);

/// How long `--once` waits for etcd.
const ONCE: Duration = Duration::from_secs(30);

/// The agent while it runs.
pub struct Agent {
    /// Where the settings come from.
    pub origin: Origin,
    /// What the operator wants, as text.
    pub texts: Texts,
    /// What the operator wants.
    pub settings: Settings,
    /// This host's name.
    pub name: NodeName,
    /// Reasons to look.
    pub inbox: Receiver<Wake>,
    /// Subnet and other hosts.
    pub source: Source,
    /// Resolves names of hosts.
    pub names: Names,
    /// The kernel.
    pub world: World,
    /// What is told to those who ask on this host.
    pub board: Arc<Board>,
    /// Who tells them.
    pub server: Option<Server>,
    /// The loop turns.
    pub beat: Arc<Beat>,
    /// What is heard of the files that the agent keeps.
    pub files: Files,
    /// What the agent knows and has to do.
    pub state: State,
}

/// What the agent knows and what it has to do.
pub struct State {
    /// This host's pod subnets, once it has them …
    subnets: Option<PerFamily<IpNetwork>>,
    /// … and since when.
    since: Option<SystemTime>,
    /// How etcd is.
    etcd: Etcd,
    /// When the first change was heard that the kernel does not agree with yet.
    heard: Option<Instant>,
    /// All hosts; from the last known good state until etcd has answered.
    snapshot: Option<Arc<Snapshot>>,
    /// The others among them.
    peers: Option<Arc<Peers>>,
    /// A complete snapshot came from etcd in this life: what is not in it may be removed.
    in_sync: bool,
    resolved: Resolved,
    known: Known,
    /// What this host was when it was looked at last.
    facts: Option<Facts>,
    look: Look,
    why: Why,
    /// When to look, if there is something to look at.
    look_at: Instant,
    /// When to look at everything.
    resync_at: Instant,
    retry: Duration,
    ready: bool,
    /// The operator wants the settings to be read again.
    hung_up: bool,
    /// The service manager knows that a reload is under way.
    reloading: bool,
    /// The last reload changed nothing, because a setting was wrong.
    reload_refused: bool,
    /// The settings before the reload, until a pass has replaced what they had made.
    superseded: Option<Settings>,
    stop: bool,
    failures: Standing,
    unreachable: Standing,
    obstacles: Standing,
    surroundings: Standing,
    scarce: Standing,
    records: Standing,
    pools: Standing,
    files: Standing,
}

impl State {
    /// Nothing is known yet but what names resolved to and, on a host without etcd, its subnets and
    /// that there are no others.
    pub fn new(fixed: Option<PerFamily<IpNetwork>>, resolved: Resolved) -> State {
        let now = Instant::now();
        State {
            subnets: fixed,
            since: fixed.map(|_| SystemTime::now()),
            etcd: Etcd::default(),
            heard: None,
            snapshot: None,
            peers: fixed.map(|_| Arc::default()),
            in_sync: fixed.is_some(),
            resolved,
            known: Known::default(),
            facts: None,
            look: Look::ALL,
            why: Why::default(),
            look_at: now,
            resync_at: now,
            retry: RETRY,
            ready: false,
            hung_up: false,
            reloading: false,
            reload_refused: false,
            superseded: None,
            stop: false,
            failures: Standing::default(),
            unreachable: Standing::default(),
            obstacles: Standing::default(),
            surroundings: Standing::default(),
            scarce: Standing::default(),
            records: Standing::default(),
            pools: Standing::default(),
            files: Standing::default(),
        }
    }

    /// For the service manager.
    fn status(&self) -> String {
        let subnets: Vec<String> =
            self.subnets.iter().flat_map(PerFamily::iter).map(ToString::to_string).collect();
        let others = self.peers.as_ref().map_or(0, |peers| peers.by_name.len());
        let refused =
            if self.reload_refused { "; the last reload was refused, see the log" } else { "" };
        format!("serving {}; {others} other hosts{refused}", subnets.join(", "))
    }
}

impl Agent {
    /// Serves until it is told to stop.
    ///
    /// # Errors
    /// Only before the host is served for the first time; afterwards every failure is reported and
    /// tried again.
    pub fn serve(mut self) -> Result<(), Exit> {
        while !self.state.stop {
            self.wait()?;
            self.use_last_known_good();
            notify::alive();
            self.beat.beat();
            self.look();
            self.tell();
        }
        self.leave();
        Ok(())
    }

    /// Serves until the host is as it should be, and leaves it so.
    ///
    /// # Errors
    /// What could not be done.
    pub fn once(mut self) -> Result<(), Exit> {
        let begun = Instant::now();
        while !self.state.stop {
            let waited = begun.elapsed();
            if self.state.ready && (self.knows_names() || waited > names::PATIENCE) {
                break;
            }
            if !self.state.ready && waited > ONCE {
                return Err(self.source.unavailable());
            }
            self.wait()?;
            self.use_last_known_good();
            let failures = self.look().map(|report| report.failures().join("\n"));
            if let Some(failures) = failures.filter(|failures| !failures.is_empty()) {
                return Err(Exit::new(exit::FAILURE, failures));
            }
        }
        self.source.save();
        self.source.stop();
        Ok(())
    }

    /// Waits for a wake or for the next thing that is due, and takes in all wakes there are.
    fn wait(&mut self) -> Result<(), Exit> {
        let now = Instant::now();
        let can_look = self.state.peers.is_some();
        let due = [
            (can_look && !self.state.look.is_nothing()).then_some(self.state.look_at),
            can_look.then_some(self.state.resync_at),
            self.files.due().filter(|_| can_look),
            self.source.patience_ends().filter(|_| !can_look),
            self.source.save_due(),
            notify::watchdog_interval().map(|interval| now + interval),
            Some(now + beat::EVERY),
        ];
        let until = due.into_iter().flatten().min().unwrap_or(now + RETRY);
        match self.inbox.recv_timeout(until.saturating_duration_since(now)) {
            Ok(wake) => self.take(wake)?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Exit::new(
                    exit::FAILURE,
                    "every thread that could wake the agent ended",
                ));
            }
        }
        while let Ok(wake) = self.inbox.try_recv() {
            self.take(wake)?;
        }
        if std::mem::take(&mut self.state.hung_up) {
            self.reload();
        }
        if self.source.save_due().is_some_and(|due| due <= Instant::now()) {
            self.source.save();
        }
        Ok(())
    }

    fn take(&mut self, wake: Wake) -> Result<(), Exit> {
        let (look, why) = match wake {
            Wake::Kernel(look) => (look, Why::KERNEL),
            Wake::Names(resolved) => {
                self.know_names(resolved);
                (Look::ROUTES.and(Look::FIREWALL), Why::NAMES)
            }
            Wake::Files => {
                self.files.touched(Instant::now());
                return Ok(());
            }
            Wake::Signal(Signal::SIGHUP) => {
                self.state.hung_up = true;
                (Look::ALL, Why::SETTINGS)
            }
            Wake::Signal(signal) => {
                log::info!("{signal}: stopping; pods keep their network");
                self.state.stop = true;
                return Ok(());
            }
            Wake::Registry(update) => (self.take_update(update)?, Why::HOSTS),
        };
        if !look.is_nothing() {
            self.state.why.and(why);
        }
        self.state.look = self.state.look.and(look);
        Ok(())
    }

    /// Makes a pass if there is something to look at and it is time. Not before the other hosts are
    /// known: the lease is told a moment earlier, and a host without routes is not ready.
    fn look(&mut self) -> Option<Report> {
        let now = Instant::now();
        if now >= self.state.resync_at {
            self.state.look = Look::ALL;
            self.state.why.and(if self.state.ready { Why::RESYNC } else { Why::START });
        }
        if self.files.take_due(now) {
            self.state.look.files = true;
            self.state.why.and(Why::FILES);
        }
        let (subnets, peers) = (self.state.subnets?, self.state.peers.clone()?);
        if self.state.look.is_nothing() || now < self.state.look_at {
            return None;
        }
        let look = std::mem::take(&mut self.state.look);
        if look.files {
            self.files.follow(&self.settings);
        }
        let pass = Pass {
            settings: &self.settings,
            world: &self.world,
            subnets: &subnets,
            peers: Some(&peers),
            in_sync: self.state.in_sync,
            resolved: &self.state.resolved,
            before: self.state.facts.as_ref(),
            look,
        };
        let mut report = Report::new(false);
        let seen = pass::run(&pass, &mut self.state.known, &mut report);
        log::debug!("looked at {look:?} in {:?}", now.elapsed());
        let why = std::mem::take(&mut self.state.why);
        let same_host = seen.as_ref().map(|seen| &seen.facts) == self.state.facts.as_ref();
        let repair = self.note(&report, &why, same_host);
        if let Some(seen) = seen.as_ref().filter(|_| repair) {
            self.files.mended(&seen.mended, now);
        }
        self.count(look, now, !report.failures().is_empty());
        self.conclude(look, seen, &report);
        if look == Look::ALL {
            self.conclude_reload(report.failures().is_empty());
        }
        Some(report)
    }

    fn conclude(&mut self, look: Look, seen: Option<Seen>, report: &Report) {
        let state = &mut self.state;
        let now = Instant::now();
        state.look_at = now + SETTLE;
        if look == Look::ALL {
            state.resync_at = now + self.settings.resync;
            let uses = addresses(&self.settings, state.subnets);
            state.scarce.tell(log::Level::Warn, scarce(&uses));
        }
        let failures = report.failures().iter().cloned();
        if look == Look::ALL {
            state.failures.tell(log::Level::Error, failures.collect());
        } else {
            state.failures.add(log::Level::Error, failures.collect());
        }
        if !report.failures().is_empty() {
            state.resync_at = state.resync_at.min(now + state.retry);
            state.retry = (state.retry * 2).min(self.settings.resync);
        } else if look == Look::ALL {
            state.retry = RETRY;
        }
        let Some(seen) = seen else { return };
        self.source.publish(attributes(&self.settings, seen.facts.own));
        if state.facts.as_ref().is_some_and(|before| seen.facts.breaks_connections_of(before)) {
            self.source.reconnect();
        }
        state.facts = Some(seen.facts);
        let warn = |standing: &mut Standing, now: Option<BTreeSet<String>>| {
            if let Some(now) = now {
                standing.tell(log::Level::Warn, now);
            }
        };
        warn(&mut state.unreachable, seen.unreachable);
        warn(&mut state.obstacles, seen.obstacles);
        let contested = self.files.contested(now);
        match seen.surroundings {
            Some(found) => {
                let found = found.into_iter().chain(contested).collect();
                state.surroundings.tell(log::Level::Warn, found);
            }
            None => state.surroundings.add(log::Level::Warn, contested),
        }
        if !state.ready && look == Look::ALL && report.failures().is_empty() {
            state.ready = true;
            let status = state.status();
            log::info!("ready: {status}");
            notify::ready(&status);
            self.source.set_ready();
        }
    }

    fn leave(mut self) {
        notify::stopping();
        if let Some(server) = self.server.take() {
            server.stop();
        }
        self.source.save();
        if self.settings.cleanup_on_stop {
            for failure in cleanup::clean_up(&self.settings, &self.world).failures() {
                log::error!("{failure}");
            }
        }
        self.source.stop();
    }
}

/// How the other hosts reach this one.
pub fn attributes(settings: &Settings, own: Own) -> Attributes {
    let tunnel = (settings.backend != Backend::Direct).then_some(settings.vxlan);
    let backend = settings.backend.into();
    Attributes { addresses: own.addresses, backend, tunnel, mtu: own.mtu_bytes }
}

/// This host cannot have a subnet: the exit code tells whether waiting helps.
pub fn refused(error: &LeaseError) -> Exit {
    let code = match error {
        LeaseError::OutsidePool { .. }
        | LeaseError::ConfigMismatch { .. }
        | LeaseError::CannotGrow { .. } => exit::SETTINGS,
        LeaseError::Node(error) if error.is_setting() => exit::SETTINGS,
        error if error.is_temporary() => exit::TEMPORARY,
        _ => exit::FAILURE,
    };
    Exit::new(code, error)
}
