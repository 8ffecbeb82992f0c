//! The host agent.
//!
//! ```text
//! start ──▶ registry, sources, watch, names, signals ──Trigger──▶ serve ──Scope──▶ reconcile ──▶ serve::publish ──▶ SharedState
//! ```
//!
//! The main thread reconciles; it alone changes the kernel. The other threads only send triggers. What is
//! wanted is computed again from whole states at every reconcile, so that a lost or doubled trigger does no
//! harm.

pub mod counters;
pub mod history;
pub mod journal;
pub mod readiness;
pub mod shared_state;
pub mod snapshot;

pub(crate) mod active_problems;
pub(crate) mod applier;
mod cleanup;
pub mod cni_conf;
pub(crate) mod dry_run;
pub(crate) mod encryption_key;
mod event_filter;
pub(crate) mod lock;
pub(crate) mod logger;
pub(crate) mod names;
mod networks;
mod new_pods;
mod notify;
mod own_pods;
mod own_writes;
pub mod probe;
pub(crate) mod reachability;
pub(crate) mod reconcile;
pub(crate) mod reconcile_cache;
mod registry;
mod serve;
mod signals;
mod start;
pub(crate) mod sysctl_record;
mod test_pods;
pub(crate) mod trigger;
mod watch;

use std::path::PathBuf;

use crate::agent::dry_run::DryRun;
use crate::agent::serve::RefusedSettings;
use crate::agent::shared_state::StartServer;
use crate::inspect::{identity, last_settings, preflight};
use crate::settings::exit::Exit;
use crate::settings::loader::{LoadedSettings, SettingsLoader};
use crate::settings::{self, values_only};

/// Serves this host as `mode` says.
///
/// # Errors
/// A setting is wrong, or why the host cannot be served.
pub fn serve(
    mut loader: SettingsLoader,
    mode: ServeMode,
    start_server: StartServer,
) -> Result<(), Exit> {
    let once = mode == ServeMode::Once;
    let (loaded, refused) = match loader.load(preflight::check) {
        Ok(loaded) => (loaded, None),
        Err(faults) => match last_valid_settings(&mut loader).filter(|_| !once) {
            Some(last) => (last, Some(RefusedSettings::new(faults, true))),
            None => return Err(Exit::invalid_settings(&faults)),
        },
    };
    logger::set(loaded.log.as_deref().unwrap_or(logger::USUAL));
    loaded.warnings.iter().for_each(|warning| log::warn!("{warning}"));
    start::serve(loader, loaded, refused, once, start_server)
}

/// The settings that this host was served with last, for a start with invalid ones: its pods and the other
/// hosts need it more than the operator needs an agent that does not start.
pub fn last_valid_settings(loader: &mut SettingsLoader) -> Option<LoadedSettings> {
    let folder = PathBuf::from(loader.text_of("STATE_DIR"));
    let machine_id = identity::machine_id(&folder).ok()?;
    let texts = last_settings::read(&folder, &machine_id)?;
    let settings = settings::parse(&texts, values_only).ok()?;
    Some(LoadedSettings { settings, texts, log: None, warnings: Vec::new() })
}

/// How long the agent serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServeMode {
    /// Until all is as wanted.
    Once,
    /// Until it is stopped.
    ForEver,
}

/// What a start would do.
///
/// # Errors
/// A setting is wrong, etcd cannot be read, or this host would get no subnet.
pub fn dry_run_start(mut loader: SettingsLoader) -> Result<DryRun, Exit> {
    let checked = loader.load(preflight::check_for_dry_run);
    let loaded = checked.map_err(|faults| Exit::invalid_settings(&faults))?;
    logger::set(loaded.log.as_deref().unwrap_or("warn"));
    loaded.warnings.iter().for_each(|warning| log::warn!("{warning}"));
    dry_run::dry_run(&loaded.settings)
}

/// The settings, compared with this host.
///
/// # Errors
/// Every setting that is wrong.
pub fn check_settings(loader: &mut SettingsLoader) -> Result<LoadedSettings, Exit> {
    loader.load(preflight::check).map_err(|faults| Exit::invalid_settings(&faults))
}
