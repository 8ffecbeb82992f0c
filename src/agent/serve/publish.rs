//! What the loop tells those who ask on this host.

use std::time::Instant;

use crate::agent::applier::Applier;
use crate::agent::counters::follows_pods;
use crate::agent::snapshot::AgentSnapshot;
use crate::agent::trigger::{Look, Why};
use crate::plan::Line;

use crate::agent::serve::Agent;

impl Agent {
    /// Notes what a pass changed: a repair, if it was only made because somebody else changed the
    /// kernel or a file; says whether it was.
    pub(super) fn note(&self, applier: &Applier, why: &Why, same_host: bool) -> bool {
        let repair = self.state.ready && same_host && why.is_others();
        self.shared.counters().changes(applier.changes(), repair);
        let told = |line: &Line| (line.past(), repair && !follows_pods(&line.object));
        self.shared.journal.note(applier.changes().iter().map(told), &why.to_string());
        repair
    }

    /// Counts a pass. Once it has looked at routes, the kernel agrees with what was `heard`.
    pub(super) fn count(&mut self, look: Look, begun: Instant, failed: bool) {
        let mut counters = self.shared.counters();
        counters.pass(look == Look::ALL, begun.elapsed(), failed);
        if look.routes
            && !failed
            && let Some(heard) = self.state.heard.take()
        {
            counters.lag.add(heard.elapsed());
        }
    }

    /// Tells everything that is known now.
    pub(super) fn tell(&self) {
        let state = &self.state;
        self.shared.publish(AgentSnapshot {
            settings: self.settings.clone(),
            subnets: state.subnets,
            since: state.since,
            in_sync: state.in_sync,
            ready: state.ready,
            revision: state.snapshot.as_ref().map(|snapshot| snapshot.revision),
            peers: state.peers.clone(),
            ways: state.known.ways.last(),
            facts: state.facts.clone(),
            etcd: state.etcd.clone(),
            contact: self.source.contact().cloned(),
        });
    }
}
