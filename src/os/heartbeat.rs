//! Heartbeats of loops.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// An idle loop beats this often.
pub const EVERY: Duration = Duration::from_secs(10);

/// The heartbeat of one loop. A beat costs a few nanoseconds.
#[derive(Debug)]
pub struct Heartbeat {
    pub name: &'static str,
    /// Without a beat for this long, the loop hangs.
    pub limit: Duration,
    born: Instant,
    /// Milliseconds from `born` to the last beat, or [`RETIRED`].
    last: AtomicU64,
}

const RETIRED: u64 = u64::MAX;

impl Heartbeat {
    pub fn new(name: &'static str, limit: Duration) -> Heartbeat {
        Heartbeat { name, limit, born: Instant::now(), last: AtomicU64::new(0) }
    }

    pub fn beat(&self) {
        self.last.store(millis(self.born.elapsed()), Ordering::Relaxed);
    }

    /// The loop has ended: no more beats are expected.
    pub fn retire(&self) {
        self.last.store(RETIRED, Ordering::Relaxed);
    }

    /// Time since the last beat; `None` after [`Heartbeat::retire`].
    pub fn since(&self) -> Option<Duration> {
        let last = self.last.load(Ordering::Relaxed);
        let last = (last != RETIRED).then(|| Duration::from_millis(last))?;
        Some(self.born.elapsed().saturating_sub(last))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(RETIRED - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_beat_of_a_loop_ages_until_it_is_retired() {
        let beat = Heartbeat::new("loop", Duration::from_secs(1));
        std::thread::sleep(Duration::from_millis(30));
        assert!(beat.since().unwrap() >= Duration::from_millis(20));
        beat.beat();
        let young = beat.since().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert!(beat.since().unwrap() > young);
        beat.retire();
        assert_eq!(beat.since(), None);
    }
}
