//! A loop's sign of life.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// An idle loop beats this often.
pub const EVERY: Duration = Duration::from_secs(10);

/// The sign of life of one loop. Beating costs a few nanoseconds and wakes nobody.
#[derive(Debug)]
pub struct Heartbeat {
    /// The loop.
    pub name: &'static str,
    /// It hangs, or is gone, if it has not beaten for so long.
    pub limit: Duration,
    born: Instant,
    /// Milliseconds from birth to the last beat; [`RETIRED`] if none is expected any more.
    last: AtomicU64,
}

/// No time since a birth.
const RETIRED: u64 = u64::MAX;

impl Heartbeat {
    /// A first beat.
    pub fn new(name: &'static str, limit: Duration) -> Heartbeat {
        Heartbeat { name, limit, born: Instant::now(), last: AtomicU64::new(0) }
    }

    /// The loop turns.
    pub fn beat(&self) {
        self.last.store(millis(self.born.elapsed()), Ordering::Relaxed);
    }

    /// The loop has ended as it should.
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
    fn a_loop_that_hangs_ages_and_one_that_ended_does_not() {
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
