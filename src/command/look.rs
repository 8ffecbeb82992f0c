//! This host as an agent would find it: one pass that changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use crate::agent::active_problems::sort;
use crate::agent::applier::Applier;
use crate::agent::pool_use::{addresses, scarce};
use crate::agent::reconcile::Reconcile;
use crate::agent::reconcile::run;
use crate::agent::reconcile_cache::ReconcileCache as Memory;
use crate::agent::snapshot::{AgentSnapshot, StoreStatus};
use crate::agent::trigger::Scope;
use crate::api::status::{self, Status};
use crate::command::drift::PendingChanges;
use crate::inspect::cluster::{self, Cluster};
use crate::inspect::{Kernel, identity};
use crate::lease::snapshot::Fault;
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

    /// The status as an agent would fill it, and the changes that it would make.
    pub fn status(&self) -> (Status, Vec<String>) {
        let run = self.pass();
        let mut applier = Applier::new(true);
        let has_subnet = !self.subnets.is_empty();
        let mut memory = Memory::default();
        let seen = has_subnet.then(|| run::run(&run, &mut memory, &mut applier)).flatten();
        let cluster = self.cluster.as_ref().map(|cluster| &cluster.snapshot);
        let (facts, found) = seen.map(|seen| (seen.facts, seen.problems)).unzip();
        let snapshot = AgentSnapshot {
            settings: self.settings.clone(),
            subnets: has_subnet.then_some(self.subnets),
            since: None,
            in_sync: run.in_sync,
            ready: false,
            revision: cluster.map(|cluster| cluster.revision),
            peers: self.peers.clone(),
            ways: memory.ways.last(),
            facts,
            etcd: self.etcd(),
            contact: None,
        };
        let uses = addresses(&snapshot.settings, snapshot.subnets);
        let mut problems = snapshot.etcd.problems(&self.settings.source);
        problems.extend(applier.failures().iter().cloned());
        problems.extend(found.into_iter().flatten().flat_map(|(_, found)| found));
        problems.extend(cluster.iter().flat_map(|found| found.faults.values().map(Fault::problem)));
        problems.extend(scarce(&uses));
        sort(&mut problems);
        let name = identity::node_name(&self.settings).map(|name| name.to_string());
        let name = (name.unwrap_or_default(), &self.kernel.machine_id);
        let name = (name.0.as_str(), name.1.as_str());
        let mut status = status::host(name, &snapshot, &uses, &BTreeMap::new(), problems);
        let pending = PendingChanges::among(applier.lines());
        if let (Some(peers), Some(ways)) = (&self.peers, &snapshot.ways) {
            pending.correct_peers(status.peers.as_deref_mut().unwrap_or_default(), peers, ways);
        }
        status.firewall = status.firewall.filter(|_| has_subnet);
        status.firewall.iter_mut().for_each(|firewall| pending.correct_firewall(firewall));
        (status, applier.lines().iter().map(ToString::to_string).collect())
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
