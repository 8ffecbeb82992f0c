//! The status of a host whose agent does not answer: a dry run of a reconcile.

use std::sync::Arc;

use serde_json::Value;

use crate::agent::dry_run::DryRun;
use crate::agent::shared_state::SharedState;
use crate::agent::snapshot::{AgentSnapshot, StoreStatus, Wrong};
use crate::api::status;
use crate::command::drift::Waiting;
use crate::inspect::{Host, identity};
use crate::settings::Source;

/// The status as the agent would report it, and what it would change.
pub fn status(host: &Host) -> (Value, Vec<String>) {
    let found = DryRun::of(host);
    let has_subnet = !host.subnets.is_empty();
    let snapshot = host.cluster.as_ref().map(|cluster| &cluster.snapshot);
    let faults = snapshot.iter().flat_map(|found| found.faults.values().map(ToString::to_string));
    let set = |part: Option<_>| Arc::new(part.unwrap_or_default());
    let (facts, unreachable, obstacles, surroundings) = match found.outcome {
        Some(seen) => (Some(seen.facts), seen.unreachable, seen.obstacles, seen.surroundings),
        None => Default::default(),
    };
    let wrong = Wrong {
        failures: Arc::new(found.failures.into_iter().collect()),
        unreachable: set(unreachable),
        obstacles: set(obstacles),
        surroundings: set(surroundings),
        records: Arc::new(faults.collect()),
        ..Wrong::default()
    };
    let known = AgentSnapshot {
        settings: host.settings.clone(),
        subnets: has_subnet.then_some(host.subnets),
        since: None,
        in_sync: host.in_sync,
        ready: false,
        revision: snapshot.map(|found| found.revision),
        peers: host.peers.clone(),
        ways: found.peer_routes.clone(),
        facts,
        etcd: store_status(host),
        contact: None,
        wrong,
    };
    let name = identity::node_name(&host.settings).map(|name| name.to_string());
    let shared = SharedState::new(name.unwrap_or_default(), host.kernel.machine_id.clone());
    shared.publish(known);
    let mut value = status::status(&shared);
    // These are an agent's, and there is none.
    value["ready"] = Value::Null;
    value["node"]["pid"] = Value::Null;
    value["node"]["started"] = Value::Null;
    value["repairs"] = Value::Null;
    value["changes"] = Value::Null;
    if !has_subnet {
        // Nobody looked.
        value["firewall"] = Value::Null;
    }
    let waiting = Waiting::among(&found.lines);
    if let (Some(peers), Some(ways)) = (&host.peers, found.peer_routes.clone()) {
        waiting.correct_peers(&mut value, peers, &ways);
    }
    waiting.correct_firewall(&mut value);
    (value, found.lines.iter().map(ToString::to_string).collect())
}

fn store_status(host: &Host) -> StoreStatus {
    let stale = host.cluster.as_ref().and_then(|cluster| cluster.stale.as_ref());
    let down = stale.map(|stale| stale.why.clone()).or_else(|| host.peers_unknown.clone());
    let endpoint = match &host.settings.source {
        Source::Etcd { server, .. } => server.endpoints.first().cloned(),
        Source::Kubernetes(_) => Some("the API server".to_owned()),
        Source::Static(_) => None,
    };
    let endpoint = endpoint.filter(|_| down.is_none());
    StoreStatus { endpoint, down, ..StoreStatus::default() }
}
