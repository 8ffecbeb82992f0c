//! Pure. Everything that a host knows of policies: as its agent publishes it, or its disk has it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ipnetwork::IpNetwork;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::net::gather::Gather;
use crate::net::node_name::NodeName;
use crate::net::{Object, Problem, ProblemKind};
use crate::policy::ask::LocalPod;
use crate::policy::compile::POLICY_TABLE;
use crate::policy::endpoint::Endpoint;
use crate::policy::held::HeldReason;
use crate::policy::local::Pods;
use crate::policy::snapshot::PolicySnapshot;
use crate::policy::sources::{REFUSED_LIMIT, SourceState};

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
    /// By container: pods that other hosts must know first.
    #[serde(default)]
    pub held: BTreeMap<String, Held>,
    /// Containers that the kernel's table lets nothing reach, as found where no agent answers, or no source has
    /// said anything.
    #[serde(default)]
    pub not_in_force: BTreeSet<String>,
    /// No source has said anything, and the kernel has no table.
    #[serde(default)]
    pub unjudged: bool,
}

/// What holds of pods before any source has said anything, but for those in quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutPolicies {
    /// There is no table.
    NotJudged,
    /// The table is that of before.
    AsBefore,
}

/// Why a pod is held, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    pub reason: HeldReason,
    pub since: SystemTime,
}

/// With etcd other hosts know a new pod after some 100 ms.
const HELD_LONG: Duration = Duration::from_secs(3);

/// A pod that only its own node reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined {
    /// `namespace/name`, or the container's ID.
    pub pod: String,
    pub addresses: Vec<IpAddr>,
    pub reason: QuarantineReason,
    /// Where that is known of the pod itself.
    pub since: Option<SystemTime>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QuarantineReason {
    /// No source has said anything yet, and the table of before does not have it.
    NoPolicies,
    /// No source knows the pod.
    NotKnown,
    Held(HeldReason),
    /// The kernel's table does not have it. What for, only its agent knows.
    NotInForce,
}

impl View {
    /// Of the node n1, with nothing refused or held.
    #[cfg(test)]
    pub fn of_node(known: Option<PolicySnapshot>, pods: Vec<LocalPod>) -> View {
        View {
            host: "n1".parse().unwrap(),
            subnets: vec!["10.1.2.0/24".parse().unwrap()],
            sources: Vec::new(),
            known: known.map(Arc::new),
            pods: pods.into(),
            held: BTreeMap::new(),
            not_in_force: BTreeSet::new(),
            unjudged: false,
        }
    }

    /// The pods of this host that policies know, with their addresses.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        let known = self.known.as_deref();
        known.map(|known| self.pods.endpoints(known, &self.host)).unwrap_or_default()
    }

    /// Those of them about which rules decide: of one in quarantine they do not.
    pub fn judged(&self) -> Vec<Endpoint> {
        let mut pods = self.endpoints();
        let held: BTreeSet<IpAddr> =
            self.quarantined().into_iter().flat_map(|one| one.addresses).gather();
        pods.retain(|pod| !pod.addresses.iter().any(|address| held.contains(address)));
        pods
    }

    /// `None`: some source has said something.
    pub fn without_policies(&self) -> Option<WithoutPolicies> {
        match self.known {
            Some(_) => None,
            None if self.unjudged => Some(WithoutPolicies::NotJudged),
            None => Some(WithoutPolicies::AsBefore),
        }
    }

    /// Pods that run and are not judged, as one problem.
    pub fn not_judged(&self) -> Option<Problem> {
        let what = format!("pods are {}; no pod can start", WithoutPolicies::NotJudged);
        let fix = "humanz-agent status # correct what the other problems say of POLICY_FILE or the source of policies: its policies are \
                   in force at once; POLICY=off lets pods start without any";
        let subject = Object::Table(POLICY_TABLE.to_owned());
        (self.unjudged && self.pods.iter().next().is_some())
            .then(|| Problem::new(ProblemKind::Policy, subject, what).with_fix(fix))
    }

    /// What is wrong with what pods ask for that only their runtimes describe.
    pub fn refused(&self) -> impl Iterator<Item = Problem> {
        let known = self.known.as_deref();
        let refused = known.map(|known| self.pods.refused(known, &self.host));
        refused.unwrap_or_default().into_iter().take(REFUSED_LIMIT)
    }

    pub fn quarantined(&self) -> Vec<Quarantined> {
        self.quarantined_but(&self.endpoints().into_iter().flat_map(|pod| pod.addresses).gather())
    }

    /// The same, where policies know the pods with the addresses `known`.
    pub fn quarantined_but(&self, known: &BTreeSet<IpAddr>) -> Vec<Quarantined> {
        let quarantined = |pod: &Arc<LocalPod>| {
            let held = self.held.get(&pod.container_id);
            let reason = match (&self.known, held) {
                (None, _) if self.unjudged || !self.not_in_force.contains(&pod.container_id) => {
                    return None;
                }
                (None, _) => QuarantineReason::NoPolicies,
                (_, Some(held)) => QuarantineReason::Held(held.reason),
                _ if !pod.addresses.iter().all(|it| known.contains(it)) => {
                    QuarantineReason::NotKnown
                }
                _ if self.not_in_force.contains(&pod.container_id) => QuarantineReason::NotInForce,
                _ => return None,
            };
            Some(Quarantined {
                pod: pod.pod.clone().unwrap_or_else(|| pod.container_id.clone()),
                addresses: pod.addresses.clone(),
                reason,
                since: held.map(|held| held.since),
            })
        };
        self.pods.iter().filter_map(quarantined).collect()
    }
}

impl QuarantineReason {
    pub const ALL: [QuarantineReason; 7] = [
        QuarantineReason::NoPolicies,
        QuarantineReason::NotKnown,
        QuarantineReason::Held(HeldReason::MembersUnknown),
        QuarantineReason::Held(HeldReason::FormerOwner),
        QuarantineReason::Held(HeldReason::NotPublished),
        QuarantineReason::Held(HeldReason::TooManyLines),
        QuarantineReason::NotInForce,
    ];

    /// In metrics.
    pub fn name(self) -> &'static str {
        match self {
            QuarantineReason::NoPolicies => "no policies",
            QuarantineReason::NotKnown => "not known",
            QuarantineReason::Held(HeldReason::MembersUnknown) => "members unknown",
            QuarantineReason::Held(HeldReason::FormerOwner) => "former owner",
            QuarantineReason::Held(HeldReason::NotPublished) => "not published",
            QuarantineReason::Held(HeldReason::TooManyLines) => "too many lines",
            QuarantineReason::NotInForce => "not in force",
        }
    }
}

impl Quarantined {
    /// What the problem is about.
    pub fn subject(&self) -> Object {
        Object::Pod(self.pod.to_string())
    }

    /// It is not expected to end at once.
    pub fn lasts(&self, now: SystemTime) -> bool {
        let is_new = |since| now.duration_since(since).is_ok_and(|age| age < HELD_LONG);
        !self.since.is_some_and(is_new)
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
                "humanz-agent status # it ends when policies can be read: see the other problems, POLICY_FILE and the \
                 connection with the source"
            }
            QuarantineReason::NotKnown => {
                "humanz-agent endpoint ls # it ends when the source describes the pod: see whether it is followed, and whether it has the pod"
            }
            QuarantineReason::Held(HeldReason::TooManyLines) => {
                "humanz-agent policy ls # it ends with fewer or smaller NetworkPolicies in its namespace, or with fewer pods there that differ \
                 in what selects them"
            }
            QuarantineReason::Held(_) => {
                "humanz-agent status # it ends when etcd has what this host says of its pods: see the other problems, and \
                 whether etcd answers"
            }
            QuarantineReason::NotInForce => {
                "systemctl start humanz-agent # it ends when the agent runs"
            }
        };
        let problem = Problem::new(ProblemKind::Policy, self.subject(), what).with_fix(fix);
        match self.since {
            Some(since) => problem.with_since(since),
            None => problem,
        }
    }
}

impl fmt::Display for WithoutPolicies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WithoutPolicies::NotJudged => {
                "not judged, every packet passes: no policies could be read yet, and the kernel has no table of \
                 earlier ones"
            }
            WithoutPolicies::AsBefore => {
                "judged as before by the kernel's table, and by which policies is not known: none could be read yet"
            }
        })
    }
}

impl fmt::Display for QuarantineReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QuarantineReason::NoPolicies => f.write_str("no policies have been read yet"),
            QuarantineReason::NotKnown => {
                f.write_str("no source of policies knows the pod, or its policies are not followed")
            }
            QuarantineReason::Held(reason) => reason.fmt(f),
            QuarantineReason::NotInForce => f.write_str("the table does not have its address yet"),
        }
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
    use super::*;
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
        let pods = [pod("c1", Some("shop/web"), "10.1.2.3"), pod("c2", None, "10.1.2.4")];
        View::of_node(known, pods.into())
    }

    fn problems(view: &View, now: SystemTime) -> Vec<String> {
        let quarantined = view.quarantined();
        let lasting = quarantined.iter().filter(|one| one.lasts(now));
        lasting.map(|one| one.problem().what).collect()
    }

    fn quarantined(known: Option<PolicySnapshot>) -> Vec<String> {
        problems(&view(known), SystemTime::UNIX_EPOCH)
    }

    #[test]
    fn pods_that_no_source_knows_are_in_quarantine() {
        let both = |why: &str| {
            let text = |pod: &str| {
                format!("pod {pod} is in quarantine, only its own node reaches it: {why}")
            };
            vec![text("shop/web (10.1.2.3)"), text("c2 (10.1.2.4)")]
        };
        let silent = PolicySnapshot::default();
        assert_eq!(quarantined(Some(silent)), both(&QuarantineReason::NotKnown.to_string()));
        let standalone = Some(Cluster::new(true));
        let described = PolicySnapshot { standalone, ..PolicySnapshot::default() };
        assert_eq!(quarantined(Some(described)), Vec::<String>::new());
    }

    #[test]
    fn before_policies_are_known_pods_are_as_the_table_has_them_and_not_judged_without_one() {
        let mut view = view(None);
        assert_eq!(view.quarantined(), []);
        assert_eq!(view.without_policies(), Some(WithoutPolicies::AsBefore));
        view.not_in_force.insert("c2".to_owned());
        let found = problems(&view, SystemTime::UNIX_EPOCH);
        assert!(found.len() == 1 && found[0].contains("pod c2 "), "{found:?}");
        assert!(found[0].ends_with("no policies have been read yet"), "{found:?}");
        assert_eq!(view.not_judged(), None);
        view.unjudged = true;
        assert_eq!(view.quarantined(), []);
        assert_eq!(view.without_policies(), Some(WithoutPolicies::NotJudged));
        assert!(view.not_judged().unwrap().what.contains("every packet passes"));
        view.pods = Vec::new().into();
        assert_eq!(view.not_judged(), None, "nothing passes where nothing runs");
    }

    #[test]
    fn a_pod_that_is_held_is_in_quarantine_at_once_and_a_problem_after_a_while() {
        let standalone = Some(Cluster::new(true));
        let mut view = view(Some(PolicySnapshot { standalone, ..PolicySnapshot::default() }));
        let held = Held { reason: HeldReason::FormerOwner, since: SystemTime::UNIX_EPOCH };
        view.held.insert("c1".to_owned(), held);
        let quarantined = view.quarantined();
        assert_eq!(quarantined.len(), 1);
        assert_eq!(quarantined[0].reason, QuarantineReason::Held(HeldReason::FormerOwner));
        let names = |all: Vec<Endpoint>| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names(view.endpoints()), ["shop/web", "default/c2"]);
        assert_eq!(names(view.judged()), ["default/c2"], "rules decide nothing of the other one");
        let at = |seconds| problems(&view, SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(1), Vec::<String>::new());
        assert!(at(4).len() == 1 && at(4)[0].contains("a former pod's"), "{:?}", at(4));
    }

    #[test]
    fn a_pod_that_the_table_does_not_have_is_in_quarantine() {
        let standalone = Some(Cluster::new(true));
        let mut view = view(Some(PolicySnapshot { standalone, ..PolicySnapshot::default() }));
        view.not_in_force.insert("c2".to_owned());
        let quarantined = view.quarantined();
        assert_eq!(quarantined.len(), 1);
        assert_eq!(
            (&*quarantined[0].pod, quarantined[0].reason),
            ("c2", QuarantineReason::NotInForce)
        );
    }

    #[test]
    fn a_view_is_read_back_as_it_was_written() {
        for known in [None, Some(PolicySnapshot::default())] {
            let mut view = view(known);
            let held = Held { reason: HeldReason::NotPublished, since: SystemTime::UNIX_EPOCH };
            view.held.insert("c1".to_owned(), held);
            let text = serde_json::to_string(&view).unwrap();
            assert_eq!(serde_json::from_str::<View>(&text).unwrap(), view);
        }
    }
}
