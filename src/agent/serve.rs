//! The loop: trigger → scope → reconcile → publish.

mod addresses;
mod agent;
mod announce;
mod announcement;
mod closed_subnets;
mod disputed;
mod files;
mod flows;
mod folders;
mod history;
mod members;
mod networks;
mod pod_answers;
mod policy;
mod pools;
mod publish;
mod rate_limit;
mod reconcile;
mod refused_settings;
mod reload;
mod sampling;
mod settings;
mod state;
mod updates;

use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::agent::cleanup;
use crate::agent::new_pods::PluginRequest;
use crate::agent::notify;
use crate::agent::serve::state::RETRY;
use crate::agent::trigger::{Scope, Trigger, TriggerReason};
use crate::inspect::names;
use crate::os::heartbeat;
use crate::settings::exit::{self, Exit};

pub use agent::Agent;
pub use files::RuntimeFiles;
pub use history::kept_history;
pub use networks::kept_networks;
pub use policy::take_kept;
pub use refused_settings::RefusedSettings;
pub use state::AgentState;

/// How long `--once` waits for etcd.
const ONCE: Duration = Duration::from_secs(30);

impl Agent {
    /// Serves until the agent is stopped.
    ///
    /// # Errors
    /// Before the host is served for the first time; afterwards every failure is reported and tried
    /// again, unless a new start by the service manager helps.
    pub fn serve(mut self) -> Result<(), Exit> {
        while !self.state.stop {
            self.wait()?;
            self.use_last_known_good();
            notify::alive();
            self.beat.beat();
            self.check_pods();
            self.answer_pods();
            self.finish_policies();
            self.keep_policies(false);
            if let Some(lost) = self.lost_folder() {
                // Nothing could be written there.
                self.registry.save();
                return Err(lost);
            }
            self.follow_networks();
            self.reconcile();
            self.serve_networks();
            if self.may_publish_pods() {
                self.exchange_members();
                self.publish();
            }
            self.record_flows();
            self.announce();
            self.follow_history();
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
            if self.state.ready && (self.has_all_addresses() || waited > names::PATIENCE) {
                break;
            }
            if !self.state.ready && waited > ONCE {
                return Err(self.registry.unavailable());
            }
            self.wait()?;
            self.use_last_known_good();
            self.follow_networks();
            let failures = self.reconcile().map(|applier| applier.failure_lines());
            if let Some(failures) = failures.filter(|failures| !failures.is_empty()) {
                return Err(Exit::new(exit::FAILURE, failures));
            }
        }
        self.registry.save();
        self.keep_policies(true);
        self.registry.stop();
        Ok(())
    }

    /// Waits for a trigger or for the next thing that is due, and handles all triggers there are.
    fn wait(&mut self) -> Result<(), Exit> {
        let now = Instant::now();
        let until = self.next_due(now);
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
        if self.state.refused.as_ref().is_some_and(|refused| refused.look_at <= Instant::now()) {
            self.recheck_settings();
        }
        if self.registry.save_due().is_some_and(|due| due <= Instant::now()) {
            self.registry.save();
        }
        Ok(())
    }

    /// When the next thing is due.
    fn next_due(&self, now: Instant) -> Instant {
        let can_look = self.state.peers.is_some();
        let due = [
            (can_look && !self.state.scope.is_empty()).then_some(self.state.reconcile_at),
            can_look.then_some(self.state.resync_at),
            self.files.due().filter(|_| can_look),
            self.state.policy_file_due,
            self.state.pods_due.map(|(due, _)| due),
            self.state.kept_policies.due(),
            self.state.quarantine_due,
            self.state.finish_policies_at,
            self.state.publish_pods_at,
            self.state.closed.look_at,
            self.state.rotation_due,
            self.state.networks.due(),
            self.state.refused.as_ref().map(|refused| refused.look_at),
            self.registry.patience_ends().filter(|_| !can_look),
            self.registry.save_due(),
            self.state.announcement.due,
            notify::watchdog_interval().map(|interval| now + interval),
            Some(now + heartbeat::EVERY),
        ];
        due.into_iter().flatten().min().unwrap_or(now + RETRY)
    }

    fn handle(&mut self, trigger: Trigger) -> Result<(), Exit> {
        let (scope, why) = match trigger {
            Trigger::Kernel(scope) => {
                self.note_pods(scope);
                (scope, TriggerReason::KERNEL)
            }
            Trigger::Ports(ports) if self.knows_ports(&ports) => return Ok(()),
            Trigger::Ports(_) => (Scope::PODS, TriggerReason::PODS),
            Trigger::Names(resolved) => {
                self.apply_names(resolved);
                (Scope::ROUTES.and(Scope::FIREWALL), TriggerReason::NAMES)
            }
            Trigger::Files(files) => {
                self.note_policy_file(&files);
                self.note_secret(&files);
                self.files.changed(&files, Instant::now());
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
            Trigger::Policy(update) => (self.take_policies(*update), TriggerReason::POLICIES),
            Trigger::Members(exchanged) => (self.take_members(exchanged), TriggerReason::POLICIES),
            Trigger::Blocks(update) => (self.take_blocks(update), TriggerReason::HOSTS),
            Trigger::Kept(written) => {
                self.note_kept(written);
                return Ok(());
            }
            Trigger::Plugin(request) => {
                match request {
                    PluginRequest::Pod(asked) => self.state.asked.push(asked),
                    PluginRequest::Block(asked) => self.state.networks.ask(asked),
                }
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
        self.registry.save();
        self.end_history();
        self.keep_policies(true);
        // Plugins go by the index until the next start.
        self.state.finish_policies_at = self.state.finish_policies_at.map(|_| Instant::now());
        self.finish_policies();
        if self.settings.cleanup_on_stop {
            for failure in cleanup::clean_up(&self.settings, &self.kernel).failures() {
                log::error!("{failure}");
            }
        }
        self.registry.stop();
        self.shared.reports.tests.end();
    }
}
