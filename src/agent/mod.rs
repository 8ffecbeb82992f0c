//! The host agent: settings, command line, the loop.
//!
//! The main thread reconciles; it alone changes the kernel. Other threads only wake it: the
//! registry (etcd), the kernel's events, files, names, signals. What is wanted is computed anew from
//! whole states at every reconcile, so a lost or doubled wake does no harm.

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
pub(crate) mod dry_run;
mod event_filter;
pub(crate) mod lock;
pub(crate) mod logger;
pub(crate) mod names;
mod notify;
pub mod probe;
pub(crate) mod reachability;
pub(crate) mod reconcile;
pub(crate) mod reconcile_cache;
mod registry;
mod reload;
mod serve;
mod signals;
mod start;
mod sysctl_record;
pub(crate) mod trigger;
pub(crate) mod uninstall;
mod watch;

use crate::agent::shared_state::StartServer;
use crate::agent::uninstall::Removed;
use crate::inspect::preflight;
use crate::settings::exit::Exit;
use crate::settings::flags;
use crate::settings::loader::{LoadedSettings, SettingsLoader};
use crate::settings::values_only;

/// Serves this host, for ever or as `how` says.
///
/// # Errors
/// A setting is wrong, or why the host cannot be served.
pub fn serve(
    mut origin: SettingsLoader,
    how: ServeMode,
    start_server: StartServer,
) -> Result<(), Exit> {
    let told = check_settings(&mut origin)?;
    logger::set(told.log.as_deref().unwrap_or(logger::USUAL));
    told.warnings.iter().for_each(|warning| log::warn!("{warning}"));
    start::serve(origin, told, how == ServeMode::Once, start_server)
}

/// How long the agent serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServeMode {
    /// Until all is as wanted.
    Once,
    /// Until it is stopped.
    ForEver,
}

/// What a start would change, as [`dry_run::dry_run`] says it.
///
/// # Errors
/// A setting is wrong, etcd cannot be read, or this host would get no subnet.
pub fn dry_run_start(mut origin: SettingsLoader) -> Result<Vec<String>, Exit> {
    let told = check_settings(&mut origin)?;
    logger::set(told.log.as_deref().unwrap_or("warn"));
    told.warnings.iter().for_each(|warning| log::warn!("{warning}"));
    dry_run::dry_run(&told.settings)
}

/// The settings, compared with this host.
///
/// # Errors
/// Every setting that is wrong.
pub fn check_settings(origin: &mut SettingsLoader) -> Result<LoadedSettings, Exit> {
    origin.load(preflight::check).map_err(|faults| Exit::invalid_settings(&faults))
}

/// Takes humanz off this host, or only tells what would go. Which etcd there was matters only for a
/// release.
///
/// # Errors
/// As [`uninstall::run`].
pub fn uninstall(origin: &mut SettingsLoader, options: &flags::Uninstall) -> Result<Removed, Exit> {
    if !options.release {
        origin.set_default("ETCD_HOST", "https://localhost");
    }
    let told = origin.load(values_only).map_err(|faults| Exit::invalid_settings(&faults))?;
    logger::set(told.log.as_deref().unwrap_or(logger::USUAL));
    uninstall::run(&told.settings, options)
}
