//! Pure. How soon a reconcile may follow one that repaired something.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::agent::trigger::SETTLE;

/// So many repairs within [`WINDOW`] may be somebody's work on the host; more are another program that changes
/// back what the agent repairs, perhaps at once.
const FREE: usize = 50;
const WINDOW: Duration = Duration::from_secs(10);

/// The pause beside such a program.
const SLOW: Duration = Duration::from_secs(1);

/// The latest repairs.
#[derive(Debug, Default)]
pub struct RepairRateLimit {
    latest: VecDeque<Instant>,
}

impl RepairRateLimit {
    pub fn repaired(&mut self, now: Instant) {
        if self.latest.len() > FREE {
            self.latest.pop_front();
        }
        self.latest.push_back(now);
    }

    /// The pause before the next reconcile.
    pub fn pause(&self, now: Instant) -> Duration {
        let oldest = self.latest.front().filter(|_| self.latest.len() > FREE);
        if oldest.is_some_and(|oldest| now < *oldest + WINDOW) { SLOW } else { SETTLE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_repairs_in_a_row_slow_the_agent_down_for_a_while() {
        let mut rate_limit = RepairRateLimit::default();
        let mut now = Instant::now();
        for _ in 0..FREE {
            now += SETTLE;
            rate_limit.repaired(now);
            assert_eq!(rate_limit.pause(now), SETTLE);
        }
        rate_limit.repaired(now);
        assert_eq!(rate_limit.pause(now), SLOW);
        assert_eq!(rate_limit.pause(now + WINDOW), SETTLE);

        let mut rare = RepairRateLimit::default();
        for _ in 0..10 * FREE {
            now += WINDOW / 40;
            rare.repaired(now);
            assert_eq!(rare.pause(now), SETTLE, "four in a second");
        }
    }
}
