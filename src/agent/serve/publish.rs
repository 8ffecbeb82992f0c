//! Publishes the state of the loop for status, metrics and probes.

use std::time::Instant;

use crate::agent::applier::Applier;
use crate::agent::counters::follows_pods;
use crate::agent::snapshot::AgentSnapshot;
use crate::agent::trigger::{Scope, TriggerReason};
use crate::plan::Line;

use crate::agent::serve::agent::Agent;

impl Agent {
    /// Notes what a reconcile changed: a repair, if it was only made because somebody else changed the
    /// kernel or a file; says whether it was.
    pub(super) fn record_changes(
        &self,
        applier: &Applier,
        why: &TriggerReason,
        same_host: bool,
    ) -> bool {
        let repair = self.state.ready && same_host && why.is_external();
        self.shared.counters().changes(applier.changes(), repair);
        let entry = |line: &Line| (line.past(), repair && !follows_pods(&line.object));
        self.shared.journal.note(applier.changes().iter().map(entry), &why.to_string());
        repair
    }

    /// Counts a reconcile. Once it has looked at routes, the kernel agrees with what was `received`.
    pub(super) fn count_reconcile(&mut self, scope: Scope, begun: Instant, failed: bool) {
        let mut counters = self.shared.counters();
        counters.pass(scope == Scope::ALL, begun.elapsed(), failed);
        if scope.routes
            && !failed
            && let Some(received) = self.state.change_received_at.take()
        {
            counters.lag.add(received.elapsed());
        }
    }

    pub(super) fn publish(&mut self) {
        let policies = self.policy_view();
        let state = &self.state;
        self.shared.publish(AgentSnapshot {
            settings: self.settings.clone(),
            subnets: state.subnets,
            blocks: self.named_blocks(),
            since: state.since,
            in_sync: state.in_sync,
            ready: state.ready,
            revision: state.snapshot.as_ref().map(|snapshot| snapshot.revision),
            peers: state.peers.clone(),
            peer_routes: state.cache.peer_routes.last(),
            host_state: state.host_state.clone(),
            rotation: state.cache.rotation.state(),
            etcd: state.etcd.clone(),
            contact: self.registry.contact().cloned(),
            policies,
        });
    }
}
