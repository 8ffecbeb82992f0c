//! Pure. How soon a thing that somebody else changed is put right: at once, but whoever changes it
//! again and again is not raced.

use std::time::{Duration, Instant};

/// From the first change of several to the look: all of its steps are looked at once.
const SETTLE: Duration = Duration::from_millis(200);

/// So often it is put right without a wait …
const FREE: u32 = 4;

/// … that is doubled each further time up to this one.
const LONGEST: Duration = Duration::from_secs(60);

/// What stayed as it was for so long after the wait is at peace again.
const QUIET: Duration = Duration::from_secs(30);

/// How often somebody else changed one thing that is kept.
#[derive(Debug, Default)]
pub struct RateLimit {
    /// In a row.
    times: u32,
    last: Option<Instant>,
}

impl RateLimit {
    /// When to look at what was touched `now`.
    pub fn due(&self, now: Instant) -> Instant {
        let settled = now + SETTLE;
        self.last.map_or(settled, |last| settled.max(last + self.wait()))
    }

    /// It was put right `now`.
    pub fn repaired(&mut self, now: Instant) {
        self.times = if self.is_recent(now) { self.times.saturating_add(1) } else { 1 };
        self.last = Some(now);
    }

    /// Somebody changes it again and again.
    pub fn is_contended(&self, now: Instant) -> bool {
        self.times > FREE && self.is_recent(now)
    }

    /// Somebody else changed it lately.
    pub fn is_recent(&self, now: Instant) -> bool {
        let ends = |last: Instant| last + self.wait() + QUIET;
        self.last.is_some_and(|last| now <= ends(last))
    }

    fn wait(&self) -> Duration {
        let doubled = 2u32.saturating_pow(self.times.saturating_sub(FREE));
        if self.times > FREE { SETTLE.saturating_mul(doubled).min(LONGEST) } else { SETTLE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Somebody changes it back within a millisecond, `times` times: when it was put right.
    fn war(pace: &mut RateLimit, begun: Instant, times: usize) -> Vec<Duration> {
        let mut now = begun;
        let mut mended = Vec::new();
        for _ in 0..times {
            now = pace.due(now + Duration::from_millis(1));
            pace.repaired(now);
            mended.push(now - begun);
        }
        mended
    }

    #[test]
    fn one_change_is_put_right_at_once_and_so_is_a_second() {
        let begun = Instant::now();
        let mended = war(&mut RateLimit::default(), begun, 2);
        assert!(mended[1] < Duration::from_millis(500), "{mended:?}");
    }

    #[test]
    fn whoever_does_not_stop_is_answered_once_a_minute() {
        let (mut pace, begun) = (RateLimit::default(), Instant::now());
        assert!(!pace.is_contended(begun));
        let mended = war(&mut pace, begun, 100);
        assert!(pace.is_contended(begun + mended[99] + LONGEST));
        let hour = mended.iter().filter(|at| **at < Duration::from_secs(3600)).count();
        assert!((60..80).contains(&hour), "{hour} times in an hour");
        for pair in mended.windows(2) {
            assert!(pair[1] - pair[0] <= LONGEST, "{pair:?}");
        }
    }

    #[test]
    fn peace_is_seen_and_a_later_change_put_right_at_once() {
        let (mut pace, begun) = (RateLimit::default(), Instant::now());
        let end = begun + *war(&mut pace, begun, 50).last().unwrap();
        let later = end + LONGEST + QUIET + Duration::from_secs(1);
        assert!(!pace.is_contended(later));
        assert_eq!(pace.due(later), later + SETTLE);
        pace.repaired(later);
        assert!(!pace.is_contended(later));
    }
}
