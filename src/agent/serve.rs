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

use crate::agent::names::Names;
use crate::agent::shared_state::SharedState;
use crate::agent::source::Registry;
use crate::agent::trigger::{Scope, Trigger, TriggerReason};
use crate::agent::{cleanup, notify};
use crate::api::server::Server;
use crate::inspect::Kernel;
use crate::lease::error::LeaseError;
use crate::lease::records::NodeName;
use crate::os::heartbeat::{self, Heartbeat};
use crate::settings::Settings;
use crate::settings::exit::{self, Exit};
use crate::settings::loader::{SettingsLoader, Texts};

pub use files::Files;
pub use reconcile::SETTLE;
pub use state::State;

/// First wait before a failed reconcile is tried again; doubled up to the resync interval.
const RETRY: Duration = Duration::from_secs(1);

/// How long `--once` waits for etcd.
const ONCE: Duration = Duration::from_secs(30);

/// The agent while it runs.
pub struct Agent {
    /// Where the settings come from.
    pub loader: SettingsLoader,
    /// What the operator wants, as text.
    pub texts: Texts,
    /// What the operator wants.
    pub settings: Settings,
    /// This host's name.
    pub name: NodeName,
    /// Reasons to look.
    pub inbox: Receiver<Trigger>,
    /// Subnet and other hosts.
    pub source: Registry,
    /// Resolves names of hosts.
    pub names: Names,
    /// The kernel.
    pub kernel: Kernel,
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
            self.reconcile();
            self.publish();
        }
        self.shut_down();
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
            if self.state.ready
                && (self.has_all_addresses() || waited > crate::inspect::names::PATIENCE)
            {
                break;
            }
            if !self.state.ready && waited > ONCE {
                return Err(self.source.unavailable());
            }
            self.wait()?;
            self.use_last_known_good();
            let failures = self.reconcile().map(|applier| applier.failure_lines());
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
            (can_look && !self.state.scope.is_empty()).then_some(self.state.reconcile_at),
            can_look.then_some(self.state.resync_at),
            self.files.due().filter(|_| can_look),
            self.source.patience_ends().filter(|_| !can_look),
            self.source.save_due(),
            notify::watchdog_interval().map(|interval| now + interval),
            Some(now + heartbeat::EVERY),
        ];
        let until = due.into_iter().flatten().min().unwrap_or(now + RETRY);
        match self.inbox.recv_timeout(until.saturating_duration_since(now)) {
            Ok(trigger) => self.handle(trigger)?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Exit::new(
                    exit::FAILURE,
                    "every thread that could trigger the agent ended",
                ));
            }
        }
        while let Ok(trigger) = self.inbox.try_recv() {
            self.handle(trigger)?;
        }
        if std::mem::take(&mut self.state.reload_requested) {
            self.reload();
        }
        if self.source.save_due().is_some_and(|due| due <= Instant::now()) {
            self.source.save();
        }
        Ok(())
    }

    fn handle(&mut self, trigger: Trigger) -> Result<(), Exit> {
        let (scope, why) = match trigger {
            Trigger::Kernel(scope) => (scope, TriggerReason::KERNEL),
            Trigger::Names(resolved) => {
                self.apply_names(resolved);
                (Scope::ROUTES.and(Scope::FIREWALL), TriggerReason::NAMES)
            }
            Trigger::Files(files) => {
                self.files.touched(&files, Instant::now());
                return Ok(());
            }
            Trigger::Signal(Signal::SIGHUP) => {
                self.state.reload_requested = true;
                (Scope::ALL, TriggerReason::SETTINGS)
            }
            Trigger::Signal(signal) => {
                log::info!("{signal}: stopping; pods keep their network");
                self.state.stop = true;
                return Ok(());
            }
            Trigger::Registry(update) => (self.handle_update(update)?, TriggerReason::HOSTS),
        };
        if !scope.is_empty() {
            self.state.reasons.and(why);
        }
        self.state.scope = self.state.scope.and(scope);
        Ok(())
    }

    fn shut_down(mut self) {
        notify::stopping();
        if let Some(server) = self.server.take() {
            server.stop();
        }
        self.source.save();
        if self.settings.cleanup_on_stop {
            for failure in cleanup::clean_up(&self.settings, &self.kernel).failures() {
                log::error!("{failure}");
            }
        }
        self.source.stop();
    }
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
