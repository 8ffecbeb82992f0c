//! Pure. What the loop knew after its last look: whole, so that reading it disturbs nobody.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use ipnetwork::IpNetwork;

use crate::etcd::Contact;
use crate::inspect::host_state::HostState;
use crate::lease::Peers;
use crate::net::PerFamily;
use crate::plan::peer_routes::PeerRoutes;
use crate::settings::Settings;

/// What the loop knew.
#[derive(Clone, Debug)]
pub struct AgentSnapshot {
    /// What the operator wants.
    pub settings: Settings,
    /// This host's pod subnets.
    pub subnets: Option<PerFamily<IpNetwork>>,
    /// Since when it has them, in this life of the agent.
    pub since: Option<SystemTime>,
    /// All hosts are known from etcd; else from what was saved, if at all.
    pub in_sync: bool,
    /// A whole reconcile was made without a failure.
    pub ready: bool,
    /// Revision of etcd that the other hosts are known from.
    pub revision: Option<i64>,
    /// The other hosts.
    pub peers: Option<Arc<Peers>>,
    /// How their pods are reached, as the loop found it for its routes.
    pub ways: Option<Arc<PeerRoutes>>,
    /// What this host is.
    pub facts: Option<HostState>,
    /// What was said about the connection with etcd.
    pub etcd: StoreStatus,
    /// How it goes; `None` on a host without etcd.
    pub contact: Option<Arc<Contact>>,
    /// What is wrong, by kind.
    pub wrong: Wrong,
}

/// What was said about the connection with etcd.
#[derive(Clone, Debug, Default)]
pub struct StoreStatus {
    /// The member that answers.
    pub endpoint: Option<String>,
    /// Why none does.
    pub down: Option<String>,
    /// What etcd and this host do not agree on.
    pub trouble: Option<String>,
    /// When the first certificate in use ends.
    pub certificate_until: Option<SystemTime>,
}

/// What is wrong, as it stands in the log.
#[derive(Clone, Debug, Default)]
pub struct Wrong {
    /// What could not be done.
    pub failures: Arc<BTreeSet<String>>,
    /// Hosts without a way to them.
    pub unreachable: Arc<BTreeSet<String>>,
    /// Other people's firewall.
    pub obstacles: Arc<BTreeSet<String>>,
    /// Everything else on the host.
    pub surroundings: Arc<BTreeSet<String>>,
    /// Keys in etcd that hold no valid record.
    pub records: Arc<BTreeSet<String>>,
    /// Pools that differ from the network's.
    pub pools: Arc<BTreeSet<String>>,
    /// Certificates, key and password.
    pub files: Arc<BTreeSet<String>>,
}
