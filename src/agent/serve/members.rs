//! Members of groups: what this host says of its pods, and what other hosts say of theirs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::agent::active_problems::ProblemSource;
use crate::agent::serve::agent::Agent;
use crate::agent::trigger::{SETTLE, Scope, TriggerReason};
use crate::inspect::last_policies;
use crate::net::IfName;
use crate::plan::profiles::host_end;
use crate::policy::held::Published;
use crate::policy::local::Pods;
use crate::sources::{Exchanged, ExchangedFrom, ExchangedMembers};

/// First wait for the release of an address whose pod's link went; the fourfold each further time …
const RELEASED: Duration = Duration::from_millis(30);

/// … up to this.
const RELEASED_LIMIT: Duration = Duration::from_secs(2);

impl Agent {
    /// Where to look because of what other hosts say.
    pub(super) fn take_members(&mut self, exchanged: Exchanged) -> Scope {
        if !self.policies.exchanges() {
            return Scope::default();
        }
        match exchanged {
            Exchanged::Members(ExchangedMembers { members, unread, problems }) => {
                let changed = self.state.policies.take_members(members, &unread, problems);
                self.note_policies(changed)
            }
            Exchanged::Published(owners) => {
                Arc::make_mut(&mut self.state.published).commit(&owners);
                self.note_policies(false);
                self.state.reasons.and(TriggerReason::POLICIES);
                if self.state.ready { Scope::POLICY } else { Scope::ALL }
            }
            Exchanged::NotPublished(problem) => {
                self.shared.problems.set(ProblemSource::Members, problem);
                Scope::default()
            }
        }
    }

    /// Where to look after policies or members have `changed`, or not.
    pub(super) fn note_policies(&mut self, changed: bool) -> Scope {
        if changed && self.state.kept_policies.changed() {
            let outdated = last_policies::outdate(&self.settings.state_dir);
            outdated.unwrap_or_else(|error| log::error!("mark the kept policies: {error}"));
        }
        self.state.policy_view = None;
        self.shared.problems.set(ProblemSource::Policies, self.state.policies.problems());
        match (changed, self.state.ready) {
            (false, _) => Scope::default(),
            // The start may have waited for it.
            (true, false) => Scope::ALL,
            (true, true) => {
                self.hurry();
                Scope::POLICY
            }
        }
    }

    /// News of policies does not wait until an earlier reconcile has settled, unless other news did that a
    /// moment ago: a change of policies is followed by the members of its groups.
    fn hurry(&mut self) {
        let (now, state) = (Instant::now(), &mut self.state);
        let is_settling = now < state.reconcile_at && state.reconcile_at <= now + SETTLE;
        if is_settling && now >= state.hurried_at + SETTLE {
            (state.reconcile_at, state.hurried_at) = (now, now);
        }
    }

    /// DEL removes a pod's link before it releases the address: the store is read again a little later.
    pub(super) fn note_pods(&mut self, scope: Scope) {
        if scope.pods && self.settings.policy.is_some() {
            self.state.pods_due = Some((Instant::now() + RELEASED, RELEASED));
        }
    }

    /// The store was read, or the pod announced, since these ports came. A plugin announces none whose configuration is
    /// from before policies were turned on, as a runtime has it until it has read the present one.
    pub(super) fn knows_ports(&self, ports: &[IfName]) -> bool {
        let pods = self.state.cache.policy.pods.iter().flat_map(Pods::iter);
        let known: Vec<IfName> = pods.map(|pod| host_end(pod)).collect();
        ports.iter().all(|port| known.contains(port))
    }

    /// Reads the store again if that is due.
    pub(super) fn check_released(&mut self) {
        let now = Instant::now();
        let Some((_, waited)) = self.state.pods_due.filter(|(due, _)| *due <= now) else { return };
        let next = waited * 4;
        self.state.pods_due = (next < RELEASED_LIMIT).then_some((now + next, next));
        self.state.scope = self.state.scope.and(Scope::PODS);
        self.state.reasons.and(TriggerReason::PODS);
        self.state.reconcile_at = now;
    }

    /// Gives the exchange what has changed of this host's pods, policies and peers.
    pub(super) fn exchange_members(&mut self) {
        if !self.policies.exchanges() || self.state.once {
            return;
        }
        let state = &mut self.state;
        let (Some(known), Some(pods)) = (state.policies.of_sources(), &state.cache.policy.pods)
        else {
            return;
        };
        let (Some(snapshot), Some(peers)) = (&state.snapshot, &state.peers) else { return };
        let from = ExchangedFrom {
            known: Arc::clone(known),
            pods: pods.clone(),
            hosts: Arc::clone(snapshot),
            peers: Arc::clone(peers),
            is_certain: state.in_sync,
        };
        let (published, cache) = (&mut state.published, &mut state.cache.policy);
        let excess = self.policies.exchange(&from, |owners| {
            let mut sent = Published::clone(published);
            sent.send(owners);
            let narrowed = cache.narrow_index(&self.settings, &sent.addresses());
            let narrowed = narrowed.inspect_err(|error| log::error!("index of policies: {error}"));
            narrowed.map(|()| *published = Arc::new(sent)).is_ok()
        });
        if let Some(excess) = excess {
            let problems = excess.problems("pods of this host");
            self.shared.problems.set(ProblemSource::Shares, problems);
        }
    }
}
