//! The status of a host whose agent does not answer: a dry run of a reconcile.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::agent::active_problems::sort;
use crate::agent::snapshot::{AgentSnapshot, StoreStatus};
use crate::api::status::{self, Status};
use crate::command::pending_changes::PendingChanges;
use crate::command::single_machine;
use crate::inspect::pool_use::{addresses, scarce};
use crate::inspect::{Host, identity, policies};
use crate::plan::Line;
use crate::policy::view::View;
use crate::settings::Source;

/// The status as an agent would fill it, and the changes that it would make.
pub fn status(host: &Host) -> (Status, Vec<Line>) {
    let found = single_machine::dry_run(host);
    let has_subnet = !host.subnets.is_empty();
    let cluster = host.cluster.as_ref().map(|cluster| &cluster.snapshot);
    let snapshot = AgentSnapshot {
        settings: host.settings.clone(),
        subnets: has_subnet.then_some(host.subnets),
        blocks: host.named_blocks(),
        since: None,
        in_sync: host.in_sync,
        ready: false,
        revision: cluster.map(|cluster| cluster.revision),
        peers: host.peers.clone(),
        peer_routes: found.peer_routes.clone(),
        host_state: found.outcome.as_ref().map(|outcome| outcome.host_state.clone()),
        rotation: None,
        etcd: store_status(host),
        contact: None,
        policies: last_policies(host).map(Arc::new),
    };
    let uses = addresses(&snapshot.settings, snapshot.subnets);
    let mut problems = match host.settings.is_etcd_unknown() {
        // The agent that is missing says so.
        true => Vec::new(),
        false => snapshot.etcd.problems(&host.settings.source),
    };
    problems.extend(found.problems());
    problems.extend(cluster.iter().flat_map(|found| found.problems()));
    problems.extend(scarce(&uses));
    let quarantined = snapshot.policies.iter().flat_map(|view| view.quarantined());
    problems.extend(quarantined.map(|one| one.problem()));
    problems.extend(snapshot.policies.iter().filter_map(|view| view.not_judged()));
    sort(&mut problems);
    let name = identity::node_name(&host.settings).map(|name| name.to_string());
    let name = (name.as_deref().unwrap_or_default(), host.kernel.machine_id.as_str());
    let mut status = status::host(name, &snapshot, &uses, &BTreeMap::new(), problems);
    let pending = PendingChanges::among(&found.lines);
    if let (Some(peers), Some(peer_routes)) = (&host.peers, &found.peer_routes) {
        pending.correct_peers(status.peers.as_deref_mut().unwrap_or_default(), peers, peer_routes);
    }
    status.firewall = status.firewall.filter(|_| has_subnet);
    status.firewall.iter_mut().for_each(|firewall| pending.correct_firewall(firewall));
    (status, found.lines)
}

fn last_policies(host: &Host) -> Option<View> {
    let last = policies::last(&host.settings, host.subnets.iter().copied(), &host.kernel.nft);
    last.unwrap_or_default()
}

fn store_status(host: &Host) -> StoreStatus {
    let stale = host.cluster.as_ref().and_then(|cluster| cluster.stale.as_ref());
    let why = stale.map(|stale| &stale.why).or(host.peers_unknown.as_ref());
    let down = why.map(|why| why.as_str().into());
    let endpoint = match &host.settings.source {
        Source::Etcd { server, .. } => server.endpoints.first().cloned(),
        Source::Kubernetes(_) => Some("the API server".to_owned()),
        Source::Static(_) => None,
    };
    let endpoint = endpoint.filter(|_| down.is_none());
    StoreStatus { endpoint, down, ..StoreStatus::default() }
}
