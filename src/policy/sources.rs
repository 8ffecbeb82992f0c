//! Pure. The last valid snapshot of each source of policies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use crate::net::gather::Gather;
use crate::net::{Object, Problem, ProblemKind};
use crate::policy::members::{self, Members};
use crate::policy::network::NetworkOverlap;
use crate::policy::read::cluster::Cluster;
use crate::policy::read::documents::missing_profiles;
use crate::policy::rule::{Origin, PolicyPeer, PolicyVerdict, Rules};
use crate::policy::selector::Selector;
use crate::policy::snapshot::{PodDefaults, PolicySnapshot, Provider, SourceUpdate};
use crate::policy::unread::UnderstoodRules;

/// Pods that are reported for what they ask for and may not have.
pub const REFUSED_LIMIT: usize = 100;

/// What every source said last.
#[derive(Debug, Default)]
pub struct Policies {
    /// The sources that there are.
    wanted: BTreeSet<Provider>,
    defaults: PodDefaults,
    /// This host's blocks of tenants' networks.
    blocks: BTreeSet<IpNetwork>,
    snapshots: BTreeMap<Provider, Arc<PolicySnapshot>>,
    problems: BTreeMap<Provider, Vec<Problem>>,
    states: BTreeMap<Provider, SourceState>,
    /// Groups that may have members on other hosts which are not known.
    partly: BTreeSet<Selector>,
    merged: Option<Arc<PolicySnapshot>>,
    /// Once every source has said something, one more does not hold up the others.
    were_known: bool,
    whole: Option<Whole>,
}

/// What all of them said when nothing was missing.
#[derive(Debug)]
struct Whole {
    snapshots: BTreeMap<Provider, Arc<PolicySnapshot>>,
    merged: Arc<PolicySnapshot>,
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
    pub policies: Arc<BTreeSet<Origin>>,
}

impl Policies {
    /// What was kept from an earlier life, of the sources that there are still.
    pub fn kept(
        snapshots: BTreeMap<Provider, PolicySnapshot>,
        of: &[Provider],
        defaults: PodDefaults,
    ) -> Policies {
        let snapshots = snapshots.into_iter().map(|(provider, said)| (provider, Arc::new(said)));
        let mut policies = Policies { snapshots: snapshots.gather(), ..Policies::default() };
        policies.want(of, defaults);
        for (provider, snapshot) in &policies.snapshots {
            policies.states.insert(*provider, SourceState::holding(*provider, &snapshot.rules));
        }
        policies
    }

    /// There are these sources alone; true if something was said by others.
    pub fn want(&mut self, sources: &[Provider], defaults: PodDefaults) -> bool {
        self.defaults = defaults;
        self.wanted = sources.iter().copied().gather();
        let before = self.snapshots.len();
        self.snapshots.retain(|provider, _| self.wanted.contains(provider));
        self.problems.retain(|provider, _| self.wanted.contains(provider));
        for (provider, state) in &mut self.states {
            if !self.wanted.contains(provider) {
                *state = SourceState::silent(*provider);
            }
        }
        self.merge();
        self.snapshots.len() < before
    }

    /// This host has these blocks of tenants' networks; true if that changes what holds: networks that are gone hold as
    /// long as there are some of them.
    pub fn hold(&mut self, blocks: BTreeSet<IpNetwork>) -> bool {
        if self.blocks == blocks {
            return false;
        }
        let forget = |said: &mut Arc<PolicySnapshot>| {
            said.networks.has_gone() && Arc::make_mut(said).networks.forget_gone(&blocks)
        };
        let forgotten = self.snapshots.values_mut().map(forget).filter(|is_new| *is_new).count();
        self.blocks = blocks;
        if forgotten > 0 {
            self.merge();
        }
        forgotten > 0
    }

    /// Takes over what a source says at this time; true if that changes what holds.
    pub fn take(&mut self, update: SourceUpdate, at: SystemTime) -> bool {
        self.note(&update, at);
        self.problems.insert(update.provider, update.problems);
        let Some(mut snapshot) = update.snapshot else { return false };
        if let Some(before) = self.snapshots.get(&update.provider) {
            snapshot.keep_unread(before);
            snapshot.networks.keep_served(&before.networks, &self.blocks);
            snapshot.share(before);
            if **before == snapshot {
                return false;
            }
        }
        self.snapshots.insert(update.provider, Arc::new(snapshot));
        self.merge();
        true
    }

    /// Takes over the members on other hosts; true if that changes what holds. Those of `unread` selectors,
    /// which are needed and have not been read in this life, stay as they were; selectors in both have members
    /// that are not known.
    pub fn take_members(
        &mut self,
        mut members: Members,
        unread: &BTreeSet<Selector>,
        problems: Vec<Problem>,
    ) -> bool {
        let before = self.snapshots.remove(&Provider::Members).unwrap_or_default();
        self.partly = unread.iter().filter(|it| members.contains_key(*it)).cloned().gather();
        for (selector, found) in &before.members {
            if unread.contains(selector) {
                members.entry(selector.clone()).or_insert_with(|| found.clone());
            }
        }
        members::share(&mut members, &before.members);
        let is_new = before.members != members;
        let said = PolicySnapshot { members, ..PolicySnapshot::default() };
        self.snapshots.insert(Provider::Members, Arc::new(said));
        self.problems.insert(Provider::Members, problems);
        let was_waiting = self.is_waiting();
        self.merge();
        is_new || self.is_waiting() != was_waiting
    }

    fn note(&mut self, update: &SourceUpdate, at: SystemTime) {
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

    /// Keeps what holds while the source of groups and networks changes, and the new one has not been read.
    fn merge(&mut self) {
        if self.merged.is_some() && !self.objects_are_known() {
            return;
        }
        let said = self.snapshots.values().map(|said| &**said);
        let all = || Arc::new(PolicySnapshot::merged(said, &self.defaults));
        self.merged = (!self.snapshots.is_empty()).then(all);
        self.were_known = self.merged.is_some() && (self.were_known || self.sources_are_known());
        let Some(merged) = &self.merged else { return self.whole = None };
        if self.were_known && self.unknown_denied().is_empty() {
            let (snapshots, merged) = (self.snapshots.clone(), Arc::clone(merged));
            self.whole = Some(Whole { snapshots, merged });
        }
    }

    /// One of the sources that may have groups, networks and so on says which there are.
    fn objects_are_known(&self) -> bool {
        let said = [Provider::Kubernetes, Provider::Etcd].map(|it| self.snapshots.get(&it));
        let mut said = said.into_iter().flatten().peekable();
        said.peek().is_none() || said.any(|snapshot| !snapshot.without_objects)
    }

    /// Something that was said is not in force.
    fn is_waiting(&self) -> bool {
        let in_force = self.snapshot();
        self.merged.as_ref().is_some_and(|said| in_force.is_none_or(|it| !Arc::ptr_eq(it, said)))
    }

    fn sources_are_known(&self) -> bool {
        let mut sources = self.wanted.iter().filter(|wanted| **wanted != Provider::Members);
        self.merged.is_some() && sources.all(|wanted| self.snapshots.contains_key(wanted))
    }

    /// The groups that rules deny and whose members have not been read: a rule that denies a group does that
    /// before its members start to send.
    fn unknown_denied(&self) -> BTreeSet<Selector> {
        let mut groups: BTreeSet<_> =
            self.merged.iter().flat_map(|known| denied(&known.rules)).gather();
        match self.snapshots.get(&Provider::Members) {
            Some(said) => groups
                .retain(|group| !said.members.contains_key(group) || self.partly.contains(group)),
            None if self.wanted.contains(&Provider::Members) => {}
            None => groups.clear(),
        }
        groups
    }

    /// What all of them say; while members of a group are missing that a rule denies, what they said
    /// before. `None` before each has said something.
    pub fn snapshot(&self) -> Option<&Arc<PolicySnapshot>> {
        self.whole.as_ref().map(|whole| &whole.merged)
    }

    /// What the sources say, perhaps without the members on other hosts that this needs.
    pub fn of_sources(&self) -> Option<&Arc<PolicySnapshot>> {
        self.merged.as_ref().filter(|_| self.were_known)
    }

    /// There is something in what `provider` says.
    pub fn has_some(&self, provider: Provider) -> bool {
        let is_some = |said: &Arc<PolicySnapshot>| {
            let standalone = Some(Cluster::new(true));
            let without_objects = said.without_objects;
            **said != PolicySnapshot { standalone, without_objects, ..PolicySnapshot::default() }
        };
        self.snapshots.get(&provider).is_some_and(is_some)
    }

    pub fn has(&self, provider: Provider) -> bool {
        self.snapshots.contains_key(&provider)
    }

    /// `provider` has said something in this life of the agent, if only that it is away.
    pub fn has_said(&self, provider: Provider) -> bool {
        self.problems.contains_key(&provider)
    }

    /// `provider` was read in this life of the agent.
    pub fn was_read(&self, provider: Provider) -> bool {
        self.states.get(&provider).is_some_and(|state| state.read.is_some())
    }

    /// The rules that `provider` said last, which hold of objects that it does not understand.
    pub fn understood(&self, provider: Provider) -> UnderstoodRules {
        self.snapshots.get(&provider).map(|said| said.understood()).unwrap_or_default()
    }

    /// The members on other hosts that are in force.
    pub fn members(&self) -> Members {
        let said = self.whole.as_ref().and_then(|whole| whole.snapshots.get(&Provider::Members));
        said.map(|said| said.members.clone()).unwrap_or_default()
    }

    /// What every source said of what is in force; `None` if that is nothing.
    pub fn in_force(&self) -> Option<BTreeMap<Provider, &PolicySnapshot>> {
        let said = self.whole.as_ref()?.snapshots.iter();
        Some(said.map(|(provider, said)| (*provider, &**said)).gather())
    }

    /// What is wrong with their objects, and what holds up a change of them.
    pub fn problems(&self) -> impl Iterator<Item = Problem> {
        let said: Vec<Problem> = self.problems.values().flatten().cloned().collect();
        // Where profiles are in another source than what has them, that source does not miss them.
        let merged = self.merged.iter().flat_map(|known| missing_profiles(&known.profiles));
        let missing: Vec<Problem> = merged.filter(|missing| !said.contains(missing)).collect();
        let refused = self.merged.iter().flat_map(|known| known.refused());
        let said = said.into_iter().chain(missing);
        let etcd = self.snapshots.get(&Provider::Etcd);
        let of_api = etcd.is_some_and(|said| said.without_objects);
        let gone = self.merged.iter().flat_map(move |known| known.networks.gone_problems(of_api));
        let of_networks = self.inside_settings().chain(gone);
        let known = self.merged.as_ref().filter(|_| self.were_known);
        let no_group = known.and_then(|known| known.missing_configured_group());
        said.chain(no_group)
            .chain(self.held_up())
            .chain(of_networks)
            .chain(refused.take(REFUSED_LIMIT))
    }

    /// Networks that share addresses with that of the settings. Of other overlaps their source speaks.
    fn inside_settings(&self) -> impl Iterator<Item = Problem> {
        let networks = self.merged.iter().flat_map(|known| known.networks.overlaps());
        networks.filter(NetworkOverlap::is_with_settings).map(|overlap| overlap.problem())
    }

    fn held_up(&self) -> Option<Problem> {
        let unknown = self.unknown_denied();
        let (first, more) = (unknown.first().filter(|_| self.were_known)?, unknown.len() - 1);
        let more = if more > 0 { format!(" and of {more} more") } else { String::new() };
        let before = if self.whole.is_some() { "the former ones hold" } else { "none hold" };
        let subject = Object::named("a change of policies");
        let what = format!(
            "a change of policies is not in force, {before}: members on other hosts of {first}{more}, \
             which a rule denies, are not known"
        );
        let fix = "humanz-agent status # it ends when etcd has answered: see the other problems";
        Some(Problem::new(ProblemKind::Policy, subject, what).with_fix(fix))
    }
}

/// The selectors of rules that do not allow: a host that does not know their members lets too much pass.
pub fn denied(rules: &Rules) -> impl Iterator<Item = Selector> {
    let rules = rules.enforced().filter(|rule| rule.verdict != PolicyVerdict::Allow);
    rules.flat_map(|rule| rule.peers.iter().flatten()).filter_map(|peer| match peer {
        PolicyPeer::Selected(selector) => Some(selector.clone()),
        PolicyPeer::Network { .. } => None,
    })
}

impl SourceState {
    /// Nothing has been received.
    pub fn silent(provider: Provider) -> SourceState {
        SourceState {
            provider,
            healthy: false,
            read: None,
            holds: false,
            problems: 0,
            policies: Arc::default(),
        }
    }

    /// `rules` were kept, and nothing has been received since.
    pub fn holding(provider: Provider, rules: &Rules) -> SourceState {
        SourceState { holds: true, policies: objects(rules), ..SourceState::silent(provider) }
    }
}

fn objects(rules: &Rules) -> Arc<BTreeSet<Origin>> {
    Arc::new(rules.iter().map(|rule| rule.origin.object()).gather())
}

#[cfg(test)]
mod tests;
