//! Pure. The last valid snapshot of each source of policies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::net::{Object, Problem, ProblemKind};
use crate::policy::members::Members;
use crate::policy::read::cluster::Cluster;
use crate::policy::rule::{Direction, Peer, Rule, Verdict};
use crate::policy::selector::Selector;
use crate::policy::snapshot::{Provider, Snapshot, Update};

/// What every source said last.
#[derive(Debug, Default)]
pub struct Policies {
    /// The sources that there are.
    wanted: BTreeSet<Provider>,
    snapshots: BTreeMap<Provider, Snapshot>,
    problems: BTreeMap<Provider, Vec<Problem>>,
    merged: Option<Arc<Snapshot>>,
    /// Once everything has been known, what is known holds.
    is_whole: bool,
}

impl Policies {
    /// What was kept from an earlier life, of the sources that there are still.
    pub fn kept(snapshots: BTreeMap<Provider, Snapshot>, of: &[Provider]) -> Policies {
        let mut policies = Policies { snapshots, ..Policies::default() };
        policies.want(of);
        policies.is_whole = policies.sources_are_known();
        policies
    }

    /// There are these sources alone.
    pub fn want(&mut self, sources: &[Provider]) {
        self.wanted = sources.iter().copied().collect();
        self.snapshots.retain(|provider, _| self.wanted.contains(provider));
        self.problems.retain(|provider, _| self.wanted.contains(provider));
        self.merge();
    }

    /// Takes over what a source says; true if that changes what holds.
    pub fn take(&mut self, update: Update) -> bool {
        self.problems.insert(update.provider, update.problems);
        let Some(snapshot) = update.snapshot else { return false };
        if self.snapshots.get(&update.provider) == Some(&snapshot) {
            return false;
        }
        self.snapshots.insert(update.provider, snapshot);
        self.merge();
        true
    }

    /// Takes over the members on other hosts; true if that changes what holds. Those of `unread` selectors,
    /// which are needed and have not been read in this life, stay as they were.
    pub fn take_members(
        &mut self,
        mut members: Members,
        unread: &BTreeSet<Selector>,
        problems: Vec<Problem>,
    ) -> bool {
        let before = self.snapshots.remove(&Provider::Members).unwrap_or_default();
        for (selector, found) in &before.members {
            if unread.contains(selector) {
                members.entry(selector.clone()).or_insert_with(|| found.clone());
            }
        }
        let is_new = before.members != members;
        self.snapshots.insert(Provider::Members, Snapshot { members, ..Snapshot::default() });
        self.problems.insert(Provider::Members, problems);
        let was_whole = self.is_whole;
        self.merge();
        is_new || self.is_whole != was_whole
    }

    fn merge(&mut self) {
        let all = || Arc::new(Snapshot::merged(self.snapshots.values()));
        self.merged = (!self.snapshots.is_empty()).then(all);
        let is_whole = || self.sources_are_known() && self.denied_are_known();
        self.is_whole = self.merged.is_some() && (self.is_whole || is_whole());
    }

    fn sources_are_known(&self) -> bool {
        let mut sources = self.wanted.iter().filter(|wanted| **wanted != Provider::Members);
        self.merged.is_some() && sources.all(|wanted| self.snapshots.contains_key(wanted))
    }

    /// A rule that denies a group does that before its members start to send.
    fn denied_are_known(&self) -> bool {
        let Some(members) = self.snapshots.get(&Provider::Members) else {
            return !self.wanted.contains(&Provider::Members) || self.denied().is_empty();
        };
        self.denied().iter().all(|selector| members.members.contains_key(selector))
    }

    /// The selectors of rules that do not allow.
    fn denied(&self) -> BTreeSet<Selector> {
        self.merged.iter().flat_map(|known| denied(known)).collect()
    }

    /// What all of them say; `None` before each has said something.
    pub fn snapshot(&self) -> Option<&Arc<Snapshot>> {
        self.merged.as_ref().filter(|_| self.is_whole)
    }

    /// What the sources say, perhaps without the members on other hosts that this needs.
    pub fn of_sources(&self) -> Option<&Arc<Snapshot>> {
        self.merged.as_ref().filter(|_| self.is_whole || self.sources_are_known())
    }

    /// There is something in what `provider` says.
    pub fn has_some(&self, provider: Provider) -> bool {
        let nothing = Snapshot { standalone: Some(Cluster::new(true)), ..Snapshot::default() };
        self.snapshots.get(&provider).is_some_and(|said| *said != nothing)
    }

    pub fn has(&self, provider: Provider) -> bool {
        self.snapshots.contains_key(&provider)
    }

    pub fn snapshots(&self) -> &BTreeMap<Provider, Snapshot> {
        &self.snapshots
    }

    /// What is wrong with their objects, and what cannot be enforced.
    pub fn problems(&self) -> impl Iterator<Item = Problem> {
        let unenforced = self.merged.iter().flat_map(|known| not_enforced(known));
        self.problems.values().flatten().cloned().chain(unenforced)
    }
}

/// The selectors of rules that do not allow: a host that does not know their members lets too much pass.
pub fn denied(known: &Snapshot) -> impl Iterator<Item = Selector> {
    let rules = known.rules.enforced().filter(|rule| rule.verdict != Verdict::Allow);
    rules.flat_map(|rule| rule.peers.iter().flatten()).filter_map(|peer| match peer {
        Peer::Selected(selector) => Some(selector.clone()),
        Peer::Network { .. } => None,
    })
}

/// What rules say of the way from a pod to its own host, which no forward chain sees.
fn not_enforced(known: &Snapshot) -> Vec<Problem> {
    let is_nodes = |peer: &Peer| matches!(peer, Peer::Selected(Selector::Nodes(_)));
    let about_nodes = |rule: &&Rule| {
        rule.direction == Direction::Egress && rule.peers.iter().flatten().any(is_nodes)
    };
    let problem = |rule: &Rule| {
        let what = format!("{rule} holds for other nodes only: a pod always reaches its own node");
        let subject = Object::named(rule.origin.to_string());
        Problem::new(ProblemKind::Policy, subject, what)
            .with_fix("protect the node's own services with its firewall (chain INPUT)")
    };
    known.rules.enforced().filter(about_nodes).map(problem).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::read::documents;

    fn update(policy: Option<&str>) -> Update {
        let snapshot = policy.map(|name| {
            let policy = format!(
                "{{\"apiVersion\": \"networking.k8s.io/v1\", \"kind\": \"NetworkPolicy\", \
                 \"metadata\": {{\"namespace\": \"shop\", \"name\": \"{name}\"}}, \"spec\": \
                 {{\"podSelector\": {{}}}}}}"
            );
            let rules = documents::read(&documents::objects(&policy).unwrap(), true).rules;
            Snapshot { rules, ..Snapshot::default() }
        });
        Update { provider: Provider::File, snapshot, problems: Vec::new() }
    }

    #[test]
    fn what_cannot_be_used_leaves_the_last_valid_snapshot() {
        let mut policies = Policies::default();
        assert!(!policies.take(update(None)) && policies.snapshot().is_none());
        assert!(policies.take(update(Some("a"))));
        assert!(!policies.take(update(Some("a"))), "nothing changed");
        assert!(!policies.take(update(None)) && policies.snapshot().is_some());
        assert!(policies.take(update(Some("b"))));
    }
}
