//! Networks of tenants: what hosts have of them, what plugins go by, and blocks that come and go.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::agent::active_problems::ProblemSource;
use crate::agent::networks::{ClosedFrom, HostNetworks, PlansFrom};
use crate::agent::serve::agent::Agent;
use crate::agent::serve::state::AgentState;
use crate::agent::trigger::{Scope, TriggerReason};
use crate::checks::network_addresses;
use crate::inspect::last_policies;
use crate::inspect::networks::kept_blocks;
use crate::inspect::pods;
use crate::inspect::pool_use::full_network;
use crate::lease::blocks::BlockNetwork;
use crate::lease::blocks::known_store::KnownStore;
use crate::lease::blocks::session::BlockInputs;
use crate::lease::{LeaseError, Peers, TenantPools};
use crate::net::gather::Gather;
use crate::net::node_name::NodeName;
use crate::net::{Object, Problem, ProblemKind};
use crate::os::files::{self, FileError};
use crate::policy::network_plan::{self, NetworkPlans};
use crate::policy::served::ServedNetworks;
use crate::policy::sources::Policies;
use crate::policy::{Provider, Scoped};
use crate::settings::Settings;
use crate::sources::BlocksUpdate;

/// What this host knew of blocks when its agent stopped.
pub fn kept_networks(settings: &Settings, host: &NodeName, policies: &Policies) -> HostNetworks {
    let kept = kept_blocks(settings, host);
    // What is older than the table judges no pod, and its networks stay: their pods run.
    let older = || last_policies::of_networks(settings, host);
    let known = policies.snapshot().cloned().or_else(older);
    let networks = known.map(|known| known.networks.clone()).unwrap_or_default();
    let served = ServedNetworks::of(&networks, &kept.own, false);
    let mut others = kept.found.owned(&served.pools).by_host;
    others.remove(host);
    let (own, others) = (kept.own, Arc::new(others));
    let received = BlocksUpdate { own, others, ..BlocksUpdate::default() };
    HostNetworks::kept(received, served)
}

/// What `host` says of blocks and wants of them; `None` while no network is known.
pub(super) fn block_inputs(state: &AgentState, host: &NodeName) -> Option<BlockInputs> {
    let known = state.policies.snapshot()?;
    // Two machines with one name would take each other's keys away.
    let is_copied = state.etcd.trouble.as_ref().is_some_and(LeaseError::is_of_copy);
    let found = state.snapshot.as_ref().filter(|_| state.in_sync && !is_copied);
    // What was kept on disk may have no revision, and is older than what etcd has.
    let are_read = state.policies.was_read(Provider::Etcd);
    let is_current = |network: &BlockNetwork| network.revision.is_some() || are_read;
    let mut wanted = state.networks.wanted(&known.networks);
    wanted.retain(|it| is_current(&it.network));
    let mut pins = state.networks.pins(&known.networks);
    pins.retain(|_, network| is_current(network));
    Some(BlockInputs {
        store: found.and_then(|found| KnownStore::of(found, host)),
        pools: state.networks.served.pools.clone(),
        are_read,
        names: known.networks.named_pools(),
        wanted,
        // Of the same moment as the revisions.
        pin_ranges: known.networks.pin_ranges().map(|(_, range)| range).collect(),
        pins,
        released: state.networks.empty.released.clone(),
    })
}

impl Agent {
    /// Where to look because of what hosts have.
    pub(super) fn take_blocks(&mut self, update: BlocksUpdate) -> Scope {
        if !self.policies.exchanges() {
            return Scope::default();
        }
        self.shared.problems.set(ProblemSource::Blocks, update.problems.iter().cloned());
        let networks = &mut self.state.networks;
        let is_new = networks.received.others != update.others;
        networks.receive(update);
        self.note_full_networks();
        let changed = self.state.policies.hold(self.state.networks.held());
        let scope = if changed { self.note_policies(true) } else { Scope::default() };
        if is_new && let Some(peers) = &self.state.peers {
            let mut peers = Peers::clone(peers);
            peers.set_blocks(&self.state.networks.received.others);
            self.state.peers = Some(Arc::new(peers));
            return scope.and(Scope::ROUTES).and(Scope::FIREWALL);
        }
        scope
    }

    /// Reports the networks whose next pod does not start on this host.
    pub(super) fn note_full_networks(&self) {
        let networks = &self.state.networks;
        let problems = &self.shared.problems;
        let known = self.state.policies.snapshot().filter(|_| self.policies.exchanges());
        let Some(known) = known.filter(|_| networks.lacks_blocks()) else {
            return problems.set(ProblemSource::FullNetworks, None);
        };
        let Ok(store) = pods::store(&self.settings, &self.settings.cni.name) else { return };
        let Ok(taken) = store.taken() else { return };
        let full = |pool: IpNetwork| Some(full_network(&known.networks.of(pool.ip())?, pool));
        problems.set(ProblemSource::FullNetworks, networks.full_pools(&taken).filter_map(full));
    }

    /// Compares what this host serves with the networks that there are and its blocks of them.
    pub(super) fn follow_networks(&mut self) {
        self.close_networks();
        let follows = self.policies.exchanges();
        let networks = &mut self.state.networks;
        let Some(known) = self.state.policies.snapshot() else {
            // Nothing is known yet, or policies are off: gateways and routes stay.
            networks.served.in_sync = self.settings.policy.is_none();
            return;
        };
        let mut served = ServedNetworks::of(&known.networks, &networks.received.own, !follows);
        // What was received before a network was known says nothing of its blocks.
        let mut pools = served.pools.iter();
        served.in_sync |=
            networks.received.is_read && pools.all(|pool| networks.received.pools.contains(pool));
        if networks.served != served {
            networks.served = served;
            self.state.policy_view = None;
            let scope = Scope::LINKS.and(Scope::FIREWALL).and(Scope::POLICY);
            self.state.scope = self.state.scope.and(scope);
            self.state.reasons.and(TriggerReason::POLICIES);
        }
        self.state.networks.unconfirmed &= !self.has_confirmed_networks();
        self.send_block_inputs();
    }

    /// Closes networks with addresses of hosts to new pods.
    fn close_networks(&mut self) {
        let state = &mut self.state;
        let Some(known) = state.policies.snapshot() else {
            if state.networks.closed_from.take().is_some() {
                state.networks.closed = Arc::default();
                self.shared.problems.set(ProblemSource::NetworkAddresses, None);
            }
            return;
        };
        let segments = state.host_state.iter().flat_map(|found| &found.connected);
        let segments = segments.map(|connected| connected.prefix).collect();
        let from = ClosedFrom { known: Arc::clone(known), hosts: state.snapshot.clone(), segments };
        if let Some(before) = state.networks.closed_from.as_mut().filter(|it| it.is_same(&from)) {
            *before = from;
            return;
        }
        let nodes = from.hosts.iter().flat_map(|found| found.nodes.iter());
        let addresses = nodes.flat_map(|(host, node)| {
            node.value.addresses.iter().map(move |address| (host, *address)).collect::<Vec<_>>()
        });
        let addresses: Vec<_> = addresses.collect();
        let closed = network_addresses::conflicts(&known.networks, &from.segments, &addresses);
        let problems = closed.iter().map(|(name, why)| network_addresses::problem(name, why));
        self.shared.problems.set(ProblemSource::NetworkAddresses, problems);
        state.networks.closed = Arc::new(closed);
        state.networks.closed_from = Some(from);
    }

    fn send_block_inputs(&self) {
        if let Some(inputs) = block_inputs(&self.state, &self.name) {
            self.policies.set_blocks(inputs);
        }
    }

    /// The networks of tenants that this host knows.
    pub(super) fn tenant_pools(&self) -> TenantPools {
        let known = self.state.policies.of_sources();
        let pools = known.map(|known| known.networks.named_pools()).unwrap_or_default();
        TenantPools { pools, ..TenantPools::default() }
    }

    /// Where pods of this host may have their addresses.
    pub(super) fn pod_subnets(&self) -> Vec<IpNetwork> {
        let own = self.state.subnets.iter().flat_map(|all| all.iter().copied());
        own.chain(self.state.networks.served.blocks.iter().copied()).collect()
    }

    /// This host's blocks, each with its network.
    pub(super) fn named_blocks(&self) -> Vec<(IpNetwork, Scoped)> {
        let known = self.state.policies.snapshot();
        known
            .map_or_else(Vec::new, |known| self.state.networks.served.named_blocks(&known.networks))
    }

    /// Answers plugins that wait for a block, and looks for blocks to give back.
    pub(super) fn serve_networks(&mut self) {
        if self.state.once || !self.state.ready {
            return;
        }
        // The first look at the host has its addresses.
        self.close_networks();
        self.release_blocks();
        self.keep_plans();
        self.state.networks.answer();
        self.send_block_inputs();
    }

    /// Writes what plugins go by: also before there is a bridge, without which no pod starts.
    pub(super) fn keep_plans(&mut self) {
        if self.state.once {
            return;
        }
        let failed = self.write_plans().err();
        let folder = &self.settings.cni.ipam_dir;
        let problem = failed.filter(|_| pods::is_usable(folder)).map(|error| {
            let file = Object::File("plan of networks", network_plan::file(folder));
            let usual = || format!("ls -la {} # let the agent write there", folder.display());
            let fix = error.fix().map_or_else(usual, str::to_owned);
            Problem::new(ProblemKind::ChangeFailed, file, error.to_string()).with_fix(fix)
        });
        self.shared.problems.set(ProblemSource::NetworkPlans, problem);
    }

    fn write_plans(&mut self) -> Result<(), FileError> {
        let from = self.plans_from();
        let HostNetworks { written, written_from, written_as, .. } = &self.state.networks;
        let file = network_plan::file(&self.settings.cni.ipam_dir);
        let version = || {
            let found = file.symlink_metadata().ok()?;
            Some((found.ino(), found.ctime(), found.ctime_nsec()))
        };
        // Without the file a pod of a tenant would start in the network of the settings, by another one nowhere, or
        // with addresses that are not its host's.
        let is_whole = version() == *written_as;
        if is_whole && written_from.as_ref().is_some_and(|before| before.is_same(&from)) {
            return Ok(());
        }
        let plans = self.plans(&from);
        match &plans {
            Some(plans) if !is_whole || written.as_ref() != Some(plans) => {
                let text = serde_json::to_vec(plans).unwrap_or_default();
                files::replace(&file, &text, 0o600)?;
            }
            None => files::remove(&file).map(drop)?,
            Some(_) => {}
        }
        let networks = &mut self.state.networks;
        (networks.written, networks.written_from) = (plans, Some(from));
        networks.written_as = version();
        Ok(())
    }

    fn plans_from(&self) -> PlansFrom {
        // A pod starts where the newest rules of namespaces place it, also while members are missing that another rule
        // denies.
        let policies = &self.state.policies;
        let known = policies.of_sources().or(policies.snapshot());
        let families = self.state.subnets.unwrap_or_default();
        PlansFrom {
            exchanges: self.policies.exchanges(),
            known: known.cloned(),
            open: self.state.networks.open(),
            families: families.entries().map(|(family, _)| family).collect(),
            closed: Arc::clone(&self.state.networks.closed),
        }
    }

    fn plans(&self, from: &PlansFrom) -> Option<NetworkPlans> {
        let cni = &self.settings.cni.name;
        match &from.known {
            _ if !from.exchanges => None,
            None => Some(NetworkPlans::not_read(cni)),
            Some(known) => {
                let cluster = known.standalone.as_ref();
                let PlansFrom { open, families, closed, .. } = from;
                NetworkPlans::of(cni, &known.networks, cluster, open, families, closed)
            }
        }
    }

    /// Takes blocks without pods out of what plugins go by, and gives back those that no pod has started in
    /// before that: a plugin looks at the file again once it has an address.
    fn release_blocks(&mut self) {
        let idle = self.settings.block_release_after;
        if !self.state.networks.is_due(idle) {
            return;
        }
        let Ok(store) = pods::store(&self.settings, &self.settings.cni.name) else { return };
        let Ok(taken) = store.taken() else { return };
        let idle = self.state.networks.idle(&taken, idle);
        if idle.is_empty() {
            return;
        }
        self.state.networks.empty.released.extend(idle.iter().copied());
        let is_used = |taken: &[std::net::IpAddr]| -> BTreeSet<IpNetwork> {
            let has_pod = |block: &&IpNetwork| taken.iter().any(|it| block.contains(*it));
            idle.iter().filter(has_pod).copied().gather()
        };
        let used = match (self.write_plans(), store.taken()) {
            (Ok(()), Ok(taken)) => is_used(&taken),
            _ => idle.iter().copied().gather(),
        };
        self.state.networks.empty.keep(used.iter().copied());
        let given_back = idle.iter().filter(|block| !used.contains(*block));
        store.forget_swept();
        given_back.for_each(|block| log::info!("block {block} is given back: no pod is in it"));
    }
}
