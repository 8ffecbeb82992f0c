//! Keeps one kind of thing true, each in its file: observe, plan, apply.

pub mod run;

pub mod bridge;
pub mod bridge_ports;
pub mod conf;
pub mod encryption;
pub mod encryption_device;
pub mod encryption_guard;
pub mod encryption_rotation;
pub mod firewall;
pub mod flowtable;
pub mod guard;
pub mod host_checks;
pub mod host_ports;
pub mod input;
pub mod own_table;
pub mod plugin;
pub mod policy;
mod port_queues;
pub mod profiles;
pub mod routes;
pub mod shaper;
pub mod store;
pub mod sysctls;
pub mod tunnel;
pub mod tunnel_filter;

use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::agent::applier::StoreUnusable;
use crate::agent::own_writes::OwnWrites;
use crate::agent::trigger::Scope;
use crate::inspect::Kernel;
use crate::inspect::host_state::HostState;
use crate::lease::Resolved;
use crate::lease::peers::Peers;
use crate::net::PerFamily;
use crate::policy::knowledge::HostKnowledge;
use crate::policy::served::ServedNetworks;
use crate::settings::Settings;

/// What a reconcile works from.
pub struct Reconcile<'a> {
    /// What the operator wants.
    pub settings: &'a Settings,
    pub kernel: &'a Kernel,
    /// This host's pod subnets.
    pub subnets: &'a PerFamily<IpNetwork>,
    /// The other hosts, once they are known.
    pub peers: Option<&'a Arc<Peers>>,
    /// The peers are complete: a route of ours to no peer may go.
    pub in_sync: bool,
    /// Addresses of hosts that publish none.
    pub resolved: &'a Resolved,
    /// Networks of tenants, and this host's blocks of them.
    pub networks: &'a ServedNetworks,
    /// What is known of policies; `None`: nothing is.
    pub policies: Option<&'a HostKnowledge>,
    /// What this host was when it was looked at last.
    pub previous: Option<&'a HostState>,
    /// All was as it should be once: runtimes were given the CNI configuration.
    pub was_ready: bool,
    /// What to look at.
    pub scope: Scope,
    /// Where what is written is noted; `None`: no thread waits for events.
    pub own_writes: Option<&'a OwnWrites>,
}

impl Reconcile<'_> {
    /// Where this host's pods have their addresses.
    pub fn pod_subnets(&self) -> impl Iterator<Item = IpNetwork> {
        self.subnets.iter().chain(&self.networks.blocks).copied()
    }

    /// Where the pods of all hosts have theirs.
    pub fn pools(&self) -> impl Iterator<Item = IpNetwork> {
        let own = self.settings.pools.iter().map(|pool| pool.network());
        own.chain(self.networks.pools.iter().copied())
    }
}

/// Context of an error of the IPAM store.
pub fn store_unusable(settings: &Settings) -> StoreUnusable {
    StoreUnusable { ipam_dir: settings.cni.ipam_dir.clone() }
}
