//! This host as an agent would find it: one pass that changes nothing.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value;

use crate::agent::applier::Applier;
use crate::agent::reconcile::Reconcile;
use crate::agent::reconcile::run;
use crate::agent::reconcile_cache::ReconcileCache as Memory;
use crate::agent::shared_state::SharedState;
use crate::agent::snapshot::{AgentSnapshot, StoreStatus, Wrong};
use crate::agent::trigger::Scope;
use crate::api::status;
use crate::command::drift::Waiting;
use crate::inspect::cluster::{self, Cluster};
use crate::inspect::{Kernel, identity};
use crate::lease::{Peers, Resolved};
use crate::net::PerFamily;
use crate::settings::exit::Exit;
use crate::settings::{Settings, Source};

/// What an agent would work from.
pub struct Here {
    /// The settings, with the pools that the network has.
    pub settings: Settings,
    /// The kernel.
    pub kernel: Kernel,
    /// This host's subnets, as far as they are known.
    pub subnets: PerFamily<ipnetwork::IpNetwork>,
    /// The other hosts, if they are known.
    pub peers: Option<Arc<Peers>>,
    /// What names resolve to.
    pub resolved: Resolved,
    /// All hosts, if there are others.
    pub cluster: Option<Cluster>,
    /// Why nothing is known of the others.
    pub unknown: Option<String>,
}

impl Here {
    /// Looks at etcd, or at what was known last.
    ///
    /// # Errors
    /// The kernel cannot be spoken to, or this host has no name.
    pub fn look(settings: &Settings) -> Result<Here, Exit> {
        let kernel = Kernel::open(settings)?;
        let mut here = Here {
            settings: settings.clone(),
            kernel,
            subnets: PerFamily::default(),
            peers: None,
            resolved: Resolved::new(),
            cluster: None,
            unknown: None,
        };
        if let Source::Static(subnets) = &settings.source {
            here.subnets = *subnets;
            return Ok(here);
        }
        match cluster::read(settings) {
            Ok(cluster) => here.join(cluster),
            Err(exit) => here.unknown = Some(exit.why),
        }
        Ok(here)
    }

    fn join(&mut self, cluster: Cluster) {
        let others = cluster.others(&mut self.settings.pools);
        self.subnets = cluster.lease.subnets;
        self.resolved = crate::inspect::names::resolve_all(&others, &self.settings);
        self.peers = Some(Arc::new(others));
        self.cluster = Some(cluster);
    }

    /// What a pass works from.
    pub fn pass(&self) -> Reconcile<'_> {
        Reconcile {
            settings: &self.settings,
            kernel: &self.kernel,
            subnets: &self.subnets,
            peers: self.peers.as_ref(),
            in_sync: self.cluster.as_ref().is_some_and(|cluster| cluster.stale.is_none()),
            resolved: &self.resolved,
            previous: None,
            was_ready: false,
            scope: Scope::ALL,
        }
    }

    /// The state as the agent would tell it, and what it would change.
    pub fn status(&self) -> (Value, Vec<String>) {
        let pass = self.pass();
        let mut applier = Applier::new(true);
        let has_subnet = !self.subnets.is_empty();
        let mut memory = Memory::default();
        let seen = has_subnet.then(|| run::run(&pass, &mut memory, &mut applier));
        let seen = seen.flatten();
        let found = self.cluster.as_ref().map(|cluster| &cluster.snapshot);
        let faults = found.iter().flat_map(|found| found.faults.values().map(ToString::to_string));
        let set = |part: Option<_>| Arc::new(part.unwrap_or_default());
        let (facts, unreachable, obstacles, surroundings) = match seen {
            Some(seen) => (Some(seen.facts), seen.unreachable, seen.obstacles, seen.surroundings),
            None => Default::default(),
        };
        let wrong = Wrong {
            failures: Arc::new(applier.failures().iter().cloned().collect()),
            unreachable: set(unreachable),
            obstacles: set(obstacles),
            surroundings: set(surroundings),
            records: Arc::new(faults.collect()),
            ..Wrong::default()
        };
        let known = AgentSnapshot {
            settings: self.settings.clone(),
            subnets: has_subnet.then_some(self.subnets),
            since: None,
            in_sync: pass.in_sync,
            ready: false,
            revision: found.map(|found| found.revision),
            peers: self.peers.clone(),
            ways: memory.ways.last(),
            facts,
            etcd: self.etcd(),
            contact: None,
            wrong,
        };
        let name = identity::node_name(&self.settings).map(|name| name.to_string());
        let shared = SharedState::new(name.unwrap_or_default(), self.kernel.machine_id.clone());
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
        let waiting = Waiting::among(applier.lines());
        if let (Some(peers), Some(ways)) = (&self.peers, memory.ways.last()) {
            waiting.correct_peers(&mut value, peers, &ways);
        }
        waiting.correct_firewall(&mut value);
        (value, applier.lines().iter().map(ToString::to_string).collect())
    }

    fn etcd(&self) -> StoreStatus {
        let stale = self.cluster.as_ref().and_then(|cluster| cluster.stale.as_ref());
        let down = stale.map(|stale| stale.why.clone()).or_else(|| self.unknown.clone());
        let endpoint = match &self.settings.source {
            Source::Etcd { server, .. } => server.endpoints.first().cloned(),
            Source::Kubernetes(_) => Some("the API server".to_owned()),
            Source::Static(_) => None,
        };
        let endpoint = endpoint.filter(|_| down.is_none());
        StoreStatus { endpoint, down, ..StoreStatus::default() }
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs())
}
