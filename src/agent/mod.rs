//! The host agent: settings, command line, the loop.
//!
//! The main thread reconciles; it alone changes the kernel. Other threads only wake it: the
//! registry (etcd), the kernel's events, names, signals. What is wanted is computed anew from
//! whole states at every pass, so a lost or doubled wake does no harm.

mod changed;
mod cleanup;
pub mod cli;
pub mod conf;
mod dry_run;
mod ears;
mod envfile;
pub mod exit;
mod host;
mod keep;
mod logger;
mod names;
mod notify;
mod origin;
mod pass;
mod preflight;
pub mod reach;
mod reload;
mod report;
mod serve;
pub mod settings;
mod signals;
mod source;
mod start;
mod uninstall;
mod values;
mod wake;

use std::ffi::OsString;
use std::io::Write;

use argh::FromArgs;

use cli::{Arguments, Command};
use exit::Exit;
use origin::{Origin, Texts, Told};

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
    complain(&exit.why);
    exit.code.into()
}

fn complain(why: &str) {
    // Nobody is left to be told that stderr is closed.
    let _closed = writeln!(std::io::stderr(), "humanz-agent: {why}");
}

fn run(arguments: &Arguments) -> Result<(), Exit> {
    if arguments.version {
        return say(concat!("humanz-agent ", env!("CARGO_PKG_VERSION")));
    }
    let mut origin = Origin::of(arguments);
    if let Some(Command::Uninstall(options)) = &arguments.command {
        return uninstall(origin, options);
    }
    let told = origin.read().map_err(|faults| wrong(&faults))?;
    preflight::check(&told.settings).map_err(|faults| wrong(&faults))?;
    match &arguments.command {
        Some(Command::CheckConfig(_)) => {
            told.remarks.iter().for_each(|remark| complain(remark));
            say(&effective(&told.texts))
        }
        Some(Command::Uninstall(_)) | None => serve(origin, told, arguments),
    }
}

fn wrong(faults: &[String]) -> Exit {
    let lines: Vec<String> = faults.iter().map(|fault| format!("  {fault}")).collect();
    let count = if lines.len() == 1 { "a setting is" } else { "settings are" };
    Exit::new(exit::SETTINGS, format!("{count} wrong:\n{}", lines.join("\n")))
}

/// Every setting with the value that holds, as `NAME=value` lines.
fn effective(texts: &Texts) -> String {
    let line = |variable: &cli::Variable| {
        let text = texts.get(variable.name).map_or("", String::as_str);
        format!("{}={text}", variable.name)
    };
    cli::VARIABLES.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn serve(origin: Origin, told: Told, arguments: &Arguments) -> Result<(), Exit> {
    let level = if arguments.dry_run { "warn" } else { logger::USUAL };
    logger::set(told.log.as_deref().unwrap_or(level));
    told.remarks.iter().for_each(|remark| log::warn!("{remark}"));
    if arguments.dry_run {
        let lines = dry_run::dry_run(&told.settings)?;
        return if lines.is_empty() { say("nothing would change") } else { say(&lines.join("\n")) };
    }
    start::serve(origin, told, arguments.once)
}

/// Takes humanz off this host. Which etcd there was matters only for a release.
fn uninstall(mut origin: Origin, options: &cli::Uninstall) -> Result<(), Exit> {
    if !options.release {
        origin.fall_back("ETCD_HOST", "localhost");
    }
    let told = origin.read().map_err(|faults| wrong(&faults))?;
    logger::set(told.log.as_deref().unwrap_or(logger::USUAL));
    let report = uninstall::run(&told.settings, options)?;
    if !options.dry_run {
        return Ok(());
    }
    let lines: Vec<String> = report.lines().iter().map(ToString::to_string).collect();
    if lines.is_empty() { say("nothing would be removed") } else { say(&lines.join("\n")) }
}

/// Prints `text` and a line end.
fn say(text: &str) -> Result<(), Exit> {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush());
    written.map_err(|error| Exit::new(exit::FAILURE, format!("write to standard output: {error}")))
}
