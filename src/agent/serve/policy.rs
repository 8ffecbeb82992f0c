//! Policies: what their sources say, new pods, and what is kept for the next start.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;

use crate::agent::active_problems::ProblemSource;
use crate::agent::new_pods;
use crate::agent::serve::agent::Agent;
use crate::agent::serve::networks::block_inputs;
use crate::agent::serve::state::AgentState;
use crate::agent::trigger::{self, Scope, Trigger, TriggerReason};
use crate::checks::pod_keys::pod_keys;
use crate::inspect::{Kernel, last_policies, pods, policy_file};
use crate::net::gather::Gather;
use crate::net::node_name::NodeName;
use crate::netlink::NetlinkError;
use crate::os::files;
use crate::os::threads::Worker;
use crate::policy::compile::POLICY_TABLE;
use crate::policy::held::Sharing;
use crate::policy::knowledge::HostKnowledge;
use crate::policy::sources::{Policies, REFUSED_LIMIT};
use crate::policy::view::{Held, Quarantined, View};
use crate::policy::{Provider, SourceUpdate};
use crate::settings::{Settings, Source};
use crate::sources::{ApiStart, Followed, PodScope, PoliciesInForce, PoliciesStart};

/// Wait after a change of the file: what is written in several steps is read once.
const SETTLE: Duration = Duration::from_millis(20);

/// Time between two looks whether pods in quarantine are still there.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Takes over what held before the agent stopped, of the sources in `settings`. If the agent was killed before it
/// had written a change, that is older than the table: then the table stays as it is until a source has
/// said something. Where there is none, the host was started again, and older policies are better than none.
pub fn take_kept(state: &mut AgentState, settings: &Settings, host: &NodeName, kernel: &Kernel) {
    let Some(policy) = &settings.policy else { return };
    let kept = last_policies::kept(&settings.state_dir, !may_have_table(kernel.nft.tables()));
    state.published = Arc::new(last_policies::published(settings, host));
    let providers = policy.providers(&settings.source);
    if !kept.keys().all(|provider| providers.contains(provider)) {
        // What is kept for the next start has less, too.
        state.kept_policies.changed();
    }
    state.policies = Policies::kept(kept, &providers, settings.pod_defaults());
}

/// A kernel that does not answer may have it.
fn may_have_table(found: Result<Vec<String>, NetlinkError>) -> bool {
    found.map_or(true, |tables| tables.iter().any(|it| it == POLICY_TABLE))
}

fn not_kept(error: impl Into<anyhow::Error>) {
    log::error!("keep the policies for the next start: {:#}", error.into());
}

impl Agent {
    /// Starts and ends what follows the Kubernetes API or etcd, as the settings say.
    pub(super) fn follow_policies(&mut self) {
        let wanted = match (&self.settings.policy, &self.settings.source) {
            (None, _) | (_, Source::Static(_)) => None,
            (Some(policy), Source::Kubernetes(api)) => Some(Followed::Kubernetes(ApiStart {
                api: api.clone(),
                host: self.name.clone(),
                pods: PodScope::All,
                ruling: policy.objects,
                group: policy.group.clone(),
            })),
            (Some(policy), Source::Etcd { server, roots }) => {
                let start = PoliciesStart { etcd: server.clone(), roots: roots.clone() };
                let (host, state_dir) = (self.name.clone(), self.settings.state_dir.clone());
                let (api, ruling) = (policy.api.clone().map(Box::new), policy.objects);
                Some(Followed::Etcd { start, host, state_dir, api, ruling })
            }
        };
        let policies = &self.state.policies;
        self.policies.set(wanted, || PoliciesInForce {
            of_api: policies.understood(Provider::Kubernetes),
            has_etcd: policies.has_some(Provider::Etcd),
            members: policies.members(),
            blocks: block_inputs(&self.state, &self.name).unwrap_or_default(),
        });
        if !self.policies.exchanges() {
            self.shared.problems.set(ProblemSource::Members, None);
            self.shared.problems.set(ProblemSource::Shares, None);
        }
    }

    /// Follows the settings in what sources there are, and where pods of no tenant's network have addresses.
    pub(super) fn want_policies(&mut self) {
        let policy = self.settings.policy.as_ref();
        let sources = policy.map(|policy| policy.providers(&self.settings.source));
        let defaults = self.settings.pod_defaults();
        let is_less = self.state.policies.want(&sources.unwrap_or_default(), defaults);
        // What is kept for the next start has less, too.
        self.note_policies(is_less);
    }

    /// Where to look because of `update`.
    pub(super) fn take_policies(&mut self, update: SourceUpdate) -> Scope {
        if self.settings.policy.is_none() {
            return Scope::default();
        }
        // A network that this host has blocks of does not go, and one whose last block was given back does.
        let forgotten = self.state.policies.hold(self.state.networks.held());
        let changed = self.state.policies.take(update, SystemTime::now()) || forgotten;
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
        let last_resort = !self.state.policies.has(Provider::File);
        let own = policy_file::this_host(&self.settings, &self.name);
        let update = policy_file::read(file, &own, policy.group.as_ref(), last_resort);
        let scope = self.take_policies(update);
        if !scope.is_empty() {
            self.state.scope = self.state.scope.and(scope);
            self.state.reasons.and(TriggerReason::POLICIES);
            self.state.reconcile_at = Instant::now();
        }
    }

    /// Starts to receive the questions of plugins, if policies are on.
    pub(super) fn listen_for_pods(&mut self) {
        if self.settings.policy.is_none() || self.state.once || self.state.new_pods.is_some() {
            return;
        }
        let folder = &self.settings.cni.ipam_dir;
        if !pods::is_usable(folder) {
            return;
        }
        let to = self.to_loop.clone();
        let ask = move |asked| trigger::send(&to, Trigger::Plugin(asked));
        match new_pods::listen(folder, ask) {
            Ok(new_pods) => self.state.new_pods = Some(new_pods),
            Err(error) => log::error!("listen for new pods in {}: {error}", folder.display()),
        }
    }

    /// Keeps what is in force for the next start, if it is time to. A thread writes it, since a disk may take seconds and
    /// pods that start wait for the loop; `at_end` what is new is written before this returns.
    pub(super) fn keep_policies(&mut self, at_end: bool) {
        let now = Instant::now();
        if !self.state.kept_policies.is_due(now, at_end) {
            return;
        }
        let Some(policies) = self.state.policies.in_force() else {
            return self.state.kept_policies.failed(now);
        };
        let (text, folder) = (last_policies::text(&policies), self.settings.state_dir.clone());
        self.state.kept_policies.begun();
        if at_end {
            // The thread may be writing the next file.
            return last_policies::keep(&folder, &text).unwrap_or_else(not_kept);
        }
        let to = self.to_loop.clone();
        let write = move || {
            let written = last_policies::write_next(&folder, &text).map(|()| text.len());
            trigger::send(&to, Trigger::Kept(written.map_err(anyhow::Error::from)));
        };
        self.on_disk(write).unwrap_or_else(|error| self.note_kept(Err(error)));
    }

    /// What was to be kept was `written`, in so many bytes, or could not be.
    pub(super) fn note_kept(&mut self, written: anyhow::Result<usize>) {
        let (now, kept) = (Instant::now(), &mut self.state.kept_policies);
        let taken = written.and_then(|bytes| {
            let is_current = kept.written(bytes, now);
            last_policies::take_next(&self.settings.state_dir, is_current)
        });
        if let Err(error) = taken {
            not_kept(error);
            return kept.failed(now);
        }
        let folder = self.settings.state_dir.clone();
        // Without a thread the new name is on the disk some seconds later.
        let sync = move || files::sync_directory(&folder).unwrap_or_else(not_kept);
        let _synced = self.on_disk(sync);
    }

    /// Has the thread do `work` that waits for the disk.
    fn on_disk(&mut self, work: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
        let disk = match self.state.disk.take() {
            Some(disk) => disk,
            None => Worker::spawn("disk").context("start a thread")?,
        };
        self.state.disk.insert(disk).give(work);
        Ok(())
    }

    pub(super) fn policy_input(&self) -> HostKnowledge {
        let known = self.state.policies.snapshot().cloned();
        let sharing = match self.policies.exchanges() {
            true => Sharing::On(Arc::clone(&self.state.published)),
            false => Sharing::Off,
        };
        let mark = self.settings.policy.as_ref().map(|policy| policy.mark).unwrap_or_default();
        HostKnowledge { host: self.name.clone(), known, sharing, mark }
    }

    /// What is known of policies, for all who ask; what keeps pods in quarantine becomes a problem.
    pub(super) fn policy_view(&mut self) -> Option<Arc<View>> {
        let Some(settings) = &self.settings.policy else {
            if self.state.policy_view.take().is_some() {
                self.shared.problems.set(ProblemSource::QuarantinedPods, None);
                self.shared.problems.set(ProblemSource::PodWords, None);
            }
            return None;
        };
        if self.state.policy_view.is_none() {
            let pods = self.state.cache.policy.pods.clone().unwrap_or_default();
            self.policy_input().describe(&pods, &mut self.state.cache.policy.described);
            let sources = self.state.policies.states(&settings.providers(&self.settings.source));
            let held = self.held();
            let known = self.state.policies.snapshot().cloned();
            let (cache, is_silent) = (&self.state.cache.policy, known.is_none());
            let view = View {
                held,
                host: self.name.clone(),
                subnets: self.pod_subnets(),
                sources,
                known,
                not_in_force: if is_silent { cache.not_released(&pods) } else { BTreeSet::new() },
                pods,
                unjudged: is_silent && cache.has_no_table(),
            };
            let known = self.state.cache.policy.described.known_addresses();
            let (quarantined, now) = (view.quarantined_but(&known), SystemTime::now());
            self.state.quarantine_due =
                (!quarantined.is_empty()).then(|| Instant::now() + LOOK_AGAIN);
            let problems =
                quarantined.iter().filter(|one| one.lasts(now)).map(Quarantined::problem);
            let problems = problems.chain(view.not_judged());
            self.shared.problems.set(ProblemSource::QuarantinedPods, problems);
            let refused = self.state.cache.policy.described.refused();
            let words = pod_keys(&view).into_iter().chain(refused.into_iter().take(REFUSED_LIMIT));
            self.shared.problems.set(ProblemSource::PodWords, words);
            self.state.policy_view = Some(Arc::new(view));
        }
        self.state.policy_view.clone()
    }

    /// The pods that other hosts must know first.
    fn held(&mut self) -> BTreeMap<String, Held> {
        let (now, before) = (SystemTime::now(), std::mem::take(&mut self.state.held));
        let cache = &self.state.cache.policy;
        let found = self.policy_input().held(&cache.described, &cache.released());
        let held = found.into_iter().map(|(container, reason)| {
            let since = before.get(&container).map_or(now, |held| held.since);
            (container, Held { reason, since })
        });
        self.state.held = held.gather();
        self.state.held.clone()
    }

    /// Looks at the pods again while one of them is in quarantine: it may have gone.
    pub(super) fn check_quarantine(&mut self) {
        if self.state.quarantine_due.take_if(|due| *due <= Instant::now()).is_some() {
            self.state.scope = self.state.scope.and(Scope::PODS);
            self.state.reasons.and(TriggerReason::PODS);
        }
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
