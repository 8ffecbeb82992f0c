//! Pure. The last valid snapshot of each source of policies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::net::{Problem, ProblemKind};
use crate::policy::members::Members;
use crate::policy::read::cluster::Cluster;
use crate::policy::rule::{Origin, Peer, Rules, Verdict};
use crate::policy::selector::Selector;
use crate::policy::snapshot::{Provider, Snapshot, Update};

/// What every source said last.
#[derive(Debug, Default)]
pub struct Policies {
    /// The sources that there are.
    wanted: BTreeSet<Provider>,
    snapshots: BTreeMap<Provider, Snapshot>,
    problems: BTreeMap<Provider, Vec<Problem>>,
    states: BTreeMap<Provider, SourceState>,
    merged: Option<Arc<Snapshot>>,
    /// Once everything has been known, what is known holds.
    is_whole: bool,
}

/// How a source is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceState {
    pub provider: Provider,
    /// What holds of it is what it said last, and it is followed.
    pub healthy: bool,
    /// When what holds was read; `None`: before the agent started, or never.
    pub read: Option<SystemTime>,
    /// Something of it holds.
    pub holds: bool,
    /// What is wrong with its objects.
    pub problems: usize,
    /// The objects that its rules stand in.
    pub policies: BTreeSet<Origin>,
}

impl Policies {
    /// What was kept from an earlier life, of the sources that there are still.
    pub fn kept(snapshots: BTreeMap<Provider, Snapshot>, of: &[Provider]) -> Policies {
        let mut policies = Policies { snapshots, ..Policies::default() };
        policies.want(of);
        for (provider, snapshot) in &policies.snapshots {
            policies.states.insert(*provider, SourceState::holding(*provider, &snapshot.rules));
        }
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

    /// Takes over what a source says at this time; true if that changes what holds.
    pub fn take(&mut self, update: Update, at: SystemTime) -> bool {
        self.note(&update, at);
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

    fn note(&mut self, update: &Update, at: SystemTime) {
        let provider = update.provider;
        let state = self.states.entry(provider).or_insert_with(|| SourceState::silent(provider));
        let is_away = |problem: &Problem| {
            matches!(problem.kind, ProblemKind::KubernetesApi | ProblemKind::Etcd)
        };
        state.healthy = update.snapshot.is_some() && !update.problems.iter().any(is_away);
        state.problems = update.problems.len();
        let Some(snapshot) = &update.snapshot else { return };
        state.holds = true;
        if state.healthy {
            state.read = Some(at);
        }
        if self.snapshots.get(&provider).is_none_or(|before| before.rules != snapshot.rules) {
            state.policies = objects(&snapshot.rules);
        }
    }

    /// Each of `providers`.
    pub fn states(&self, providers: &[Provider]) -> Vec<SourceState> {
        let state = |provider: &Provider| {
            self.states.get(provider).cloned().unwrap_or_else(|| SourceState::silent(*provider))
        };
        // Members are no policies.
        providers.iter().filter(|it| **it != Provider::Members).map(state).collect()
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

    /// What is wrong with their objects.
    pub fn problems(&self) -> impl Iterator<Item = Problem> {
        self.problems.values().flatten().cloned()
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

impl SourceState {
    /// Nothing has been heard.
    pub fn silent(provider: Provider) -> SourceState {
        SourceState {
            provider,
            healthy: false,
            read: None,
            holds: false,
            problems: 0,
            policies: BTreeSet::new(),
        }
    }

    /// `rules` were kept, and nothing has been heard since.
    pub fn holding(provider: Provider, rules: &Rules) -> SourceState {
        SourceState { holds: true, policies: objects(rules), ..SourceState::silent(provider) }
    }
}

fn objects(rules: &Rules) -> BTreeSet<Origin> {
    rules.iter().map(|rule| rule.origin.object()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Object;
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

    fn take(policies: &mut Policies, policy: Option<&str>) -> bool {
        policies.take(update(policy), SystemTime::UNIX_EPOCH)
    }

    #[test]
    fn what_cannot_be_used_leaves_the_last_valid_snapshot() {
        let mut policies = Policies::default();
        assert!(!take(&mut policies, None) && policies.snapshot().is_none());
        assert!(take(&mut policies, Some("a")));
        assert!(!take(&mut policies, Some("a")), "nothing changed");
        assert!(!take(&mut policies, None) && policies.snapshot().is_some());
        assert!(take(&mut policies, Some("b")));
    }

    #[test]
    fn a_source_that_is_away_is_no_longer_healthy_and_keeps_the_time_of_what_holds() {
        let mut policies = Policies::default();
        let state = |policies: &Policies| policies.states(&[Provider::File]).remove(0);
        assert_eq!(state(&policies), SourceState::silent(Provider::File));
        take(&mut policies, Some("a"));
        let before = state(&policies);
        assert_eq!((before.healthy, before.read), (true, Some(SystemTime::UNIX_EPOCH)));
        assert_eq!(before.policies.len(), 1);
        let away = Problem::new(ProblemKind::KubernetesApi, Object::named("pods"), "away");
        let later = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(9);
        policies.take(Update { problems: vec![away], ..update(Some("b")) }, later);
        let after = state(&policies);
        assert_eq!((after.healthy, after.holds, after.problems), (false, true, 1));
        assert_eq!(after.read, before.read);
        assert_ne!(after.policies, before.policies);
    }
}
