//! Pure. What a look at rules costs, in comparisons of words, addresses and ports: it is known before the look, because
//! anybody who may write policies can make rules that take for ever.

use crate::policy::endpoint::Endpoint;
use crate::policy::members::Members;
use crate::policy::rule::{PolicyPeer, Rule};
use crate::policy::selector::Selector;
use crate::policy::service::Service;

/// Comparisons that find out which ends there are, at most: a second.
pub const LOOKS: usize = 20_000_000;

/// There is more to try than in reasonable time can be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}: too many to try; change fewer policies at once")]
pub struct TooMany(pub String);

/// What it costs to judge one connection.
#[derive(Clone, Copy, Debug)]
pub struct RuleCosts<'a> {
    /// What a peer is looked up in.
    members: &'a Members,
    /// Comparisons of two selectors until one is found among those of `members`.
    depth: usize,
    /// Of members and of pods that a port with a name is looked up in.
    ports: usize,
}

impl<'a> RuleCosts<'a> {
    pub fn new(members: &'a Members, pods: &[Endpoint]) -> RuleCosts<'a> {
        let found: usize = members.values().map(|found| found.len()).sum();
        let ports = pods.iter().map(|pod| pod.ports.len()).max().unwrap_or_default();
        let depth = members.len().checked_ilog2().unwrap_or_default() as usize + 1;
        RuleCosts { members, depth, ports: found + ports }
    }

    /// By this rule, whose subject is a pod of this host.
    pub fn rule(&self, rule: &Rule) -> usize {
        let peers = rule.peers.iter().flatten().map(|peer| match peer {
            PolicyPeer::Selected(selector) => {
                let found = self.members.get(selector).map_or(0, |found| found.len());
                alone(selector) * self.depth + found
            }
            network @ PolicyPeer::Network { .. } => addresses(network),
        });
        let services = rule.services.iter().flatten().map(|service| match service {
            Service::Named(..) => 1 + self.ports,
            _ => 1,
        });
        1 + alone(&rule.subject) + peers.sum::<usize>() + services.sum::<usize>()
    }

    pub fn rules<'r>(&self, rules: impl IntoIterator<Item = &'r Rule>) -> usize {
        rules.into_iter().map(|rule| self.rule(rule)).sum()
    }
}

/// To see whether a selector finds a pod.
pub fn alone(selector: &Selector) -> usize {
    1 + selector.words()
}

/// To see whether a peer that is a network has an address; nothing for one that is none.
pub fn addresses(peer: &PolicyPeer) -> usize {
    match peer {
        PolicyPeer::Network { except, .. } => 1 + except.len(),
        PolicyPeer::Selected(_) => 0,
    }
}

/// To be asked before the kinds among `pods` are looked for.
///
/// # Errors
/// [`TooMany`].
pub fn refuse_looks(pods: &[Endpoint], rules: &[&Rule]) -> Result<(), TooMany> {
    let looks = |rule: &&Rule| {
        let peers = rule.peers.iter().flatten().map(|peer| match peer {
            PolicyPeer::Selected(selector) => alone(selector),
            network @ PolicyPeer::Network { .. } => addresses(network),
        });
        alone(&rule.subject) + peers.sum::<usize>()
    };
    let looks: usize = rules.iter().map(looks).sum();
    match looks.saturating_mul(pods.len()) > LOOKS {
        true => Err(TooMany(format!("{looks} conditions of rules for {} pods", pods.len()))),
        false => Ok(()),
    }
}
