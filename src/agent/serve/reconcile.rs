//! One reconcile: when it is due, its input, and what follows from its outcome.

use std::time::{Duration, Instant};

use ipnetwork::IpNetwork;

use crate::agent::active_problems::ProblemSource;
use crate::agent::applier::Applier;
use crate::agent::notify;
use crate::agent::reconcile::Reconcile;
use crate::agent::reconcile::run::{self, ReconcileOutcome};
use crate::agent::serve::agent::Agent;
use crate::agent::serve::pod_answers::CHANGES_FIRST;
use crate::agent::serve::state::RETRY;
use crate::agent::trigger::{Scope, TriggerReason};
use crate::inspect::host_state::attributes;
use crate::inspect::pool_use::{addresses, scarce};
use crate::net::PerFamily;
use crate::net::gather::Gather;
use crate::policy::Provider;
use crate::policy::knowledge::HostKnowledge;

/// How soon handshakes are looked at again, while keys are changed.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Agent {
    /// Reconciles if a scope is due. Not before the other hosts are
    /// known: the lease arrives a moment earlier, and a host without routes is not ready.
    pub(super) fn reconcile(&mut self) -> Option<Applier> {
        self.follow_policies();
        self.read_policy_file();
        self.check_released();
        self.check_quarantine();
        let now = Instant::now();
        self.widen_scope(now);
        if self.state.scope.files && !self.state.once {
            self.recheck_settings();
        }
        let subnets = self.state.subnets.filter(|_| self.state.peers.is_some())?;
        if self.state.scope.is_empty() || now < self.state.reconcile_at {
            return None;
        }
        let scope = std::mem::take(&mut self.state.scope);
        if scope.files {
            self.files.follow(&self.settings, self.loader.path());
        }
        let policies = self.policy_input();
        self.keep_plans();
        let mut applier = Applier::new(false);
        let mut cache = std::mem::take(&mut self.state.cache);
        let pods = cache.policy.pods.clone();
        let seen =
            run::run(&self.input(&subnets, Some(&policies), scope), &mut cache, &mut applier);
        if cache.policy.pods != pods {
            self.state.reasons.and(TriggerReason::PODS);
        }
        self.state.cache = cache;
        self.note_looked_at(scope, now);
        // What is still to be done may be done already, and is no repair.
        self.state.reasons.and_all(&self.state.unfinished);
        self.note_changes(seen.as_ref(), &applier, now);
        self.count_reconcile(scope, now, !applier.failures().is_empty());
        if scope == Scope::POLICY && !applier.changes().is_empty() {
            self.finish_later(CHANGES_FIRST, TriggerReason::POLICIES);
        }
        self.conclude(scope, seen, &applier);
        if applier.failures().is_empty() {
            self.state.kept_policies.in_force(Instant::now());
            self.keep_policies(false);
        }
        if scope == Scope::ALL {
            self.conclude_reload(applier.failures().is_empty());
            if applier.failures().is_empty() {
                self.keep_settings();
            }
        }
        Some(applier)
    }

    /// What follows from a reconcile of `scope`, whatever came of it.
    fn note_looked_at(&mut self, scope: Scope, begun: Instant) {
        log::debug!("looked at {scope:?} in {:?}", begun.elapsed());
        if scope.routes {
            let look_soon = self.state.cache.rotation.look_soon;
            self.state.rotation_due = look_soon.then(|| Instant::now() + LOOK_AGAIN);
        }
        if scope.links {
            self.state.networks.in_place =
                self.state.networks.served.blocks.iter().copied().gather();
        }
        let is_silent = self.state.policies.snapshot().is_none();
        if scope.policy || scope.firewall && is_silent {
            self.state.policy_view = None;
        }
    }

    /// What a reconcile works from now.
    pub(super) fn input<'a>(
        &'a self,
        subnets: &'a PerFamily<IpNetwork>,
        policies: Option<&'a HostKnowledge>,
        scope: Scope,
    ) -> Reconcile<'a> {
        Reconcile {
            settings: &self.settings,
            kernel: &self.kernel,
            subnets,
            peers: self.state.peers.as_ref(),
            in_sync: self.state.in_sync,
            resolved: &self.state.resolved,
            networks: &self.state.networks.served,
            policies,
            previous: self.state.host_state.as_ref(),
            was_ready: self.state.ready,
            scope,
            own_writes: Some(&self.own_writes),
        }
    }

    /// Adds what is due at this time, whatever happened.
    fn widen_scope(&mut self, now: Instant) {
        if now >= self.state.resync_at {
            self.state.scope = Scope::ALL;
            self.state.new_pods.take_if(|new_pods| !new_pods.is_there());
            self.state.reasons.and(if self.state.ready {
                TriggerReason::RESYNC
            } else {
                TriggerReason::START
            });
        }
        if self.state.waits_for_networks && self.has_confirmed_networks() {
            self.state.waits_for_networks = false;
            self.state.scope = Scope::ALL;
            self.state.reasons.and(TriggerReason::START);
        }
        if self.state.rotation_due.take_if(|due| *due <= now).is_some() {
            self.state.scope = self.state.scope.and(Scope::ROUTES);
            self.state.reasons.and(TriggerReason::KEYS);
        }
        if self.files.take_due(now) {
            self.state.scope.files = true;
            self.state.reasons.and(TriggerReason::FILES);
        }
    }

    /// Notes the changes and, of those that were repairs, when.
    fn note_changes(&mut self, seen: Option<&ReconcileOutcome>, applier: &Applier, now: Instant) {
        let why = std::mem::take(&mut self.state.reasons);
        let same_host = seen.map(|seen| &seen.host_state) == self.state.host_state.as_ref();
        if self.record_changes(applier, &why, same_host) {
            if let Some(seen) = seen {
                self.files.repaired(&seen.repaired, now);
            }
            self.state.rate_limit.repaired(now);
        }
    }

    fn conclude(&mut self, scope: Scope, seen: Option<ReconcileOutcome>, applier: &Applier) {
        if scope == Scope::ALL {
            self.note_full_networks();
        }
        let (state, problems) = (&mut self.state, &self.shared.problems);
        let now = Instant::now();
        state.reconcile_at = now + state.rate_limit.pause(now);
        if scope == Scope::ALL {
            state.resync_at = now + self.settings.resync;
            let uses = addresses(&self.settings, state.subnets);
            problems.set(ProblemSource::PoolUse, scarce(&uses));
        }
        let failures = applier.failures().iter().cloned();
        if state.once {
            // They are the reason to leave, and reported as that.
        } else if scope == Scope::ALL {
            problems.set(ProblemSource::Reconcile, failures);
        } else {
            problems.add(ProblemSource::Reconcile, failures);
        }
        if !applier.failures().is_empty() {
            state.resync_at = state.resync_at.min(now + state.retry);
            state.retry = (state.retry * 2).min(self.settings.resync);
        } else if scope == Scope::ALL {
            state.retry = RETRY;
        }
        let Some(seen) = seen else { return };
        self.registry.publish(attributes(&self.settings, seen.host_state.own));
        if state
            .host_state
            .as_ref()
            .is_some_and(|before| seen.host_state.breaks_connections_of(before))
        {
            self.registry.reconnect();
        }
        state.host_state = Some(seen.host_state);
        for (check, found) in seen.problems {
            problems.set(check, found);
        }
        problems.set(ProblemSource::ContestedFiles, self.files.contended(now));
        if !state.ready && scope == Scope::ALL && applier.failures().is_empty() {
            match self.has_confirmed_networks() {
                true => self.become_ready(),
                false => self.state.waits_for_networks = true,
            }
        }
    }

    /// A block that went to another host while this one was away would have pods of both, and a pod of a namespace
    /// that got its network meanwhile would start in the default one. While no network is known no pod starts in one.
    pub(super) fn has_confirmed_networks(&self) -> bool {
        let policies = &self.state.policies;
        let has_networks = self.policies.exchanges() && policies.snapshot().is_some();
        !has_networks || policies.has_said(Provider::Etcd) && self.state.networks.is_confirmed()
    }

    fn become_ready(&mut self) {
        self.state.ready = true;
        let status = self.state.status();
        log::info!("ready: {status}");
        // Whoever waits for the service manager's word finds the same in `status`.
        self.publish();
        notify::ready(&status);
        self.registry.set_ready();
    }
}
