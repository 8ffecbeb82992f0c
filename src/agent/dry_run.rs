//! What a start would change, without changing anything.

use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::agent::applier::Applier;
use crate::agent::reconcile::{Reconcile, run};
use crate::agent::reconcile_cache::ReconcileCache;
use crate::agent::serve::refused;
use crate::agent::start;
use crate::agent::trigger::Scope;
use crate::etcd::{self, EtcdSettings};
use crate::inspect::host_state::{self, NodeAddresses, attributes};
use crate::inspect::{Kernel, identity, names, state_file};
use crate::kube::{self, KubeSettings};
use crate::lease::records::Key;
use crate::lease::session::{ClaimPreview, dry_run_claim};
use crate::lease::{Claimant, Lease, LeaseError, Network, Peers, Roots, Snapshot, growth, peers};
use crate::net::{Object, PerFamily, Problem};
use crate::os::files;
use crate::plan::Line;
use crate::settings::exit::{self, Exit};
use crate::settings::{Settings, Source};

/// The changes, as `+`, `-` and `~` lines, in the order they would be made; then what would stand
/// in the way, as `!` lines.
///
/// # Errors
/// This user may not read what is there, etcd cannot be read, or this host would get no subnet.
pub fn dry_run(settings: &Settings) -> Result<Vec<String>, Exit> {
    let read = [&settings.cni.config, &settings.state_file()];
    if let Some(path) = read.into_iter().find(|path| files::is_denied(path)) {
        return Err(Exit::denied("read", path));
    }
    let kernel = Kernel::open(settings)?;
    let mut settings = settings.clone();
    let (lines, lease, peers) = match settings.source.clone() {
        Source::Static(subnets) => (Vec::new(), Lease { subnets }, None),
        Source::Etcd { server, roots } => claim(&mut settings, &kernel, &server, &roots)?,
        Source::Kubernetes(api) => given(&settings, &kernel, &api)?,
    };
    let looked = look(&settings, &kernel, &lease.subnets, peers.map(Arc::new).as_ref());
    let trouble = looked.trouble.iter().map(|problem| format!("! {problem}"));
    let lines = lines.iter().chain(&looked.lines).map(Line::to_string);
    Ok(lines.chain(trouble).collect())
}

/// What a reconcile would do, and what is in its way.
#[derive(Debug)]
pub struct Looked {
    /// The changes.
    pub lines: Vec<Line>,
    /// What could not be inspected, and what only the operator can fix.
    pub trouble: Vec<Problem>,
}

/// Makes a reconcile that changes nothing.
pub fn look(
    settings: &Settings,
    kernel: &Kernel,
    subnets: &PerFamily<IpNetwork>,
    peers: Option<&Arc<Peers>>,
) -> Looked {
    let mut applier = Applier::new(true);
    let resolved = peers.map(|peers| names::resolve_all(peers, settings)).unwrap_or_default();
    let run = Reconcile {
        settings,
        kernel: kernel,
        subnets,
        peers,
        in_sync: true,
        resolved: &resolved,
        previous: None,
        was_ready: false,
        scope: Scope::ALL,
    };
    let seen = run::run(&run, &mut ReconcileCache::default(), &mut applier);
    let found = seen.into_iter().flat_map(|seen| seen.problems).flat_map(|(_, found)| found);
    let trouble = applier.failures().iter().cloned().chain(found).collect();
    Looked { lines: applier.lines().to_vec(), trouble }
}

/// How the pools of the network would grow to those of `ours`.
///
/// # Errors
/// Why they cannot.
pub fn growth(found: &Snapshot, ours: &Network) -> Result<Option<Line>, LeaseError> {
    let key = ours.key(&Key::Config);
    let pools: Vec<String> = ours.pools.iter().map(|pool| pool.network().to_string()).collect();
    let pools = format!(": the pools grow to {}", pools.join(", "));
    Ok(growth::of(found, ours)?.map(|_| Line::changed(Object::Key(key)).with(pools)))
}

/// The subnets that Kubernetes gives this host, and the other hosts.
fn given(
    settings: &Settings,
    kernel: &Kernel,
    api: &KubeSettings,
) -> Result<(Vec<Line>, Lease, Option<Peers>), Exit> {
    let name = identity::node_name(settings)?;
    let own = identity::of_host(&name, &kernel.machine_id)?;
    let nodes = kube::read(api, &name, host_state::attributes(settings, NodeAddresses::default()))
        .map_err(|error| Exit::new(exit::UNAVAILABLE, format!("the Kubernetes API: {error}")))?;
    let lease = kube::own::lease(nodes.own(), &own, &settings.pools);
    let lease = lease.map_err(|error| refused(&error.into()))?;
    let others = peers(nodes.snapshot(), &name, &lease.subnets, &settings.pools);
    Ok((Vec::new(), lease, Some(others)))
}

/// What would happen in etcd, the subnets then, and the other hosts. `settings` get the pools that
/// the network has.
fn claim(
    settings: &mut Settings,
    kernel: &Kernel,
    server: &EtcdSettings,
    roots: &Roots,
) -> Result<(Vec<Line>, Lease, Option<Peers>), Exit> {
    let found = etcd::read(server, roots)
        .map_err(|error| Exit::new(exit::UNAVAILABLE, format!("read etcd: {error}")))?;
    settings.pools = growth::followed(&settings.pools, &found);
    let name = identity::node_name(settings)?;
    let facts = host_state::observe(&kernel.rtnl, settings, None)?;
    let attributes = attributes(settings, facts.own);
    let identity = identity::of_host(&name, &kernel.machine_id)?;
    let saved = state_file::read(&settings.state_file()).ok().flatten();
    let remembered = saved.filter(|saved| saved.is_of(&identity)).map(|saved| saved.lease.subnets);
    let claimant = Claimant {
        identity,
        attributes,
        network: start::network(settings, roots),
        keep: Default::default(),
        remembered: remembered.unwrap_or_default(),
        ticket: None,
        alive: false,
    };
    let grows = growth(&found, &claimant.network).map_err(|error| refused(&error))?;
    let preview = dry_run_claim(&found, claimant).map_err(|error| refused(&error))?;
    let lease = preview.lease().clone();
    let subnets: Vec<String> = lease.subnets.iter().map(ToString::to_string).collect();
    let subnets = subnets.join(", ");
    let line = match preview {
        ClaimPreview::Held(_) => None,
        ClaimPreview::Repaired(_) => {
            Some(Line::changed(Object::Keys(name.clone())).with(format!(" ({subnets})")))
        }
        ClaimPreview::Chosen(_) => {
            Some(Line::added(Object::Lease(name.clone())).with(format!(", such as {subnets}")))
        }
    };
    let others = peers(&found, &name, &lease.subnets, &settings.pools);
    Ok((grows.into_iter().chain(line).collect(), lease, Some(others)))
}
