//! Which host reaches which, by the reports of all hosts: one JSON object, schema 1.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::agent::reachability::{enforcement, paths};
use crate::agent::shared_state::SharedState;
use crate::agent::snapshot::AgentSnapshot;
use crate::etcd::FoundReports;
use crate::lease::records::{PathFault, PolicyEnforcement, ReachabilityReport};
use crate::lease::{NodeName, Peer};
use crate::net::ProblemKind;
use crate::net::gather::Gather;
use crate::net::time::rfc3339;
use crate::settings::Source;

/// The version of [`Reachability`]. Fields may be added; none changes its meaning.
const SCHEMA: u32 = 1;

/// Longest wait for etcd; clients wait a little longer.
const PATIENCE: Duration = Duration::from_secs(4);

/// The end of the year 9999; later times are invalid.
const LAST_SECOND: u64 = 253_402_300_799;

/// The reports of all hosts.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Reachability {
    schema: u32,
    /// The host that answers.
    pub host: String,
    /// Number of hosts, with this one.
    pub hosts: usize,
    /// By name. That of this host is current, those of others as published last.
    pub rows: Vec<HostReport>,
    /// Hosts without a report.
    #[serde(rename = "untold")]
    pub silent: Vec<Silent>,
    /// Hosts in the faults of others, the worst first.
    pub unreached: Vec<Unreached>,
    /// Why something is missing.
    pub remarks: Vec<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostReport {
    pub host: String,
    pub at: String,
    pub asked: u32,
    pub answer: u32,
    pub median_seconds: Option<f64>,
    pub slowest_seconds: Option<f64>,
    pub faults: Vec<HostFault>,
    /// Number of further faults.
    pub more_faults: u32,
    /// Latency of each host; empty in large networks.
    pub seconds: BTreeMap<String, f64>,
    /// How many problems of each kind the host has; `None`: an earlier version does not say it.
    pub problems: Option<BTreeMap<ProblemKind, u32>>,
    /// What it has in force of policies; `None`: it does not say it, as an earlier version.
    pub policies: Option<PolicyEnforcement>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostFault {
    pub host: String,
    /// `silent`, `silent IPv4`, `silent IPv6` or `large N`.
    pub kind: String,
    /// Packets of this many bytes are lost, smaller ones are not.
    pub bytes: Option<u32>,
    /// The family that is not answered in, of two.
    pub family: Option<String>,
    /// A sentence.
    pub what: String,
}

/// A host without a report.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Silent {
    pub host: String,
    pub why: String,
}

/// A host that others do not reach.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Unreached {
    pub host: String,
    /// Reports with a fault of it, of this many.
    pub by: usize,
    pub of: usize,
    /// More than half of several: its own problem is likely.
    pub most: bool,
}

/// Reports by host.
type ReportRows<'a> = BTreeMap<&'a str, &'a ReachabilityReport>;

pub async fn reachability(shared: &SharedState) -> Reachability {
    let mut remarks = Vec::new();
    let Some(known) = shared.snapshot() else {
        remarks.push("the agent has not finished its first reconcile".to_owned());
        let host = shared.name.clone();
        return Reachability { schema: SCHEMA, host, hosts: 1, remarks, ..Default::default() };
    };
    let read = match &known.settings.source {
        Source::Etcd { .. } => timeout(PATIENCE, shared.reports.read()).await.map_or_else(
            |_| {
                remarks.push(format!("etcd did not answer within {PATIENCE:?}: {ONLY_OWN}"));
                None
            },
            Some,
        ),
        Source::Kubernetes(_) => {
            let why = "SUBNET_SOURCE=kubernetes: hosts have no place to publish reports";
            remarks.push(format!("{why}: {ONLY_OWN}"));
            None
        }
        Source::Static(_) => None,
    };
    let found = read.as_deref().map(|read| &read.found);
    let own = own(shared, &known);
    let mut reports = ReportRows::new();
    match found {
        Some(Ok(found)) => {
            reports.extend(published(&known, found));
            remarks.extend(limits(found));
        }
        Some(Err(why)) => remarks.push(format!("{why}: {ONLY_OWN}")),
        None => {}
    }
    reports.extend(own.iter().map(|report| (shared.name.as_str(), report)));
    let unpublished = shared.reports.unpublished();
    remarks.extend(unpublished.map(|why| format!("this host's report is not published: {why}")));
    summary(&shared.name, &known, &reports, remarks)
}

const NO_REPORT: &str =
    "no report in etcd (yet): an earlier version, PROBE_INTERVAL=0, or no permission";

const ONLY_OWN: &str = "only this host's own report";

/// The reports that etcd has of `hosts`, for a machine whose agent does not answer.
pub fn in_etcd(found: &FoundReports, hosts: &BTreeSet<&NodeName>) -> Reachability {
    let is_host = |name: &str| hosts.iter().any(|host| host.as_str() == name);
    let reported = found.reports.iter().filter(|(name, _)| hosts.contains(name));
    let reports: ReportRows<'_> = reported.map(|(name, report)| (name.as_str(), report)).gather();
    let silent = hosts.iter().filter(|host| !reports.contains_key(host.as_str()));
    let silent = silent.map(|host| Silent { host: host.to_string(), why: NO_REPORT.to_owned() });
    Reachability {
        schema: SCHEMA,
        hosts: hosts.len(),
        rows: reports.iter().map(|(name, report)| shown(name, report, &is_host)).collect(),
        silent: silent.collect(),
        unreached: unreached(&reports, &is_host),
        remarks: limits(found).collect(),
        ..Reachability::default()
    }
}

/// This host's current report.
fn own(shared: &SharedState, known: &AgentSnapshot) -> Option<ReachabilityReport> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let paths = paths(known.peers.as_deref()?, &shared.probes.all());
    let report = ReachabilityReport::new(&paths, now.as_secs())?;
    let problems = shared.problems.all();
    Some(report.with_problems(&problems).with_policies(enforcement(known, &problems)))
}

/// The reports of hosts that exist.
fn published<'a>(
    known: &AgentSnapshot,
    found: &'a FoundReports,
) -> impl Iterator<Item = (&'a str, &'a ReachabilityReport)> {
    let peers = known.peers.clone();
    let each = found.reports.iter().map(|(name, report)| (name.as_str(), report));
    each.filter(move |(name, _)| peers.iter().any(|peers| peers.by_name.contains_key(*name)))
}

fn limits(found: &FoundReports) -> impl Iterator<Item = String> {
    let bad = found.why.as_ref();
    let bad = bad.map(|why| format!("keys in etcd without a valid report: {} ({why})", found.bad));
    let cut = found.cut.then(|| "there are more reports in etcd than are read".to_owned());
    bad.into_iter().chain(cut)
}

fn summary(
    own: &str,
    known: &AgentSnapshot,
    reports: &ReportRows<'_>,
    remarks: Vec<String>,
) -> Reachability {
    let others = || known.peers.iter().flat_map(|peers| &peers.by_name);
    let is_host = |name: &str| {
        name == own || known.peers.iter().any(|peers| peers.by_name.contains_key(name))
    };
    let silent = |host: &str, why: &str| {
        let is_silent = !reports.contains_key(host);
        is_silent.then(|| Silent { host: host.to_owned(), why: why.to_owned() })
    };
    let silent_others =
        others().filter_map(|(name, peer)| silent(name.as_str(), why_silent(known, peer)));
    Reachability {
        schema: SCHEMA,
        host: own.to_owned(),
        hosts: others().count() + 1,
        rows: reports.iter().map(|(name, report)| shown(name, report, &is_host)).collect(),
        silent: silent(own, why_own_silent(known)).into_iter().chain(silent_others).collect(),
        unreached: unreached(reports, &is_host),
        remarks,
    }
}

fn why_own_silent(known: &AgentSnapshot) -> &'static str {
    let others = known.peers.iter().any(|peers| !peers.by_name.is_empty());
    match known.settings.probe {
        None => "PROBE_INTERVAL=0: it probes no host",
        Some(_) if !others => "there are no other hosts",
        Some(_) => "no host was probed yet",
    }
}

/// Why another host has no report, as far as that can be known.
fn why_silent(known: &AgentSnapshot, peer: &Peer) -> &'static str {
    match known.settings.source {
        _ if peer.python => "it runs the Python agent",
        Source::Etcd { .. } if !peer.alive => "its agent does not run",
        Source::Etcd { .. } => NO_REPORT,
        _ => "it has no place to publish one",
    }
}

/// One report. Names that are no host are left out.
fn shown(name: &str, report: &ReachabilityReport, is_host: &impl Fn(&str) -> bool) -> HostReport {
    let seconds = |micros: u32| f64::from(micros) / 1e6;
    let is_other = |other: &NodeName| other.as_str() != name && is_host(other.as_str());
    let faults = report.faults.iter().filter(|(other, _)| is_other(other));
    let fault = |(other, fault): (&NodeName, &PathFault)| {
        let (bytes, family) = match *fault {
            PathFault::NoAnswer => (None, None),
            PathFault::NoAnswerBy(family) => (None, Some(family.to_string())),
            PathFault::BlackHole(bytes) => (Some(bytes), None),
        };
        let (host, kind, what) = (other.to_string(), fault.to_string(), sentence(fault));
        HostFault { host, kind, bytes, family, what }
    };
    let times = report.times.iter().filter(|(other, _)| is_other(other));
    HostReport {
        host: name.to_owned(),
        at: rfc3339(UNIX_EPOCH + Duration::from_secs(report.at.min(LAST_SECOND))),
        asked: report.asked,
        answer: report.answer,
        median_seconds: report.median.map(seconds),
        slowest_seconds: report.slowest.map(seconds),
        faults: faults.map(fault).collect(),
        more_faults: report.more,
        seconds: times.map(|(other, time)| (other.to_string(), seconds(*time))).gather(),
        problems: report.problems.clone(),
        policies: report.policies,
    }
}

fn sentence(fault: &PathFault) -> String {
    match fault {
        PathFault::NoAnswer => "does not answer".to_owned(),
        PathFault::NoAnswerBy(family) => format!("does not answer by {family}"),
        PathFault::BlackHole(bytes) => {
            format!("packets of {bytes} bytes are lost, smaller ones are not")
        }
    }
}

/// How many reports have a fault of each host. A single one is not most: the problem may be at its host.
fn unreached(reports: &ReportRows<'_>, is_host: &impl Fn(&str) -> bool) -> Vec<Unreached> {
    let mut by: BTreeMap<&NodeName, usize> = BTreeMap::new();
    for (name, report) in reports {
        let others = report.faults.keys();
        for other in others.filter(|other| other.as_str() != *name && is_host(other.as_str())) {
            *by.entry(other).or_default() += 1;
        }
    }
    let of = |host: &NodeName| reports.len() - usize::from(reports.contains_key(host.as_str()));
    let each = by.into_iter().map(|(host, by)| {
        let of = of(host);
        Unreached { host: host.to_string(), by, of, most: of > 1 && 2 * by > of }
    });
    let mut worst: Vec<Unreached> = each.collect();
    worst.sort_by_key(|host| Reverse(host.by));
    worst
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_single_host_is_not_most() {
        let report = |lost: &str| {
            let report = json!({ "schema": 1, "at": 0, "asked": 1, "answer": 0, "faults": { lost: "silent" } });
            serde_json::from_value::<ReachabilityReport>(report).unwrap()
        };
        let (one, two, three) = (report("h2"), report("h1"), report("h2"));
        let most = |reports: &[(&'static str, &ReachabilityReport)]| {
            let found = unreached(&reports.iter().copied().collect(), &|_| true);
            found.iter().map(|other| other.most).collect::<Vec<bool>>()
        };
        assert_eq!(most(&[("h1", &one)]), [false]);
        assert_eq!(most(&[("h1", &one), ("h2", &two)]), [false, false]);
        assert_eq!(most(&[("h1", &one), ("h3", &three)]), [true]);
    }
}
