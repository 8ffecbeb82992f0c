//! Members of groups: what this host says of its pods, and what other hosts say of theirs.

use std::sync::Arc;

use crate::agent::active_problems::ProblemSource;
use crate::agent::serve::agent::Agent;
use crate::agent::trigger::Scope;
use crate::lease::{Peers, Snapshot};
use crate::policy;
use crate::policy::local::Pods;
use crate::sources::{ExchangeInputs, Exchanged, Hosts, OwnHost, hosts};

/// What the inputs of the exchange were computed from.
#[derive(Default)]
pub struct ExchangedFrom {
    of: Option<(Arc<policy::Snapshot>, Pods, Arc<Snapshot>)>,
    hosts: Option<(Arc<Peers>, Arc<Hosts>)>,
}

impl Agent {
    /// Where to look because of what other hosts say.
    pub(super) fn take_members(&mut self, exchanged: Exchanged) -> Scope {
        if !self.policies.exchanges() {
            return Scope::default();
        }
        let Exchanged { members, unread, problems } = exchanged;
        let changed = self.state.policies.take_members(members, &unread, problems);
        self.note_policies(changed)
    }

    /// Where to look after policies or members have `changed`, or not.
    pub(super) fn note_policies(&mut self, changed: bool) -> Scope {
        self.state.policies_unkept |= changed;
        self.shared.problems.set(ProblemSource::Policies, self.state.policies.problems());
        match (changed, self.state.ready) {
            (false, _) => Scope::default(),
            // The start may have waited for it.
            (true, false) => Scope::ALL,
            (true, true) => Scope::POLICY,
        }
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
        let from = &mut state.exchanged_from;
        let is_same = from.of.as_ref().is_some_and(|(old, had, hosts)| {
            Arc::ptr_eq(old, known) && had == pods && Arc::ptr_eq(hosts, snapshot)
        });
        if is_same {
            return;
        }
        from.of = Some((Arc::clone(known), pods.clone(), Arc::clone(snapshot)));
        let hosts = match &from.hosts {
            Some((of, hosts)) if Arc::ptr_eq(of, peers) => Arc::clone(hosts),
            _ => Arc::new(hosts(peers)),
        };
        from.hosts = Some((Arc::clone(peers), Arc::clone(&hosts)));
        let record = snapshot.nodes.get(&self.name);
        let addresses = record.map(|record| record.value.addresses).unwrap_or_default();
        let own = OwnHost {
            name: self.name.clone(),
            subnets: state.subnets.iter().flat_map(|subnets| subnets.iter().copied()).collect(),
            addresses: addresses.iter().copied().collect(),
            record: record.filter(|_| state.in_sync).map(|record| record.modified),
        };
        let endpoints = pods.endpoints(known, &self.name);
        self.policies.exchange(ExchangeInputs::of(known, endpoints, &own, hosts));
    }
}
