//! One pass: observe → plan → apply, one kind of thing after the other.
//!
//! The order is that of a start: sysctls, bridge, firewall, routes, plugin, and the CNI
//! configuration last, because runtimes start pods as soon as it is there.

use std::borrow::Cow;

use crate::agent::active_problems::Check;
use crate::agent::applier::Applier;
use crate::agent::reconcile::bridge::Kept;
use crate::agent::reconcile::{self, Pass};
use crate::agent::reconcile_cache::Known;
use crate::agent::trigger::Look;
use crate::inspect::host::{self, Facts};
use crate::lease::{PeerFault, TunnelFault};
use crate::net::{IfName, Object, Problem, ProblemKind};
use crate::plan::peer_routes::{LocalHost, PeerRoutes, UnreachableSubnet};

/// What a pass saw that others want to know.
#[derive(Debug)]
pub struct Seen {
    /// What this host is like.
    pub facts: Facts,
    /// What is wrong, for each check that was made.
    pub problems: Vec<(Check, Vec<Problem>)>,
    /// The files that were not as they should be, and are now.
    pub mended: Vec<Object>,
}

/// Looks, and mends what is wrong. `None` if the host could not be looked at.
pub fn run(pass: &Pass<'_>, known: &mut Known, applier: &mut Applier) -> Option<Seen> {
    let Known { ways, table } = known;
    let before = pass.before.map(|before| before.own);
    let mut facts = match host::observe(&pass.world.rtnl, pass.settings, before) {
        Ok(facts) => facts,
        Err(error) => {
            applier.inspect_failed(Object::named("this host"), format!("{error:#}"));
            return None;
        }
    };
    let to_peers = |peers| ways.to(peers, pass.resolved, here(pass, &facts));
    let ways = &*pass.peers.map(to_peers).unwrap_or_default();
    facts.own.pod_mtu_bytes = reconcile::tunnel::pod_mtu(pass, &facts, ways);
    let look = further(pass, &facts);
    let mut bridge = Kept::Whole;
    if look.links {
        reconcile::sysctls::keep(pass, &facts, applier);
        bridge = reconcile::bridge::keep(pass, &facts, applier);
    }
    // Looking at every link is too much for every event of one.
    let at_ports = bridge == Kept::New || look == Look::ALL;
    let crowded = at_ports.then(|| reconcile::bridge_ports::keep(pass, applier)).flatten();
    // A start has its firewall first. Later it is the route to a new host that is waited for.
    let start = look == Look::ALL;
    let mut firewall =
        |applier: &mut Applier| reconcile::firewall::keep(pass, &facts, ways, table, applier);
    let first = start.then(|| firewall(applier));
    let mut problems = vec![(Check::Uplinks, uplinks(&facts))];
    if look.routes {
        problems.push((Check::PeerRoutes, routes(pass, &facts, ways, applier)));
    }
    let blocked = first.or_else(|| look.firewall.then(|| firewall(applier)));
    problems.extend(blocked.map(|found| (Check::Firewall, found)));
    if look.firewall || bridge == Kept::New {
        reconcile::host_ports::keep(pass, applier);
    }
    let before = applier.changes().len();
    if look.files {
        problems.push((Check::ConfRecord, files(pass, &facts, bridge, applier)));
    }
    let mended = applier.changes()[before..].iter().map(|line| line.object.clone()).collect();
    if start {
        let found = reconcile::host_checks::look(pass, applier);
        problems.push((Check::Host, found.into_iter().chain(crowded).collect()));
    }
    Some(Seen { facts, problems, mended })
}

/// Links that are down; etcd may be away because of them.
fn uplinks(facts: &Facts) -> Vec<Problem> {
    let problem = |link: &IfName| {
        let subject = Object::Link("interface".to_owned(), link.clone());
        let what = format!("interface {link}, which has this host's address, is down");
        Problem::new(ProblemKind::InterfaceDown, subject, what)
            .with_fix(format!("ip link set {link} up"))
    };
    facts.down.iter().map(problem).collect()
}

/// Makes plugin and configuration: the first one names a plugin that is there, and one that runtimes
/// were given stays as it was. Gives what is wrong with the record of it.
fn files(pass: &Pass<'_>, facts: &Facts, bridge: Kept, applier: &mut Applier) -> Vec<Problem> {
    let is_given = reconcile::plugin::keep(pass, applier) || pass.was_ready;
    match is_given && bridge != Kept::Broken {
        true => reconcile::conf::keep(pass, facts, applier),
        false => Vec::new(),
    }
}

/// What to look at besides, because this host is no longer what it was.
fn further(pass: &Pass<'_>, now: &Facts) -> Look {
    let mut look = pass.look;
    if let Some(before) = pass.before {
        // A link that went took itself out of the flow table.
        look.firewall |= look.links && pass.settings.flowtable;
        // Who shares a segment with this host knows the way back to its pods.
        look.firewall |= before.connected != now.connected;
        look.firewall |= before.all_addresses != now.all_addresses;
        look.links |= before.own != now.own;
        look.files |= before.own != now.own;
    }
    look
}

/// What decides here how other hosts are reached.
pub fn here(pass: &Pass<'_>, facts: &Facts) -> LocalHost {
    LocalHost {
        backend: pass.settings.backend,
        connected: facts.connected.clone(),
        own: facts.own.addresses,
        underlay: facts.underlay,
        tunnel: reconcile::tunnel::own_end(pass),
    }
}

/// Makes the routes: what a tunnel must know comes before the routes through it, and what it need
/// not know any more goes after them.
fn routes(
    pass: &Pass<'_>,
    facts: &Facts,
    ways: &PeerRoutes,
    applier: &mut Applier,
) -> Vec<Problem> {
    let Some(peers) = pass.peers else { return Vec::new() };
    let unreachable = ways.unreachable.iter().map(UnreachableSubnet::problem);
    let tunnels = ways.faults.iter().map(TunnelFault::problem);
    let problems =
        unreachable.chain(tunnels).chain(peers.faults.iter().map(PeerFault::problem)).collect();
    let Some(tunnels) = reconcile::tunnel::keep(pass, facts, ways, applier) else {
        return problems;
    };
    tunnels.prepare(pass, ways, applier);
    let mut wanted = Cow::Borrowed(&ways.direct);
    if !ways.remotes.is_empty() {
        wanted.to_mut().extend(tunnels.routes(pass, ways));
    }
    reconcile::routes::keep(pass, &wanted, &ways.unresolved(), &tunnels, applier);
    tunnels.tidy(pass, ways, applier);
    problems
}
