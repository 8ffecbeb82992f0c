//! The loop: waits for a reason to look, looks, mends.

mod addresses;
mod files;
mod pools;
mod publish;
mod reconcile;
mod reload;
mod state;
mod updates;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::agent::cleanup;
use crate::agent::names::{self, Names};
use crate::agent::notify;
use crate::agent::reconcile::World;
use crate::agent::shared_state::SharedState;
use crate::agent::source::Source;
use crate::agent::trigger::{Look, Wake, Why};
use crate::api::server::Server;
use crate::inspect::host::Own;
use crate::lease::Attributes;
use crate::lease::error::LeaseError;
use crate::lease::records::NodeName;
use crate::os::heartbeat::{self, Heartbeat};
use crate::settings::exit::{self, Exit};
use crate::settings::loader::{Origin, Texts};
use crate::settings::{Backend, Settings};

pub use files::Files;
pub use reconcile::SETTLE;
pub use state::State;

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
    pub shared: Arc<SharedState>,
    /// Who tells them.
    pub server: Option<Server>,
    /// The loop turns.
    pub beat: Arc<Heartbeat>,
    /// What is heard of the files that the agent keeps.
    pub files: Files,
    /// What the agent knows and has to do.
    pub state: State,
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
        self.state.once = true;
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
            let failures = self.look().map(|applier| applier.failure_lines());
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
            Some(now + heartbeat::EVERY),
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
            Wake::Files(files) => {
                self.files.touched(&files, Instant::now());
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
