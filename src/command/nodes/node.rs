//! Pure. A host of the network as etcd has it: its state, its subnets, its JSON object.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::inspect::cluster::ClusterView;
use crate::lease::Snapshot;
use crate::lease::records::NodeName;
use crate::net::gather::Gather;
use crate::net::nearest::nearest;
use crate::settings::exit::{self, Exit};

/// What is known of the life of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// Its agent runs.
    Alive,
    /// Its agent does not.
    Silent,
    /// It runs the Python agent, which shows no sign of life.
    Python,
    /// etcd does not answer.
    Unknown,
    /// A subnet is kept for it.
    Reserved,
}

impl NodeState {
    pub fn of(cluster: &ClusterView, host: &NodeName) -> NodeState {
        let found = &cluster.snapshot;
        match (found.hosts.contains_key(host), found.nodes.contains_key(host)) {
            _ if found.alive.contains_key(host) => NodeState::Alive,
            (false, false) => NodeState::Reserved,
            (true, false) => NodeState::Python,
            _ if cluster.stale.is_some() => NodeState::Unknown,
            _ => NodeState::Silent,
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            NodeState::Alive => "alive",
            NodeState::Silent => "silent",
            NodeState::Python => "python",
            NodeState::Unknown => "unknown",
            NodeState::Reserved => "reserved",
        }
    }
}

/// Every name that has a key.
pub fn names(found: &Snapshot) -> BTreeSet<&NodeName> {
    let claims = found.claims.values().map(|claim| &claim.value);
    found.hosts.keys().chain(found.nodes.keys()).chain(found.alive.keys()).chain(claims).gather()
}

/// The subnets that etcd has for a host, IPv4 first: those of its keys, else those it claims.
pub fn subnets(found: &Snapshot, host: &NodeName) -> Vec<String> {
    let key = found.hosts.get(host).map(|stored| stored.value);
    let published = found.nodes.get(host).map(|node| node.value.subnets).unwrap_or_default();
    let mut subnets: Vec<_> = key.into_iter().chain(published.iter().copied()).collect();
    if subnets.is_empty() {
        let claims = found.claims.iter().filter(|(_, claim)| claim.value == *host);
        subnets.extend(claims.map(|(subnet, _)| *subnet));
    }
    subnets.sort_unstable();
    subnets.dedup();
    subnets.iter().map(ToString::to_string).collect()
}

/// A host for `--json`.
pub fn object(cluster: &ClusterView, host: &NodeName) -> Value {
    let found = &cluster.snapshot;
    let node = found.nodes.get(host).map(|node| &node.value);
    let addresses = node.map(|node| node.addresses).unwrap_or_default();
    json!({
        "name": host.as_str(),
        "this_host": *host == cluster.own,
        "state": NodeState::of(cluster, host).word(),
        "since": found.alive.get(host).map(|alive| &*alive.value.since),
        "subnets": subnets(found, host),
        "addresses": addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "backend": node.map(|node| node.backend.to_string()),
        "tunnel": node.and_then(|node| node.tunnel).map(|it| json!({ "vni": it.vni, "port": it.port })),
        "encrypts": node.map(|node| node.wireguard.is_some()),
        "mtu": node.and_then(|node| node.known_mtu()),
        "version": node.map(|node| &*node.version),
        "machine_id": node.map(|node| &*node.machine_id),
    })
}

/// A host's name as somebody typed it.
pub fn name(text: &str) -> Result<NodeName, Exit> {
    text.parse().map_err(|error| Exit::new(exit::SETTINGS, format!("{text:?}: {error}")))
}

/// There is no such host.
pub fn unknown(found: &Snapshot, host: &NodeName) -> Exit {
    let known: Vec<String> = names(found).into_iter().map(ToString::to_string).collect();
    let near = nearest(host.as_str(), &known);
    let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
    let why = format!("no host {host} is known{near} (humanz-agent nodes ls lists all)");
    Exit::new(exit::FAILURE, why)
}
