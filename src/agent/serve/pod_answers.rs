//! New pods: their policies are put in force and their plugins answered; everything else follows.

use std::time::{Duration, Instant};

use crate::agent::applier::Applier;
use crate::agent::new_pods::PodRequest;
use crate::agent::reconcile;
use crate::agent::reconcile::policy::PolicyWork;
use crate::agent::serve::agent::Agent;
use crate::agent::trigger::{SETTLE, Scope, TriggerReason};
use crate::policy::ask::PolicyAnswer;
use crate::policy::knowledge::HostKnowledge;

/// What others learn of a pod whose policies are in force waits so long: its plugin works meanwhile, and more pods come
/// at once.
const PLUGINS_FIRST: Duration = Duration::from_millis(5);

/// What a change of policies has left without any use waits so long: further changes, and the members of its groups,
/// come first.
pub(super) const CHANGES_FIRST: Duration = Duration::from_secs(1);

impl Agent {
    /// Puts the policies of new pods in force at once, and answers their plugins.
    pub(super) fn answer_pods(&mut self) {
        self.listen_for_pods();
        if self.state.asked.is_empty() {
            return;
        }
        let asked = std::mem::take(&mut self.state.asked);
        let is_served = self.state.subnets.is_some() && self.settings.policy.is_some();
        let Some(pods) = self.state.cache.policy.pods.as_mut().filter(|_| is_served) else {
            let why = quarantine("the agent starts");
            return asked.into_iter().for_each(|asked| asked.answer(&why));
        };
        for asked in asked.iter().filter(|asked| asked.pod.network == self.settings.cni.name) {
            self.state.networks.note_use(&asked.pod.addresses);
            pods.add(asked.pod.clone());
        }
        let policies = self.policy_input();
        let mut applier = Applier::logging_later();
        let is_in_force = self.work_on_policies(PolicyWork::InForce, &policies, &mut applier);
        let all_are_open = self.answer(asked, &policies, is_in_force);
        applier.log();
        let mut why = TriggerReason::default();
        why.and(TriggerReason::PODS);
        self.note_pod_changes(&applier, &why);
        self.finish_later(SETTLE, TriggerReason::PODS);
        if all_are_open {
            self.state.publish_pods_at.get_or_insert(Instant::now() + PLUGINS_FIRST);
        }
        if !is_in_force {
            self.state.scope = self.state.scope.and(Scope::POLICY);
        }
    }

    /// Nothing holds back what others learn of this host's pods.
    pub(super) fn may_publish_pods(&mut self) -> bool {
        self.state.publish_pods_at.take_if(|due| *due <= Instant::now());
        self.state.publish_pods_at.is_none()
    }

    /// What is left to do because of that waits so long, for more of it.
    pub(super) fn finish_later(&mut self, wait: Duration, why: &'static str) {
        self.state.unfinished.and(why);
        let due = Instant::now() + wait;
        self.state.finish_policies_at =
            self.state.finish_policies_at.map_or(Some(due), |it| Some(it.min(due)));
    }

    /// Does what answers and changes did not wait for: the second look at the table, what is of no use in it any
    /// longer, and what plugins go by while there is no agent.
    pub(super) fn finish_policies(&mut self) {
        if self.state.finish_policies_at.take_if(|due| *due <= Instant::now()).is_none() {
            return;
        }
        let mut applier = Applier::new(false);
        let policies = self.policy_input();
        if !self.work_on_policies(PolicyWork::Whole, &policies, &mut applier) {
            self.state.scope = self.state.scope.and(Scope::POLICY);
        }
        let why = std::mem::take(&mut self.state.unfinished);
        if !applier.changes().is_empty() {
            self.note_pod_changes(&applier, &why);
        }
    }

    fn work_on_policies(
        &mut self,
        work: PolicyWork,
        policies: &HostKnowledge,
        applier: &mut Applier,
    ) -> bool {
        let Some(subnets) = self.state.subnets else { return false };
        let mut cache = std::mem::take(&mut self.state.cache.policy);
        let run = self.input(&subnets, Some(policies), Scope::default());
        let is_in_force = reconcile::policy::reconcile(&run, work, &mut cache, applier);
        self.state.cache.policy = cache;
        self.note_profiles(policies, applier);
        is_in_force
    }

    /// What plugins mark packets of new pods by.
    fn note_profiles(&mut self, policies: &HostKnowledge, applier: &mut Applier) {
        let Some(subnets) = self.state.subnets else { return };
        let mut cache = std::mem::take(&mut self.state.cache.profiles);
        let run = self.input(&subnets, Some(policies), Scope::default());
        reconcile::profiles::reconcile(&run, &self.state.cache.policy, &mut cache, applier);
        self.state.cache.profiles = cache;
    }

    /// True if no pod is in quarantine.
    fn answer(&self, asked: Vec<PodRequest>, policies: &HostKnowledge, is_in_force: bool) -> bool {
        let cache = &self.state.cache.policy;
        let released = cache.released();
        let is_known = |asked: &PodRequest| {
            let container = &asked.pod.container_id;
            asked.pod.addresses.iter().all(|it| released.get(it) == Some(container))
        };
        let all_are = is_in_force && asked.iter().all(is_known);
        let held =
            if all_are { Default::default() } else { policies.held(&cache.described, &released) };
        let judged = is_in_force && policies.known.is_some();
        for asked in asked {
            let answer = match (is_in_force, is_known(&asked)) {
                (true, true) => PolicyAnswer { in_force: true, judged: true, why: String::new() },
                _ if policies.known.is_none() => quarantine("no policies have been read yet"),
                (true, false) => match held.get(&asked.pod.container_id) {
                    Some(reason) => quarantine(&reason.to_string()),
                    None => quarantine(
                        "the source of policies does not know the pod yet, or is not followed",
                    ),
                },
                (false, _) => quarantine("the table of policies cannot be changed"),
            };
            asked.answer(&PolicyAnswer { judged, ..answer });
        }
        all_are
    }

    fn note_pod_changes(&mut self, applier: &Applier, why: &TriggerReason) {
        self.record_changes(applier, why, true);
        self.state.policy_view = None;
    }
}

fn quarantine(why: &str) -> PolicyAnswer {
    PolicyAnswer { in_force: false, judged: false, why: why.to_owned() }
}
