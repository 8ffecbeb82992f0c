//! Pure. When the policies in force are written to disk for the next start: soon, and in all no more than so
//! many bytes a second.

use std::time::{Duration, Instant};

/// Policies of a large cluster change several times a second.
const BYTES_PER_SECOND: f64 = 256.0 * 1024.0;

/// What follows a change does not wait for the disk: members of its groups come some 10 ms later, on hosts that share
/// processors and disks some 100 ms.
const DELAY: Duration = Duration::from_millis(500);

const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

/// What is on disk, and when it may be written again.
#[derive(Debug)]
pub struct Keeping {
    /// Older than what holds.
    is_outdated: bool,
    /// What holds is in force, and is to be written then.
    due: Option<Instant>,
    not_before: Instant,
}

impl Keeping {
    /// It is up to date.
    pub fn new(now: Instant) -> Keeping {
        Keeping { is_outdated: false, due: None, not_before: now }
    }

    /// What holds has changed; true if it was up to date on disk before.
    pub fn changed(&mut self) -> bool {
        !std::mem::replace(&mut self.is_outdated, true)
    }

    /// What holds is in force.
    pub fn in_force(&mut self, now: Instant) {
        if self.is_outdated && self.due.is_none() {
            self.due = Some((now + DELAY).max(self.not_before));
        }
    }

    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// So many bytes were written.
    pub fn written(&mut self, bytes: usize, now: Instant) {
        let pause = Duration::from_secs_f64(bytes as f64 / BYTES_PER_SECOND).max(SHORTEST_PAUSE);
        *self = Keeping { is_outdated: false, due: None, not_before: now + pause };
    }

    /// They could not be: again after a while.
    pub fn failed(&mut self, now: Instant) {
        self.not_before = now + SHORTEST_PAUSE;
        self.due = Some(self.not_before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_change_is_written_soon_and_many_are_written_together() {
        let begun = Instant::now();
        let at = |millis| begun + Duration::from_millis(millis);
        let mut keeping = Keeping::new(begun);
        assert!(keeping.changed() && keeping.due().is_none(), "not in force yet");
        keeping.in_force(at(5));
        keeping.in_force(at(50));
        assert_eq!(keeping.due(), Some(at(505)));
        keeping.written(10, at(506));
        keeping.in_force(at(507));
        assert_eq!(keeping.due(), None, "nothing has changed");
        for millis in [600, 700, 900] {
            assert_eq!(keeping.changed(), millis == 600);
            keeping.in_force(at(millis));
            assert_eq!(keeping.due(), Some(at(1506)));
        }
        keeping.written(2_560 * 1024, at(1510));
        assert!(keeping.changed());
        keeping.in_force(at(1520));
        assert_eq!(keeping.due(), Some(at(11_510)));
        keeping.failed(at(11_420));
        assert_eq!(keeping.due(), Some(at(12_420)));
    }
}
