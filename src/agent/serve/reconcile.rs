//! One look at the host, and what follows from what was seen.

use std::time::{Duration, Instant};

use crate::agent::active_problems::Check;
use crate::agent::applier::Applier;
use crate::agent::notify;
use crate::agent::pool_use::{addresses, scarce};
use crate::agent::reconcile::Pass;
use crate::agent::reconcile::run::{self, Seen};
use crate::agent::serve::{Agent, RETRY, attributes};
use crate::agent::trigger::{Look, Why};

/// Quiet time after a pass: a storm of events costs one pass each 20 ms, a single one waits for
/// nothing.
pub const SETTLE: Duration = Duration::from_millis(20);

impl Agent {
    /// Makes a pass if there is something to look at and it is time. Not before the other hosts are
    /// known: the lease is told a moment earlier, and a host without routes is not ready.
    pub(super) fn look(&mut self) -> Option<Applier> {
        let now = Instant::now();
        if now >= self.state.resync_at {
            self.state.look = Look::ALL;
            self.state.why.and(if self.state.ready { Why::RESYNC } else { Why::START });
        }
        if self.files.take_due(now) {
            self.state.look.files = true;
            self.state.why.and(Why::FILES);
        }
        let (subnets, peers) = (self.state.subnets?, self.state.peers.clone()?);
        if self.state.look.is_nothing() || now < self.state.look_at {
            return None;
        }
        let look = std::mem::take(&mut self.state.look);
        if look.files {
            self.files.follow(&self.settings);
        }
        let pass = Pass {
            settings: &self.settings,
            world: &self.world,
            subnets: &subnets,
            peers: Some(&peers),
            in_sync: self.state.in_sync,
            resolved: &self.state.resolved,
            before: self.state.facts.as_ref(),
            was_ready: self.state.ready,
            look,
        };
        let mut applier = Applier::new(false);
        let seen = run::run(&pass, &mut self.state.known, &mut applier);
        log::debug!("looked at {look:?} in {:?}", now.elapsed());
        let why = std::mem::take(&mut self.state.why);
        let same_host = seen.as_ref().map(|seen| &seen.facts) == self.state.facts.as_ref();
        let repair = self.note(&applier, &why, same_host);
        if let Some(seen) = seen.as_ref().filter(|_| repair) {
            self.files.mended(&seen.mended, now);
        }
        self.count(look, now, !applier.failures().is_empty());
        self.conclude(look, seen, &applier);
        if look == Look::ALL {
            self.conclude_reload(applier.failures().is_empty());
        }
        Some(applier)
    }

    fn conclude(&mut self, look: Look, seen: Option<Seen>, applier: &Applier) {
        let (state, problems) = (&mut self.state, &self.shared.problems);
        let now = Instant::now();
        state.look_at = now + SETTLE;
        if look == Look::ALL {
            state.resync_at = now + self.settings.resync;
            let uses = addresses(&self.settings, state.subnets);
            problems.set(Check::PoolUse, scarce(&uses));
        }
        let failures = applier.failures().iter().cloned();
        if state.once {
            // They are the reason to leave, and reported as that.
        } else if look == Look::ALL {
            problems.set(Check::Reconcile, failures);
        } else {
            problems.add(Check::Reconcile, failures);
        }
        if !applier.failures().is_empty() {
            state.resync_at = state.resync_at.min(now + state.retry);
            state.retry = (state.retry * 2).min(self.settings.resync);
        } else if look == Look::ALL {
            state.retry = RETRY;
        }
        let Some(seen) = seen else { return };
        self.source.publish(attributes(&self.settings, seen.facts.own));
        if state.facts.as_ref().is_some_and(|before| seen.facts.breaks_connections_of(before)) {
            self.source.reconnect();
        }
        state.facts = Some(seen.facts);
        for (check, found) in seen.problems {
            problems.set(check, found);
        }
        problems.set(Check::ContestedFiles, self.files.contested(now));
        if !state.ready && look == Look::ALL && applier.failures().is_empty() {
            state.ready = true;
            let status = state.status();
            log::info!("ready: {status}");
            notify::ready(&status);
            self.source.set_ready();
        }
    }
}
