//! What is wrong on this host at this moment: what the loop of the agent found, and what can only be
//! seen when it is asked for.

use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::SystemTime;

use crate::agent::active_problems::{ProblemSource, sort};
use crate::agent::readiness;
use crate::agent::shared_state::SharedState;
use crate::agent::snapshot::AgentSnapshot;
use crate::api::encryption;
use crate::checks::encryption::Handshakes;
use crate::checks::probe::ProbeStats;
use crate::inspect::pool_use::{Use, scarce};
use crate::inspect::service_manager::service_manager;
use crate::lease::peers::Peer;
use crate::lease::records::NodeName;
use crate::net::gather::Gather;
use crate::net::subnet::gateway;
use crate::net::{Family, Object, Problem, ProblemKind};

/// So many hosts that do not answer are listed one by one.
const HOSTS: usize = 3;

/// The worst first, causes before their effects. `uses`: how much of the pod subnets is in use now.
pub fn problems(shared: &SharedState, snapshot: &AgentSnapshot, uses: &[Use]) -> Vec<Problem> {
    shared.problems.set(ProblemSource::PoolUse, scarce(uses));
    shared.problems.set(ProblemSource::CniFiles, readiness::gone(snapshot));
    let mut all = shared.problems.all();
    all.extend(stuck(shared));
    all.extend(unanswered(shared, snapshot));
    sort(&mut all);
    all
}

/// The addresses of a host that are probed.
pub fn gateways(peer: &Peer) -> impl Iterator<Item = IpAddr> + '_ {
    peer.subnets.iter().map(|subnet| gateway(*subnet))
}

/// Loops that hang: what is known of the rest may be old.
fn stuck(shared: &SharedState) -> Vec<Problem> {
    let restart = service_manager().restart();
    let mut stuck = Vec::new();
    for beat in shared.heartbeats() {
        let Some(age) = beat.since().filter(|age| *age > beat.limit) else { continue };
        let what = format!("the loop {} has not moved for {} s", beat.name, age.as_secs());
        let subject = Object::named(format!("loop {}", beat.name));
        let problem = Problem::new(ProblemKind::AgentStuck, subject, what)
            .with_fix(format!("{restart} # pods do not notice; report a bug"));
        stuck.push(problem.with_since(SystemTime::now() - age));
    }
    stuck
}

/// Hosts that have a route and do not answer the echoes sent along it.
fn unanswered(shared: &SharedState, snapshot: &AgentSnapshot) -> Vec<Problem> {
    let Some(peers) = &snapshot.peers else { return Vec::new() };
    let unreachable = snapshot.peer_routes.iter().flat_map(|peer_routes| &peer_routes.unreachable);
    let known: BTreeSet<&NodeName> = unreachable.map(|unreachable| &unreachable.host).gather();
    let probed = shared.probes.all();
    let own = |at: IpAddr| {
        let own = snapshot.subnets.and_then(|own| own.get(Family::of(at)).copied());
        own.map_or(at, gateway)
    };
    let encrypted = LazyCell::new(|| encryption::handshakes(snapshot));
    let mut hosts = peers.by_name.iter().filter(|(name, _)| !known.contains(name)).filter_map(
        |(name, peer)| {
            let mut seen = gateways(peer).filter_map(|at| Some((at, probed.get(&at)?)));
            let problem = seen.find_map(|(at, seen)| lost(name, own(at), at, seen))?;
            let handshakes = peer.wireguard.and_then(|end| encrypted.get(&end.public_key));
            Some(below(problem, handshakes))
        },
    );
    let mut all: Vec<Problem> = hosts.by_ref().take(HOSTS).collect();
    let more = hosts.count();
    if more > 0 {
        let what = format!("{more} more hosts do not answer echoes, or not large ones");
        let subject = Object::named("other hosts");
        let problem = Problem::new(ProblemKind::HostUnanswered, subject, what)
            .with_fix("humanz-agent probe # tests all of them now");
        let since = all.iter().filter_map(|problem| problem.since).min();
        all.push(Problem { since, ..problem });
    }
    all
}

/// With the cause, if not even handshakes arrive.
fn below(problem: Problem, handshakes: Option<&Handshakes>) -> Problem {
    let handshakes = handshakes.filter(|_| problem.kind == ProblemKind::HostUnanswered);
    match handshakes.and_then(|it| Some((it.fault()?, it.fix()))) {
        Some((fault, fix)) => {
            let what = format!("{}; {fault}", problem.what);
            Problem { what, ..problem }.with_fix(fix)
        }
        None => problem,
    }
}

/// `own`: the address of this host that asks.
fn lost(name: &NodeName, own: IpAddr, at: IpAddr, seen: &ProbeStats) -> Option<Problem> {
    let what = format!("host {name}: {}", seen.fault(at)?);
    let (kind, fix) = match seen.black_hole() {
        Some(_) => (
            ProblemKind::HostMtu,
            format!("humanz-agent probe {name} # set MTU lower, or let ICMP through between hosts"),
        ),
        None => (
            ProblemKind::HostUnanswered,
            format!("humanz-agent explain {own} {at} # shows where they are lost"),
        ),
    };
    let problem = Problem::new(kind, Object::Host(name.clone()), what).with_fix(fix);
    Some(Problem { since: seen.since, ..problem })
}
