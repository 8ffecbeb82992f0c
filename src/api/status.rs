//! The state of the agent as one JSON object, schema 1.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::SystemTime;

use ipnetwork::IpNetwork;
use serde_json::{Value, json};

use crate::agent::shared_state::Probes;
use crate::checks::probe::Seen;
use crate::lease::peers::Peer;
use crate::lease::records::NodeName;
use crate::net::PerFamily;
use crate::net::subnet::gateway;
use crate::net::time::timestamp;
use crate::plan::peer_routes::Backend;
use crate::plan::peer_routes::PeerRoutes;
use crate::settings::Source;

use crate::agent::journal::Entry;
use crate::agent::pool_use::{Use, addresses};
use crate::agent::readiness::not_ready;
use crate::agent::shared_state::SharedState;
use crate::agent::snapshot::AgentSnapshot;
use crate::api::faults::faults;

/// The version of what [`status`] gives. Fields may be added; none changes its meaning.
const SCHEMA: u32 = 1;

/// Everything the agent knows.
///
/// `node`, `lease`, `etcd`, `backend`, `peers`, `firewall`, `addresses`, `loops`, `changes`, `repairs`, `faults`:
/// what is not known (yet) is `null`. Of a large network it is some megabytes.
pub fn status(shared: &SharedState) -> Value {
    let known = shared.snapshot();
    let known = known.as_deref();
    let (changes, repairs) = shared.journal.all();
    let uses = known.map(|known| addresses(&known.settings, known.subnets));
    let list = |entries: &[Entry]| entries.iter().map(change).collect::<Value>();
    json!({
        "schema": SCHEMA,
        "ready": known.is_some_and(|known| not_ready(known).is_none()),
        "node": node(shared, known),
        "lease": known.map(lease),
        "etcd": known.and_then(etcd),
        "kubernetes": known.and_then(kubernetes),
        "backend": known.map(|known| backend(known.settings.backend)),
        "peers": known.and_then(|known| peers(known, &shared.probes)),
        "firewall": known.map(firewall),
        "addresses": uses.as_deref().map(usage),
        "loops": loops(shared),
        "changes": list(&changes),
        "repairs": list(&repairs),
        "faults": known.map(|known| faults(shared, known, uses.as_deref().unwrap_or_default())),
    })
}

/// One change: `number`, `at`, `what`, `why`, `repair`.
pub fn change(entry: &Entry) -> Value {
    json!({
        "number": entry.number,
        "at": moment(entry.at),
        "what": entry.what,
        "why": entry.why,
        "repair": entry.repair,
    })
}

fn moment(at: SystemTime) -> String {
    timestamp(at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

fn node(shared: &SharedState, known: Option<&AgentSnapshot>) -> Value {
    let facts = known.and_then(|known| known.facts.as_ref());
    json!({
        "name": shared.name,
        "machine_id": shared.machine_id,
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "started": moment(shared.started),
        "addresses": facts.map(|facts| texts(&facts.own.addresses)),
        "uplinks": facts.map(|facts| facts.uplinks.iter().map(ToString::to_string).collect::<Vec<_>>()),
        "mtu": facts.map(|facts| facts.own.mtu_bytes),
        "pod_mtu": facts.map(|facts| facts.own.pod_mtu_bytes),
    })
}

fn lease(known: &AgentSnapshot) -> Value {
    let source = match (&known.settings.source, known.in_sync) {
        (Source::Static(_), _) => "static",
        (Source::Etcd { .. }, true) => "etcd",
        (Source::Kubernetes(_), true) => "kubernetes",
        (Source::Etcd { .. } | Source::Kubernetes(_), false) => "last known good state",
    };
    json!({
        "subnets": known.subnets.as_ref().map(texts),
        "source": known.subnets.map(|_| source),
        "since": known.since.map(moment),
    })
}

/// `None` on a host without etcd.
fn etcd(known: &AgentSnapshot) -> Option<Value> {
    let Source::Etcd { server, .. } = &known.settings.source else { return None };
    let mut value = connection(known);
    value["endpoints"] = json!(server.endpoints);
    value["revision"] = known.revision.into();
    value["certificate_until"] = known.etcd.certificate_until.map(moment).into();
    Some(value)
}

/// `None` on a host whose subnet is not given by Kubernetes.
fn kubernetes(known: &AgentSnapshot) -> Option<Value> {
    let Source::Kubernetes(api) = &known.settings.source else { return None };
    let mut value = connection(known);
    value["kubeconfig"] = json!(api.kubeconfig);
    value["version"] = known.revision.into();
    Some(value)
}

/// How it goes with whoever knows the hosts.
fn connection(known: &AgentSnapshot) -> Value {
    let told = &known.etcd;
    let heard_at = known.contact.as_ref().and_then(|contact| contact.heard_at());
    json!({
        "connected": told.endpoint,
        "last_contact_seconds": heard_at.and_then(|at| Some(at.elapsed().ok()?.as_secs_f64())),
        "error": told.down.as_ref().or(told.trouble.as_ref()),
    })
}

fn backend(backend: Backend) -> &'static str {
    match backend {
        Backend::Direct => "direct",
        Backend::Vxlan => "vxlan",
        Backend::Auto => "auto",
    }
}

fn texts<T: ToString>(values: &PerFamily<T>) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

fn peers(known: &AgentSnapshot, probes: &Probes) -> Option<Value> {
    let peers = known.peers.as_deref()?;
    let ways = known.ways.as_deref()?;
    let tunnels: BTreeMap<IpNetwork, IpAddr> =
        ways.remotes.iter().map(|remote| (remote.subnet, remote.address)).collect();
    let mut wrong: BTreeMap<&NodeName, Vec<String>> = BTreeMap::new();
    for unreachable in &ways.unreachable {
        wrong.entry(&unreachable.host).or_default().push(unreachable.to_string());
    }
    let probed = probes.all();
    for (name, peer) in &peers.by_name {
        let seen = gateways(peer).filter_map(|at| Some((at, probed.get(&at)?)));
        let faults = seen.filter_map(|(at, seen)| seen.fault(at));
        let mut faults = faults.peekable();
        if faults.peek().is_some() {
            wrong.entry(name).or_default().extend(faults);
        }
    }
    let list = peers.by_name.iter().map(|(name, peer)| {
        let wrong = wrong.get(name).map(|wrong| wrong.join("; "));
        json!({
            "name": name.as_str(),
            "addresses": texts(&peer.addresses),
            "subnets": texts(&peer.subnets),
            "via": via(peer, ways, &tunnels),
            "alive": peer.alive,
            "reachable": wrong.is_none(),
            "fault": wrong,
            "probe": probe(gateways(peer).filter_map(|at| probed.get(&at))),
        })
    });
    Some(list.collect())
}

/// The addresses of a host that are probed.
pub(super) fn gateways(peer: &Peer) -> impl Iterator<Item = IpAddr> + '_ {
    peer.subnets.iter().map(|subnet| gateway(*subnet))
}

/// The slowest answer and the least size of what was found at a host; `null` if nothing was yet.
fn probe<'a>(seen: impl Iterator<Item = &'a Seen>) -> Option<Value> {
    let seen: Vec<&Seen> = seen.collect();
    let slowest = seen.iter().filter_map(|seen| seen.time).max();
    (!seen.is_empty()).then(|| {
        json!({
            "seconds": slowest.map(|time| time.as_secs_f64()),
            "lost": seen.iter().map(|seen| seen.lost).max(),
            "mtu": seen.iter().filter_map(|seen| seen.mtu).min(),
        })
    })
}

/// For each subnet: `direct via 192.0.2.12`, `tunnel to 203.0.113.13`, or `null`.
fn via(peer: &Peer, ways: &PeerRoutes, tunnels: &BTreeMap<IpNetwork, IpAddr>) -> Value {
    let way = |subnet: &IpNetwork| match (ways.direct.get(subnet), tunnels.get(subnet)) {
        (Some(hop), _) => Some(format!("direct via {}", hop.via)),
        (None, Some(address)) => Some(format!("tunnel to {address}")),
        (None, None) => None,
    };
    peer.subnets.iter().map(way).collect()
}

/// A family with more free addresses than a number can tell has as many as it can.
fn usage(uses: &[Use]) -> Value {
    let number = |count: u128| u64::try_from(count).unwrap_or(u64::MAX);
    let of = |of: &Use| json!({ "family": of.family.to_string(), "used": number(of.used), "free": number(of.free) });
    uses.iter().map(of).collect()
}

fn firewall(known: &AgentSnapshot) -> Value {
    let wrong = known.wrong.obstacles.iter().cloned().collect::<Vec<_>>();
    json!({ "ok": wrong.is_empty(), "fault": (!wrong.is_empty()).then(|| wrong.join("; ")) })
}

fn loops(shared: &SharedState) -> Value {
    let heartbeats = shared.heartbeats();
    let turning = heartbeats.iter().filter_map(|beat| Some((beat, beat.since()?)));
    turning
        .map(|(beat, since)| {
            json!({
                "name": beat.name,
                "seconds_since_beat": since.as_secs_f64(),
                "limit": beat.limit.as_secs_f64(),
            })
        })
        .collect()
}
