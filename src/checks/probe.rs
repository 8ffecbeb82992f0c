//! Pure. The schedule of echo requests, and the evaluation of replies.
//!
//! Each host asks each other host once in an interval, spread over it: ten thousand hosts get and send
//! as much as each other, and never much at once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use crate::net::hash;

/// The least time between two echoes: 10 a second. With more
/// than 600 hosts a round takes longer than a minute: of 10,000, 17 minutes.
pub const PAUSE: Duration = Duration::from_millis(100);

/// A host that is new is asked within this time: all others learn of it at once.
const NEW: Duration = Duration::from_secs(5);

/// Of so many echoes to a host one is as large as the way is known to take; every second one after one of these was lost.
const LARGE_EACH: u32 = 10;

/// So many unanswered echoes in a row mean that a host is not reached; so many large ones in a row, with the small ones
/// between them answered, that only large ones are lost.
const LOST: u32 = 2;

/// When each target is due. Times are counted from the start.
#[derive(Debug, Default)]
pub struct Schedule {
    interval: Duration,
    due: BTreeSet<(Duration, IpAddr)>,
    at: BTreeMap<IpAddr, Duration>,
    /// No host is probed before.
    free: Duration,
}

impl Schedule {
    /// Asks `targets`, each once in an `interval`, from now on. `own`: the name of this host, so that
    /// each has an order of its own.
    pub fn set(
        &mut self,
        targets: &BTreeSet<IpAddr>,
        interval: Duration,
        own: &str,
        now: Duration,
    ) {
        let gone: Vec<IpAddr> =
            self.at.keys().filter(|known| !targets.contains(known)).copied().collect();
        for target in gone {
            if let Some(at) = self.at.remove(&target) {
                self.due.remove(&(at, target));
            }
        }
        let changed = self.interval != interval;
        self.interval = interval;
        for target in targets {
            let known = self.at.get(target).copied();
            if known.is_some() && !changed {
                continue;
            }
            let spread = if changed && known.is_some() { interval } else { NEW.min(interval) };
            let part = hash::stable(&[own, &target.to_string()]) % 1000;
            self.put(*target, now + spread * part as u32 / 1000);
        }
    }

    /// The target to probe now, if one is due; due again an interval later.
    pub fn pop(&mut self, now: Duration) -> Option<IpAddr> {
        if now < self.free {
            return None;
        }
        let (at, target) = *self.due.first().filter(|(at, _)| *at <= now)?;
        self.free = now + PAUSE;
        // What is late stays spread as it was, unless a round takes longer than the interval.
        let next = at + self.interval;
        self.put(target, if next > now { next } else { now + self.interval });
        Some(target)
    }

    /// When somebody is to be asked next.
    pub fn next(&self) -> Option<Duration> {
        self.due.first().map(|(at, _)| (*at).max(self.free))
    }

    fn put(&mut self, target: IpAddr, at: Duration) {
        if let Some(before) = self.at.insert(target, at) {
            self.due.remove(&(before, target));
        }
        self.due.insert((at, target));
    }
}

/// What is known of one address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeStats {
    /// How long the last answer took.
    pub time: Option<Duration>,
    /// Unanswered echoes in a row.
    pub lost: u32,
    /// Bytes of the largest packet that was answered as large as the way is known to take.
    pub mtu: Option<u32>,
    /// Bytes of such a packet that was lost, until one is answered or none at all is.
    too_large: Option<u32>,
    /// How many of these were lost in a row, with a small one answered after each.
    large_lost: u32,
    /// A large one waits for its answer: the next may be due before.
    waits_for_large: bool,
    /// When it began or ceased to answer, or to answer large ones.
    pub since: Option<SystemTime>,
    sent: u32,
    reachable: Option<bool>,
}

impl ProbeStats {
    /// The next echo is to be a large one. After a lost one it is small: it says whether the host is reached at all.
    pub fn wants_large(&self) -> bool {
        let is_due = self.too_large.is_some() || self.sent % LARGE_EACH == 1;
        self.reachable == Some(true) && self.lost == 0 && is_due && !self.waits_for_large
    }

    /// A large one was sent.
    pub fn expect_large(&mut self) {
        self.waits_for_large = true;
    }

    /// An echo of `bytes` was answered after `time`, or not. `small`: the size of small ones.
    pub fn note(&mut self, bytes: u32, small: u32, time: Option<Duration>) {
        self.sent = self.sent.wrapping_add(1);
        let large = bytes > small;
        self.waits_for_large &= !large;
        if time.is_some() {
            if large {
                (self.mtu, self.too_large, self.large_lost) = (Some(bytes), None, 0);
            } else if self.too_large.is_some() && self.lost > 0 {
                self.large_lost = self.large_lost.saturating_add(1);
            }
            (self.time, self.lost, self.reachable) = (time, 0, Some(true));
        } else {
            self.lost = self.lost.saturating_add(1);
            if large {
                self.too_large = Some(bytes);
            }
            if self.lost >= LOST {
                // Nothing arrives: that says nothing of large ones.
                (self.reachable, self.time) = (Some(false), None);
                (self.too_large, self.large_lost) = (None, 0);
            }
        }
        if self.black_hole().is_some() {
            self.mtu = None;
        }
    }

    /// It answers; `None` while that is not known.
    pub fn reachable(&self) -> Option<bool> {
        self.reachable
    }

    /// What is wrong with the way to `address`.
    pub fn fault(&self, address: IpAddr) -> Option<String> {
        match (self.reachable, self.black_hole()) {
            (Some(false), _) => Some(format!("{address} does not answer echoes")),
            (_, Some(bytes)) => Some(format!(
                "packets of {bytes} bytes to {address} are lost, smaller ones are not"
            )),
            _ => None,
        }
    }

    /// Large packets do not arrive: their bytes.
    pub fn black_hole(&self) -> Option<u32> {
        self.too_large.filter(|_| self.large_lost >= LOST && self.reachable == Some(true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(count: u32) -> BTreeSet<IpAddr> {
        (0..count).map(|number| IpAddr::from((0x0a00_0001 + number).to_be_bytes())).collect()
    }

    /// The targets probed in each second, from 0 to `seconds`.
    fn run(schedule: &mut Schedule, seconds: u64) -> Vec<Vec<IpAddr>> {
        let mut asked = vec![Vec::new(); seconds as usize];
        while let Some(at) = schedule.next().filter(|at| at.as_secs() < seconds) {
            asked[at.as_secs() as usize].extend(schedule.pop(at));
        }
        asked
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn each_is_asked_once_in_an_interval() {
        let mut schedule = Schedule::default();
        schedule.set(&targets(100), MINUTE, "h1", Duration::ZERO);
        let asked = run(&mut schedule, 600).concat();
        assert_eq!(asked.len(), 1000);
        assert_eq!(asked.iter().collect::<BTreeSet<_>>().len(), 100);
    }

    #[test]
    fn ten_thousand_are_asked_at_the_pace_and_no_faster() {
        let mut schedule = Schedule::default();
        schedule.set(&targets(10_000), MINUTE, "h1", Duration::ZERO);
        let asked = run(&mut schedule, 2_100);
        assert!(asked.iter().all(|second| second.len() <= 11), "a burst");
        let twice: BTreeMap<IpAddr, usize> =
            asked.concat().into_iter().fold(BTreeMap::new(), |mut counts, target| {
                *counts.entry(target).or_default() += 1;
                counts
            });
        assert_eq!(twice.len(), 10_000, "no host is left out");
        assert!(twice.values().all(|count| (1..=4).contains(count)), "{:?}", twice.values().max());
    }

    #[test]
    fn a_new_host_is_asked_soon_and_one_that_is_gone_no_more() {
        let mut schedule = Schedule::default();
        schedule.set(&targets(3), MINUTE, "h1", Duration::ZERO);
        run(&mut schedule, 100);
        let now = Duration::from_secs(100);
        schedule.set(&targets(4), MINUTE, "h1", now);
        let new = targets(4).last().copied().unwrap();
        let soon = run(&mut schedule, 106).concat();
        assert!(soon.contains(&new), "{soon:?}");
        schedule.set(&targets(1), MINUTE, "h1", Duration::from_secs(106));
        assert_eq!(run(&mut schedule, 700).concat().iter().collect::<BTreeSet<_>>().len(), 1);
        schedule.set(&targets(0), MINUTE, "h1", Duration::from_secs(700));
        assert_eq!(schedule.next(), None);
    }

    #[test]
    fn one_lost_echo_is_no_outage_and_two_are() {
        let mut seen = ProbeStats::default();
        assert_eq!(seen.reachable(), None);
        let time = Some(Duration::from_millis(1));
        seen.note(84, 84, time);
        seen.note(84, 84, None);
        assert_eq!(seen.reachable(), Some(true));
        seen.note(84, 84, None);
        assert_eq!((seen.reachable(), seen.time), (Some(false), None));
        seen.note(84, 84, time);
        assert_eq!((seen.reachable(), seen.lost), (Some(true), 0));
    }

    const TIME: Option<Duration> = Some(Duration::from_millis(1));

    /// What is seen where each echo, large when one is wanted, meets the next of `answers`: to small and to large ones.
    fn asked(seen: &mut ProbeStats, answers: &[(bool, bool)]) -> Vec<Option<u32>> {
        let each = answers.iter().map(|(small, large)| {
            let (bytes, is_answered) = match seen.wants_large() {
                true => (1500, *large),
                false => (84, *small),
            };
            seen.note(bytes, 84, TIME.filter(|_| is_answered));
            seen.black_hole()
        });
        each.collect()
    }

    #[test]
    fn large_packets_that_are_lost_twice_are_reported() {
        let mut seen = ProbeStats::default();
        assert!(!seen.wants_large());
        // Small, large, small, large, small: that the way takes no large one is seen at the second small one.
        let found = asked(&mut seen, &[(true, false); 9]);
        assert_eq!(found[..5], [None, None, None, None, Some(1500)]);
        assert!(found[5..].iter().all(|found| *found == Some(1500)), "{found:?}");
        assert_eq!((seen.reachable(), seen.mtu), (Some(true), None));
        // Every second one is large: what was repaired is seen soon.
        asked(&mut seen, &[(true, true); 2]);
        assert_eq!((seen.black_hole(), seen.mtu), (None, Some(1500)));
    }

    #[test]
    fn a_single_large_packet_that_is_lost_is_no_fault() {
        let mut seen = ProbeStats::default();
        seen.note(84, 84, TIME);
        seen.note(1500, 84, None);
        assert!(!seen.wants_large() && seen.black_hole().is_none());
        seen.note(84, 84, TIME);
        assert!(seen.wants_large() && seen.black_hole().is_none());
        // The kernel has learned of a smaller MTU.
        seen.note(1450, 84, TIME);
        assert_eq!((seen.mtu, seen.black_hole(), seen.wants_large()), (Some(1450), None, false));
    }

    /// With an interval as short as the patience for an answer.
    #[test]
    fn no_second_large_packet_is_sent_before_the_first_is_answered_or_lost() {
        let mut seen = ProbeStats::default();
        seen.note(84, 84, TIME);
        assert!(seen.wants_large());
        seen.expect_large();
        assert!(!seen.wants_large());
        // The link is back for the small one, whose answer comes before the large one is given up.
        seen.note(84, 84, TIME);
        seen.note(1500, 84, None);
        assert!(!seen.wants_large());
        seen.note(84, 84, TIME);
        assert_eq!((seen.wants_large(), seen.black_hole()), (true, None));
    }

    #[test]
    fn a_link_that_is_cut_when_a_large_packet_is_due_is_an_outage_and_nothing_else() {
        for before in 1..=12 {
            let mut seen = ProbeStats::default();
            asked(&mut seen, &vec![(true, true); before]);
            let found = asked(&mut seen, &[(false, false); 5]);
            assert_eq!(found, [None; 5], "after {before}");
            assert_eq!(seen.reachable(), Some(false));
            let found = asked(&mut seen, &[(true, true); 12]);
            assert_eq!((found, seen.reachable()), (vec![None; 12], Some(true)), "after {before}");
        }
    }
}
