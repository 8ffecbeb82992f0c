//! The host agent: settings, command line, the loop.
//!
//! The main thread reconciles; it alone changes the kernel. Other threads only wake it: the
//! registry (etcd), the kernel's events, files, names, signals. What is wanted is computed anew from
//! whole states at every pass, so a lost or doubled wake does no harm.

pub mod counters;
pub mod journal;
pub mod pool_use;
pub mod readiness;
pub mod shared_state;
pub mod snapshot;

pub(crate) mod active_problems;
pub(crate) mod applier;
mod cleanup;
pub mod cni_conf;
mod conf_record;
pub(crate) mod dry_run;
mod event_filter;
pub(crate) mod lock;
pub(crate) mod logger;
pub(crate) mod names;
mod notify;
pub(crate) mod preflight;
pub mod probe;
mod rate_limit;
pub(crate) mod reachability;
pub(crate) mod reconcile;
pub(crate) mod reconcile_cache;
mod reload;
mod serve;
mod signals;
mod source;
pub(crate) mod start;
mod sysctl_record;
pub(crate) mod trigger;
pub(crate) mod uninstall;

use crate::agent::uninstall::Removed;
use crate::settings::exit::{self, Exit};
use crate::settings::flags;
use crate::settings::loader::{Against, Origin, Told};

/// Serves this host, for ever or as `how` says.
///
/// # Errors
/// A setting is wrong, or why the host cannot be served.
pub fn serve(mut origin: Origin, how: How) -> Result<(), Exit> {
    let told = check(&mut origin)?;
    logger::set(told.log.as_deref().unwrap_or(logger::USUAL));
    told.remarks.iter().for_each(|remark| log::warn!("{remark}"));
    start::serve(origin, told, how == How::Once)
}

/// How long the agent serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Until all is as wanted.
    Once,
    /// Until it is stopped.
    ForEver,
}

/// What a start would change, as [`dry_run::dry_run`] says it.
///
/// # Errors
/// A setting is wrong, etcd cannot be read, or this host would get no subnet.
pub fn foretell(mut origin: Origin) -> Result<Vec<String>, Exit> {
    let told = check(&mut origin)?;
    logger::set(told.log.as_deref().unwrap_or("warn"));
    told.remarks.iter().for_each(|remark| log::warn!("{remark}"));
    dry_run::dry_run(&told.settings)
}

/// The settings, compared with this host.
///
/// # Errors
/// Every setting that is wrong.
pub fn check(origin: &mut Origin) -> Result<Told, Exit> {
    origin.read(Against::Host).map_err(|faults| wrong(&faults))
}

/// Takes humanz off this host, or only tells what would go. Which etcd there was matters only for a
/// release.
///
/// # Errors
/// As [`uninstall::run`].
pub fn uninstall(origin: &mut Origin, options: &flags::Uninstall) -> Result<Removed, Exit> {
    if !options.release {
        origin.fall_back("ETCD_HOST", "https://localhost");
    }
    let told = origin.read(Against::Nothing).map_err(|faults| wrong(&faults))?;
    logger::set(told.log.as_deref().unwrap_or(logger::USUAL));
    uninstall::run(&told.settings, options)
}

/// Leaves because of settings.
pub fn wrong(faults: &[String]) -> Exit {
    let lines: Vec<String> = faults.iter().map(|fault| format!("  {fault}")).collect();
    let count = if lines.len() == 1 { "a setting is" } else { "settings are" };
    Exit::new(exit::SETTINGS, format!("{count} wrong:\n{}", lines.join("\n")))
}
