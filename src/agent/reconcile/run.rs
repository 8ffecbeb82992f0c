//! One pass: observe → plan → apply, one kind of thing after the other.
//!
//! The order is that of a start: sysctls, bridge, firewall, routes, plugin, and the CNI
//! configuration last, because runtimes start pods as soon as it is there.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::agent::applier::Applier;
use crate::agent::reconcile::bridge::Kept;
use crate::agent::reconcile::{self, Pass};
use crate::agent::reconcile_cache::Known;
use crate::agent::trigger::Look;
use crate::inspect::host_state::{self, HostState};
use crate::net::Object;
use crate::plan::peer_routes::{LocalHost, PeerRoutes};

/// What a pass saw that others want to know.
#[derive(Debug)]
pub struct Seen {
    /// What this host is like.
    pub facts: HostState,
    /// What is wrong and not ours to mend, if it was looked at: hosts without a way to them …
    pub unreachable: Option<BTreeSet<String>>,
    /// … and other people's firewall.
    pub obstacles: Option<BTreeSet<String>>,
    /// … and everything else on the host.
    pub surroundings: Option<BTreeSet<String>>,
    /// What is wrong with the record of where the CNI configuration was written, as far as was looked.
    pub record: BTreeSet<String>,
    /// The files that were not as they should be, and are now.
    pub mended: Vec<Object>,
}

/// Looks, and mends what is wrong. `None` if the host could not be looked at.
pub fn run(pass: &Pass<'_>, known: &mut Known, applier: &mut Applier) -> Option<Seen> {
    let Known { ways, table } = known;
    let before = pass.before.map(|before| before.own);
    let mut facts = match host_state::observe(&pass.kernel.rtnl, pass.settings, before) {
        Ok(facts) => facts,
        Err(error) => {
            applier.failed(format!("{error:#}"));
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
    let unreachable = look.routes.then(|| routes(pass, &facts, ways, applier));
    let obstacles = first.or_else(|| look.firewall.then(|| firewall(applier)));
    if look.firewall || bridge == Kept::New {
        reconcile::host_ports::keep(pass, applier);
    }
    let before = applier.changes().len();
    let record = if look.files { files(pass, &facts, bridge, applier) } else { BTreeSet::new() };
    let mended = applier.changes()[before..].iter().map(|line| line.object.clone()).collect();
    let surroundings = start.then(|| {
        let found = reconcile::host_checks::look(pass, applier);
        found.into_iter().chain(crowded).collect()
    });
    Some(Seen { facts, unreachable, obstacles, surroundings, record, mended })
}

/// Makes plugin and configuration: the first one names a plugin that is there, and one that runtimes
/// were given stays as it was. Gives what is wrong with the record of it.
fn files(
    pass: &Pass<'_>,
    facts: &HostState,
    bridge: Kept,
    applier: &mut Applier,
) -> BTreeSet<String> {
    let is_given = reconcile::plugin::keep(pass, applier) || pass.was_ready;
    match is_given && bridge != Kept::Broken {
        true => reconcile::conf::keep(pass, facts, applier),
        false => BTreeSet::new(),
    }
}

/// What to look at besides, because this host is no longer what it was.
fn further(pass: &Pass<'_>, now: &HostState) -> Look {
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
pub fn here(pass: &Pass<'_>, facts: &HostState) -> LocalHost {
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
    facts: &HostState,
    ways: &PeerRoutes,
    applier: &mut Applier,
) -> BTreeSet<String> {
    let Some(peers) = pass.peers else { return BTreeSet::new() };
    let unreachable = ways.unreachable.iter().map(ToString::to_string);
    let faults = peers.faults.iter().map(ToString::to_string);
    let told =
        unreachable.chain(ways.faults.iter().map(ToString::to_string)).chain(faults).collect();
    let Some(tunnels) = reconcile::tunnel::keep(pass, facts, ways, applier) else { return told };
    tunnels.prepare(pass, ways, applier);
    let mut wanted = Cow::Borrowed(&ways.direct);
    if !ways.remotes.is_empty() {
        wanted.to_mut().extend(tunnels.routes(pass, ways));
    }
    reconcile::routes::keep(pass, &wanted, &ways.unresolved(), &tunnels, applier);
    tunnels.tidy(pass, ways, applier);
    told
}
