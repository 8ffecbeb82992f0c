//! Takes humanz off this host: what its agent, its plugin, and earlier ones of both made.
//!
//! What bears the mark is looked for and removed; nothing else is. It may be killed on any line and
//! run twice. What would attach new pods goes first, the identity of this host last.

mod disk;
mod kernel;
mod release;

use std::fs;

use crate::agent::applier::Applier;
use crate::agent::lock::HostLock;
use crate::agent::{self, lock, logger, reconcile};
use crate::inspect::Kernel;
use crate::inspect::service_manager::service_manager;
use crate::net::Problem;
use crate::plan::Line;
use crate::settings::exit::{self, Exit};
use crate::settings::flags::Uninstall;
use crate::settings::loader::SettingsLoader;
use crate::settings::{Settings, values_only};

/// What to do about an agent that runs.
fn stop() -> String {
    format!("stop it first: {}", service_manager().stop())
}

/// What to do about a failure that gives no better advice.
const AGAIN: &str = "humanz-agent uninstall # again, with the same options, once that is corrected";

/// What was taken off a host, or would be.
#[derive(Debug)]
pub struct Removed {
    /// What went, or in a dry run would go, in order.
    pub lines: Vec<Line>,
    /// Why it would be refused; empty unless it is a dry run.
    pub in_the_way: Vec<String>,
    /// What could not be removed; everything else was.
    pub failures: Vec<Problem>,
}

/// Takes humanz off this host, or in a dry run only lists what would be removed: with the settings that
/// its agent served with last, unless a settings file is given. `ETCD_HOST` matters only for a release.
///
/// # Errors
/// A setting is wrong; or as [`remove`].
pub fn run(loader: &mut SettingsLoader, options: &Uninstall) -> Result<Removed, Exit> {
    if !options.release {
        loader.set_default("ETCD_HOST", "https://localhost");
    }
    if loader.may_follow_agent()
        && let Some(last) = agent::last_valid_settings(loader)
    {
        loader.follow_agent(last.texts);
    }
    let loaded = loader.load(values_only).map_err(|faults| Exit::invalid_settings(&faults))?;
    logger::set(loaded.log.as_deref().unwrap_or(logger::USUAL));
    remove(&loaded.settings, options)
}

/// # Errors
/// The agent runs, pods are attached, or this user may not know: nothing was removed. Or the subnet could not be given back:
/// the text says what else could not be removed; everything else was.
fn remove(settings: &Settings, options: &Uninstall) -> Result<Removed, Exit> {
    let lock = lock::path(&settings.state_dir);
    if lock::is_denied(&settings.state_dir) {
        return Err(Exit::denied("take", &lock));
    }
    let kernel = Kernel::open(settings)?;
    let is_locked_anew = !options.dry_run && !lock.exists();
    let (mut in_the_way, _lock) = match options.dry_run {
        true => (in_the_way(settings, &kernel, options)?, None),
        false => (Vec::new(), Some(alone(settings, &kernel, options)?)),
    };
    let mut applier = Applier::new(options.dry_run);
    applier.usual_fix = Some(AGAIN);
    disk::configuration(settings, &mut applier);
    kernel::links(&kernel, &mut applier);
    reconcile::routes::remove_all(&kernel.rtnl, &mut applier);
    reconcile::firewall::leave_foreign(&kernel, settings, &mut applier);
    kernel::tables(&kernel, &mut applier);
    kernel::sysctls(&settings.state_dir, &mut applier);
    disk::plugins(settings, &mut applier);
    disk::socket(settings, &mut applier);
    disk::imports_of_host_local(&mut applier);
    if options.purge {
        disk::store(settings, &mut applier);
        disk::log(settings, &mut applier);
    } else {
        disk::imports(settings, &mut applier);
    }
    if options.release {
        match release::run(settings, &kernel, options.dry_run, &mut applier) {
            // All else goes, and is listed.
            Err(exit) if options.dry_run => in_the_way.push(exit.why),
            released => released.map_err(|exit| with(&applier, exit))?,
        }
    }
    if is_locked_anew {
        // It was not there before; if it cannot be removed here, that is reported below.
        let _unremoved = fs::remove_file(&lock);
    }
    if options.purge {
        disk::state(settings, &mut applier);
    }
    let lines = if options.dry_run { applier.lines() } else { applier.changes() };
    Ok(Removed { lines: lines.to_vec(), in_the_way, failures: applier.failures().to_vec() })
}

/// Keeps agents from starting while humanz is removed.
///
/// # Errors
/// An agent runs, or pods are attached.
fn alone(settings: &Settings, kernel: &Kernel, options: &Uninstall) -> Result<HostLock, Exit> {
    let lock = hold(settings)?;
    match with_pods(kernel, options)? {
        None => Ok(lock),
        Some(why) => Err(Exit::new(exit::FAILURE, format!("{why}; nothing was removed"))),
    }
}

/// Why [`alone`] would refuse; looks at the lock without taking it.
fn in_the_way(
    settings: &Settings,
    kernel: &Kernel,
    options: &Uninstall,
) -> Result<Vec<String>, Exit> {
    let running =
        is_served(settings).then(|| format!("another humanz-agent serves this host; {}", stop()));
    let pods = with_pods(kernel, options)?;
    Ok(running.into_iter().chain(pods).collect())
}

/// An agent that runs would put everything back.
fn hold(settings: &Settings) -> Result<HostLock, Exit> {
    lock::take_in_place(&settings.state_dir).map_err(|exit| match is_served(settings) {
        true => Exit::new(exit.code, format!("{}; {}", exit.why, stop())),
        false => exit,
    })
}

fn is_served(settings: &Settings) -> bool {
    lock::is_held(&settings.state_dir) || lock::network_holder().is_some()
}

/// Pods that still use what would be removed.
fn with_pods(kernel: &Kernel, options: &Uninstall) -> Result<Option<String>, Exit> {
    const NAMED: usize = 5;
    let pods = kernel::attached(kernel)?;
    if pods.is_empty() || options.force {
        return Ok(None);
    }
    let named: Vec<&str> = pods.iter().take(NAMED).map(String::as_str).collect();
    let more = if pods.len() > NAMED { ", …" } else { "" };
    let count = match pods.len() {
        1 => "1 pod is".to_owned(),
        many => format!("{many} pods are"),
    };
    Ok(Some(format!(
        "{count} attached ({}{more}): stop them first, or disconnect them with --force",
        named.join(", ")
    )))
}

/// The failures so far belong to the reason to leave.
fn with(applier: &Applier, exit: Exit) -> Exit {
    let failures = applier.failures().iter().map(ToString::to_string);
    let lines: Vec<String> = failures.chain([exit.why]).collect();
    Exit::new(exit.code, lines.join("\n"))
}
