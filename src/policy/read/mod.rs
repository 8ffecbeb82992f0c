//! Pure. Objects of every source as rules.
//!
//! Each reader takes any value and never fails as a whole: what it does not understand is a problem
//! that names object and field, and closes rather than opens.

pub mod cluster;
pub mod cluster_network_policy;
pub mod contiv;
mod contiv_fields;
mod contiv_network;
mod contiv_rules;
pub mod documents;
pub mod each;
pub mod fields;
pub mod groups;
pub mod interfaces;
pub mod kubernetes;
pub mod membership;
pub mod network;
pub mod network_policy;
pub mod network_policy_limit;
pub mod parsed;
pub mod pin;
pub mod pod;
pub mod profile;

use serde_json::Value;

use crate::policy::read::cluster_network_policy::ClusterPolicyKind;
use crate::policy::read::fields::{ObjectField, quoted};

pub use parsed::Parsed;

/// The API group of policies for the whole cluster.
const POLICY_GROUP: &str = "policy.networking.k8s.io";

/// Versions of ClusterNetworkPolicy, which have the same fields. Source: sigs.k8s.io/network-policy-api.
pub const CLUSTER_VERSIONS: [&str; 2] = ["v1alpha2", "v1beta1"];

/// The rules of a policy of a kind that the Kubernetes API has; `None` for other objects. A policy of a
/// version that is not known is a problem.
pub fn policy(object: &Value) -> Option<Parsed> {
    let text = |name: &str| object[name].as_str().unwrap_or_default();
    let (group, version) = text("apiVersion").split_once('/')?;
    match (group, version, text("kind")) {
        ("networking.k8s.io", "v1", "NetworkPolicy") => Some(network_policy::read(object)),
        (POLICY_GROUP, version, "ClusterNetworkPolicy") => {
            let read = cluster_network_policy::read(ClusterPolicyKind::Cluster, object);
            let is_known = CLUSTER_VERSIONS.contains(&version);
            Some(if is_known { read } else { guessed(object, version, read) })
        }
        (POLICY_GROUP, "v1alpha1", "AdminNetworkPolicy") => {
            Some(cluster_network_policy::read(ClusterPolicyKind::Admin, object))
        }
        (POLICY_GROUP, "v1alpha1", "BaselineAdminNetworkPolicy") => {
            Some(cluster_network_policy::read(ClusterPolicyKind::BaselineAdmin, object))
        }
        ("networking.k8s.io" | POLICY_GROUP, _, kind) if kind.ends_with("NetworkPolicy") => {
            let fault = ObjectField::root(object)
                .fault(format!("version {} is not known", quoted(version)));
            Some(Parsed::nameless(&quoted(kind), fault))
        }
        _ => None,
    }
}

/// `read` as a version that is known: what differs closes, and that its version is not known is a problem.
fn guessed(object: &Value, version: &str, mut read: Parsed) -> Parsed {
    if read.problems.is_empty() {
        let what = format!("version {} is not known; it is read as v1beta1", quoted(version));
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let subject = format!("ClusterNetworkPolicy {}", quoted(name));
        read.problems = Parsed::nameless(&subject, ObjectField::root(object).fault(what)).problems;
    }
    read
}
