//! Pure. When a host publishes its reachability report.
//!
//! Every report is a write on all members of etcd and stays in its history until that is compacted,
//! which etcd does not do by itself. The rate is therefore limited for the whole network:
//!
//! - A host writes at most once in an [`interval`]: the time in which it probes each host once, from 5
//!   seconds to a minute (the default), and at least 50 ms for each host of the network, at its own
//!   offset. If 10,000 hosts lose the same one, they write 20 reports of some 400 bytes a second.
//! - From its third report in a row on, the wait doubles with each, up to sixteen intervals, until
//!   nothing has changed for 32 intervals: a network of 10,000 hosts in permanent change writes 1.25
//!   reports a second, some 45 MB of history a day.
//! - Changed latencies alone are published at most every ten intervals, if one of a few other hosts
//!   changed by factor two and a millisecond; an unchanged report every 60, in a network of more than
//!   60 hosts one in an interval altogether.

use std::time::Duration;

use crate::lease::records::ReachabilityReport;
use crate::net::{ProblemKind, hash};

/// Shortest and longest interval in a small network, and its growth with each host.
const LEAST: Duration = Duration::from_secs(5);
const MOST: Duration = Duration::from_secs(60);
const EACH: Duration = Duration::from_millis(50);

/// Reports in a row before the wait doubles, and how often it doubles.
const FREE: u32 = 2;
const DOUBLED: u32 = 4;

/// Intervals: until changed latencies are published, and until an unchanged report is repeated.
const MOVED: u32 = 10;
const OLD_LEAST: u32 = 60;
const OLD_MOST: u32 = 1200;

/// A latency has changed if it differs by this many microseconds, and by factor two.
const DIFFERS: u32 = 1000;

/// Shortest time between two reports of a host, in a network of `hosts`. `probes`: between two probes of
/// one host.
pub fn interval(hosts: usize, probes: Duration) -> Duration {
    probes.clamp(LEAST, MOST).max(spread(hosts))
}

/// The time over which simultaneous reports of all `hosts` are spread.
pub fn spread(hosts: usize) -> Duration {
    EACH * u32::try_from(hosts).unwrap_or(u32::MAX)
}

/// The offset of the host `own` within [`spread`].
pub fn offset(own: &str, hosts: usize) -> Duration {
    spread(hosts) * (hash::stable(&["row", own]) % 1000) as u32 / 1000
}

/// The report published last.
#[derive(Clone, Debug, Default)]
pub struct Publisher {
    published: Option<ReachabilityReport>,
    /// Intervals since then.
    age: u32,
    /// Reports in a row.
    changes: u32,
}

impl Publisher {
    /// Whether `report` (`None`: nothing observed) is to be published now, in a network of `hosts`; it
    /// then counts as published. To be called once in each [`interval`].
    pub fn is_due(&mut self, report: &Option<ReachabilityReport>, hosts: usize) -> bool {
        self.age = self.age.saturating_add(1);
        if self.age > 2 << DOUBLED {
            self.changes = 0;
        }
        let (wait, changes) = match (&self.published, report) {
            (None, None) => return false,
            (Some(before), Some(now)) if !differs(before, now) => (refresh(before, now, hosts), 0),
            _ => (1 << self.changes.saturating_sub(FREE).min(DOUBLED), self.changes + 1),
        };
        if self.age < wait {
            return false;
        }
        *self = Publisher { published: report.clone(), age: 0, changes };
        true
    }
}

/// The faults differ, or the kinds of problems, or what is in force of policies, or in a small network the hosts that are timed.
fn differs(before: &ReachabilityReport, now: &ReachabilityReport) -> bool {
    (&before.faults, before.more) != (&now.faults, now.more)
        || !before.times.keys().eq(now.times.keys())
        || !kinds(before).eq(kinds(now))
        || before.policies != now.policies
}

fn kinds(report: &ReachabilityReport) -> impl Iterator<Item = &ProblemKind> {
    report.problems.iter().flat_map(|problems| problems.keys())
}

/// Intervals until a report with the same faults is published.
fn refresh(before: &ReachabilityReport, now: &ReachabilityReport, hosts: usize) -> u32 {
    let moved = before.times.iter().any(|(name, before)| {
        now.times.get(name).is_some_and(|now| {
            let (least, most) = (*before.min(now), *before.max(now));
            most - least > DIFFERS && most / 2 > least
        })
    });
    let hosts = u32::try_from(hosts).unwrap_or(u32::MAX);
    if moved { MOVED } else { hosts.clamp(OLD_LEAST, OLD_MOST) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::records::{PathFault, PathState};

    const NEVER: [u32; 0] = [];

    /// Microseconds of each host; 0: no answer.
    fn report(hosts: &[(&str, u32)]) -> Option<ReachabilityReport> {
        let each = hosts.iter().map(|(name, micros)| {
            let path = match micros {
                0 => PathState { micros: None, fault: Some(PathFault::NoAnswer) },
                micros => PathState { micros: Some(*micros), fault: None },
            };
            (name.parse().unwrap(), path)
        });
        ReachabilityReport::new(&each.collect(), 0)
    }

    /// The intervals of a network of three hosts in which a report is published.
    fn published(
        publisher: &mut Publisher,
        intervals: std::ops::Range<u32>,
        at: impl Fn(u32) -> Option<ReachabilityReport>,
    ) -> Vec<u32> {
        intervals.filter(|interval| publisher.is_due(&at(*interval), 3)).collect()
    }

    #[test]
    fn a_change_is_published_in_the_next_interval_and_only_once() {
        let mut publisher = Publisher::default();
        assert_eq!(published(&mut publisher, 0..9, |_| None), NEVER);
        let well = |_| report(&[("a", 200), ("b", 300)]);
        assert_eq!(published(&mut publisher, 9..60, well), [9]);
        let lost = |_| report(&[("a", 200), ("b", 0)]);
        assert_eq!(published(&mut publisher, 60..100, lost), [60]);
        assert_eq!(published(&mut publisher, 100..200, |_| None), [100]);
    }

    #[test]
    fn permanent_changes_are_published_ever_less_often() {
        let flaps = |interval| report(&[("a", interval % 2 * 200), ("b", interval / 2 % 2 * 200)]);
        let mut publisher = Publisher::default();
        let often = published(&mut publisher, 0..1440, flaps);
        assert_eq!(often[..3], [0, 1, 2]);
        assert!((80..110).contains(&often.len()), "{} a day", often.len());
        let calm = published(&mut publisher, 1440..1500, |_| report(&[("a", 0), ("b", 1)]));
        assert_eq!(calm.len(), 1, "{calm:?}");
    }

    #[test]
    fn ten_thousand_hosts_that_lose_one_publish_twenty_reports_a_second() {
        let second = Duration::from_secs(1);
        assert_eq!(interval(3, second), 5 * second);
        assert_eq!((interval(3, 60 * second), interval(3, 600 * second)), (MOST, MOST));
        assert_eq!(interval(10_000, second), 500 * second);
        let mut seconds = vec![0; 500];
        for host in 0..10_000 {
            seconds[offset(&format!("n{host}"), 10_000).as_secs() as usize] += 1;
        }
        assert!(seconds.iter().all(|count| *count < 60), "{:?}", seconds.iter().max());
    }

    #[test]
    fn changed_latencies_alone_are_published_seldom() {
        let mut publisher = Publisher::default();
        let noise = |interval| report(&[("a", 200 + interval * 37 % 900)]);
        assert_eq!(published(&mut publisher, 0..59, noise), [0]);
        let slow = |_| report(&[("a", 9_000)]);
        assert_eq!(published(&mut publisher, 59..100, slow), [59]);
        assert_eq!(published(&mut publisher, 100..1540, slow).len(), 24, "once an hour");
    }
}
