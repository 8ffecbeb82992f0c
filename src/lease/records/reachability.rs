//! Pure. What a host sees of the others: its row of the reachability matrix.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::lease::records::{NodeName, RecordError, SCHEMA, json};
use crate::net::Family;

/// Faults that are named; of more only the number is told.
pub const NAMED: usize = 20;

/// With more other hosts a row tells no single latency.
pub const TIMED: usize = 64;

/// Longest value, in bytes: [`NAMED`] faults of hosts with the longest names are 5.6 kB, [`TIMED`]
/// latencies of hosts with usual names 2 kB.
const LIMIT: usize = 8 * 1024;

/// The value of `$HUMANZ_PREFIX-probes/<hostname>`; it goes with the etcd lease of the host's sign of life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    schema: u32,
    /// When it was so, in the clock of its host: seconds since 1970.
    pub at: u64,
    /// Other hosts that were asked, as far as it is known whether they answer.
    pub asked: u32,
    /// Those that answer small packets in each family that they have.
    pub answer: u32,
    /// Microseconds that the answer of the middle one takes …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median: Option<u32>,
    /// … and that of the slowest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowest: Option<u32>,
    /// What is wrong on the way to whom: [`NAMED`] of them …
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub faults: BTreeMap<NodeName, WayFault>,
    /// … and how many more there are.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u32,
    /// Microseconds that each one's answer takes, the slower family's; none in a network with more
    /// than [`TIMED`] other hosts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub times: BTreeMap<NodeName, u32>,
}

/// What is wrong on the way to a host; in JSON text: `silent`, `silent IPv6`, `large 1450`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum WayFault {
    /// It does not answer.
    Silent,
    /// It does not answer in one family of two.
    Half(Family),
    /// Packets of so many bytes are lost, smaller ones are not.
    Large(u32),
}

/// The other hosts as one host sees them now.
#[derive(Clone, Debug, Default)]
pub struct Sight {
    /// Those of which it is known whether they answer, with microseconds if they do (in some family),
    /// and what is wrong.
    pub hosts: BTreeMap<NodeName, (Option<u32>, Option<WayFault>)>,
}

impl Row {
    /// What is told of `sight` at the moment `at` (seconds since 1970); `None` if nothing was seen
    /// yet. At most [`LIMIT`] bytes.
    pub fn of(sight: &Sight, at: u64) -> Option<Row> {
        if sight.hosts.is_empty() {
            return None;
        }
        let each = || sight.hosts.iter();
        let faults = || each().filter_map(|(name, (_, fault))| Some((name.clone(), (*fault)?)));
        let away = faults().filter(|(_, fault)| !matches!(fault, WayFault::Large(_))).count();
        let mut sorted: Vec<u32> = each().filter_map(|(_, (time, _))| *time).collect();
        sorted.sort_unstable();
        let times = each().filter_map(|(name, (time, _))| Some((name.clone(), (*time)?)));
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let mut row = Row {
            schema: SCHEMA,
            at,
            asked: number(sight.hosts.len()),
            answer: number(sight.hosts.len() - away),
            median: sorted.get(sorted.len() / 2).copied(),
            slowest: sorted.last().copied(),
            faults: faults().take(NAMED).collect(),
            more: number(faults().count().saturating_sub(NAMED)),
            times: if sight.hosts.len() <= TIMED { times.collect() } else { BTreeMap::new() },
        };
        if row.to_json().len() > LIMIT {
            row.times.clear();
        }
        Some(row)
    }

    /// # Errors
    /// [`RecordError`] if `value` is no such JSON object of at most 8 kB.
    pub fn parse(value: &[u8]) -> Result<Row, RecordError> {
        if value.len() > LIMIT {
            return Err(RecordError::TooLong { bytes: value.len(), limit: LIMIT });
        }
        json(value)
    }

    /// The JSON text.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers always serialise")
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl fmt::Display for WayFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WayFault::Silent => f.write_str("silent"),
            WayFault::Half(family) => write!(f, "silent {family}"),
            WayFault::Large(bytes) => write!(f, "large {bytes}"),
        }
    }
}

impl FromStr for WayFault {
    type Err = RecordError;

    fn from_str(text: &str) -> Result<WayFault, RecordError> {
        Ok(match text {
            "silent" => WayFault::Silent,
            "silent IPv4" => WayFault::Half(Family::V4),
            "silent IPv6" => WayFault::Half(Family::V6),
            _ => {
                let bytes = text.strip_prefix("large ").and_then(|bytes| bytes.parse().ok());
                WayFault::Large(bytes.ok_or(RecordError::Key("silent, silent IPv6, large 1450"))?)
            }
        })
    }
}

impl TryFrom<String> for WayFault {
    type Error = RecordError;

    fn try_from(text: String) -> Result<WayFault, RecordError> {
        text.parse()
    }
}

impl From<WayFault> for String {
    fn from(fault: WayFault) -> String {
        fault.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sight(hosts: &[(&str, Option<u32>, Option<WayFault>)]) -> Sight {
        let each = hosts.iter().map(|(name, time, fault)| (name.parse().unwrap(), (*time, *fault)));
        Sight { hosts: each.collect() }
    }

    #[test]
    fn it_comes_back_as_it_went_in() {
        let seen = sight(&[
            ("a", Some(100), None),
            ("b", Some(900), Some(WayFault::Large(1450))),
            ("c", None, Some(WayFault::Silent)),
            ("d", Some(300), Some(WayFault::Half(Family::V6))),
        ]);
        let row = Row::of(&seen, 7).unwrap();
        let text = row.to_json();
        assert_eq!(
            text,
            r#"{"schema":1,"at":7,"asked":4,"answer":2,"median":300,"slowest":900,"faults":{"b":"large 1450","c":"silent","d":"silent IPv6"},"times":{"a":100,"b":900,"d":300}}"#
        );
        assert_eq!(Row::parse(text.as_bytes()).unwrap(), row);
        assert_eq!(Row::of(&Sight::default(), 7), None);
    }

    #[test]
    fn of_many_hosts_it_stays_small() {
        let long = |n: u32| format!("{n:0>253}");
        for (count, lost) in [(64, 64), (64, 0), (10_000, 10_000)] {
            let fault = |n| (n < lost).then_some(WayFault::Half(Family::V6));
            let each = (0..count).map(|n| (long(n).parse().unwrap(), (Some(u32::MAX), fault(n))));
            let row = Row::of(&Sight { hosts: each.collect() }, u64::MAX).unwrap();
            let text = row.to_json();
            assert!(text.len() <= LIMIT, "{}", text.len());
            assert_eq!(Row::parse(text.as_bytes()).unwrap(), row);
            assert_eq!(row.faults.len() + row.more as usize, lost as usize);
        }
        let usual =
            (0..64).map(|n| (format!("node-{n}.example.com").parse().unwrap(), (Some(250), None)));
        assert_eq!(Row::of(&Sight { hosts: usual.collect() }, 0).unwrap().times.len(), 64);
    }

    #[test]
    fn hostile_rows_are_refused() {
        let long =
            format!(r#"{{"schema":1,"at":0,"asked":0,"answer":0,"x":"{}"}}"#, "x".repeat(LIMIT));
        for bad in [
            "",
            "[]",
            r#"{"schema":2}"#,
            r#"{"schema":1,"at":-1,"asked":0,"answer":0}"#,
            r#"{"schema":1,"at":0,"asked":1e300,"answer":0}"#,
            r#"{"schema":1,"at":0,"asked":1,"answer":0,"faults":{"<b>":"silent"}}"#,
            r#"{"schema":1,"at":0,"asked":1,"answer":0,"faults":{"b":"<script>"}}"#,
            r#"{"schema":1,"at":0,"asked":1,"answer":0,"faults":{"b":"large -1"}}"#,
            r#"{"schema":1,"at":0,"asked":1,"answer":0,"times":{"b":"1"}}"#,
            &long,
        ] {
            assert!(Row::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
