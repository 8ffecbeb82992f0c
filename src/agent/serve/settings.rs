//! Invalid settings: which ones hold meanwhile, and when they are read again.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

use crate::agent::active_problems::ProblemSource;
use crate::agent::serve::agent::Agent;
use crate::agent::serve::refused_settings::RefusedSettings;
use crate::agent::trigger::SETTLE;
use crate::inspect::{last_settings, preflight};
use crate::net::Problem;
use crate::settings::values_only;

impl Agent {
    /// These settings hold no longer than until they are right.
    pub(super) fn refuse_settings(&mut self, faults: Vec<Problem>) {
        let since_start = self.state.refused.as_ref().is_some_and(|before| before.since_start);
        let refused = RefusedSettings::new(faults, since_start);
        self.shared.problems.set(ProblemSource::Settings, refused.problems());
        self.state.refused = Some(refused);
    }

    /// The settings are valid.
    pub(super) fn accept_settings(&mut self) {
        self.shared.problems.set(ProblemSource::Settings, None);
        self.state.refused = None;
    }

    /// Reads the settings again. What is invalid becomes a problem, whether somebody asked for a reload or
    /// not; only where the agent started in spite of invalid ones it takes over the right ones.
    pub(super) fn recheck_settings(&mut self) {
        let since_start = self.state.refused.as_ref().is_some_and(|refused| refused.since_start);
        let loaded =
            match self.loader.load(if since_start { preflight::check } else { values_only }) {
                Ok(loaded) if self.state.refused.is_none() && loaded.texts == self.texts => return,
                loaded => loaded,
            };
        let plan = loaded.and_then(|loaded| self.plan_settings(&loaded));
        match plan.and_then(|plan| self.check_settings(plan)) {
            Err(faults) => self.refuse_settings(faults),
            Ok(_) if since_start => self.reload(),
            Ok(_) => self.accept_settings(),
        }
    }

    /// Another secret gives the hosts other pre-shared keys.
    pub(super) fn note_secret(&mut self, files: &BTreeSet<PathBuf>) {
        if self.settings.psk_file.as_ref().is_some_and(|file| files.contains(file)) {
            let settled = Instant::now() + SETTLE;
            let due = &mut self.state.rotation_due;
            *due = Some(due.map_or(settled, |at| at.min(settled)));
        }
    }

    /// Keeps the settings for a start with invalid ones.
    pub(super) fn keep_settings(&mut self) {
        if self.state.kept.as_ref() == Some(&self.texts) {
            return;
        }
        let (folder, machine_id) = (&self.settings.state_dir, &self.kernel.machine_id);
        match last_settings::write(folder, machine_id, &self.texts) {
            Ok(()) => self.state.kept = Some(self.texts.clone()),
            Err(error) => log::error!("keep the settings for the next start: {error}"),
        }
    }
}
