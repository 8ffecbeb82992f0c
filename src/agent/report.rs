//! What a pass changed and what it could not, told once.

use std::collections::BTreeSet;
use std::fmt::Display;

use crate::plan::{Describe, Line};

/// The account of one pass.
///
/// In a dry run changes are only noted; otherwise each one is carried out and logged.
#[derive(Debug, Default)]
pub struct Report {
    dry: bool,
    lines: Vec<Line>,
    failures: Vec<String>,
}

impl Report {
    /// An empty account.
    pub fn new(dry: bool) -> Report {
        Report { dry, ..Report::default() }
    }

    /// Carries out one change with `apply`; goes on after a failure.
    pub fn apply<E: Into<anyhow::Error>>(
        &mut self,
        change: &impl Describe,
        apply: impl FnOnce() -> Result<(), E>,
    ) {
        let line = change.line();
        let done = if self.dry { Ok(()) } else { apply().map_err(Into::into) };
        match done {
            Ok(()) => {
                if !self.dry {
                    log::info!("{}", line.past());
                }
                self.lines.push(line);
            }
            Err(error) => self.failed(format!("{}: {error:#}", line.attempt())),
        }
    }

    /// Something that could not be looked at or done.
    pub fn failed(&mut self, what: impl Display) {
        self.failures.push(what.to_string());
    }

    /// The changes, in order.
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// What could not be done, in order.
    pub fn failures(&self) -> &[String] {
        &self.failures
    }
}

/// Conditions that hold for longer than one pass: told when they begin and when they end.
#[derive(Debug, Default)]
pub struct Standing {
    told: BTreeSet<String>,
}

impl Standing {
    /// `now` is everything that is wrong at this moment.
    pub fn tell(&mut self, level: log::Level, now: BTreeSet<String>) {
        for began in now.difference(&self.told) {
            log::log!(level, "{began}");
        }
        for ended in self.told.difference(&now) {
            log::info!("no longer: {ended}");
        }
        self.told = now;
    }
}
