//! The start: this host's identity and lock, the threads that send triggers, then the loop.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use anyhow::Context;

use crate::agent::active_problems::ProblemSource;
use crate::agent::names::{self, Names};
use crate::agent::own_writes::OwnWrites;
use crate::agent::registry::Registry;
use crate::agent::serve::{self, Agent, AgentState, RefusedSettings, RuntimeFiles};
use crate::agent::shared_state::{self, SharedState, StartServer, StatusServer};
use crate::agent::trigger::{self, Trigger};
use crate::agent::{lock, own_pods, probe, signals, test_pods, watch};
use crate::inspect::Kernel;
use crate::inspect::identity::{node_name, own_machine_id};
use crate::ipam::Store;
use crate::ipam::import::Sources;
use crate::net::node_name::NodeName;
use crate::os::identity::boot_id;
use crate::os::{files, identity};
use crate::settings::Settings;
use crate::settings::exit::Exit;
use crate::settings::loader::{LoadedSettings, SettingsLoader};
use crate::sources::Following;

/// Serves this host until the agent is stopped; with `once`, until one reconcile has succeeded.
///
/// # Errors
/// Why the host cannot be served.
pub fn serve(
    loader: SettingsLoader,
    loaded: LoadedSettings,
    refused: Option<RefusedSettings>,
    once: bool,
    start_server: StartServer,
) -> Result<(), Exit> {
    let LoadedSettings { settings, texts, .. } = loaded;
    let (triggers, inbox) = channel();
    let on_signal = triggers.clone();
    signals::watch(move |signal| trigger::send(&on_signal, Trigger::Signal(signal)))
        .context("watch for signals")?;
    let kernel = Kernel::open(&settings)?;
    make_state_dir(&settings.state_dir, &kernel.machine_id)?;
    let _lock = lock::take(&settings.state_dir)?;
    let name = node_name(&settings)?;
    let shared =
        Arc::new(SharedState::new(name.to_string(), kernel.machine_id.clone(), texts.clone()));
    let port = kernel.rtnl.port().context("open rtnetlink socket")?;
    let nft_port = kernel.nft.port().context("open nftables socket")?;
    let own_writes = Arc::new(OwnWrites::new(port, nft_port));
    watch::kernel(&settings.bridge, &own_writes, &triggers, &shared)?;
    let files = RuntimeFiles::new(watch::files(triggers.clone(), &shared)?);
    let on_update = triggers.clone();
    let publish = move |update| trigger::send(&on_update, Trigger::Registry(update));
    let registry = Registry::connect(&settings, &name, &kernel, &shared, publish)?;
    let names = resolve_names(&registry, &shared, &triggers)?;
    if let Err(error) = import_pods(&settings) {
        log::warn!("pods of another plugin are not known before the first new one: {error:#}");
    }
    own_pods::answer(&shared);
    let state = state(&registry, &settings, &name, &kernel, refused, &shared);
    if !once {
        *shared.history() = serve::kept_history(&settings.state_dir, &kernel.machine_id);
        serve_other_hosts(&shared);
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
        own_writes,
        to_loop: triggers.clone(),
        policies: following(triggers),
    };
    if once { agent.once() } else { agent.serve() }
}

/// Probes them, and has pods for their tests.
fn serve_other_hosts(shared: &Arc<SharedState>) {
    if let Err(error) = probe::spawn(shared) {
        log::warn!("other hosts are not probed: {error}");
    }
    if let Err(error) = test_pods::answer(shared) {
        log::warn!("other hosts get no pods of this one for their tests: {error}");
    }
}

/// Starts to resolve the names of hosts that publish no address.
fn resolve_names(
    registry: &Registry,
    shared: &SharedState,
    triggers: &Sender<Trigger>,
) -> Result<Names, Exit> {
    let heartbeat = shared.expect("names", names::LIMIT);
    let triggers = triggers.clone();
    let publish = move |names| trigger::send(&triggers, Trigger::Names(names));
    Ok(Names::spawn(heartbeat, registry.resolved(), publish).context("start a thread")?)
}

fn following(triggers: Sender<Trigger>) -> Following {
    let (on_members, on_blocks) = (triggers.clone(), triggers.clone());
    Following::new(
        move |update| trigger::send(&triggers, Trigger::Policy(Box::new(update))),
        move |members| trigger::send(&on_members, Trigger::Members(members)),
        move |blocks| trigger::send(&on_blocks, Trigger::Blocks(blocks)),
    )
}

/// What the agent has before its first reconcile.
fn state(
    registry: &Registry,
    settings: &Settings,
    name: &NodeName,
    kernel: &Kernel,
    refused: Option<RefusedSettings>,
    shared: &SharedState,
) -> AgentState {
    let mut state = AgentState::new(registry.fixed(), registry.resolved());
    let problems = refused.iter().flat_map(RefusedSettings::problems);
    shared.problems.set(ProblemSource::Settings, problems);
    state.refused = refused;
    serve::take_kept(&mut state, settings, name, kernel);
    state.networks = serve::kept_networks(settings, name, &state.policies);
    state.networks.unconfirmed = state.policies.snapshot().is_none();
    state.policies.hold(state.networks.held());
    state
}

/// Makes the state directory, and stores the machine id of a machine without /etc/machine-id.
fn make_state_dir(path: &Path, machine_id: &str) -> Result<(), Exit> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(files::failed("create STATE_DIR", path))?;
    if identity::machine_id().is_none() {
        let text = format!("{machine_id}\n");
        files::replace(&own_machine_id(path), text.as_bytes(), 0o600)?;
    }
    Ok(())
}

/// Pods that an older plugin made are known from the start, not only after the first ADD.
fn import_pods(settings: &Settings) -> anyhow::Result<()> {
    let cni = &settings.cni;
    let sources = Sources::usual(&cni.name);
    if sources.exist() {
        let store = Store::open(&cni.ipam_dir, &cni.name, &boot_id()?, Sources::default());
        store.lock(Duration::from_secs(1))?.import_early(&sources)?;
    }
    Ok(())
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
