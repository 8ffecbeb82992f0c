//! The start: who this host is, the threads that wake the loop, the loop.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::agent::event_filter::EventFilter;
use crate::agent::names::{self, Names};
use crate::agent::serve::{Agent, Files, SETTLE, State};
use crate::agent::shared_state::{self, SharedState};
use crate::agent::source::{Connection, Leased, Registry};
use crate::agent::trigger::{Scope, Trigger};
use crate::agent::{lock, probe, signals};
use crate::api::Listen;
use crate::api::server::Server;
use crate::etcd::{self, Contact, Start};
use crate::inspect::host_state::{self, attributes};
use crate::inspect::identity::{node_name, of_host, own_machine_id};
use crate::inspect::{Kernel, state_file};
use crate::kube;
use crate::lease::records::NodeName;
use crate::lease::saved::Saved;
use crate::lease::{Identity, Network, Roots};
use crate::net::IfName;
use crate::netlink::Protocol;
use crate::netlink::events::{Event, Events};
use crate::os::file_watch::{FileEvents, FileWatch};
use crate::os::heartbeat::{self, Heartbeat};
use crate::os::{files, identity};
use crate::settings::exit::Exit;
use crate::settings::loader::{LoadedSettings, SettingsLoader};
use crate::settings::{Settings, Source as Wanted};

/// Serves this host until it is told to stop, or once.
///
/// # Errors
/// Why it cannot be served.
pub fn serve(origin: SettingsLoader, told: LoadedSettings, once: bool) -> Result<(), Exit> {
    let LoadedSettings { settings, texts, .. } = told;
    let (triggers, inbox) = channel();
    let on_signal = triggers.clone();
    signals::watch(move |signal| send(&on_signal, Trigger::Signal(signal)))
        .context("watch for signals")?;
    let kernel = Kernel::open(&settings)?;
    make_state_dir(&settings.state_dir, &kernel.machine_id)?;
    let _lock = lock::take(&settings.state_dir)?;
    let name = node_name(&settings)?;
    let shared = Arc::new(SharedState::new(name.to_string(), kernel.machine_id.clone()));
    watch_kernel(&settings.bridge, &triggers, &shared)?;
    let files = Files::new(watch_files(triggers.clone(), &shared)?);
    let told = triggers.clone();
    let source = source(&settings, &name, &kernel, triggers, &shared)?;
    let beat = shared.expect("names", names::LIMIT);
    let names =
        Names::spawn(beat, source.resolved(), move |names| send(&told, Trigger::Names(names)))
            .context("start a thread")?;
    let state = State::new(source.fixed(), source.resolved());
    if !once && let Err(error) = probe::spawn(&shared) {
        log::warn!("other hosts are not probed: {error}");
    }
    let server = if once { None } else { local_server(&shared, &settings) };
    let beat = shared.expect("reconcile", shared_state::LIMIT);
    let agent = Agent {
        loader: origin,
        texts,
        settings,
        name,
        inbox,
        source,
        names,
        kernel: kernel,
        shared,
        server,
        beat,
        files,
        state,
    };
    if once { agent.once() } else { agent.serve() }
}

/// Without it the agent serves pods as well.
fn local_server(shared: &Arc<SharedState>, settings: &Settings) -> Option<Server> {
    let started = Server::start(Arc::clone(shared), Listen::of(settings));
    started.inspect_err(|error| log::warn!("start the local server: {error}")).ok()
}

fn send(triggers: &Sender<Trigger>, trigger: Trigger) {
    // The loop has ended: nobody needs to be woken.
    let _ended = triggers.send(trigger);
}

/// Makes the state directory, and keeps the identifier of a machine that has none but ours.
fn make_state_dir(path: &Path, machine_id: &str) -> Result<(), Exit> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.with_context(|| format!("create {} (STATE_DIR)", path.display()))?;
    if identity::machine_id().is_none() {
        let text = format!("{machine_id}\n");
        files::replace(&own_machine_id(path), text.as_bytes(), 0o600)
            .map_err(anyhow::Error::from)?;
    }
    Ok(())
}

/// Starts the threads that hear the kernel.
fn watch_kernel(
    bridge: &IfName,
    triggers: &Sender<Trigger>,
    shared: &SharedState,
) -> Result<(), Exit> {
    for (protocol, name) in [(Protocol::Route, "rtnetlink"), (Protocol::Netfilter, "nftables")] {
        let events = Events::open(protocol).context("watch the kernel")?;
        let (filter, triggers) = (EventFilter::new(bridge), triggers.clone());
        let beat = shared.expect(name, shared_state::LIMIT);
        let thread = thread::Builder::new().name(name.into());
        thread
            .spawn(move || forward_kernel_events(events, protocol, filter, &triggers, &beat))
            .context("start a thread")?;
    }
    Ok(())
}

/// Starts the thread that hears iptables-legacy, and who touches the files that the agent keeps.
/// Without it both are found at the next full look.
fn watch_files(
    triggers: Sender<Trigger>,
    shared: &SharedState,
) -> Result<Option<Arc<FileWatch>>, Exit> {
    let watch = match FileWatch::open() {
        Ok(watch) => Arc::new(watch),
        Err(error) => {
            log::warn!("watch files (inotify): {error}; {LATER}");
            return Ok(None);
        }
    };
    let beat = shared.expect("files", shared_state::LIMIT);
    let shared = Arc::clone(&watch);
    let hear = move || {
        if let Err(error) = forward_file_events(&shared, &triggers, &beat) {
            log::warn!("watch files (inotify): {error}; {LATER}");
            beat.retire();
        }
    };
    thread::Builder::new().name("files".into()).spawn(hear).context("start a thread")?;
    Ok(Some(watch))
}

/// What becomes of a change that is not heard.
const LATER: &str = "runs of iptables-legacy, and changes to the plugin and the CNI configuration, \
                     are noticed at the next full check (RESYNC_INTERVAL)";

/// Hands on what is heard, until that is no longer possible.
fn forward_file_events(
    watch: &FileWatch,
    triggers: &Sender<Trigger>,
    beat: &Heartbeat,
) -> std::io::Result<()> {
    loop {
        beat.beat();
        let FileEvents { iptables, files } = watch.wait(heartbeat::EVERY)?;
        if iptables {
            send(triggers, Trigger::Kernel(Scope::FIREWALL));
        }
        if !files.is_empty() {
            send(triggers, Trigger::Files(files));
        }
        // Whoever writes without end in a folder that is watched costs a look at it now and then.
        thread::sleep(SETTLE);
    }
}

/// Hands on what is heard; a socket that breaks is replaced, and everything looked at.
fn forward_kernel_events(
    mut events: Events,
    protocol: Protocol,
    mut filter: EventFilter,
    triggers: &Sender<Trigger>,
    beat: &Heartbeat,
) {
    loop {
        beat.beat();
        match events.wait(heartbeat::EVERY).map(|batch| filter.classify(&batch)) {
            Ok(scope) if scope.is_empty() => {}
            Ok(scope) => send(triggers, Trigger::Kernel(scope)),
            Err(error) => {
                log::error!("watch the kernel: {error}; watching anew");
                thread::sleep(WATCH_AGAIN);
                match Events::open(protocol) {
                    Ok(opened) => events = opened,
                    Err(error) => log::error!("watch the kernel: {error}"),
                }
                send(triggers, Trigger::Kernel(filter.classify(&[Event::Lost])));
            }
        }
    }
}

/// Wait before a broken socket is replaced.
const WATCH_AGAIN: Duration = Duration::from_secs(1);

fn source(
    settings: &Settings,
    name: &NodeName,
    kernel: &Kernel,
    triggers: Sender<Trigger>,
    shared: &SharedState,
) -> Result<Registry, Exit> {
    if let Wanted::Static(subnets) = &settings.source {
        return Ok(Registry::Fixed(*subnets));
    }
    let identity = of_host(name, &kernel.machine_id)?;
    let path = settings.state_file();
    let known = last_known_good(&path, &identity);
    let facts = host_state::observe(&kernel.rtnl, settings, None)?;
    let attributes = attributes(settings, facts.own);
    let publish = move |update| send(&triggers, Trigger::Registry(update));
    let (registry, contact) = match &settings.source {
        Wanted::Etcd { server, roots } => {
            let (etcd, network) = (server.clone(), network(settings, roots));
            let (identity, saved) = (identity.clone(), known.clone());
            let start = Start { etcd, network, identity, attributes, saved };
            let tries = 2 * u32::try_from(server.endpoints.len()).unwrap_or(1);
            let beat = shared.expect("etcd", shared_state::LIMIT + server.timeout * tries);
            let contact = Arc::new(Contact::new(beat));
            let registry =
                etcd::spawn(start, Arc::clone(&contact), Arc::clone(&shared.rows), publish);
            (registry.map(Connection::Etcd), contact)
        }
        Wanted::Kubernetes(api) => {
            let setup = kube::Setup { api: api.clone(), pools: settings.pools };
            let (identity, has_served) = (identity.clone(), known.is_some());
            let start = kube::Start { setup, identity, attributes, has_served };
            let contact = Contact::new(shared.expect("kubernetes", shared_state::LIMIT));
            let contact = Arc::new(contact);
            let registry = kube::spawn(start, Arc::clone(&contact), publish);
            (registry.map(Connection::Kubernetes), contact)
        }
        Wanted::Static(_) => unreachable!("it needs no connection"),
    };
    let registry = registry.context("start the connection with whoever knows the hosts")?;
    let started = Instant::now();
    Ok(Registry::Leased(Box::new(Leased {
        connection: registry,
        contact,
        identity,
        saved: known,
        path,
        started,
        down: None,
        unsaved: None,
        save_at: started,
    })))
}

/// The network that the settings describe.
pub fn network(settings: &Settings, roots: &Roots) -> Network {
    Network { roots: roots.clone(), pools: settings.pools, backend: Default::default() }
}

/// What was saved by this very host; anything else is reported and not used.
fn last_known_good(path: &Path, identity: &Identity) -> Option<Saved> {
    match state_file::take(path) {
        Ok(Some(saved)) if saved.is_of(identity) => Some(saved),
        Ok(Some(saved)) => {
            log::warn!(
                "{} is ignored: it was saved by host {} with another machine id or name",
                path.display(),
                saved.host
            );
            None
        }
        Ok(None) => None,
        Err(error) => {
            log::error!("{error}");
            None
        }
    }
}
