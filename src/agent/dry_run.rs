//! What a start would change, without changing anything.

use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::agent::applier::Applier;
use crate::agent::names;
use crate::agent::reconcile::run;
use crate::agent::reconcile::{Pass, World};
use crate::agent::reconcile_cache::Known;
use crate::agent::serve::{attributes, refused};
use crate::agent::start;
use crate::agent::trigger::Look;
use crate::etcd::{self, EtcdSettings};
use crate::inspect::{host, state_file};
use crate::kube::{self, KubeSettings};
use crate::lease::claim::Claimant;
use crate::lease::dry_run_claim::{Foreseen, foresee};
use crate::lease::growth;
use crate::lease::records::Key;
use crate::lease::{Lease, LeaseError, Network, Peers, Roots, Snapshot, peers};
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
    let world = start::world(settings)?;
    let mut settings = settings.clone();
    let (lines, lease, peers) = match settings.source.clone() {
        Source::Static(subnets) => (Vec::new(), Lease { subnets }, None),
        Source::Etcd { server, roots } => claim(&mut settings, &world, &server, &roots)?,
        Source::Kubernetes(api) => given(&settings, &world, &api)?,
    };
    let looked = look(&settings, &world, &lease.subnets, peers.map(Arc::new).as_ref());
    let trouble = looked.trouble.iter().map(|problem| format!("! {problem}"));
    let lines = lines.iter().chain(&looked.lines).map(Line::to_string);
    Ok(lines.chain(trouble).collect())
}

/// What a pass would do, and what is in its way.
#[derive(Debug)]
pub struct Looked {
    /// The changes.
    pub lines: Vec<Line>,
    /// What could not be inspected, and what only the operator can fix.
    pub trouble: Vec<Problem>,
}

/// Makes a pass that changes nothing.
pub fn look(
    settings: &Settings,
    world: &World,
    subnets: &PerFamily<IpNetwork>,
    peers: Option<&Arc<Peers>>,
) -> Looked {
    let mut applier = Applier::new(true);
    let resolved = peers.map(|peers| names::resolve_all(peers, settings)).unwrap_or_default();
    let pass = Pass {
        settings,
        world,
        subnets,
        peers,
        in_sync: true,
        resolved: &resolved,
        before: None,
        was_ready: false,
        look: Look::ALL,
    };
    let seen = run::run(&pass, &mut Known::default(), &mut applier);
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
    world: &World,
    api: &KubeSettings,
) -> Result<(Vec<Line>, Lease, Option<Peers>), Exit> {
    let name = start::node_name(settings)?;
    let own = start::this_host(&name, world)?;
    let nodes = kube::read(api, &name, start::reach(settings))
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
    world: &World,
    server: &EtcdSettings,
    roots: &Roots,
) -> Result<(Vec<Line>, Lease, Option<Peers>), Exit> {
    let found = etcd::read(server, roots)
        .map_err(|error| Exit::new(exit::UNAVAILABLE, format!("read etcd: {error}")))?;
    settings.pools = growth::followed(&settings.pools, &found);
    let name = start::node_name(settings)?;
    let facts = host::observe(&world.rtnl, settings, None)?;
    let attributes = attributes(settings, facts.own);
    let identity = start::this_host(&name, world)?;
    let saved = state_file::read(&settings.state_file()).ok().flatten();
    let remembered = saved.filter(|saved| saved.is_of(&identity)).map(|saved| saved.lease.subnets);
    let claimant = Claimant {
        identity,
        attributes,
        network: start::network(settings, roots),
        keep: Default::default(),
        remembered: remembered.unwrap_or_default(),
        ticket: None,
        shown: false,
    };
    let grows = growth(&found, &claimant.network).map_err(|error| refused(&error))?;
    let foreseen = foresee(&found, &claimant).map_err(|error| refused(&error))?;
    let lease = foreseen.lease().clone();
    let subnets: Vec<String> = lease.subnets.iter().map(ToString::to_string).collect();
    let subnets = subnets.join(", ");
    let line = match foreseen {
        Foreseen::Held(_) => None,
        Foreseen::Repaired(_) => {
            Some(Line::changed(Object::Keys(name.clone())).with(format!(" ({subnets})")))
        }
        Foreseen::Chosen(_) => {
            Some(Line::added(Object::Lease(name.clone())).with(format!(", such as {subnets}")))
        }
    };
    let others = peers(&found, &name, &lease.subnets, &settings.pools);
    Ok((grows.into_iter().chain(line).collect(), lease, Some(others)))
}
