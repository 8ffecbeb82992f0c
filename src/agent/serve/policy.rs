//! Policies: what their sources say, new pods, and what is kept for the next start.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::agent::active_problems::ProblemSource;
use crate::agent::applier::Applier;
use crate::agent::new_pods;
use crate::agent::reconcile;
use crate::agent::serve::agent::Agent;
use crate::agent::trigger::{self, Scope, Trigger, TriggerReason};
use crate::inspect::{Kernel, last_policies, policy_file};
use crate::netlink::NetlinkError;
use crate::policy::ask::PolicyAnswer;
use crate::policy::compile::POLICY_TABLE;
use crate::policy::held::{Published, Sharing};
use crate::policy::local::{HostKnowledge, Pods};
use crate::policy::sources::Policies;
use crate::policy::view::{Held, Quarantined, View};
use crate::policy::{Provider, SourceUpdate};
use crate::settings::{Settings, Source};
use crate::sources::{ApiStart, Followed, PodScope, PoliciesStart, published};

/// Wait after a change of the file: what is written in several steps is read once.
const SETTLE: Duration = Duration::from_millis(20);

/// Time between two looks whether pods in quarantine are still there.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// What held before the agent stopped, of the sources in `settings`. If the agent was killed before it
/// had written a change, that is older than the table: then the table stays as it is until a source has
/// said something. Where there is none, the host was started again, and older policies are better than none.
pub fn kept_policies(settings: &Settings, kernel: &Kernel) -> (Policies, Arc<Published>) {
    let Some(policy) = &settings.policy else { return Default::default() };
    let has_table = may_have_table(kernel.nft.tables());
    let kept = last_policies::kept(&settings.state_dir, !has_table);
    let published = Arc::new(published::read(&settings.state_dir));
    (Policies::kept(kept, &policy.providers(&settings.source)), published)
}

/// A kernel that does not answer may have it.
fn may_have_table(found: Result<Vec<String>, NetlinkError>) -> bool {
    found.map_or(true, |tables| tables.iter().any(|it| it == POLICY_TABLE))
}

impl Agent {
    /// Starts and ends what follows the Kubernetes API or etcd, as the settings say.
    pub(super) fn follow_policies(&mut self) {
        let wanted = match &self.settings.source {
            _ if self.settings.policy.is_none() => None,
            Source::Kubernetes(api) => Some(Followed::Kubernetes(ApiStart {
                api: api.clone(),
                host: self.name.clone(),
                pods: PodScope::All,
            })),
            Source::Etcd { server, roots } => {
                let start = PoliciesStart { etcd: server.clone(), roots: roots.clone() };
                let (host, state_dir) = (self.name.clone(), self.settings.state_dir.clone());
                Some(Followed::Etcd { start, host, state_dir })
            }
            Source::Static(_) => None,
        };
        let had_some = self.state.policies.has_some(Provider::Etcd);
        let policies = &self.state.policies;
        self.policies.set(wanted, had_some, || policies.members());
    }

    /// Where to look because of `update`.
    pub(super) fn take_policies(&mut self, update: SourceUpdate) -> Scope {
        if self.settings.policy.is_none() {
            return Scope::default();
        }
        let changed = self.state.policies.take(update, SystemTime::now());
        self.note_policies(changed)
    }

    pub(super) fn note_policy_file(&mut self, files: &BTreeSet<PathBuf>) {
        let policy = self.settings.policy.as_ref();
        if policy.and_then(|policy| policy.file.as_ref()).is_some_and(|file| files.contains(file)) {
            self.state.policy_file_due = Some(Instant::now() + SETTLE);
        }
    }

    /// Reads POLICY_FILE if it is due.
    pub(super) fn read_policy_file(&mut self) {
        if self.state.policy_file_due.take_if(|due| *due <= Instant::now()).is_none() {
            return;
        }
        let Some(policy) = &self.settings.policy else {
            self.shared.problems.set(ProblemSource::Policies, None);
            return;
        };
        let Some(file) = &policy.file else { return };
        let update = policy_file::read(file, &self.name, !self.state.policies.has(Provider::File));
        let scope = self.take_policies(update);
        if !scope.is_empty() {
            self.state.scope = self.state.scope.and(scope);
            self.state.reasons.and(TriggerReason::POLICIES);
            self.state.reconcile_at = Instant::now();
        }
    }

    /// Starts to hear the questions of plugins, if policies are on.
    fn hear_pods(&mut self) {
        if self.settings.policy.is_none() || self.state.once || self.state.new_pods.is_some() {
            return;
        }
        let folder = &self.settings.cni.ipam_dir;
        let to = self.on_pods.clone();
        let ask = move |asked| trigger::send(&to, Trigger::Pod(asked));
        match new_pods::listen(folder, ask) {
            Ok(new_pods) => self.state.new_pods = Some(new_pods),
            Err(error) => log::error!("hear of new pods in {}: {error}", folder.display()),
        }
    }

    /// Keeps what is in force for the next start, if it is time to; `at_end`: if there is anything new.
    pub(super) fn keep_policies(&mut self, at_end: bool) {
        let now = Instant::now();
        if self.state.kept_policies.due().is_none_or(|due| due > now && !at_end) {
            return;
        }
        let Some(policies) = self.state.policies.in_force() else {
            return self.state.kept_policies.failed(now);
        };
        match last_policies::keep(&self.settings.state_dir, &policies) {
            Ok(bytes) => self.state.kept_policies.written(bytes, now),
            Err(error) => {
                log::error!("keep the policies for the next start: {error}");
                self.state.kept_policies.failed(now);
            }
        }
    }

    pub(super) fn policy_input(&self) -> HostKnowledge {
        let known = self.state.policies.snapshot().cloned();
        let sharing = match self.policies.exchanges() {
            true => Sharing::On(Arc::clone(&self.state.published)),
            false => Sharing::Off,
        };
        HostKnowledge { host: self.name.clone(), known, sharing }
    }

    /// What is known of policies, for all who ask; what keeps pods in quarantine becomes a problem.
    pub(super) fn policy_view(&mut self) -> Option<Arc<View>> {
        let Some(settings) = &self.settings.policy else {
            if self.state.policy_view.take().is_some() {
                self.shared.problems.set(ProblemSource::QuarantinedPods, None);
            }
            return None;
        };
        if self.state.policy_view.is_none() {
            let pods = self.state.cache.policy.pods.clone().unwrap_or_default();
            let sources = self.state.policies.states(&settings.providers(&self.settings.source));
            let view = View {
                held: self.held(&pods),
                host: self.name.clone(),
                subnets: self.state.subnets.iter().flat_map(|all| all.iter().copied()).collect(),
                sources,
                known: self.state.policies.snapshot().cloned(),
                pods,
            };
            let (quarantined, now) = (view.quarantined(), SystemTime::now());
            self.state.quarantine_due =
                (!quarantined.is_empty()).then(|| Instant::now() + LOOK_AGAIN);
            let problems =
                quarantined.iter().filter(|one| one.lasts(now)).map(Quarantined::problem);
            self.shared.problems.set(ProblemSource::QuarantinedPods, problems);
            self.state.policy_view = Some(Arc::new(view));
        }
        self.state.policy_view.clone()
    }

    /// Those of `pods` that other hosts must know first.
    fn held(&mut self, pods: &Pods) -> BTreeMap<String, Held> {
        let (now, before) = (SystemTime::now(), std::mem::take(&mut self.state.held));
        let found = self.policy_input().held(pods, &self.state.cache.policy.released());
        let held = found.into_iter().map(|(container, reason)| {
            let since = before.get(&container).map_or(now, |held| held.since);
            (container, Held { reason, since })
        });
        self.state.held = held.collect();
        self.state.held.clone()
    }

    /// Looks at the pods again while one of them is in quarantine: it may have gone.
    pub(super) fn look_at_quarantine(&mut self) {
        if self.state.quarantine_due.take_if(|due| *due <= Instant::now()).is_some() {
            self.state.scope = self.state.scope.and(Scope::POLICY);
            self.state.reasons.and(TriggerReason::PODS);
        }
    }

    /// Puts the policies of new pods in force at once, and answers their plugins.
    pub(super) fn answer_pods(&mut self) {
        self.hear_pods();
        if self.state.asked.is_empty() {
            return;
        }
        let asked = std::mem::take(&mut self.state.asked);
        let starts =
            PolicyAnswer { in_force: false, judged: false, why: "the agent starts".to_owned() };
        let Some(subnets) = self.state.subnets.filter(|_| self.settings.policy.is_some()) else {
            return asked.into_iter().for_each(|asked| asked.answer(&starts));
        };
        let policies = self.policy_input();
        let Some(pods) = &mut self.state.cache.policy.pods else {
            return asked.into_iter().for_each(|asked| asked.answer(&starts));
        };
        for asked in asked.iter().filter(|asked| asked.pod.network == self.settings.cni.name) {
            pods.add(asked.pod.clone());
        }
        let mut applier = Applier::new(false);
        let mut cache = std::mem::take(&mut self.state.cache.policy);
        let run = self.input(&subnets, Some(&policies), Scope::default());
        let is_in_force = reconcile::policy::reconcile(&run, false, &mut cache, &mut applier);
        self.state.cache.policy = cache;
        let mut why = TriggerReason::default();
        why.and(TriggerReason::PODS);
        self.record_changes(&applier, &why, true);
        self.state.policy_view = None;
        let cache = &self.state.cache.policy;
        let (released, pods) = (cache.released(), cache.pods.as_ref());
        let held = pods.map(|pods| policies.held(pods, &released)).unwrap_or_default();
        for asked in asked {
            let container = &asked.pod.container_id;
            let is_released =
                asked.pod.addresses.iter().all(|it| released.get(it) == Some(container));
            let held = match (held.get(container), is_released) {
                (_, true) => None,
                (Some(reason), _) => Some(reason.to_string()),
                (None, _) => Some("the source of policies does not know the pod yet".to_owned()),
            };
            asked.answer(&answer(is_in_force, policies.known.is_some(), held));
        }
        if !is_in_force {
            self.state.scope = self.state.scope.and(Scope::POLICY);
        }
    }
}

/// The answer to a new pod's plugin. `held`: why the pod stays in quarantine, although the table is in force.
fn answer(is_in_force: bool, has_policies: bool, held: Option<String>) -> PolicyAnswer {
    let why = match (is_in_force, held) {
        (true, held) => held,
        (false, _) if !has_policies => Some("no policies have been read yet".to_owned()),
        (false, _) => Some("the table of policies cannot be changed".to_owned()),
    };
    PolicyAnswer {
        in_force: why.is_none(),
        judged: is_in_force && has_policies,
        why: why.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_does_not_answer_may_have_the_table() {
        let found = |names: &[&str]| Ok(names.iter().map(|name| (*name).to_owned()).collect());
        assert!(may_have_table(found(&["other", POLICY_TABLE])));
        assert!(!may_have_table(found(&["other"])));
        assert!(may_have_table(Err(NetlinkError::Malformed(String::new()))));
    }
}
