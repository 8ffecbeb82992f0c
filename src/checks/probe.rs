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

/// A host that is new is asked within this time: all others hear of it at once.
const NEW: Duration = Duration::from_secs(5);

/// Of so many echoes to a host one is as large as the way is known to take.
const LARGE_EACH: u32 = 10;

/// So many unanswered echoes in a row mean that a host is not reached.
const LOST: u32 = 2;

/// When each target is due. Times are counted from the start.
#[derive(Debug, Default)]
pub struct Schedule {
    interval: Duration,
    due: BTreeSet<(Duration, IpAddr)>,
    at: BTreeMap<IpAddr, Duration>,
    /// Nobody is asked before.
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
    /// Bytes of such packets that were lost, while small ones were answered.
    pub too_large: Option<u32>,
    /// When it began or ceased to answer, or to answer large ones.
    pub since: Option<SystemTime>,
    sent: u32,
    reachable: Option<bool>,
}

impl ProbeStats {
    /// The next echo is to be a large one.
    pub fn wants_large(&self) -> bool {
        self.reachable == Some(true) && self.sent % LARGE_EACH == 1
    }

    /// An echo of `bytes` was answered after `time`, or not. `small`: the size of small ones.
    pub fn note(&mut self, bytes: u32, small: u32, time: Option<Duration>) {
        self.sent = self.sent.wrapping_add(1);
        match (time, bytes > small) {
            (Some(time), large) => {
                (self.time, self.lost, self.reachable) = (Some(time), 0, Some(true));
                if large {
                    (self.mtu, self.too_large) = (Some(bytes), None);
                }
            }
            // The kernel may have learned only now how much the way takes: once is no proof.
            (None, true) if self.too_large.is_none() => {
                self.too_large = Some(bytes);
                self.sent = 1;
            }
            (None, true) => self.mtu = None,
            (None, false) => {
                self.lost = self.lost.saturating_add(1);
                if self.lost >= LOST {
                    (self.reachable, self.time) = (Some(false), None);
                }
            }
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
        self.too_large.filter(|_| self.mtu.is_none() && self.reachable == Some(true))
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
        assert_eq!(twice.len(), 10_000, "nobody is left out");
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

    #[test]
    fn large_packets_that_are_lost_twice_are_reported() {
        let mut seen = ProbeStats::default();
        let time = Some(Duration::from_millis(1));
        assert!(!seen.wants_large());
        seen.note(84, 84, time);
        assert!(seen.wants_large());
        seen.note(1500, 84, None);
        assert!(seen.wants_large() && seen.reachable() == Some(true));
        seen.note(1450, 84, time);
        assert_eq!((seen.mtu, seen.black_hole()), (Some(1450), None));
        seen.sent = 1;
        seen.note(1500, 84, None);
        seen.note(1500, 84, None);
        assert_eq!(seen.black_hole(), Some(1500));
        seen.note(1500, 84, time);
        assert_eq!(seen.black_hole(), None);
    }
}
