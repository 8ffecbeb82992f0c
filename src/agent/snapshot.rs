//! Pure. What the loop knew after its last look: whole, so that a reader blocks no other thread.

use std::sync::Arc;
use std::time::SystemTime;

use ipnetwork::IpNetwork;

use crate::etcd::Contact;
use crate::inspect::host_state::HostState;
use crate::lease::{LeaseError, Peers};
use crate::net::{FailureReason, Object, PerFamily, Problem, ProblemKind};
use crate::plan::encryption::KeyState;
use crate::plan::peer_routes::PeerRoutes;
use crate::policy::Scoped;
use crate::policy::view::View;
use crate::settings::{Settings, Source};

/// What the loop knew.
#[derive(Clone, Debug)]
pub struct AgentSnapshot {
    /// What the operator wants.
    pub settings: Settings,
    /// This host's pod subnets.
    pub subnets: Option<PerFamily<IpNetwork>>,
    /// This host's blocks of tenants' networks.
    pub blocks: Vec<(IpNetwork, Scoped)>,
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
    pub peer_routes: Option<Arc<PeerRoutes>>,
    pub host_state: Option<HostState>,
    /// How far the change of its WireGuard key is; `None`: it encrypts nothing.
    pub rotation: Option<KeyState>,
    /// What was said about the connection with etcd.
    pub etcd: StoreStatus,
    /// How it goes; `None` on a host without etcd.
    pub contact: Option<Arc<Contact>>,
    /// What is known of policies; `None` if they are off.
    pub policies: Option<Arc<View>>,
}

/// What was said about the connection with etcd.
#[derive(Clone, Debug, Default)]
pub struct StoreStatus {
    /// The member that answers.
    pub endpoint: Option<String>,
    /// Why none does.
    pub down: Option<FailureReason>,
    /// Why it takes no sign of life of this host: the others see no agent here.
    pub refused: Option<FailureReason>,
    /// What etcd and this host do not agree on.
    pub trouble: Option<LeaseError>,
    /// When the first certificate in use ends.
    pub certificate_until: Option<SystemTime>,
}

impl StoreStatus {
    /// What is wrong with it, or with this host's part in it.
    pub fn problems(&self, source: &Source) -> Vec<Problem> {
        let (kind, store, ask) = match source {
            Source::Kubernetes(_) => {
                (ProblemKind::KubernetesApi, "the Kubernetes API", "the API server is up")
            }
            _ => (ProblemKind::Etcd, "etcd", "a member is up"),
        };
        let subject = || Object::named(store);
        let down = self.down.as_ref().map(|why| (why, "does not answer"));
        let refused = self.refused.as_ref().map(|why| (why, "takes no sign of life of this host"));
        let failed = down.into_iter().chain(refused).map(|(why, what)| {
            let why = why.clone().at(format_args!("{store} {what}"));
            let fix = why.fix.unwrap_or_else(|| {
                format!("humanz-agent config # shows where it is asked: check that {ask}, its port is open, user and certificates are right")
            });
            Problem::new(kind, subject(), why.what).with_fix(format!(
                "{fix}; until then pods keep their network, and no new host is reached"
            ))
        });
        let trouble = self.trouble.as_ref().map(|error| error.problem(store));
        failed.chain(trouble).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_with_a_fix_of_its_own_has_that_one_and_no_other() {
        let source = Source::Kubernetes(Default::default());
        let check = |down: FailureReason, wanted: &str, other: &str| {
            let status = StoreStatus { down: Some(down), ..StoreStatus::default() };
            let [problem] = status.problems(&source).try_into().unwrap();
            let fix = problem.fix.unwrap();
            assert_eq!(problem.kind, ProblemKind::KubernetesApi);
            assert!(fix.starts_with(wanted) && !fix.contains(other), "{fix}");
            assert!(!problem.what.contains(wanted), "{}", problem.what);
        };
        check(FailureReason::new("expired", "renew it"), "renew it; until then", "port is open");
        check(
            "no answer".into(),
            "humanz-agent config # shows where it is asked: check that the API server is up",
            "renew it",
        );
    }
}
