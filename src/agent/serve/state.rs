//! What the agent knows and has to do.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ipnetwork::IpNetwork;

use crate::agent::networks::HostNetworks;
use crate::agent::new_pods::{NewPods, PodRequest};
use crate::agent::reconcile_cache::ReconcileCache;
use crate::agent::snapshot::StoreStatus;
use crate::agent::trigger::{Scope, TriggerReason};
use crate::flows::FlowRecorder;
use crate::inspect::host_state::HostState;
use crate::lease::snapshot::Snapshot;
use crate::lease::{Peers, Resolved};
use crate::net::PerFamily;
use crate::os::threads::Worker;
use crate::policy::held::Published;
use crate::policy::keeping::Keeping;
use crate::policy::sources::Policies;
use crate::policy::view::{Held, View};
use crate::settings::{Settings, Texts};

use crate::agent::serve::announcement::Announcement;
use crate::agent::serve::closed_subnets::ClosedSubnets;
use crate::agent::serve::rate_limit::RepairRateLimit;
use crate::agent::serve::refused_settings::RefusedSettings;
use crate::agent::serve::sampling::Sampling;

/// First wait before a failed reconcile is tried again; doubled up to the resync interval.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// What the agent knows and what it has to do.
pub struct AgentState {
    /// This host's pod subnets, once it has them …
    pub(super) subnets: Option<PerFamily<IpNetwork>>,
    /// … and since when.
    pub(super) since: Option<SystemTime>,
    pub(super) etcd: StoreStatus,
    /// What is closed for new pods because another host has it, too.
    pub(super) closed: ClosedSubnets,
    /// When the first change was received that the kernel does not agree with yet.
    pub(super) change_received_at: Option<Instant>,
    /// All hosts; from the last known good state until etcd has answered.
    pub(super) snapshot: Option<Arc<Snapshot>>,
    /// The others among them.
    pub(super) peers: Option<Arc<Peers>>,
    /// A complete snapshot came from etcd in this life: what is not in it may be removed.
    pub(super) in_sync: bool,
    pub(super) resolved: Resolved,
    pub(super) cache: ReconcileCache,
    /// What this host was when it was looked at last.
    pub(super) host_state: Option<HostState>,
    pub(super) scope: Scope,
    pub(super) reasons: TriggerReason,
    /// When to look, if there is something to look at.
    pub(super) reconcile_at: Instant,
    /// When news of policies did not wait for that.
    pub(super) hurried_at: Instant,
    pub(super) rate_limit: RepairRateLimit,
    /// When to look at everything.
    pub(super) resync_at: Instant,
    pub(super) retry: Duration,
    /// When to look how far changes of WireGuard keys are.
    pub(super) rotation_due: Option<Instant>,
    pub(super) ready: bool,
    /// Nothing else keeps this host from being ready.
    pub(super) waits_for_networks: bool,
    pub(super) announcement: Announcement,
    /// The operator wants the settings to be read again.
    pub(super) reload_requested: bool,
    /// The service manager knows that a reload is under way.
    pub(super) reloading: bool,
    /// Settings that should hold, but are invalid.
    pub refused: Option<RefusedSettings>,
    /// The settings that are kept for a start with invalid ones.
    pub(super) kept: Option<Texts>,
    /// The settings before the reload, until a reconcile has replaced what they had made.
    pub(super) superseded: Option<Settings>,
    /// Folders that could be written to in this life.
    pub(super) writable: BTreeSet<PathBuf>,
    pub(super) stop: bool,
    /// What each source of policies said last.
    pub policies: Policies,
    /// What other hosts know of this one's pods.
    pub published: Arc<Published>,
    /// Pods that wait for that, by container.
    pub(super) held: BTreeMap<String, Held>,
    /// What of it is kept for the next start.
    pub(super) kept_policies: Keeping,
    /// The thread that writes it, once there is something to write.
    pub(super) disk: Option<Worker>,
    /// All that is known of them, as it was published last; `None`: something has changed.
    pub(super) policy_view: Option<Arc<View>>,
    /// When to look whether pods in quarantine are still there.
    pub(super) quarantine_due: Option<Instant>,
    /// Networks of tenants.
    pub networks: HostNetworks,
    pub(super) policy_file_due: Option<Instant>,
    /// When to read the store again for a pod that went, and the wait until then.
    pub(super) pods_due: Option<(Instant, Duration)>,
    /// The socket for questions of plugins.
    pub(super) new_pods: Option<NewPods>,
    /// What counts flows.
    pub(super) flows: Option<FlowRecorder>,
    /// What the next sample of the history is made of.
    pub(super) sampling: Sampling,
    /// New pods, whose plugins wait.
    pub(super) asked: Vec<PodRequest>,
    /// When to do what the answers about new pods, and changes of policies, did not wait for.
    pub(super) finish_policies_at: Option<Instant>,
    /// Why there is something to do then.
    pub(super) unfinished: TriggerReason,
    /// When others learn of new pods.
    pub(super) publish_pods_at: Option<Instant>,
    /// The agent leaves once the host is as it should be, or with the first failure.
    pub(super) once: bool,
}

impl AgentState {
    /// Nothing is known yet but what names resolved to and, on a host without etcd, its subnets and
    /// that there are no others.
    pub fn new(fixed: Option<PerFamily<IpNetwork>>, resolved: Resolved) -> AgentState {
        let now = Instant::now();
        AgentState {
            subnets: fixed,
            since: fixed.map(|_| SystemTime::now()),
            etcd: StoreStatus::default(),
            closed: ClosedSubnets::new(fixed.is_some()),
            change_received_at: None,
            snapshot: None,
            peers: fixed.map(|_| Arc::default()),
            in_sync: fixed.is_some(),
            resolved,
            cache: ReconcileCache::default(),
            host_state: None,
            scope: Scope::ALL,
            reasons: TriggerReason::default(),
            reconcile_at: now,
            hurried_at: now,
            rate_limit: RepairRateLimit::default(),
            resync_at: now,
            retry: RETRY,
            rotation_due: None,
            ready: false,
            waits_for_networks: false,
            announcement: Announcement::new(now),
            reload_requested: false,
            reloading: false,
            refused: None,
            kept: None,
            superseded: None,
            writable: BTreeSet::new(),
            stop: false,
            policies: Policies::default(),
            published: Arc::default(),
            held: BTreeMap::new(),
            kept_policies: Keeping::new(now),
            disk: None,
            policy_view: None,
            quarantine_due: None,
            networks: HostNetworks::default(),
            new_pods: None,
            flows: None,
            sampling: Sampling::new(now),
            policy_file_due: Some(now),
            pods_due: None,
            asked: Vec::new(),
            finish_policies_at: None,
            unfinished: TriggerReason::default(),
            publish_pods_at: None,
            once: false,
        }
    }

    /// For the service manager.
    pub(super) fn status(&self) -> String {
        let subnets: Vec<String> =
            self.subnets.iter().flat_map(PerFamily::iter).map(ToString::to_string).collect();
        let others = self.peers.as_ref().map_or(0, |peers| peers.by_name.len());
        let refused = match &self.refused {
            Some(refused) if refused.since_start => {
                "; the settings are invalid, the last valid ones hold"
            }
            Some(_) => "; the last reload was refused, see the log",
            None => "",
        };
        format!("serving {}; {others} other hosts{refused}", subnets.join(", "))
    }
}
