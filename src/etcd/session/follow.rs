//! The watch: from one complete state to the next.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};

use crate::etcd::session::Session;
use crate::etcd::session::crowd::Crowd;
use crate::etcd::update::Update;
use crate::etcd::watch::{Changes, KeyWatch, WatchPosition};
use crate::lease::EtcdError;
use crate::lease::Snapshot;
use crate::lease::session::grace::{OWNER_PUTS_BACK, PUT_BACK};
use crate::lease::session::{SessionExit, is_same_store};
use crate::os::random;

/// Events that come closer together than this make one snapshot.
const COALESCE: Duration = Duration::from_millis(5);

/// In this time etcd sends what was missed during a rest: it looks every 100 ms for watches that are behind.
const CATCH_UP: Duration = Duration::from_millis(200);

// The other half is for a read and a write.
const _: () = assert!(2 * CATCH_UP.as_millis() <= PUT_BACK.as_millis());

/// Rest after a snapshot, in multiples of its processing time: a storm in a large network takes a
/// quarter of a processor at most.
const REST: u32 = 3;

/// Time between two progress requests …
const ASK: Duration = Duration::from_secs(10);

/// … and the longest time without any response.
const SILENCE: Duration = Duration::from_secs(30);

/// What is known since everything was read, and when something is to be done with it.
struct FollowState {
    /// etcd as the watch has it.
    mirror: Snapshot,
    /// `None`: it rested for longer than etcd keeps its history, and everything is to be read again.
    watch: Option<KeyWatch>,
    crowd: Crowd,
    received_at: Instant,
    /// End of the rest. While it rests nothing but urgent keys is learned of, and nothing published.
    resume_at: Option<Instant>,
    /// When the changes are published.
    due: Option<Instant>,
    changes: usize,
    host_removed: bool,
    /// Until when a living host may put back what it lost.
    owner_until: Option<Instant>,
    /// Nothing is published before this.
    rested: Instant,
    /// When everything is read again.
    move_at: Option<Instant>,
}

impl<P: FnMut(Update)> Session<'_, P> {
    /// Publishes the changes from the watch, beginning after `mirror`. Returns when something is to
    /// be written, or everything to be read again. `behind`: revisions since then.
    pub(super) async fn follow(
        &mut self,
        mirror: Snapshot,
        behind: i64,
    ) -> Result<(), SessionExit> {
        let mut renewed = self.etcd.members().renewed();
        let mut state = self.begin(mirror, behind).await?;
        let mut ask = interval_at(state.received_at + ASK, ASK);
        ask.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.inputs.contact.beat.beat();
            let FollowState { resume_at, move_at, .. } = state;
            let due = state.due.filter(|_| resume_at.is_none());
            tokio::select! {
                () = at(resume_at) => state.resume().await?,
                received = state.next() => self.received(&mut state, received)?,
                () = at(due) => {
                    if !self.publish_changes(&mut state).await? {
                        return Ok(());
                    }
                }
                _ = ask.tick() => self.ask(&mut state).await?,
                Ok(()) = renewed.changed() => state.move_at = Some(Instant::now() + self.spread()),
                () = at(move_at) => return Ok(()),
                Ok(()) = self.inputs.attributes.changed() => return Ok(()),
                Ok(()) = self.inputs.vacated.changed() => return Ok(()),
                Ok(()) = self.inputs.setup.changed() => return Ok(()),
                Ok(()) = self.etcd_lease.changed() => return Ok(()),
            }
        }
    }

    /// Watches what comes after `mirror`, at once or after a rest.
    async fn begin(&self, mirror: Snapshot, behind: i64) -> Result<FollowState, EtcdError> {
        let received_at = Instant::now();
        let mut crowd = Crowd::new(received_at.into_std());
        let resume_at = crowd.after_claim(behind).map(|rest| received_at + random::jittered(rest));
        let name = &self.machine.claimant().identity.name;
        let mut watch = self.etcd.watch(name, WatchPosition::after(mirror.revision)).await?;
        if resume_at.is_none() {
            watch.resume().await?;
        }
        Ok(FollowState {
            mirror,
            watch: Some(watch),
            crowd,
            received_at,
            resume_at,
            due: None,
            changes: 0,
            host_removed: false,
            owner_until: None,
            rested: received_at,
            move_at: None,
        })
    }

    fn received(
        &mut self,
        state: &mut FollowState,
        received: Result<Changes, EtcdError>,
    ) -> Result<(), EtcdError> {
        let received = match received {
            Err(EtcdError::Compacted(_)) => {
                (state.watch, state.due) = (None, None);
                state.move_at = Some(Instant::now() + self.spread());
                return Ok(());
            }
            received => received?,
        };
        let now = Instant::now();
        state.received_at = now;
        self.inputs.contact.received();
        state.host_removed |= received.host_removed;
        if received.asks_for_pods {
            self.inputs.reports.pods.ask(self.most_spread());
        }
        let own = &self.machine.claimant().identity.name;
        for (request, _) in received.tests.into_iter().filter(|(_, asked)| asked == own) {
            self.inputs.reports.tests.ask(request);
        }
        if received.changes > 0 {
            self.inputs.contact.changed();
            let soon = (now + COALESCE).max(state.rested);
            state.due = Some(state.due.map_or(soon, |due| due.min(soon)));
        }
        state.changes += received.changes;
        if state.resume_at.is_some() && state.is_urgent() {
            state.resume_at = Some(now);
        }
        Ok(())
    }

    /// False: something is to be written first, or this is another etcd.
    async fn publish_changes(&mut self, state: &mut FollowState) -> Result<bool, EtcdError> {
        let begun = Instant::now();
        state.due = None;
        let removed = std::mem::take(&mut state.host_removed);
        if !self.machine.agrees(&state.mirror)
            || removed && !is_same_store(&state.mirror, self.etcd.config_modified().await?)
        {
            return Ok(false);
        }
        if !state.awaits_owner(self.machine.misses_a_living_host(&state.mirror)) {
            match self.machine.update(&state.mirror) {
                Some(snapshot) => (self.publish)(Update::Snapshot(snapshot)),
                None => drop(self.inputs.contact.take_changed()),
            }
        }
        state.rested = Instant::now() + begun.elapsed() * REST;
        state.rest_in_a_crowd(begun).await?;
        Ok(true)
    }

    /// Asks for a sign of life, where none is due while it rests.
    async fn ask(&self, state: &mut FollowState) -> Result<(), EtcdError> {
        if state.received_at.elapsed() > SILENCE {
            self.etcd.next_member();
            return Err(EtcdError::Unreachable(
                format!("watch: no response for {SILENCE:?}").into(),
            ));
        }
        if let Some(watch) = state.watch.as_mut().filter(|_| state.resume_at.is_none()) {
            watch.request_progress().await?;
        }
        Ok(())
    }
}

impl FollowState {
    /// Once something `is_missing`, all is published when that is back, or its owner had its time.
    fn awaits_owner(&mut self, is_missing: bool) -> bool {
        let now = Instant::now();
        let until = self.owner_until.unwrap_or(now + OWNER_PUTS_BACK);
        self.owner_until = (is_missing && until > now).then_some(until);
        self.due = self.owner_until;
        self.due.is_some()
    }

    /// The next changes, of which there are none without a watch. Cancel-safe.
    async fn next(&mut self) -> Result<Changes, EtcdError> {
        match &mut self.watch {
            Some(watch) => watch.next(&mut self.mirror).await,
            None => std::future::pending().await,
        }
    }

    /// Ends the rest.
    async fn resume(&mut self) -> Result<(), EtcdError> {
        self.resume_at = None;
        if let Some(watch) = &mut self.watch {
            watch.resume().await?;
        }
        self.received_at = Instant::now();
        self.crowd.resume(self.received_at.into_std());
        self.due = Some(self.received_at + CATCH_UP);
        Ok(())
    }

    /// Rests if so much was published at `begun` that hundreds of hosts must be joining or leaving.
    async fn rest_in_a_crowd(&mut self, begun: Instant) -> Result<(), EtcdError> {
        let changes = std::mem::take(&mut self.changes);
        let hurries = self.is_urgent();
        if let Some(watch) = &mut self.watch
            && let Some(rest) = self.crowd.after_changes(changes, begun.into_std())
            && !hurries
        {
            watch.rest().await?;
            self.resume_at = Some(Instant::now() + random::jittered(rest));
        }
        Ok(())
    }

    /// The watch reports a change that the mirror lacks and that ends a rest.
    fn is_urgent(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.is_urgent(&self.mirror))
    }
}

/// Never, without a time.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
