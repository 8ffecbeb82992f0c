//! The watch: from one complete state to the next.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};

use crate::etcd::session::Session;
use crate::etcd::session::crowd::Crowd;
use crate::etcd::update::Update;
use crate::etcd::watch::{Changes, KeyWatch, Seen};
use crate::lease::EtcdError;
use crate::lease::Snapshot;
use crate::lease::session::grace::PUT_BACK;
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

impl<P: FnMut(Update)> Session<'_, P> {
    /// Publishes the changes from the watch, beginning after `mirror`. Returns when something is to
    /// be written, or everything to be read again. `behind`: revisions since then.
    pub(super) async fn follow(
        &mut self,
        mut mirror: Snapshot,
        behind: i64,
    ) -> Result<(), SessionExit> {
        let mut renewed = self.etcd.members().renewed();
        let mut heard_at = Instant::now();
        let mut crowd = Crowd::new(heard_at.into_std());
        // While it rests nothing but urgent keys is heard of, and nothing published.
        let mut resume_at = crowd.after_claim(behind).map(|rest| heard_at + random::jittered(rest));
        let name = &self.machine.claimant().identity.name;
        let mut watch = Some(self.etcd.watch(name, Seen::after(mirror.revision)).await?);
        if let (Some(watch), None) = (&mut watch, resume_at) {
            watch.resume().await?;
        }
        let mut ask = interval_at(heard_at + ASK, ASK);
        ask.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut due = None;
        let mut changes = 0;
        let mut rested = heard_at;
        let mut host_removed = false;
        // When everything is read again through the new connection.
        let mut move_at = None;
        loop {
            self.inputs.contact.beat.beat();
            tokio::select! {
                () = sleep_until(resume_at.unwrap_or(heard_at)), if resume_at.is_some() => {
                    resume_at = None;
                    if let Some(watch) = &mut watch {
                        watch.resume().await?;
                    }
                    heard_at = Instant::now();
                    crowd.resume(heard_at.into_std());
                    due = Some(heard_at + CATCH_UP);
                }
                heard = next(&mut watch, &mut mirror) => {
                    let heard = match heard {
                        // It rested for longer than etcd keeps its history.
                        Err(EtcdError::Compacted(_)) => {
                            (watch, due) = (None, None);
                            move_at = Some(Instant::now() + self.spread());
                            continue;
                        }
                        heard => heard?,
                    };
                    heard_at = Instant::now();
                    self.inputs.contact.heard();
                    host_removed |= heard.host_removed;
                    if heard.changes > 0 {
                        self.inputs.contact.changed();
                        due.get_or_insert((heard_at + COALESCE).max(rested));
                    }
                    changes += heard.changes;
                    if let Some(end) = &mut resume_at && is_urgent(&watch, &mirror) {
                        *end = heard_at;
                    }
                }
                () = sleep_until(due.unwrap_or(heard_at)), if due.is_some() && resume_at.is_none() => {
                    let begun = Instant::now();
                    due = None;
                    let removed = std::mem::take(&mut host_removed);
                    if !self.machine.agrees(&mirror)
                        || removed && !is_same_store(&mirror, self.etcd.config_modified().await?)
                    {
                        return Ok(());
                    }
                    match self.machine.update(&mirror) {
                        Some(snapshot) => (self.publish)(Update::Snapshot(snapshot)),
                        None => drop(self.inputs.contact.take_changed()),
                    }
                    rested = Instant::now() + begun.elapsed() * REST;
                    let heard = std::mem::take(&mut changes);
                    let hurries = is_urgent(&watch, &mirror);
                    if let Some(watch) = &mut watch
                        && let Some(rest) = crowd.after_changes(heard, begun.into_std())
                        && !hurries
                    {
                        watch.rest().await?;
                        resume_at = Some(Instant::now() + random::jittered(rest));
                    }
                }
                _ = ask.tick() => {
                    if heard_at.elapsed() > SILENCE {
                        self.etcd.next_member();
                        let why = format!("watch: no response for {SILENCE:?}");
                        return Err(EtcdError::Unreachable(why).into());
                    }
                    if let Some(watch) = watch.as_mut().filter(|_| resume_at.is_none()) {
                        watch.request_progress().await?;
                    }
                }
                Ok(()) = renewed.changed() => move_at = Some(Instant::now() + self.spread()),
                () = sleep_until(move_at.unwrap_or(heard_at)), if move_at.is_some() => return Ok(()),
                Ok(()) = self.inputs.attributes.changed() => return Ok(()),
                Ok(()) = self.inputs.vacated.changed() => return Ok(()),
                Ok(()) = self.inputs.setup.changed() => return Ok(()),
                Ok(()) = self.etcd_lease.changed() => return Ok(()),
            }
        }
    }
}

/// The watch reports a change that `mirror` lacks and that ends a rest.
fn is_urgent(watch: &Option<KeyWatch>, mirror: &Snapshot) -> bool {
    watch.as_ref().is_some_and(|watch| watch.is_urgent(mirror))
}

/// The next changes, of which there are none without a watch. Cancel-safe.
async fn next(watch: &mut Option<KeyWatch>, mirror: &mut Snapshot) -> Result<Changes, EtcdError> {
    match watch {
        Some(watch) => watch.next(mirror).await,
        None => std::future::pending().await,
    }
}
