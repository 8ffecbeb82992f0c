//! Pure. What pods of a cluster claim that is not theirs.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::net::{Object, Problem, ProblemKind};
use crate::policy::read::pod::Pod;
use crate::policy::{Endpoint, Networks};

/// Problems of pods and nodes that are listed.
pub const PROBLEMS_LIMIT: usize = 100;

/// Takes from `pod` the addresses outside its node's `subnets`, if these are known: a node can only
/// speak of its own pods.
pub fn refuse(pod: &mut Pod, subnets: &[IpNetwork]) -> Option<Problem> {
    let has = |address: &IpAddr| {
        subnets.is_empty() || subnets.iter().any(|subnet| subnet.contains(*address))
    };
    let foreign = pod.addresses.iter().copied().find(|address| !has(address))?;
    pod.addresses.retain(has);
    let subject = Object::Pod(format!("{}/{}", pod.namespace, pod.name));
    let what = format!("address {foreign} is ignored: it is not in a subnet of its node");
    Some(Problem::in_object(ProblemKind::Policy, subject, what))
}

/// The first of them, and how many more there are: of `subject`, which are as `what` says.
pub fn limited(mut problems: Vec<Problem>, subject: &'static str, what: &str) -> Vec<Problem> {
    let more = problems.len().saturating_sub(PROBLEMS_LIMIT);
    problems.truncate(PROBLEMS_LIMIT);
    if more > 0 {
        let what = format!("{more} more {subject} {what}");
        problems.push(Problem::new(ProblemKind::Policy, Object::named(subject), what));
    }
    problems
}

/// A pod that asks for a network where there are none.
pub fn without_address(pod: &Endpoint) -> Option<Problem> {
    let network = pod.network.as_ref().filter(|network| **network != Networks::default_name())?;
    let what = format!("network {network} has no addresses here: the pod has one of its node's");
    Some(Problem::in_object(ProblemKind::Policy, Object::named(format!("pod {pod}")), what))
}
