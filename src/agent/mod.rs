//! The host agent: settings, command line, the loop.
//!
//! The main thread reconciles; it alone changes the kernel. Other threads only wake it: the
//! registry (etcd), the kernel's events, names, signals. What is wanted is computed anew from
//! whole states at every pass, so a lost or doubled wake does no harm.

mod cleanup;
pub mod cli;
pub mod conf;
mod dry_run;
pub mod exit;
mod host;
mod keep;
mod names;
mod notify;
mod pass;
mod preflight;
pub mod reach;
mod report;
mod serve;
pub mod settings;
mod signals;
mod source;
mod start;
mod values;
mod wake;

use std::ffi::OsString;
use std::io::Write;

use argh::FromArgs;

use cli::{Arguments, Command};
use exit::Exit;
use settings::{Fault, Settings};

/// Runs the agent with the arguments behind its name; `--help` documents the exit code.
pub fn main(arguments: impl Iterator<Item = OsString>) -> i32 {
    let arguments: Vec<String> =
        arguments.map(|argument| argument.to_string_lossy().into_owned()).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match Arguments::from_args(&["humanz-agent"], &arguments) {
        Ok(arguments) => run(&arguments),
        Err(early) if early.status.is_ok() => say(&early.output),
        Err(early) => Err(Exit::new(exit::SETTINGS, early.output.trim_end())),
    };
    let Err(exit) = result else { return 0 };
    // Nobody is left to be told that stderr is closed.
    let _closed = writeln!(std::io::stderr(), "humanz-agent: {}", exit.why);
    exit.code.into()
}

fn run(arguments: &Arguments) -> Result<(), Exit> {
    if arguments.version {
        return say(concat!("humanz-agent ", env!("CARGO_PKG_VERSION")));
    }
    let given = arguments.given();
    let environment = |name: &str| std::env::var(name).ok();
    let settings = settings::read(&given, &environment).map_err(|faults| wrong(&faults))?;
    let faults = preflight::faults(&settings);
    if !faults.is_empty() {
        return Err(wrong(&faults));
    }
    match &arguments.command {
        Some(Command::CheckConfig(_)) => say(&effective(&given, &environment)),
        None => serve(settings, arguments),
    }
}

fn wrong(faults: &[Fault]) -> Exit {
    let lines: Vec<String> = faults.iter().map(|fault| format!("  {fault}")).collect();
    let count = if lines.len() == 1 { "a setting is" } else { "settings are" };
    Exit::new(exit::SETTINGS, format!("{count} wrong:\n{}", lines.join("\n")))
}

/// Every setting with the value that holds, as `NAME=value` lines.
fn effective(
    given: &std::collections::BTreeMap<&'static str, String>,
    environment: &dyn Fn(&str) -> Option<String>,
) -> String {
    let line = |variable: &cli::Variable| {
        format!("{}={}", variable.name, settings::text(given, environment, variable.name))
    };
    cli::VARIABLES.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn serve(settings: Settings, arguments: &Arguments) -> Result<(), Exit> {
    start_log(arguments.dry_run);
    if arguments.dry_run {
        let lines = dry_run::dry_run(&settings)?;
        return if lines.is_empty() { say("nothing would change") } else { say(&lines.join("\n")) };
    }
    start::serve(settings, arguments.once)
}

/// To stderr, where journald adds the time by itself.
fn start_log(quiet: bool) {
    let level = if quiet { "warn" } else { "info" };
    let environment = env_logger::Env::default().default_filter_or(level);
    let mut builder = env_logger::Builder::from_env(environment);
    match std::env::var_os("JOURNAL_STREAM") {
        Some(_) => builder.format_timestamp(None),
        None => builder.format_timestamp_millis(),
    };
    builder.format_target(false).init();
}

/// Prints `text` and a line end.
fn say(text: &str) -> Result<(), Exit> {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush());
    written.map_err(|error| Exit::new(exit::FAILURE, format!("write to standard output: {error}")))
}
