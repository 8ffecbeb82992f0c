//! What a subcommand is given, and how it answers.

use std::io::{self, ErrorKind, Write};
use std::ops::ControlFlow;

use serde_json::Value;

use crate::agent::{self, logger};
use crate::command::table::Style;
use crate::inspect::agent_socket;
use crate::settings::exit::{self, Exit};
use crate::settings::loader::{LoadedSettings, SettingsLoader};
use crate::settings::values_only;

/// Version of every `--json` object. Keys are added without a new one; none is renamed, removed or
/// given another meaning.
pub const SCHEMA: u32 = 1;

/// What a subcommand found, for the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All is well: 0.
    Fine,
    /// Something is wrong, and was said: 1.
    Wrong,
}

/// One subcommand that was typed.
pub struct Call<'a> {
    /// Where settings come from.
    pub origin: SettingsLoader,
    /// How text looks.
    pub style: Style,
    out: &'a mut dyn Write,
}

impl<'a> Call<'a> {
    /// Answers on `out`.
    pub fn new(origin: SettingsLoader, style: Style, out: &'a mut dyn Write) -> Call<'a> {
        Call { origin, style, out }
    }

    /// The settings, as the agent would have them. From then on faults of what is called are
    /// logged to stderr (`RUST_LOG` says which).
    ///
    /// # Errors
    /// Every setting that is wrong.
    pub fn load(&mut self) -> Result<LoadedSettings, Exit> {
        let loaded =
            self.origin.load(values_only).map_err(|faults| Exit::invalid_settings(&faults))?;
        logger::set(loaded.log.as_deref().unwrap_or("error"));
        Ok(loaded)
    }

    /// As [`Call::load`], for data from the agent: while one answers, the settings need not say
    /// which etcd it has, and invalid ones are among the problems that it reports.
    ///
    /// # Errors
    /// Every setting that is wrong.
    pub fn load_beside_agent(&mut self) -> Result<LoadedSettings, Exit> {
        let refused = match self.load() {
            Ok(loaded) => return Ok(loaded),
            Err(refused) => refused,
        };
        let without = self.origin.clone();
        self.origin.set_default("ETCD_HOST", "https://localhost");
        match self.load() {
            Ok(loaded) if agent_socket::answers(&loaded.settings) => Ok(loaded),
            _ => {
                self.origin = without;
                let last = agent::last_valid_settings(&mut self.origin);
                last.filter(|last| agent_socket::answers(&last.settings)).ok_or(refused)
            }
        }
    }

    /// Answers with `value` (an object) if `as_json`, else with `text`. `fine`: nothing is wrong.
    ///
    /// # Errors
    /// It cannot be written. A reader that has gone is no error.
    pub fn answer(
        &mut self,
        as_json: bool,
        fine: bool,
        mut value: Value,
        text: &str,
    ) -> Result<Outcome, Exit> {
        if as_json {
            value["schema"] = SCHEMA.into();
            print(self.out, &format!("{value:#}"))?;
        } else {
            print(self.out, text)?;
        }
        Ok(if fine { Outcome::Fine } else { Outcome::Wrong })
    }

    /// Answers with one line of many, at once; `Break` when the reader has gone.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn line(&mut self, text: &str) -> Result<ControlFlow<()>, Exit> {
        match writeln!(self.out, "{text}").and_then(|()| self.out.flush()) {
            Ok(()) => Ok(ControlFlow::Continue(())),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
            Err(error) => Err(unwritten(&error)),
        }
    }
}

/// Prints `text` and a line end. A reader that has gone is no error.
///
/// # Errors
/// It cannot be written.
pub fn print(out: &mut dyn Write, text: &str) -> Result<(), Exit> {
    match writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(unwritten(&error)),
        _ => Ok(()),
    }
}

/// Writes `why` to stderr as this program's.
pub fn complain(why: &str) {
    // A closed stderr cannot be reported.
    let _closed = writeln!(io::stderr(), "humanz-agent: {why}");
}

fn unwritten(error: &io::Error) -> Exit {
    Exit::new(exit::FAILURE, format!("write to standard output: {error}"))
}
