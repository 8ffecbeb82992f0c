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
        self.carry_out(vec![change.line()], apply);
    }

    /// Carries out changes that `apply` makes all at once or not at all.
    pub fn apply_together<E: Into<anyhow::Error>>(
        &mut self,
        changes: &[impl Describe],
        apply: impl FnOnce() -> Result<(), E>,
    ) {
        self.carry_out(changes.iter().map(Describe::line).collect(), apply);
    }

    fn carry_out<E: Into<anyhow::Error>>(
        &mut self,
        lines: Vec<Line>,
        apply: impl FnOnce() -> Result<(), E>,
    ) {
        let done = if self.dry { Ok(()) } else { apply().map_err(Into::into) };
        if let Err(error) = done {
            let error: anyhow::Error = error;
            let attempts: Vec<String> = lines.iter().map(Line::attempt).collect();
            return self.failed(format!("{}: {error:#}", attempts.join(", ")));
        }
        if !self.dry {
            lines.iter().for_each(|line| log::info!("{}", line.past()));
        }
        self.lines.extend(lines);
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
        tell(level, "", now.difference(&self.told));
        tell(log::Level::Info, "no longer: ", self.told.difference(&now));
        self.told = now;
    }

    /// `more` is wrong besides, as far as was looked.
    pub fn add(&mut self, level: log::Level, more: BTreeSet<String>) {
        tell(level, "", more.difference(&self.told));
        self.told.extend(more);
    }
}

/// How many lines of one kind are written at once; with many hosts a fault can concern them all.
const LINES: usize = 20;

fn tell<'a>(level: log::Level, prefix: &str, mut texts: impl Iterator<Item = &'a String>) {
    for text in texts.by_ref().take(LINES) {
        log::log!(level, "{prefix}{text}");
    }
    let more = texts.count();
    if more > 0 {
        log::log!(level, "{prefix}{more} more of this kind");
    }
}
