//! One reconcile: observe → plan → apply, one kind of object after the other.
//!
//! The order is that of a start: sysctls, bridge, firewall, routes, plugin, and the CNI
//! configuration last, because runtimes start pods as soon as it is there.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use ipnetwork::IpNetwork;

use crate::agent::active_problems::ProblemSource;
use crate::agent::applier::Applier;
use crate::agent::reconcile::bridge::BridgeOutcome;
use crate::agent::reconcile::encryption_rotation::{self, CachedRotation};
use crate::agent::reconcile::guard::CachedGuards;
use crate::agent::reconcile::policy::PolicyWork;
use crate::agent::reconcile::profiles::CachedProfiles;
use crate::agent::reconcile::{self, Reconcile};
use crate::agent::reconcile_cache::ReconcileCache;
use crate::agent::trigger::Scope;
use crate::checks::routing::without_repeats;
use crate::inspect::host_state::{self, HostState};
use crate::lease::records::WireguardEnd;
use crate::lease::{Peers, TunnelFault};
use crate::net::problem::{LISTED_FIRST, capped};
use crate::net::{IfName, Object, Problem, ProblemKind};
use crate::plan::peer_routes::{
    ClearPeer, LocalEncryption, LocalHost, PeerRoutes, UnreachableSubnet,
};
use crate::plan::routes::{FoundRoute, outside_blocks};

/// What a reconcile saw that others want to know.
#[derive(Debug)]
pub struct ReconcileOutcome {
    pub host_state: HostState,
    /// What is wrong, for each check that was made.
    pub problems: Vec<CheckProblems>,
    /// The files that were not as they should be, and are now.
    pub repaired: Vec<Object>,
}

/// Observes, plans and applies. `None` if the host could not be observed.
pub fn run(
    run: &Reconcile<'_>,
    known: &mut ReconcileCache,
    applier: &mut Applier,
) -> Option<ReconcileOutcome> {
    if let Some(own) = run.own_writes {
        own.set_pools(run.pools().collect());
        own.policies.store(run.settings.policy.is_some(), Ordering::Relaxed);
    }
    // Policies come often, and change nothing there.
    if run.scope != Scope::POLICY {
        reconcile::store::check(run, applier);
    }
    if !close_gates(run, known, applier) {
        return None;
    }
    if let (Scope::POLICY | Scope::PODS, Some(before)) = (run.scope, run.previous) {
        if known.profiles.take_stale() {
            let in_force = known.profiles.in_force();
            // What is wrong besides, the next full check reports.
            reconcile::guard::reconcile(run, true, &in_force, &mut known.guards, applier);
        }
        known.profiles.remove_unused_device(run, applier);
        // Policies, and pods that come and go, change nothing else here: the host is what it was.
        let (host_state, problems) = (before.clone(), Vec::new());
        return Some(ReconcileOutcome { host_state, problems, repaired: Vec::new() });
    }
    let before = run.previous.map(|before| before.own);
    let mut host_state = host_state::observe(&run.kernel.rtnl, run.settings, before)
        .map_err(|error| applier.inspection_failed(Object::named("this host"), &error))
        .ok()?;
    let to_peers = |peers| known.peer_routes.to(peers, run.resolved, local_host(run, &host_state));
    let peer_routes = run.peers.map(to_peers).unwrap_or_default();
    host_state.own.pod_mtu_bytes = reconcile::tunnel::pod_mtu(run, &host_state, &peer_routes);
    let scope = widened_scope(run, &host_state);
    let host = ObservedHost { run, host_state: &host_state, peer_routes: &peer_routes, scope };
    let (problems, repaired, encryption) = host.reconcile(known, applier);
    if run.settings.encryption.is_none() || encryption.is_some() {
        host_state.own.encryption = encryption;
    }
    Some(ReconcileOutcome { host_state, problems, repaired })
}

/// What keeps packets in, before everything that carries them. False: nothing may start here yet, as a pod
/// would not be kept in quarantine, or packets could leave in clear text.
fn close_gates(run: &Reconcile<'_>, known: &mut ReconcileCache, applier: &mut Applier) -> bool {
    let is_needed = !run.was_ready && !applier.is_dry();
    let work = match run.scope {
        scope if scope.pods => PolicyWork::WithStore,
        Scope::POLICY if run.was_ready => PolicyWork::Index,
        _ => PolicyWork::Whole,
    };
    if (run.scope.policy || run.scope.firewall)
        && !reconcile::policy::reconcile(run, work, &mut known.policy, applier)
        && is_needed
    {
        return false;
    }
    reconcile::profiles::reconcile(run, &known.policy, &mut known.profiles, applier);
    reconcile::encryption_guard::reconcile(run, &mut known.encryption, applier) || !is_needed
}

/// The problems that a check found.
type CheckProblems = (ProblemSource, Vec<Problem>);

/// A reconcile, once it is known what the host is like.
struct ObservedHost<'a> {
    run: &'a Reconcile<'a>,
    host_state: &'a HostState,
    peer_routes: &'a PeerRoutes,
    scope: Scope,
}

impl ObservedHost<'_> {
    /// Applies what `scope` holds. Gives what is wrong, the files that were repaired, and this host's end of
    /// encrypted tunnels, if that was looked at.
    fn reconcile(
        &self,
        cache: &mut ReconcileCache,
        applier: &mut Applier,
    ) -> (Vec<CheckProblems>, Vec<Object>, Option<WireguardEnd>) {
        let (mut bridge, mut others) = (BridgeOutcome::Whole, Vec::new());
        if self.scope.links {
            reconcile::sysctls::reconcile(self.run, self.host_state, applier);
            (bridge, others) = reconcile::bridge::reconcile(self.run, self.host_state, applier);
        }
        let ReconcileCache { guards, profiles, .. } = &mut *cache;
        let of_ports = self.ports(bridge, (guards, profiles), applier);
        let mut problems = vec![(ProblemSource::Uplinks, uplinks(self.host_state))];
        problems.extend(self.scope.links.then_some((ProblemSource::Bridges, others)));
        let (of_network, encryption) = self.network(cache, applier);
        problems.extend(of_network);
        if self.scope.firewall || bridge == BridgeOutcome::New {
            let found =
                reconcile::host_ports::reconcile(self.run, &self.host_state.all_addresses, applier);
            problems.push((ProblemSource::HostPorts, found));
        }
        let before = applier.changes().len();
        if self.scope.files {
            files(self.run, self.host_state, bridge, applier);
        }
        let repaired = applier.changes()[before..].iter().map(|line| line.object.clone()).collect();
        if self.scope == Scope::ALL {
            let found = reconcile::host_checks::check(self.run, applier);
            let known = problems.iter().flat_map(|(_, known)| known);
            let found = without_repeats(found, known);
            problems.push((ProblemSource::Host, found.into_iter().chain(of_ports).collect()));
        }
        (problems, repaired, encryption)
    }

    /// The bridge's ports and the guards of pods.
    fn ports(
        &self,
        bridge: BridgeOutcome,
        (guards, profiles): (&mut CachedGuards, &mut CachedProfiles),
        applier: &mut Applier,
    ) -> Vec<Problem> {
        let run = self.run;
        // Looking at every link is too much for every event of one.
        let all =
            matches!(bridge, BridgeOutcome::New | BridgeOutcome::Up) || self.scope == Scope::ALL;
        let crowded = all.then(|| reconcile::bridge_ports::reconcile(run, applier)).flatten();
        let (is_stale, in_force) = (profiles.take_stale(), profiles.in_force());
        let unguarded = match self.scope.links || self.scope.firewall || is_stale {
            true => reconcile::guard::reconcile(run, all || is_stale, &in_force, guards, applier),
            false => Vec::new(),
        };
        profiles.remove_unused_device(run, applier);
        crowded.into_iter().chain(unguarded).collect()
    }

    /// Firewall and routes.
    fn network(
        &self,
        cache: &mut ReconcileCache,
        applier: &mut Applier,
    ) -> (Vec<CheckProblems>, Option<WireguardEnd>) {
        let ObservedHost { run, host_state, peer_routes, scope } = *self;
        let ReconcileCache { placed, table, tunnels, rotation, .. } = cache;
        let mut firewall = |applier: &mut Applier| {
            reconcile::firewall::reconcile(run, host_state, peer_routes, table, applier)
        };
        // A start has its firewall first. Later it is the route to a new host that is waited for.
        let first = (scope == Scope::ALL).then(|| firewall(applier));
        if scope.routes || scope.firewall {
            // Before there is a device, and before another host that is new can be sent to.
            reconcile::tunnel_filter::reconcile(run, host_state, tunnels, applier);
        }
        let known = (placed, rotation);
        let routes = scope.routes.then(|| routes(run, host_state, peer_routes, known, applier));
        let (unreachable, encryption) = routes.unzip();
        let unreachable = unreachable.map(|found| (ProblemSource::PeerRoutes, found));
        let blocked = first.or_else(|| scope.firewall.then(|| firewall(applier)));
        let blocked = blocked.map(|found| (ProblemSource::Firewall, found));
        (unreachable.into_iter().chain(blocked).collect(), encryption.flatten())
    }
}

/// Links that pass no packets; etcd may be away because of them.
fn uplinks(host_state: &HostState) -> Vec<Problem> {
    let problem = |(link, what, fix): &(IfName, &str, String)| {
        let subject = Object::Link("interface".to_owned(), link.clone());
        let what = format!("interface {link}, which has this host's address, {what}");
        Problem::new(ProblemKind::InterfaceDown, subject, what).with_fix(fix.as_str())
    };
    host_state.down.iter().map(problem).collect()
}

/// Reconciles plugin and CNI configuration: the first configuration waits for its plugin and the bridge, and
/// one that runtimes have stays in place without them.
fn files(
    run: &Reconcile<'_>,
    host_state: &HostState,
    bridge: BridgeOutcome,
    applier: &mut Applier,
) {
    let is_installed = reconcile::plugin::install(run.settings, applier) || run.was_ready;
    if is_installed && bridge != BridgeOutcome::Broken {
        reconcile::conf::reconcile(run, host_state, applier);
    }
}

/// What to look at besides, because this host is no longer what it was.
fn widened_scope(run: &Reconcile<'_>, now: &HostState) -> Scope {
    let mut scope = run.scope;
    if let Some(before) = run.previous {
        // A link that went took itself out of the flow table.
        scope.firewall |= scope.links && run.settings.flowtable;
        // A host on a segment of this one knows the way back to its pods.
        scope.firewall |= before.connected != now.connected;
        scope.firewall |= before.all_addresses != now.all_addresses;
        scope.links |= before.own != now.own;
        scope.files |= before.own != now.own;
    }
    scope
}

/// What decides here how other hosts are reached.
pub fn local_host(run: &Reconcile<'_>, host_state: &HostState) -> LocalHost {
    LocalHost {
        backend: run.settings.backend,
        connected: host_state.connected.clone(),
        own: host_state.own.addresses,
        underlay: host_state.underlay,
        tunnel: reconcile::tunnel::own_end(run),
        encryption: match run.settings.encryption {
            None => LocalEncryption::Off,
            Some(encryption) if encryption.strict => LocalEncryption::Strict,
            Some(_) => LocalEncryption::Preferred,
        },
    }
}

/// Makes the routes: what a tunnel must know comes before the routes through it, and what it need
/// not know any more goes after them.
fn routes(
    run: &Reconcile<'_>,
    host_state: &HostState,
    peer_routes: &PeerRoutes,
    (placed, rotation): (&mut BTreeSet<IpNetwork>, &mut CachedRotation),
    applier: &mut Applier,
) -> (Vec<Problem>, Option<WireguardEnd>) {
    let Some(peers) = run.peers else { return (Vec::new(), None) };
    let mut problems = peer_problems(peers, peer_routes);
    let encryption = reconcile::encryption::reconcile(run, host_state, peer_routes, applier);
    problems.extend(encryption.fault.clone());
    let Some(tunnels) = reconcile::tunnel::reconcile(run, host_state, peer_routes, applier) else {
        return (problems, encryption.end(run));
    };
    tunnels.prepare(run, peer_routes, applier);
    encryption.prepare(peer_routes, applier);
    let mut wanted = Cow::Borrowed(&peer_routes.direct);
    if !peer_routes.remotes.is_empty() {
        wanted.to_mut().extend(tunnels.routes(run, peer_routes));
    }
    if !peer_routes.encrypted.is_empty() {
        wanted.to_mut().extend(encryption.routes(run, peer_routes));
    }
    let wanted = outside_blocks(wanted, &run.networks.blocks);
    let unresolved = peer_routes.unresolved();
    let keeps = |route: &FoundRoute| {
        let by_device = |hop| tunnels.keeps(&hop) || encryption.keeps(&hop);
        unresolved.contains(&route.destination) || route.next_hop.is_some_and(by_device)
    };
    problems.extend(reconcile::routes::reconcile(run, &wanted, keeps, placed, applier));
    tunnels.tidy(run, peer_routes, applier);
    encryption.tidy(run, peer_routes, applier);
    let end = encryption.end(run);
    problems.extend(encryption_rotation::advance(run, &encryption, peer_routes, rotation, applier));
    (problems, end)
}

/// What is wrong with the routes to hosts, and with the hosts' records.
fn peer_problems(peers: &Peers, peer_routes: &PeerRoutes) -> Vec<Problem> {
    let unreachable = peer_routes.unreachable.iter().filter(|subnet| !subnet.is_pending());
    let unreachable = unreachable.map(UnreachableSubnet::problem);
    let tunnels = peer_routes.faults.iter().map(TunnelFault::problem);
    let clear = peer_routes.clear.iter().map(ClearPeer::problem);
    let more = "further hosts in clear text";
    let clear = capped(clear, CLEAR_PROBLEMS, ProblemKind::ClearText, more, LISTED_FIRST);
    unreachable.chain(tunnels).chain(clear).chain(peers.problems()).collect()
}

/// Hosts in clear text that become problems.
const CLEAR_PROBLEMS: usize = 50;
