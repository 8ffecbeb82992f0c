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
    /// What was in force is being written.
    is_writing: bool,
    /// Something else holds since.
    is_superseded: bool,
}

impl Keeping {
    /// It is up to date.
    pub fn new(now: Instant) -> Keeping {
        Keeping {
            is_outdated: false,
            due: None,
            not_before: now,
            is_writing: false,
            is_superseded: false,
        }
    }

    /// What holds has changed; true if it was up to date on disk before.
    pub fn changed(&mut self) -> bool {
        self.is_superseded = true;
        !std::mem::replace(&mut self.is_outdated, true)
    }

    /// What holds is in force.
    pub fn in_force(&mut self, now: Instant) {
        let is_being_written = self.is_writing && !self.is_superseded;
        if self.is_outdated && self.due.is_none() && !is_being_written {
            self.due = Some((now + DELAY).max(self.not_before));
        }
    }

    pub fn due(&self) -> Option<Instant> {
        self.due.filter(|_| !self.is_writing)
    }

    /// It is to be written now; `at_end`: nothing that is written later counts.
    pub fn is_due(&self, now: Instant, at_end: bool) -> bool {
        match at_end {
            true => self.due.is_some() || self.is_writing,
            false => self.due().is_some_and(|due| due <= now),
        }
    }

    /// What is in force is being written from now on.
    pub fn begun(&mut self) {
        (self.due, self.is_writing, self.is_superseded) = (None, true, false);
    }

    /// So many bytes were written. False: something else holds since that was begun.
    pub fn written(&mut self, bytes: usize, now: Instant) -> bool {
        let pause = Duration::from_secs_f64(bytes as f64 / BYTES_PER_SECOND).max(SHORTEST_PAUSE);
        self.not_before = now + pause;
        self.due = self.due.map(|due| due.max(self.not_before));
        (self.is_writing, self.is_outdated) = (false, self.is_superseded);
        !self.is_superseded
    }

    /// They could not be: again after a while.
    pub fn failed(&mut self, now: Instant) {
        self.is_writing = false;
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
        keeping.begun();
        assert!(keeping.written(10, at(506)));
        keeping.in_force(at(507));
        assert_eq!(keeping.due(), None, "nothing has changed");
        for millis in [600, 700, 900] {
            assert_eq!(keeping.changed(), millis == 600);
            keeping.in_force(at(millis));
            assert_eq!(keeping.due(), Some(at(1506)));
        }
        keeping.begun();
        assert!(keeping.written(2_560 * 1024, at(1510)));
        assert!(keeping.changed());
        keeping.in_force(at(1520));
        assert_eq!(keeping.due(), Some(at(11_510)));
        keeping.failed(at(11_420));
        assert_eq!(keeping.due(), Some(at(12_420)));
    }

    #[test]
    fn what_changes_while_it_is_written_is_written_again() {
        let begun = Instant::now();
        let at = |millis| begun + Duration::from_millis(millis);
        let mut keeping = Keeping::new(begun);
        assert!(keeping.changed());
        keeping.in_force(at(0));
        assert!(keeping.is_due(at(500), false) && !keeping.is_due(at(499), false));
        keeping.begun();
        keeping.in_force(at(510));
        assert!(!keeping.is_due(at(9000), false) && keeping.is_due(at(510), true));
        assert!(!keeping.changed(), "the file is marked already");
        keeping.in_force(at(520));
        assert_eq!(keeping.due(), None, "one at a time");
        assert!(!keeping.written(10, at(2000)));
        assert_eq!(keeping.due(), Some(at(3000)));
        keeping.begun();
        assert!(keeping.written(10, at(3100)) && !keeping.is_due(at(9000), true));
        assert!(keeping.changed(), "the file is to be marked");
        keeping.begun();
        keeping.failed(at(4000));
        assert_eq!(keeping.due(), Some(at(5000)));
    }
}
