//! Pure. Which hosts a host reaches, and which problems it has: its reachability report.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::de::IntoDeserializer;
use serde::{Deserialize, Deserializer, Serialize};

use crate::lease::records::value::{SCHEMA, json, limited, to_json};
use crate::lease::records::{NodeName, PolicyEnforcement, RecordError};
use crate::net::gather::Gather;
use crate::net::text::is_text;
use crate::net::{Family, Problem, ProblemKind, Severity};

/// Faults that are listed; further ones are counted.
pub const LISTED: usize = 20;

/// With more other hosts a report has no latency of each.
const TIMED: usize = 64;

/// Longest value, in bytes: [`LISTED`] faults of hosts with the longest names are 5.6 kB, [`TIMED`]
/// latencies of hosts with usual names 2 kB.
const LIMIT: usize = 8 * 1024;

/// The value of `$HUMANZ_PREFIX-probes/<hostname>`, with the etcd lease of the host's alive key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReachabilityReport {
    schema: u32,
    /// Time of the observation, by the clock of its host: seconds since 1970.
    pub at: u64,
    /// Other hosts whose state is known.
    pub asked: u32,
    /// Those that answer small packets in each family that they have.
    pub answer: u32,
    /// Latency in microseconds: median, and of the slowest host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowest: Option<u32>,
    /// The first [`LISTED`] faults by host, and the number of further ones.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub faults: BTreeMap<NodeName, PathFault>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u32,
    /// Latency of each host in microseconds, of its slower family; empty in a network with more than
    /// [`TIMED`] other hosts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub times: BTreeMap<NodeName, u32>,
    /// How many problems of each kind the host has, without notes; `None`: by an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "summed")]
    pub problems: Option<BTreeMap<ProblemKind, u32>>,
    /// `None`: by an earlier version, or its agent does not know it yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policies: Option<PolicyEnforcement>,
}

/// A fault on the path to a host; in JSON text: `silent`, `silent IPv6`, `large 1450`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum PathFault {
    NoAnswer,
    /// No answer in one family of two.
    NoAnswerBy(Family),
    /// Packets of this many bytes are lost, smaller ones are not.
    BlackHole(u32),
}

/// The path to another host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathState {
    /// Latency, if it answers in some family.
    pub micros: Option<u32>,
    pub fault: Option<PathFault>,
}

impl ReachabilityReport {
    /// The report of `paths` at the time `at` (seconds since 1970); `None` without any. At most
    /// [`LIMIT`] bytes.
    pub fn new(paths: &BTreeMap<NodeName, PathState>, at: u64) -> Option<ReachabilityReport> {
        if paths.is_empty() {
            return None;
        }
        let faults = || paths.iter().filter_map(|(name, path)| Some((name.clone(), path.fault?)));
        let silent =
            faults().filter(|(_, fault)| !matches!(fault, PathFault::BlackHole(_))).count();
        let mut sorted: Vec<u32> = paths.values().filter_map(|path| path.micros).collect();
        sorted.sort_unstable();
        let times = paths.iter().filter_map(|(name, path)| Some((name.clone(), path.micros?)));
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let mut report = ReachabilityReport {
            schema: SCHEMA,
            at,
            asked: number(paths.len()),
            answer: number(paths.len() - silent),
            median: sorted.get(sorted.len() / 2).copied(),
            slowest: sorted.last().copied(),
            faults: faults().take(LISTED).gather(),
            more: number(faults().count().saturating_sub(LISTED)),
            times: times.take(if paths.len() <= TIMED { TIMED } else { 0 }).gather(),
            problems: None,
            policies: None,
        };
        report.limit();
        Some(report)
    }

    /// The report of a host that has these `problems`.
    pub fn with_problems(mut self, problems: &[Problem]) -> ReachabilityReport {
        let mut counts = BTreeMap::new();
        for problem in problems.iter().filter(|problem| problem.severity() != Severity::Note) {
            *counts.entry(problem.kind).or_default() += 1;
        }
        self.problems = Some(counts);
        self.limit();
        self
    }

    /// The report of a host that has that in force.
    pub fn with_policies(mut self, policies: Option<PolicyEnforcement>) -> ReachabilityReport {
        self.policies = policies;
        self.limit();
        self
    }

    fn limit(&mut self) {
        if self.to_json().len() > LIMIT {
            self.times.clear();
        }
    }

    /// # Errors
    /// [`RecordError`] if `value` is no such JSON object of at most 8 kB.
    pub fn parse(value: &[u8]) -> Result<ReachabilityReport, RecordError> {
        json(limited(value, LIMIT)?)
    }

    pub fn to_json(&self) -> String {
        to_json(self)
    }
}

/// Kinds of other releases are one.
fn summed<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<BTreeMap<ProblemKind, u32>>, D::Error> {
    let mut counts: BTreeMap<ProblemKind, u32> = BTreeMap::new();
    for (name, count) in BTreeMap::<String, u32>::deserialize(deserializer)? {
        let kind = ProblemKind::deserialize(name.into_deserializer())?;
        let sum = counts.entry(kind).or_default();
        *sum = sum.saturating_add(count);
    }
    Ok(Some(counts))
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl fmt::Display for PathFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathFault::NoAnswer => f.write_str("silent"),
            PathFault::NoAnswerBy(family) => write!(f, "silent {family}"),
            PathFault::BlackHole(bytes) => write!(f, "large {bytes}"),
        }
    }
}

impl FromStr for PathFault {
    type Err = RecordError;

    fn from_str(text: &str) -> Result<PathFault, RecordError> {
        Ok(match text {
            "silent" => PathFault::NoAnswer,
            "silent IPv4" => PathFault::NoAnswerBy(Family::V4),
            "silent IPv6" => PathFault::NoAnswerBy(Family::V6),
            large => {
                let bytes = large.strip_prefix("large ").and_then(|bytes| bytes.parse().ok());
                PathFault::BlackHole(
                    bytes.ok_or(RecordError::Key("silent, silent IPv6, large 1450"))?,
                )
            }
        })
    }
}

is_text!(PathFault);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Object;

    fn path(micros: Option<u32>, fault: Option<PathFault>) -> PathState {
        PathState { micros, fault }
    }

    #[test]
    fn a_report_is_read_back_as_written() {
        let paths = [
            ("a", path(Some(100), None)),
            ("b", path(Some(900), Some(PathFault::BlackHole(1450)))),
            ("c", path(None, Some(PathFault::NoAnswer))),
            ("d", path(Some(300), Some(PathFault::NoAnswerBy(Family::V6)))),
        ];
        let paths = paths.map(|(name, path)| (name.parse().unwrap(), path)).into();
        let report = ReachabilityReport::new(&paths, 7).unwrap();
        let text = report.to_json();
        assert_eq!(
            text,
            r#"{"schema":1,"at":7,"asked":4,"answer":2,"median":300,"slowest":900,"faults":{"b":"large 1450","c":"silent","d":"silent IPv6"},"times":{"a":100,"b":900,"d":300}}"#
        );
        assert_eq!(ReachabilityReport::parse(text.as_bytes()).unwrap(), report);
        assert_eq!(ReachabilityReport::new(&BTreeMap::new(), 7), None);
        let drop = Problem::new(ProblemKind::RouteInTheWay, Object::named("x"), "y");
        let report = report.with_problems(&[drop.clone(), drop]);
        let text = report.to_json();
        assert!(text.ends_with(r#","problems":{"route-in-the-way":2}}"#), "{text}");
        assert_eq!(ReachabilityReport::parse(text.as_bytes()).unwrap(), report);
        let report = report.with_policies(Some(PolicyEnforcement::Behind));
        let read = ReachabilityReport::parse(report.to_json().as_bytes()).unwrap();
        assert_eq!((read.policies, read), (Some(PolicyEnforcement::Behind), report));
        // Of another release.
        let text = text.replace(r#""route-in-the-way""#, r#""moon-full":3,"moon-new""#);
        let read = ReachabilityReport::parse(text.as_bytes()).unwrap();
        assert_eq!((read.problems, read.policies), (Some([(ProblemKind::Other, 5)].into()), None));
    }

    #[test]
    fn a_report_of_many_hosts_is_limited() {
        let long = |n: u32| format!("{n:0>253}");
        for (count, lost) in [(64, 64), (64, 0), (10_000, 10_000)] {
            let fault = |n| (n < lost).then_some(PathFault::NoAnswerBy(Family::V6));
            let each =
                (0..count).map(|n| (long(n).parse().unwrap(), path(Some(u32::MAX), fault(n))));
            let report = ReachabilityReport::new(&each.collect(), u64::MAX).unwrap();
            let all =
                ProblemKind::ALL.iter().map(|kind| Problem::new(*kind, Object::named("x"), ""));
            let report = report.with_problems(&all.collect::<Vec<_>>());
            let report = report.with_policies(Some(PolicyEnforcement::NotInForce));
            let text = report.to_json();
            assert!(text.len() <= LIMIT, "{}", text.len());
            assert_eq!(ReachabilityReport::parse(text.as_bytes()).unwrap(), report);
            assert_eq!(report.faults.len() + report.more as usize, lost as usize);
        }
        let usual = (0..64)
            .map(|n| (format!("node-{n}.example.com").parse().unwrap(), path(Some(250), None)));
        assert_eq!(ReachabilityReport::new(&usual.collect(), 0).unwrap().times.len(), 64);
    }

    #[test]
    fn hostile_reports_are_refused() {
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
            r#"{"schema":1,"at":0,"asked":1,"answer":0,"problems":{"etcd":-1}}"#,
            r#"{"schema":1,"at":0,"asked":1,"answer":0,"policies":{"x":1}}"#,
            &long,
        ] {
            assert!(ReachabilityReport::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
