//! Pure. Objects of every source as rules.
//!
//! Each reader takes any value and never fails as a whole: what it does not understand is a problem
//! that names object and field, and closes rather than opens.

pub mod cluster_network_policy;
pub mod fields;
pub mod kubernetes;
pub mod network_policy;

use serde_json::Value;

use crate::net::{Object, Problem, ProblemKind};
use crate::policy::read::cluster_network_policy::Kind;
use crate::policy::read::fields::{Fault, Field, quoted};
use crate::policy::rule::{Origin, Rule};

/// What objects say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parsed {
    pub rules: Vec<Rule>,
    pub problems: Vec<Problem>,
}

/// The API group of policies for the whole cluster.
const POLICY_GROUP: &str = "policy.networking.k8s.io";

/// Problems of one object that are listed; there may be thousands in one that means harm.
const PROBLEMS_LIMIT: usize = 8;

impl Parsed {
    /// The rules, with a problem for each of `faults`.
    fn new(origin: &Origin, rules: Vec<Rule>, faults: &[Fault]) -> Parsed {
        Parsed { rules, problems: problems(&origin.to_string(), faults) }
    }

    /// Nothing but a problem: the object has no name to go by.
    fn nameless(kind: &str, fault: Fault) -> Parsed {
        Parsed { rules: Vec::new(), problems: problems(kind, &[fault]) }
    }

    pub fn append(&mut self, mut other: Parsed) {
        self.rules.append(&mut other.rules);
        self.problems.append(&mut other.problems);
    }
}

fn problems(subject: &str, faults: &[Fault]) -> Vec<Problem> {
    let problem = |what: String| Problem::new(ProblemKind::Policy, Object::named(subject), what);
    let listed = faults.iter().take(PROBLEMS_LIMIT);
    let mut problems: Vec<Problem> = listed.map(|fault| problem(fault.to_string())).collect();
    if let more @ 1.. = faults.len().saturating_sub(PROBLEMS_LIMIT) {
        problems.push(problem(format!("{more} further faults")));
    }
    problems
}

/// The rules of a policy of a kind that the Kubernetes API has; `None` for other objects. A policy of a
/// version that is not known is a problem.
pub fn policy(object: &Value) -> Option<Parsed> {
    let text = |name: &str| object[name].as_str().unwrap_or_default();
    let (group, version) = text("apiVersion").split_once('/')?;
    match (group, version, text("kind")) {
        ("networking.k8s.io", "v1", "NetworkPolicy") => Some(network_policy::read(object)),
        (POLICY_GROUP, "v1alpha2", "ClusterNetworkPolicy") => {
            Some(cluster_network_policy::read(Kind::Cluster, object))
        }
        (POLICY_GROUP, "v1alpha1", "AdminNetworkPolicy") => {
            Some(cluster_network_policy::read(Kind::Admin, object))
        }
        (POLICY_GROUP, "v1alpha1", "BaselineAdminNetworkPolicy") => {
            Some(cluster_network_policy::read(Kind::BaselineAdmin, object))
        }
        ("networking.k8s.io" | POLICY_GROUP, _, kind) if kind.ends_with("NetworkPolicy") => {
            let fault =
                Field::root(object).fault(format!("version {} is not known", quoted(version)));
            Some(Parsed::nameless(&quoted(kind), fault))
        }
        _ => None,
    }
}
