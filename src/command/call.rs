//! What a subcommand is given, and how it answers.

use std::io::{self, ErrorKind, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;

use serde_json::Value;

use crate::agent::{self, lock, logger};
use crate::command::single_machine;
use crate::command::table::Style;
use crate::inspect::agent_socket;
use crate::net::Problem;
use crate::os::files;
use crate::settings::exit::{self, Exit};
use crate::settings::loader::{LoadedSettings, SettingsLoader};
use crate::settings::{Texts, values, values_only};

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

/// Where the settings are from that say where etcd is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FollowedSettings {
    /// The agent, or what was given.
    Agent,
    /// `init`.
    Init,
    Nothing,
}

/// One subcommand that was typed.
pub struct Call<'a> {
    /// Where settings come from.
    pub origin: SettingsLoader,
    pub style: Style,
    out: &'a mut dyn Write,
}

impl<'a> Call<'a> {
    /// Answers on `out`.
    pub fn new(origin: SettingsLoader, style: Style, out: &'a mut dyn Write) -> Call<'a> {
        Call { origin, style, out }
    }

    /// The settings that the agent of this host serves with; without one those that it would have. From
    /// then on faults of what is called are logged to stderr (`RUST_LOG` says which).
    ///
    /// # Errors
    /// Every setting that is wrong.
    pub fn load(&mut self) -> Result<LoadedSettings, Exit> {
        let followed = self.follow();
        let loaded = self.origin.load(values_only);
        let path = PathBuf::from(self.origin.text_of("CNI_CONFIG_LOCATION"));
        if followed == FollowedSettings::Nothing && loaded.is_err() && files::is_denied(&path) {
            // It says whether etcd is missing.
            return Err(Exit::denied("read", &path));
        }
        self.logged(loaded, followed)
    }

    /// Takes the settings of the agent, or where nothing says where etcd is those of `init`.
    fn follow(&mut self) -> FollowedSettings {
        if self.follow_agent()
            || self.origin.is_given("ETCD_HOST")
            || !self.origin.may_follow_agent()
        {
            return FollowedSettings::Agent;
        }
        let Some(texts) = self.texts_of_init() else { return FollowedSettings::Nothing };
        self.origin.follow_agent(texts);
        FollowedSettings::Init
    }

    fn logged(
        &self,
        loaded: Result<LoadedSettings, Vec<Problem>>,
        followed: FollowedSettings,
    ) -> Result<LoadedSettings, Exit> {
        let mut loaded = loaded.map_err(|faults| Exit::invalid_settings(&faults))?;
        let settings = &mut loaded.settings;
        settings.agentless =
            followed == FollowedSettings::Init && !lock::is_held(&settings.state_dir);
        logger::set(loaded.log.as_deref().unwrap_or("error"));
        Ok(loaded)
    }

    /// As [`Call::load`], to look at a host that may have the plugin alone: without `ETCD_HOST` with the
    /// settings that an agent served with last, and without those with no endpoint of etcd.
    ///
    /// # Errors
    /// Every setting that is wrong.
    pub fn load_to_look(&mut self) -> Result<LoadedSettings, Exit> {
        let followed = self.follow();
        if followed == FollowedSettings::Nothing {
            let last = agent::last_valid_settings(&mut self.origin).map(|last| last.texts);
            self.origin.follow_agent(last.unwrap_or_default());
        }
        let loaded = self.origin.load_without_etcd(values_only);
        self.logged(loaded, followed)
    }

    /// What `init` was called with on this machine. Whoever sets SUBNET_SOURCE means an agent to run.
    fn texts_of_init(&mut self) -> Option<Texts> {
        let is_set = self.origin.text_of("SUBNET_SOURCE") != "etcd";
        let path = PathBuf::from(self.origin.text_of("CNI_CONFIG_LOCATION"));
        if is_set { None } else { single_machine::texts(&path) }
    }

    /// Asks the agent of this host for its settings; whether it gave them.
    pub fn follow_agent(&mut self) -> bool {
        if !self.origin.may_follow_agent() {
            return false;
        }
        let socket = values::path_or_none(&self.origin.text_of("SOCKET")).ok().flatten();
        let texts = socket.and_then(|socket| agent_socket::settings(&socket));
        let is_known = texts.is_some();
        self.origin.follow_agent(texts.unwrap_or_default());
        is_known
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
