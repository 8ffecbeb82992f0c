//! The watch: from one complete state to the next.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};

use crate::etcd::Update;
use crate::etcd::error::EtcdError;
use crate::etcd::session::{End, Session};
use crate::lease::session::is_same_store;
use crate::lease::snapshot::Snapshot;

/// Events that come closer together than this make one snapshot.
const COALESCE: Duration = Duration::from_millis(5);

/// Rest after a snapshot, in multiples of what it cost: a storm in a large network takes a quarter
/// of a processor at most.
const REST: u32 = 3;

/// Time between two questions whether the watch still lives …
const ASK: Duration = Duration::from_secs(10);

/// … and how long it may say nothing at all.
const SILENCE: Duration = Duration::from_secs(30);

impl<P: FnMut(Update)> Session<'_, P> {
    /// Publishes what the watch brings, beginning after `mirror`. Returns when something must be
    /// written, or looked at as a whole.
    pub(super) async fn follow(&mut self, mut mirror: Snapshot) -> Result<(), End> {
        let mut renewed = self.etcd.members().renewed();
        let mut watch = self.etcd.watch(mirror.revision + 1).await?;
        let mut heard_at = Instant::now();
        let mut ask = interval_at(heard_at + ASK, ASK);
        ask.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut due = None;
        let mut rested = heard_at;
        let mut host_removed = false;
        // When everything is read again through another connection; until then this one serves.
        let mut move_at = None;
        loop {
            self.told.contact.beat.beat();
            tokio::select! {
                heard = watch.next(&mut mirror) => {
                    let heard = heard?;
                    heard_at = Instant::now();
                    self.told.contact.heard();
                    host_removed |= heard.host_removed;
                    if heard.changed {
                        self.told.contact.changed();
                        due.get_or_insert((heard_at + COALESCE).max(rested));
                    }
                }
                () = sleep_until(due.unwrap_or(heard_at)), if due.is_some() => {
                    let begun = Instant::now();
                    due = None;
                    let removed = std::mem::take(&mut host_removed);
                    if !self.dialogue.agrees(&mirror)
                        || removed && !is_same_store(&mirror, self.etcd.config_modified().await?)
                    {
                        return Ok(());
                    }
                    match self.dialogue.learn(&mirror) {
                        Some(snapshot) => (self.publish)(Update::Snapshot(snapshot)),
                        // Nobody has to follow it.
                        None => drop(self.told.contact.take_changed()),
                    }
                    rested = Instant::now() + begun.elapsed() * REST;
                }
                _ = ask.tick() => {
                    if heard_at.elapsed() > SILENCE {
                        self.etcd.next_member();
                        let why = format!("watch: etcd said nothing for {SILENCE:?}");
                        return Err(EtcdError::Unreachable(why).into());
                    }
                    watch.ask().await?;
                }
                Ok(()) = renewed.changed() => move_at = Some(Instant::now() + self.spread()),
                () = sleep_until(move_at.unwrap_or(heard_at)), if move_at.is_some() => return Ok(()),
                Ok(()) = self.told.attributes.changed() => return Ok(()),
                Ok(()) = self.told.setup.changed() => return Ok(()),
                Ok(()) = self.kept.changed() => return Ok(()),
            }
        }
    }
}
