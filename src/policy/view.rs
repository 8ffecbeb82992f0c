//! Pure. Everything that a host knows of policies: as its agent publishes it, or its disk has it.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::net::node_name::NodeName;
use crate::net::{Object, Problem, ProblemKind};
use crate::policy::endpoint::Endpoint;
use crate::policy::local::Pods;
use crate::policy::snapshot::PolicySnapshot;
use crate::policy::sources::SourceState;

/// Everything that a host knows of policies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct View {
    pub host: NodeName,
    /// Where this host's pods have their addresses.
    pub subnets: Vec<IpNetwork>,
    pub sources: Vec<SourceState>,
    /// What all sources say; `None` before the first one has said anything.
    #[serde(serialize_with = "write_known", deserialize_with = "read_known")]
    pub known: Option<Arc<PolicySnapshot>>,
    /// This host's pods, as its store of addresses has them.
    pub pods: Pods,
}

/// A pod that only its own node reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined {
    /// `namespace/name`, or the container's ID.
    pub pod: String,
    pub addresses: Vec<IpAddr>,
    pub reason: QuarantineReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuarantineReason {
    /// No source has said anything yet.
    NoPolicies,
    /// No source knows the pod.
    NotKnown,
}

impl View {
    /// The pods of this host that policies know, with their addresses.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        let known = self.known.as_deref();
        known.map(|known| self.pods.endpoints(known, &self.host)).unwrap_or_default()
    }

    pub fn quarantined(&self) -> Vec<Quarantined> {
        let known: BTreeSet<IpAddr> =
            self.endpoints().into_iter().flat_map(|pod| pod.addresses).collect();
        let reason = match self.known {
            Some(_) => QuarantineReason::NotKnown,
            None => QuarantineReason::NoPolicies,
        };
        let unknown =
            self.pods.iter().filter(|pod| pod.addresses.iter().any(|it| !known.contains(it)));
        let quarantined = |pod: &crate::policy::ask::LocalPod| Quarantined {
            pod: pod.pod.clone().unwrap_or_else(|| pod.container_id.clone()),
            addresses: pod.addresses.clone(),
            reason,
        };
        unknown.map(quarantined).collect()
    }
}

impl Quarantined {
    /// What the problem is about.
    pub fn subject(&self) -> Object {
        Object::named(format!("pod {}", self.pod))
    }

    pub fn problem(&self) -> Problem {
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        let what = format!(
            "pod {} ({}) is in quarantine, only its own node reaches it: {}",
            self.pod,
            addresses.join(", "),
            self.reason
        );
        let fix = match self.reason {
            QuarantineReason::NoPolicies => {
                "it ends when policies can be read: see the other problems, POLICY_FILE and the \
                 connection with the source"
            }
            QuarantineReason::NotKnown => {
                "it ends when the source describes the pod: see whether it is followed, and whether \
                 it has the pod (kubectl get pod)"
            }
        };
        Problem::new(ProblemKind::Policy, self.subject(), what).with_fix(fix)
    }
}

impl fmt::Display for QuarantineReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QuarantineReason::NoPolicies => "no policies have been read yet",
            QuarantineReason::NotKnown => "no source of policies knows the pod",
        })
    }
}

fn write_known<S: Serializer>(
    known: &Option<Arc<PolicySnapshot>>,
    to: S,
) -> Result<S::Ok, S::Error> {
    known.as_deref().serialize(to)
}

fn read_known<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Arc<PolicySnapshot>>, D::Error> {
    Ok(Option::<PolicySnapshot>::deserialize(from)?.map(Arc::new))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::policy::ask::LocalPod;
    use crate::policy::read::cluster::Cluster;

    fn view(known: Option<PolicySnapshot>) -> View {
        let pod = |container_id: &str, pod: Option<&str>, address: &str| LocalPod {
            network: "net".to_owned(),
            container_id: container_id.to_owned(),
            ifname: "eth0".to_owned(),
            pod: pod.map(str::to_owned),
            uid: None,
            addresses: vec![address.parse().unwrap()],
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
        };
        View {
            host: "n1".parse().unwrap(),
            subnets: vec!["10.1.2.0/24".parse().unwrap()],
            sources: Vec::new(),
            known: known.map(Arc::new),
            pods: vec![pod("c1", Some("shop/web"), "10.1.2.3"), pod("c2", None, "10.1.2.4")].into(),
        }
    }

    fn quarantined(known: Option<PolicySnapshot>) -> Vec<String> {
        view(known).quarantined().iter().map(|one| one.problem().what).collect()
    }

    #[test]
    fn pods_that_no_source_knows_are_in_quarantine() {
        let both = |why: &str| {
            let text = |pod: &str| {
                format!("pod {pod} is in quarantine, only its own node reaches it: {why}")
            };
            vec![text("shop/web (10.1.2.3)"), text("c2 (10.1.2.4)")]
        };
        assert_eq!(quarantined(None), both("no policies have been read yet"));
        let silent = PolicySnapshot::default();
        assert_eq!(quarantined(Some(silent)), both("no source of policies knows the pod"));
        let standalone = Some(Cluster::new(true));
        let described = PolicySnapshot { standalone, ..PolicySnapshot::default() };
        assert_eq!(quarantined(Some(described)), Vec::<String>::new());
    }

    #[test]
    fn a_view_is_read_back_as_it_was_written() {
        for known in [None, Some(PolicySnapshot::default())] {
            let view = view(known);
            let text = serde_json::to_string(&view).unwrap();
            assert_eq!(serde_json::from_str::<View>(&text).unwrap(), view);
        }
    }
}
