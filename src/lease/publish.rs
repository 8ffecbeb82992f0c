//! Pure. When a host tells the others what it sees of them.
//!
//! Every row is a write that all members of etcd carry out and that stays in its history until that
//! is compacted, which etcd does not do by itself. So the rate is bounded for the whole network, not
//! for each host:
//!
//! - A host writes at most once in a gap of 50 ms for each host of the network, at a moment of its own
//!   within it: when 10,000 hosts lose the same one, 10,000 writes spread over 500 s, 20 a second, some
//!   400 bytes each: 8 kB/s. Networks of fewer than 200 hosts have a gap of 10 s: 20 a second, too.
//! - The gap of a host doubles with each row, up to sixteenfold, until nothing has changed for 32 gaps: a
//!   network of whatever size that never comes to rest writes 1.25 rows a second, some 45 MB of history a
//!   day.
//! - Rows that etcd could not be told come as slowly when it is back, and one that it does not take ever
//!   less often, at last once in an hour.
//! - Latencies alone are told anew at most every ten minutes, if one of a few other hosts (see `TIMED`)
//!   has changed twofold and by a millisecond; and a row that says the same once in a minute for each host
//!   of the network, at least an hour: one write a minute altogether.

use std::time::Duration;

use crate::lease::records::Row;
use crate::net::hash;

/// A change must last for so long, or is not told.
const SETTLE: Duration = Duration::from_secs(5);

/// The least gap, and what each host adds to it.
const LEAST: Duration = Duration::from_secs(10);
const EACH: Duration = Duration::from_millis(50);

/// How often the gap doubles.
const DOUBLED: u32 = 4;

/// Rows that tell the same, but other latencies, and rows that may be old.
const MOVED: Duration = Duration::from_secs(600);
const OLD_LEAST: Duration = Duration::from_secs(3600);
const OLD_EACH: Duration = Duration::from_secs(60);

/// A latency is another one if it differs by so many microseconds, and twofold.
const DIFFERS: u32 = 1000;

/// The least time between two rows of a host, in a network of so many `hosts`.
pub fn gap(hosts: usize) -> Duration {
    LEAST.max(EACH * u32::try_from(hosts).unwrap_or(u32::MAX))
}

/// What a host told last, and when. Times are counted from the start.
#[derive(Clone, Debug, Default)]
pub struct Publisher {
    told: Option<Row>,
    told_at: Option<Duration>,
    /// Since when something else is true.
    since: Option<Duration>,
    /// How often the gap is doubled.
    restless: u32,
    /// Thousandths of a gap that this host waits.
    part: u32,
}

impl Publisher {
    /// Nothing was told yet by the host `own`.
    pub fn new(own: &str) -> Publisher {
        let part = (hash::stable(&["row", own]) % 1000) as u32;
        Publisher { part, ..Publisher::default() }
    }

    /// Whether `row` (`None`: nothing) is to be told now, in a network of so many `hosts`. Then it is
    /// taken as told.
    pub fn is_due(&mut self, row: &Option<Row>, hosts: usize, now: Duration) -> bool {
        let gap = gap(hosts);
        let changed = match (&self.told, row) {
            (None, None) => false,
            (Some(told), Some(row)) => differs(told, row),
            _ => true,
        };
        let due = if changed {
            let since = *self.since.get_or_insert(now);
            let rested = self.told_at.map_or(since, |told| told + gap * (1 << self.restless));
            (since + SETTLE + gap * self.part / 1000).max(rested)
        } else {
            self.since = None;
            match (self.told_at, &self.told, row) {
                (Some(at), Some(told), Some(row)) => at + refresh(told, row, hosts),
                _ => return false,
            }
        };
        if now < due {
            return false;
        }
        let calm = self.told_at.map_or(Duration::ZERO, |told| told + gap * (2 << DOUBLED));
        let restless = self.since.is_some_and(|since| since < calm);
        if changed {
            self.restless = if restless { (self.restless + 1).min(DOUBLED) } else { 0 };
        }
        (self.told, self.told_at, self.since) = (row.clone(), Some(now), None);
        true
    }
}

/// Something is wrong that was not, or no longer; or a network of few hosts has others.
fn differs(told: &Row, row: &Row) -> bool {
    let known = |row: &Row| row.times.keys().cloned().collect::<Vec<_>>();
    (&told.faults, told.more) != (&row.faults, row.more) || known(told) != known(row)
}

fn refresh(told: &Row, row: &Row, hosts: usize) -> Duration {
    let moved = told.times.iter().any(|(name, before)| {
        row.times.get(name).is_some_and(|now| {
            let (least, most) = (*before.min(now), *before.max(now));
            most - least > DIFFERS && most / 2 > least
        })
    });
    let hosts = u32::try_from(hosts).unwrap_or(u32::MAX);
    if moved { MOVED } else { OLD_LEAST.max(OLD_EACH.saturating_mul(hosts)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::records::{Sight, WayFault};

    const NEVER: [u64; 0] = [];

    /// Microseconds of each host; 0: it is silent.
    fn row(hosts: &[(&str, u32)]) -> Option<Row> {
        let each = hosts.iter().map(|(name, time)| {
            let seen = match time {
                0 => (None, Some(WayFault::Silent)),
                time => (Some(*time), None),
            };
            (name.parse().unwrap(), seen)
        });
        Row::of(&Sight { hosts: each.collect() }, 0)
    }

    /// The seconds from `from` to `to` at which a row was told.
    fn told(
        publisher: &mut Publisher,
        hosts: usize,
        from: u64,
        to: u64,
        at: impl Fn(u64) -> Option<Row>,
    ) -> Vec<u64> {
        let due =
            |second: &u64| publisher.is_due(&at(*second), hosts, Duration::from_secs(*second));
        (from..to).filter(due).collect()
    }

    #[test]
    fn nothing_is_told_twice_and_a_row_soon() {
        let mut publisher = Publisher::new("h1");
        assert_eq!(told(&mut publisher, 3, 0, 100, |_| None), NEVER);
        let first = told(&mut publisher, 3, 100, 3600, |_| row(&[("a", 200), ("b", 300)]));
        assert!(matches!(first[..], [100..=116]), "{first:?}");
        let lost = told(&mut publisher, 3, 3600, 3700, |_| row(&[("a", 200), ("b", 0)]));
        assert!(matches!(lost[..], [3605..=3616]), "{lost:?}");
        let off = told(&mut publisher, 3, 3700, 3800, |_| None);
        assert!(matches!(off[..], [3705..=3716]), "{off:?}");
    }

    #[test]
    fn what_passes_is_not_told_and_what_never_rests_seldom() {
        let mut publisher = Publisher::new("h1");
        let fine = || row(&[("a", 200)]);
        assert_eq!(told(&mut publisher, 2, 0, 60, |_| fine()).len(), 1);
        let blinks = |second| if second % 5 < 3 { fine() } else { row(&[("a", 0)]) };
        assert_eq!(told(&mut publisher, 2, 100, 3000, blinks), NEVER);
        let flaps = |second| if second / 60 % 2 == 0 { fine() } else { row(&[("a", 0)]) };
        let often = told(&mut publisher, 2, 3000, 3000 + 86_400, flaps).len();
        assert!((200..600).contains(&often), "{often} a day");
        let calm = told(&mut publisher, 2, 100_000, 100_200, |_| row(&[("a", 0), ("b", 1)]));
        assert_eq!(calm.len(), 1, "{calm:?}");
    }

    #[test]
    fn ten_thousand_hosts_that_lose_one_write_twenty_rows_a_second() {
        let names = |n: usize| format!("n{n}");
        let sight = |lost: usize| {
            let fault = |n| (n < lost).then_some(WayFault::Silent);
            let each = (0..100).map(|n| (names(n).parse().unwrap(), (Some(1), fault(n))));
            Row::of(&Sight { hosts: each.collect() }, 0)
        };
        let (before, after) = (sight(0), sight(1));
        let mut seconds = vec![0; 600];
        for host in 0..10_000 {
            let mut publisher = Publisher::new(&names(host));
            assert!(!publisher.is_due(&before, 10_000, Duration::ZERO));
            assert!(publisher.is_due(&before, 10_000, Duration::from_secs(505)));
            let second =
                (2000..2600).find(|at| publisher.is_due(&after, 10_000, Duration::from_secs(*at)));
            seconds[second.unwrap() as usize - 2000] += 1;
        }
        assert_eq!(seconds.iter().sum::<i32>(), 10_000);
        assert!(seconds.iter().all(|count| *count < 60), "{:?}", seconds.iter().max());
    }

    #[test]
    fn latencies_alone_are_told_seldom() {
        let mut publisher = Publisher::new("h1");
        assert_eq!(told(&mut publisher, 2, 0, 60, |_| row(&[("a", 200)])).len(), 1);
        let noise = told(&mut publisher, 2, 60, 3500, |s| row(&[("a", 200 + s as u32 % 900)]));
        assert_eq!(noise, NEVER);
        let slow = told(&mut publisher, 2, 3500, 3590, |_| row(&[("a", 9_000)]));
        assert_eq!(slow.len(), 1);
        let same = told(&mut publisher, 2, 3600, 86_400, |_| row(&[("a", 9_000)]));
        assert_eq!(same.len(), 23, "once an hour");
    }
}
