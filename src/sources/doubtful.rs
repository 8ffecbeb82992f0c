//! Pure. What is denied while the labels of a pod's namespace are not known: the API may say a pod first.

use std::collections::BTreeSet;

use crate::net::gather::Gather;
use crate::policy::{PolicyPeer, PolicyVerdict, Rule, Rules, Selector};
use crate::sources::find::ClusterPods;

/// `rules`, and beside each that denies its peers, or leaves them to the next tier, one that denies those
/// which may be among them.
pub fn with_denials(rules: Rules, pods: &ClusterPods<'_>) -> Rules {
    if pods.unknown.is_empty() {
        return rules;
    }
    let closing = rules.enforced().filter(|rule| rule.verdict != PolicyVerdict::Allow);
    let denials: Vec<Rule> = closing.filter_map(|rule| denial(rule, pods)).collect();
    match denials.is_empty() {
        true => rules,
        false => Rules::new(rules.iter().cloned().chain(denials).collect()),
    }
}

fn denial(rule: &Rule, pods: &ClusterPods<'_>) -> Option<Rule> {
    let doubtful = rule.peers.iter().flatten().filter_map(|peer| match peer {
        PolicyPeer::Selected(selector) => selector.doubtful(),
        PolicyPeer::Network { .. } => None,
    });
    let found: BTreeSet<Selector> = doubtful.filter(|selector| finds_some(selector, pods)).gather();
    if found.is_empty() {
        return None;
    }
    let peers = Some(found.into_iter().map(PolicyPeer::Selected).collect());
    Some(Rule { peers, verdict: PolicyVerdict::Deny, ..rule.clone() })
}

fn finds_some(selector: &Selector, pods: &ClusterPods<'_>) -> bool {
    let mut doubtful = pods.unknown.iter().filter_map(|name| pods.by_namespace.get(name)).flatten();
    doubtful.any(|pod| selector.matches_pod_of_unknown(pod) == Some(true))
}
