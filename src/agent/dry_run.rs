//! What a start would change, without changing anything.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::agent::applier::Applier;
use crate::agent::reconcile::Reconcile;
use crate::agent::reconcile::run::{self, ReconcileOutcome};
use crate::agent::reconcile_cache::ReconcileCache;
use crate::agent::registry::refused;
use crate::agent::trigger::Scope;
use crate::etcd::{self, EtcdSettings};
use crate::inspect::host_state::{self, NodeAddresses, attributes};
use crate::inspect::{Host, HostList, identity, state_file};
use crate::kube::{self, KubeSettings};
use crate::lease::records::{Key, NodeName};
use crate::lease::session::{ClaimPreview, dry_run_claim};
use crate::lease::{Claimant, Lease, LeaseError, Network, Peers, Roots, Snapshot, growth, peers};
use crate::net::{Object, Problem};
use crate::os::files;
use crate::plan::Line;
use crate::plan::peer_routes::PeerRoutes;
use crate::settings::exit::{self, Exit};
use crate::settings::{Settings, Source};
use crate::sources::tenant_pools;

/// What a start would do here with these settings.
///
/// # Errors
/// This user may not read what is there, etcd cannot be read, or this host would get no subnet.
pub fn dry_run(settings: &Settings) -> Result<DryRun, Exit> {
    let read = [&settings.cni.config, &settings.state_file()];
    if let Some(path) = read.into_iter().find(|path| files::is_denied(path)) {
        return Err(Exit::denied("read", path));
    }
    let mut host = Host::inspect(settings, HostList::Skip)?;
    let (lines, lease, peers) = match settings.source.clone() {
        Source::Static(subnets) => (Vec::new(), Lease { subnets }, None),
        Source::Etcd { server, roots } => claim(&mut host, &server, &roots)?,
        Source::Kubernetes(api) => given(&mut host, &api)?,
    };
    host.subnets = lease.subnets;
    host.peers = peers.map(|peers| host.with_blocks(peers, true));
    host.in_sync = true;
    let mut found = DryRun::of(&host);
    found.lines.splice(0..0, lines);
    Ok(found)
}

/// What a start, or a reconcile, would do.
#[derive(Debug)]
pub struct DryRun {
    /// `None` if this host has no subnet, or could not be inspected.
    pub outcome: Option<ReconcileOutcome>,
    /// How the other hosts would be reached.
    pub peer_routes: Option<Arc<PeerRoutes>>,
    /// The changes, in the order they would be made.
    pub lines: Vec<Line>,
    /// What could not be inspected.
    pub failures: Vec<Problem>,
}

impl DryRun {
    /// A reconcile of the whole host that changes nothing.
    pub fn of(host: &Host) -> DryRun {
        DryRun::run(host, &reconcile_of(host))
    }

    /// The same where the plugin alone serves: it keeps bridge, masquerading, forwarding and firewall as its own
    /// configuration says, whenever a pod starts.
    pub fn beside_plugin(host: &Host) -> DryRun {
        let settings = Settings {
            masquerade: false,
            manage_forward: false,
            manage_sysctl: false,
            ..host.settings.clone()
        };
        let mut found = DryRun::run(host, &Reconcile { settings: &settings, ..reconcile_of(host) });
        found.lines.retain(|line| {
            let of_plugin = matches!(line.object, Object::Bridge(_) | Object::BridgeAddress(..));
            !of_plugin && !matches!(line.object, Object::Configuration(_))
        });
        found
    }

    fn run(host: &Host, wanted: &Reconcile<'_>) -> DryRun {
        let (mut applier, mut cache) = (Applier::new(true), ReconcileCache::default());
        let outcome =
            (!host.subnets.is_empty()).then(|| run::run(wanted, &mut cache, &mut applier));
        DryRun {
            outcome: outcome.flatten(),
            peer_routes: cache.peer_routes.last(),
            lines: applier.lines().to_vec(),
            failures: applier.failures().to_vec(),
        }
    }

    /// What could not be inspected, and what only an operator can repair.
    pub fn problems(&self) -> Vec<Problem> {
        let found = self.outcome.iter().flat_map(|outcome| &outcome.problems);
        self.failures.iter().chain(found.flat_map(|(_, found)| found)).cloned().collect()
    }
}

/// A reconcile of the whole host, as it was inspected.
pub fn reconcile_of(host: &Host) -> Reconcile<'_> {
    Reconcile {
        settings: &host.settings,
        kernel: &host.kernel,
        subnets: &host.subnets,
        peers: host.peers.as_ref(),
        in_sync: host.in_sync,
        resolved: host.resolved(),
        networks: host.networks(),
        policies: host.policies(),
        previous: None,
        was_ready: false,
        scope: Scope::ALL,
        own_writes: None,
    }
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
fn given(host: &mut Host, api: &KubeSettings) -> Result<(Vec<Line>, Lease, Option<Peers>), Exit> {
    let settings = &host.settings;
    let name = identity::node_name(settings)?;
    let own = identity::of_host(&name, &host.kernel.machine_id)?;
    let nodes = kube::read(api, &name, host_state::attributes(settings, NodeAddresses::default()))
        .map_err(|error| Exit::new(exit::UNAVAILABLE, format!("the Kubernetes API: {error}")))?;
    let lease = kube::own::lease(nodes.own(), &own, &settings.pools);
    let lease = lease.map_err(|error| refused(&error.into()))?;
    let others = peers(nodes.snapshot(), &name, &lease.subnets, &settings.pools);
    host.follow_addresses(nodes.snapshot(), &name);
    Ok((Vec::new(), lease, Some(others)))
}

/// The changes in etcd, this host's subnets after them, and the other hosts. The settings of `host`
/// get the pools of the network.
fn claim(
    host: &mut Host,
    server: &EtcdSettings,
    roots: &Roots,
) -> Result<(Vec<Line>, Lease, Option<Peers>), Exit> {
    let found = etcd::read(server, roots)
        .map_err(|error| Exit::new(exit::UNAVAILABLE, format!("read etcd: {error}")))?;
    host.settings.pools = growth::followed(&host.settings.pools, &host.settings.limits, &found);
    let settings = &host.settings;
    let name = identity::node_name(settings)?;
    let attributes = attributes(settings, host.state()?.own);
    let identity = identity::of_host(&name, &host.kernel.machine_id)?;
    let saved = state_file::read(&settings.state_file()).ok().flatten();
    let network = settings.network(roots);
    let network = etcd::beside_tenants(server, &found, network, tenant_pools)
        .map_err(|error| Exit::new(exit::UNAVAILABLE, format!("read etcd: {error}")))?;
    let remembered = saved.filter(|saved| saved.is_of(&identity)).map(|saved| saved.lease.subnets);
    let claimant = Claimant {
        identity,
        attributes,
        network,
        keep: Default::default(),
        remembered: remembered.unwrap_or_default(),
        vacated: Default::default(),
        without_record: BTreeSet::new(),
        leaves_claims: false,
        leaves_key_unclaimed: false,
        ticket: None,
        has_raced: false,
        instance: String::new(),
        alive: false,
    };
    let grows = growth(&found, &claimant.network).map_err(|error| refused(&error))?;
    let preview = dry_run_claim(&found, claimant).map_err(|error| refused(&error))?;
    let lease = preview.lease().clone();
    let line = claimed(&preview, name.clone());
    let others = peers(&found, &name, &lease.subnets, &settings.pools);
    Ok((grows.into_iter().chain(line).collect(), lease, Some(others)))
}

/// What a claim would change in etcd.
fn claimed(preview: &ClaimPreview, name: NodeName) -> Option<Line> {
    let subnets: Vec<String> = preview.lease().subnets.iter().map(ToString::to_string).collect();
    let subnets = subnets.join(", ");
    match preview {
        ClaimPreview::Held(_) => None,
        ClaimPreview::Repaired(_) => {
            Some(Line::changed(Object::Keys(name)).with(format!(" ({subnets})")))
        }
        ClaimPreview::Chosen(_) => {
            Some(Line::added(Object::Lease(name)).with(format!(", such as {subnets}")))
        }
    }
}
