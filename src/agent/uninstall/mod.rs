//! Takes humanz off this host: what its agent, its plugin, and earlier ones of both made.
//!
//! What bears the mark is looked for and removed; nothing else is. It may be killed on any line and
//! run twice. First goes what would make new pods, last what tells who this host was.

mod disk;
mod kernel;
mod release;

use nix::fcntl::Flock;

use crate::agent::cli::Uninstall;
use crate::agent::exit::{self, Exit};
use crate::agent::keep::{self, World};
use crate::agent::report::Report;
use crate::agent::settings::Settings;
use crate::agent::start;

/// Removes everything, or in a dry run only tells what.
///
/// # Errors
/// The agent runs, or pods are attached: nothing was removed. Or something could not be removed:
/// the text says what; everything else was.
pub fn run(settings: &Settings, options: &Uninstall) -> Result<Report, Exit> {
    let world = start::world(settings)?;
    let _lock = hold(settings, options)?;
    refuse_with_pods(&world, options)?;
    let mut report = Report::new(options.dry_run);
    disk::configuration(settings, &mut report);
    kernel::links(&world, &mut report);
    keep::routes::remove_all(&world.rtnl, &mut report);
    keep::firewall::leave_foreign(&world, settings, &mut report);
    kernel::tables(&world, &mut report);
    kernel::sysctls(&settings.state_dir, &mut report);
    disk::plugin(settings, &mut report);
    disk::socket(settings, &mut report);
    if options.purge {
        disk::store(settings, &mut report);
        disk::log(settings, &mut report);
    }
    if options.release {
        let released = release::run(settings, &world, options.dry_run, &mut report);
        released.map_err(|exit| with(&report, exit))?;
    }
    if options.purge {
        disk::state(settings, &mut report);
    }
    match report.failures() {
        [] => Ok(report),
        failures => Err(Exit::new(exit::FAILURE, failures.join("\n"))),
    }
}

/// An agent that runs would put everything back.
fn hold(settings: &Settings, options: &Uninstall) -> Result<Option<Flock<std::fs::File>>, Exit> {
    if options.dry_run || !settings.state_dir.exists() {
        return Ok(None);
    }
    let locked = start::lock(&settings.state_dir);
    locked.map(Some).map_err(|exit| {
        let why = format!("{}; stop it first: systemctl disable --now humanz-agent", exit.why);
        Exit::new(exit.code, why)
    })
}

/// Pods that still use what would be removed.
fn refuse_with_pods(world: &World, options: &Uninstall) -> Result<(), Exit> {
    const NAMED: usize = 5;
    let pods = kernel::attached(world)?;
    if pods.is_empty() || options.force || options.dry_run {
        return Ok(());
    }
    let named: Vec<&str> = pods.iter().take(NAMED).map(String::as_str).collect();
    let more = if pods.len() > NAMED { ", …" } else { "" };
    Err(Exit::new(
        exit::FAILURE,
        format!(
            "{} pods are attached ({}{more}): stop them first, or let them lose their network with \
             --force; nothing was removed",
            pods.len(),
            named.join(", ")
        ),
    ))
}

/// The failures so far belong to the reason to leave.
fn with(report: &Report, exit: Exit) -> Exit {
    let lines: Vec<&str> =
        report.failures().iter().map(String::as_str).chain([exit.why.as_str()]).collect();
    Exit::new(exit.code, lines.join("\n"))
}
