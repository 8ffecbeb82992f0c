//! The registry that gives this host its subnets and lists the other hosts: etcd, Kubernetes, or the settings.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use ipnetwork::IpNetwork;

use crate::agent::shared_state::{self, SharedState};
use crate::etcd::{self, Contact, EtcdStart, Update};
use crate::inspect::host_state::{self, attributes};
use crate::inspect::pods::{self, Life, PodAttachment};
use crate::inspect::{Kernel, identity, state_file};
use crate::kube;
use crate::lease::error::LeaseError;
use crate::lease::records::NodeName;
use crate::lease::saved::Saved;
use crate::lease::session;
use crate::lease::snapshot::Snapshot;
use crate::lease::{HostAttributes, Identity, Lease, Resolved};
use crate::net::PerFamily;
use crate::settings::exit::{self, Exit};
use crate::settings::{Settings, Source as Wanted};
use crate::sources::tenant_pools;

/// How long a starting agent waits for etcd before it serves the last known good state.
const PATIENCE: Duration = Duration::from_secs(3);

/// The longest wait for another agent with this host's name, whose answer comes through etcd, and a little more.
const UNDECIDED: Duration = Duration::from_secs(65);

/// Saving may take one part in this many of the time: with many hosts the file is large.
const SAVE_SHARE: u32 = 50;

pub enum Registry {
    /// etcd, or the nodes of Kubernetes.
    Leased(Box<Leased>),
    /// The subnets are in the settings; there are no other hosts.
    Static(PerFamily<IpNetwork>),
}

pub enum RegistryConnection {
    Etcd(etcd::EtcdHandle),
    Kubernetes(kube::KubeHandle),
}

/// Whether the last known good state waits, because it may be another machine's, which etcd is about to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldBack {
    No,
    /// Then another agent would have answered, or lost its name, if etcd had not failed meanwhile.
    Until(Instant),
    /// This machine has another address than the one that wrote the state.
    UntilDecided,
}

impl HeldBack {
    /// After etcd said `error` of this host.
    pub fn after(self, error: &LeaseError) -> HeldBack {
        match (error, self) {
            (LeaseError::MayBeCopy { moved: true, .. }, _) => HeldBack::UntilDecided,
            (LeaseError::MayBeCopy { .. }, HeldBack::No) => {
                HeldBack::Until(Instant::now() + UNDECIDED)
            }
            (LeaseError::MayBeCopy { .. }, held_back) => held_back,
            _ => HeldBack::No,
        }
    }
}

pub struct Leased {
    pub connection: RegistryConnection,
    /// Statistics of the connection.
    pub contact: Arc<Contact>,
    pub identity: Identity,
    /// The last known good state; taken once it is served.
    pub saved: Option<Saved>,
    /// This host's subnets in an earlier run.
    pub remembered: Option<PerFamily<IpNetwork>>,
    /// The file of `saved`.
    pub path: PathBuf,
    pub started: Instant,
    /// Why it does not answer, or gives no subnet.
    pub down: Option<String>,
    pub held_back: HeldBack,
    /// To be saved at `save_at`.
    pub unsaved: Option<Saved>,
    pub save_at: Instant,
}

impl Registry {
    /// Starts the connection that the settings ask for; `publish` gets its updates.
    ///
    /// # Errors
    /// This host cannot be identified, or there can be no more threads.
    pub fn connect(
        settings: &Settings,
        name: &NodeName,
        kernel: &Kernel,
        shared: &SharedState,
        publish: impl Fn(Update) + Send + 'static,
    ) -> Result<Registry, Exit> {
        if let Wanted::Static(subnets) = &settings.source {
            return Ok(Registry::Static(*subnets));
        }
        let identity = identity::of_host(name, &kernel.machine_id)?;
        let path = settings.state_file();
        let saved = last_known_good(&path, &identity);
        let host_state = host_state::observe(&kernel.rtnl, settings, None)?;
        let attributes = attributes(settings, host_state.own);
        let (connection, contact) = match &settings.source {
            Wanted::Etcd { server, roots } => {
                let start = EtcdStart {
                    etcd: server.clone(),
                    network: settings.network(roots),
                    identity: identity.clone(),
                    attributes,
                    saved: saved.clone(),
                    read_networks: tenant_pools,
                    follows_networks: settings.policy.is_some(),
                };
                etcd_connection(start, shared, publish)
            }
            Wanted::Kubernetes(api) => {
                let setup = kube::Setup { api: api.clone(), pools: settings.pools };
                let (identity, has_served) = (identity.clone(), saved.is_some());
                let kept = saved.as_ref().and_then(|saved| with_pods(settings, &saved.lease));
                let start = kube::Start { setup, identity, attributes, has_served, kept };
                kubernetes_connection(start, shared, publish)
            }
            Wanted::Static(_) => unreachable!("it needs no connection"),
        }
        .context("start the thread of etcd or the Kubernetes API")?;
        let started = Instant::now();
        let remembered = saved.as_ref().map(|saved| saved.lease.subnets);
        Ok(Registry::Leased(Box::new(Leased {
            connection,
            contact,
            identity,
            saved,
            remembered,
            path,
            started,
            down: None,
            held_back: HeldBack::No,
            unsaved: None,
            save_at: started,
        })))
    }

    /// The subnets, if they need no etcd.
    pub fn fixed(&self) -> Option<PerFamily<IpNetwork>> {
        match self {
            Registry::Static(subnets) => Some(*subnets),
            Registry::Leased(_) => None,
        }
    }

    /// This host's subnets in an earlier run of the agent: pods may start in them before this one serves.
    pub fn remembered(&self) -> Option<PerFamily<IpNetwork>> {
        match self {
            Registry::Leased(leased) => leased.remembered,
            Registry::Static(_) => None,
        }
    }

    /// Resolved names in the last known good state.
    pub fn resolved(&self) -> Resolved {
        match self {
            Registry::Leased(leased) => {
                leased.saved.as_ref().map(|known| known.resolved.clone()).unwrap_or_default()
            }
            Registry::Static(_) => Resolved::new(),
        }
    }

    pub fn contact(&self) -> Option<&Arc<Contact>> {
        match self {
            Registry::Leased(leased) => Some(&leased.contact),
            Registry::Static(_) => None,
        }
    }

    /// For messages.
    pub fn store(&self) -> &'static str {
        match self {
            Registry::Leased(leased) => leased.connection.name(),
            Registry::Static(_) => "the agent",
        }
    }

    /// What the last known good state says against its own lease.
    pub fn dispute(&self, settings: &Settings, saved: &Saved) -> Option<LeaseError> {
        let (Registry::Leased(leased), Wanted::Etcd { roots, .. }) = (self, &settings.source)
        else {
            return None;
        };
        session::dispute(saved, leased.identity.clone(), settings.network(roots))
    }

    /// When the agent serves the last known good state, if there is one.
    pub fn patience_ends(&self) -> Option<Instant> {
        let Registry::Leased(leased) = self else { return None };
        leased.saved.as_ref()?;
        let ends = leased.started + PATIENCE;
        match leased.held_back {
            HeldBack::No => Some(ends),
            HeldBack::Until(end) => Some(end.max(ends)),
            HeldBack::UntilDecided => None,
        }
    }

    pub fn save_due(&self) -> Option<Instant> {
        let Registry::Leased(leased) = self else { return None };
        leased.unsaved.as_ref().map(|_| leased.save_at)
    }

    /// The last known good state, once, and why the registry does not answer.
    pub fn last_known_good(&mut self) -> Option<(Saved, String)> {
        let Registry::Leased(leased) = self else { return None };
        let down = leased.down.clone().unwrap_or_else(|| "no answer yet".to_owned());
        leased.saved.take().map(|known| (known, down))
    }

    /// Takes over changed settings of the connection and of the network.
    pub fn set_up(&self, settings: &Settings) {
        let Registry::Leased(leased) = self else { return };
        match (&leased.connection, &settings.source) {
            (RegistryConnection::Etcd(handle), Wanted::Etcd { server, roots }) => {
                let network = settings.network(roots);
                handle.session.set_up(etcd::EtcdSetup { etcd: server.clone(), network });
            }
            (RegistryConnection::Kubernetes(handle), Wanted::Kubernetes(api)) => {
                handle.session.set_up(kube::Setup { api: api.clone(), pools: settings.pools });
            }
            _ => {}
        }
    }

    pub fn reconnect(&self) {
        if let Registry::Leased(leased) = self {
            match &leased.connection {
                RegistryConnection::Etcd(handle) => handle.session.reconnect(),
                RegistryConnection::Kubernetes(handle) => handle.session.reconnect(),
            }
        }
    }

    /// Publishes how the other hosts reach this one.
    pub fn publish(&self, attributes: HostAttributes) {
        if let Registry::Leased(leased) = self {
            match &leased.connection {
                RegistryConnection::Etcd(handle) => handle.session.set_attributes(attributes),
                RegistryConnection::Kubernetes(handle) => handle.session.set_attributes(attributes),
            }
        }
    }

    /// No pod runs in `subnets`, and none will start there.
    pub fn set_vacated(&self, subnets: PerFamily<IpNetwork>) {
        if let Registry::Leased(leased) = self
            && let RegistryConnection::Etcd(handle) = &leased.connection
        {
            handle.set_vacated(subnets);
        }
    }

    /// Pods can be attached: clears the node's NetworkUnavailable condition.
    pub fn set_ready(&self) {
        if let Registry::Leased(leased) = self
            && let RegistryConnection::Kubernetes(handle) = &leased.connection
        {
            handle.set_ready();
        }
    }

    /// Saves the applied state for the next start, when it is due.
    pub fn save_later(
        &mut self,
        subnets: PerFamily<IpNetwork>,
        snapshot: &Arc<Snapshot>,
        resolved: &Resolved,
    ) {
        let Registry::Leased(leased) = self else { return };
        let mut resolved = resolved.clone();
        resolved.retain(|host, found| !found.is_empty() && snapshot.hosts.contains_key(host));
        leased.unsaved = Some(Saved {
            host: leased.identity.name.clone(),
            machine_id: leased.identity.machine_id.clone(),
            lease: Lease { subnets },
            snapshot: Arc::clone(snapshot),
            resolved,
        });
    }

    pub fn save(&mut self) {
        let Registry::Leased(leased) = self else { return };
        if let Some(unsaved) = leased.unsaved.take() {
            let begun = Instant::now();
            if let Err(error) = state_file::write(&leased.path, &unsaved) {
                log::error!("{error}: after a reboot without etcd this host would have no subnet");
            }
            leased.save_at = Instant::now() + begun.elapsed() * SAVE_SHARE;
        }
    }

    /// No subnet in time.
    pub fn unavailable(&self) -> Exit {
        let why = match self {
            Registry::Leased(leased) => leased.down.as_deref().unwrap_or("no answer"),
            Registry::Static(_) => "the host could not be brought into its state in time",
        };
        Exit::new(exit::UNAVAILABLE, format!("{}: {why}", self.store()))
    }

    /// Ends the connection; the lease stays.
    pub fn stop(self) {
        if let Registry::Leased(leased) = self {
            match leased.connection {
                RegistryConnection::Etcd(handle) => handle.session.stop(),
                RegistryConnection::Kubernetes(handle) => handle.session.stop(),
            }
        }
    }
}

impl RegistryConnection {
    fn name(&self) -> &'static str {
        match self {
            RegistryConnection::Etcd(_) => "etcd",
            RegistryConnection::Kubernetes(_) => "the Kubernetes API",
        }
    }
}

/// The saved state of this very host; any other is logged and ignored.
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

/// `lease`, if pods that run have addresses of it.
fn with_pods(settings: &Settings, lease: &Lease) -> Option<Lease> {
    let links = pods::links().unwrap_or_default();
    let is_its = |address: &IpAddr| lease.subnets.iter().any(|subnet| subnet.contains(*address));
    let mut all = pods::attachments(settings).0.into_iter();
    let has_pods = all.any(|PodAttachment { network, entry }| {
        entry.addresses.iter().any(is_its) && Life::of(&entry, &network, &links) == Life::Attached
    });
    has_pods.then(|| lease.clone())
}

/// This host cannot have a subnet: the exit code says whether waiting helps.
pub fn refused(error: &LeaseError) -> Exit {
    let code = match error {
        LeaseError::OutsidePool { .. }
        | LeaseError::ConfigMismatch { .. }
        | LeaseError::CannotGrow { .. } => exit::SETTINGS,
        LeaseError::Node(error) if error.is_setting() => exit::SETTINGS,
        error if error.is_temporary() => exit::TEMPORARY,
        _ => exit::FAILURE,
    };
    Exit::new(code, error.with_fix())
}

fn etcd_connection(
    start: EtcdStart,
    shared: &SharedState,
    publish: impl Fn(Update) + Send + 'static,
) -> io::Result<(RegistryConnection, Arc<Contact>)> {
    let tries = 2 * u32::try_from(start.etcd.endpoints.len()).unwrap_or(1);
    let beat = shared.expect("etcd", shared_state::LIMIT + start.etcd.timeout * tries);
    let contact = Arc::new(Contact::new(beat));
    let handle = etcd::spawn(start, Arc::clone(&contact), Arc::clone(&shared.reports), publish)?;
    Ok((RegistryConnection::Etcd(handle), contact))
}

fn kubernetes_connection(
    start: kube::Start,
    shared: &SharedState,
    publish: impl Fn(Update) + Send + 'static,
) -> io::Result<(RegistryConnection, Arc<Contact>)> {
    let contact = Arc::new(Contact::new(shared.expect("kubernetes", shared_state::LIMIT)));
    let handle = kube::spawn(start, Arc::clone(&contact), publish)?;
    Ok((RegistryConnection::Kubernetes(handle), contact))
}
