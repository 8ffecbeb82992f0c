//! Pure. How long a host stops watching because many hosts join, leave or restart together.
//!
//! Each step of each of them would be a response to every other host: a thousand hosts that start together
//! would get three million, and those without a subnet would wait for them. A host that rests gets what
//! it missed in a few large responses. What cannot wait ends its rest: [`crate::etcd::urgent`].

use std::time::{Duration, Instant};

/// The time in which changes are counted.
const WINDOW: Duration = Duration::from_secs(1);

/// Changes in that time after which a host rests; and once it has rested. A host that joins makes four.
const CALM: usize = 400;
const CROWDED: usize = 40;

/// Revisions between what a host read for its claim and its claim: others join at the same time. The first rest
/// is as much longer as there are more of them.
const JOINING: i64 = 20;
const OF_EACH: Duration = Duration::from_millis(10);

/// The first rest; each further one is twice as long, up to the longest.
const LEAST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(4);

/// Changes since a time.
#[derive(Debug)]
pub struct Crowd {
    since: Instant,
    changes: usize,
    /// The last rest; zero: it is calm.
    rest: Duration,
}

impl Crowd {
    pub fn new(now: Instant) -> Crowd {
        Crowd { since: now, changes: 0, rest: Duration::ZERO }
    }

    /// The rest before the first watch of a host that claimed its subnet just now, `behind` revisions after
    /// what it knows.
    pub fn after_claim(&mut self, behind: i64) -> Option<Duration> {
        let joining = u32::try_from(behind).unwrap_or(u32::MAX);
        let rest = OF_EACH.saturating_mul(joining).min(MOST);
        (behind > JOINING).then(|| {
            self.rest = rest;
            rest
        })
    }

    /// The rest that is due after `changes` more.
    pub fn after_changes(&mut self, changes: usize, now: Instant) -> Option<Duration> {
        if now.saturating_duration_since(self.since) > WINDOW {
            *self = Crowd::new(now);
        }
        self.changes += changes;
        let most = if self.rest.is_zero() { CALM } else { CROWDED };
        (self.changes > most).then(|| self.longer())
    }

    /// The rest is over.
    pub fn resume(&mut self, now: Instant) {
        (self.since, self.changes) = (now, 0);
    }

    fn longer(&mut self) -> Duration {
        self.rest = (self.rest * 2).clamp(LEAST, MOST);
        self.rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rests of a host that learns of so many changes every 100 ms.
    fn rests(changes: &[usize]) -> Vec<Duration> {
        let mut now = Instant::now();
        let mut crowd = Crowd::new(now);
        let mut rests = Vec::new();
        for changes in changes {
            now += Duration::from_millis(100);
            if let Some(rest) = crowd.after_changes(*changes, now) {
                rests.push(rest);
                now += rest;
                crowd.resume(now);
            }
        }
        rests
    }

    #[test]
    fn a_host_that_joins_alone_or_with_a_hundred_is_followed_at_once() {
        assert!(rests(&[4]).is_empty());
        assert!(rests(&[40; 10]).is_empty());
        assert!(rests(&[24; 100]).is_empty());
        assert_eq!(Crowd::new(Instant::now()).after_claim(5), None);
    }

    #[test]
    fn while_many_join_each_rest_is_longer_until_it_is_calm() {
        assert_eq!(rests(&[401, 900, 900, 900]), [LEAST, LEAST * 2, MOST, MOST]);
        let quiet = [0; 12];
        assert_eq!(rests(&[&[401][..], &quiet, &[100], &quiet, &[401]].concat()), [LEAST, LEAST]);
    }

    #[test]
    fn the_first_rest_is_as_long_as_others_are_many() {
        let rest = |behind| Crowd::new(Instant::now()).after_claim(behind);
        assert_eq!(rest(JOINING), None);
        assert_eq!(rest(40), Some(Duration::from_millis(400)));
        assert_eq!(rest(300), Some(Duration::from_secs(3)));
        assert_eq!((rest(3_000), rest(i64::MAX)), (Some(MOST), Some(MOST)));
    }
}
