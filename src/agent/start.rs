//! The start: this host's identity and lock, the threads that send triggers, then the loop.

use std::sync::Arc;
use std::sync::mpsc::channel;

use anyhow::Context;

use crate::agent::names::{self, Names};
use crate::agent::registry::Registry;
use crate::agent::serve::{Agent, Files, State};
use crate::agent::shared_state::{self, SharedState, StartServer, StatusServer};
use crate::agent::trigger::{self, Trigger};
use crate::agent::{lock, probe, signals, this_host, watch};
use crate::settings::Settings;
use crate::settings::exit::Exit;
use crate::settings::loader::{LoadedSettings, SettingsLoader};

/// Serves this host until the agent is stopped; with `once`, until one reconcile has succeeded.
///
/// # Errors
/// Why the host cannot be served.
pub fn serve(
    loader: SettingsLoader,
    loaded: LoadedSettings,
    once: bool,
    start_server: StartServer,
) -> Result<(), Exit> {
    let LoadedSettings { settings, texts, .. } = loaded;
    let (triggers, inbox) = channel();
    let on_signal = triggers.clone();
    signals::watch(move |signal| trigger::send(&on_signal, Trigger::Signal(signal)))
        .context("watch for signals")?;
    let kernel = this_host::open_kernel(&settings)?;
    this_host::make_state_dir(&settings.state_dir, &kernel.machine_id)?;
    let _lock = lock::take(&settings.state_dir)?;
    let name = this_host::node_name(&settings)?;
    let shared = Arc::new(SharedState::new(name.to_string(), kernel.machine_id.clone()));
    watch::kernel(&settings.bridge, &triggers, &shared)?;
    let files = Files::new(watch::files(triggers.clone(), &shared)?);
    let on_update = triggers.clone();
    let publish = move |update| trigger::send(&on_update, Trigger::Registry(update));
    let registry = Registry::connect(&settings, &name, &kernel, &shared, publish)?;
    let heartbeat = shared.expect("names", names::LIMIT);
    let on_names = move |names| trigger::send(&triggers, Trigger::Names(names));
    let names = Names::spawn(heartbeat, registry.resolved(), on_names).context("start a thread")?;
    let state = State::new(registry.fixed(), registry.resolved());
    if !once && let Err(error) = probe::spawn(&shared) {
        log::warn!("other hosts are not probed: {error}");
    }
    let server = if once { None } else { server(&shared, &settings, start_server) };
    let beat = shared.expect("reconcile", shared_state::LIMIT);
    let agent = Agent {
        loader,
        texts,
        settings,
        name,
        inbox,
        registry,
        names,
        kernel,
        shared,
        server,
        beat,
        files,
        state,
    };
    if once { agent.once() } else { agent.serve() }
}

/// Without it the agent serves pods as well.
fn server(
    shared: &Arc<SharedState>,
    settings: &Settings,
    start: StartServer,
) -> Option<Box<dyn StatusServer>> {
    let started = start(Arc::clone(shared), settings);
    started.inspect_err(|error| log::warn!("start the server of the status: {error}")).ok()
}
