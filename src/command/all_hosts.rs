//! Every host of the network, with what its agent publishes of it: its problems, and which hosts it reaches.

use std::collections::BTreeMap;

use crate::api::reachability::{self, HostReport, Reachability, Unreached};
use crate::api::status::Status;
use crate::command::json;
use crate::command::nodes::node::{NodeState, names};
use crate::etcd;
use crate::inspect::agent_socket;
use crate::inspect::cluster::{self, ClusterView};
use crate::lease::records::{NodeName, PolicyEnforcement};
use crate::net::{ProblemKind, Severity};
use crate::settings::exit::Exit;
use crate::settings::{Settings, Source};

/// How many problems of each kind.
pub type ProblemCounts = BTreeMap<ProblemKind, u32>;

/// As etcd and this host's agent, if one answers, have them.
pub struct AllHosts {
    pub cluster: ClusterView,
    reports: Reachability,
    /// Why something is missing.
    pub remarks: Vec<String>,
    own: Option<OwnStatus>,
}

/// What the agent of this host says.
struct OwnStatus {
    problems: ProblemCounts,
    policies: Option<PolicyEnforcement>,
    /// Of the policies in force there.
    rules: usize,
}

/// One host.
pub struct HostLine<'a> {
    pub host: &'a NodeName,
    pub state: NodeState,
    pub report: Option<&'a HostReport>,
    /// Why there is no report.
    pub why: Option<&'a str>,
    /// What the agent of this host says, where it publishes nothing.
    own: Option<&'a OwnStatus>,
    /// What others say of it, if some do not reach it.
    unreached: Option<&'a Unreached>,
    /// Another host reports whether it reaches it.
    is_asked: bool,
}

/// As far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Well,
    NotWell,
    /// Its agent says nothing of itself.
    Unknown,
}

impl AllHosts {
    /// Asks etcd, and the agent for the reports; if it does not answer, etcd for these, too.
    ///
    /// # Errors
    /// There is no list of hosts.
    pub fn read(settings: &Settings) -> Result<AllHosts, Exit> {
        let cluster = cluster::read(settings)?;
        let (reports, mut remarks) = reports(settings, &cluster);
        remarks.extend(cluster.stale.as_ref().map(json::stale));
        Ok(AllHosts { cluster, reports, remarks, own: own_status(settings) })
    }

    /// By name.
    pub fn lines(&self) -> Vec<HostLine<'_>> {
        let hosts = names(&self.cluster.snapshot).into_iter();
        hosts.map(|host| self.line(host)).collect()
    }

    /// The agent of this host has rules of policies in force.
    pub fn has_own_rules(&self) -> bool {
        self.own.as_ref().is_some_and(|own| own.rules > 0)
    }

    fn line<'a>(&'a self, host: &'a NodeName) -> HostLine<'a> {
        let why = self.reports.silent.iter().find(|silent| silent.host == host.as_str());
        HostLine {
            host,
            state: NodeState::of(&self.cluster, host),
            report: self.reports.rows.iter().find(|report| report.host == host.as_str()),
            why: why.map(|silent| silent.why.as_str()),
            own: self.own.as_ref().filter(|_| *host == self.cluster.own),
            unreached: self.reports.unreached.iter().find(|it| it.host == host.as_str()),
            is_asked: self.is_asked(host.as_str()),
        }
    }

    /// By the reports: those of large networks have no times, but they may be about every other host.
    fn is_asked(&self, host: &str) -> bool {
        let others = self.reports.hosts.saturating_sub(1);
        self.reports.unreached.iter().any(|it| it.host == host)
            || self.reports.rows.iter().any(|row| {
                row.host != host
                    && (row.seconds.contains_key(host) || row.asked as usize >= others.max(1))
            })
    }
}

impl HostLine<'_> {
    /// Its problems; `None`: nothing says it.
    pub fn problems(&self) -> Option<&ProblemCounts> {
        let reported = self.report.and_then(|report| report.problems.as_ref());
        reported.or(self.own.map(|own| &own.problems))
    }

    /// What it has in force of policies; `None`: nothing says it.
    pub fn policies(&self) -> Option<PolicyEnforcement> {
        let reported = self.report.and_then(|report| report.policies);
        reported.or(self.own.and_then(|own| own.policies))
    }

    pub fn health(&self) -> Health {
        let of = |problems: Option<&ProblemCounts>| match problems {
            Some(problems) if problems.is_empty() => Health::Well,
            Some(_) => Health::NotWell,
            None => Health::Unknown,
        };
        match (self.state, self.report) {
            // It has no agent that could say it: what others say counts.
            (NodeState::Python, _) if self.unreached.is_some_and(|it| 2 * it.by > it.of) => {
                Health::NotWell
            }
            // A key may be all that there is of it.
            (NodeState::Python, _) if !self.is_asked => Health::Unknown,
            (NodeState::Alive, _) if self.unreached.is_some_and(|it| it.most) => Health::NotWell,
            // The second is not there yet.
            (NodeState::Python | NodeState::Reserved, _) => Health::Well,
            (NodeState::Silent | NodeState::Unknown, _) => Health::NotWell,
            (NodeState::Alive, Some(report)) if has_faults(report) => Health::NotWell,
            (NodeState::Alive, Some(report)) => of(report.problems.as_ref()),
            (NodeState::Alive, None) => of(self.own.map(|own| &own.problems)),
        }
    }
}

fn has_faults(report: &HostReport) -> bool {
    !report.faults.is_empty() || report.more_faults != 0
}

/// The reports of all hosts, and why some are missing: as the agent has them; without one as etcd has them.
fn reports(settings: &Settings, cluster: &ClusterView) -> (Reachability, Vec<String>) {
    let answer = agent_socket::of(settings).and_then(|path| agent_socket::get(path, "/v1/matrix"));
    let read = answer.and_then(|value| {
        serde_json::from_value::<Reachability>(value).map_err(|error| error.to_string())
    });
    match read.or_else(|why| in_etcd(settings, cluster, &why)) {
        Ok(mut found) => {
            let remarks = std::mem::take(&mut found.remarks);
            (found, remarks)
        }
        Err(why) => {
            let remark = format!("the problems of hosts are unknown: {why}");
            (Reachability::default(), vec![remark])
        }
    }
}

/// `why` no agent answers.
fn in_etcd(settings: &Settings, cluster: &ClusterView, why: &str) -> Result<Reachability, String> {
    let (Source::Etcd { server, roots }, None) = (&settings.source, &cluster.stale) else {
        return Err(why.to_owned());
    };
    let found = etcd::reports(server, roots).map_err(|error| format!("{why}; and {error}"))?;
    Ok(reachability::in_etcd(&found, &names(&cluster.snapshot)))
}

/// If the agent of this host answers.
fn own_status(settings: &Settings) -> Option<OwnStatus> {
    let answer = agent_socket::of(settings).and_then(|path| agent_socket::get(path, "/v1/status"));
    let status = answer.and_then(Status::read).ok()?;
    let all = status.problems.0?;
    let mut problems = BTreeMap::new();
    for problem in all.iter().filter(|problem| problem.severity() != Severity::Note) {
        *problems.entry(problem.kind).or_default() += 1;
    }
    let rules = status.policies.as_ref().map_or(0, |policies| policies.rules);
    let policies = status.policies.map(|policies| policies.enforcement(&all));
    Some(OwnStatus { problems, policies, rules })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_most_do_not_reach_is_not_well_whatever_it_says_of_itself() {
        let host = "old".parse().unwrap();
        let health = |state, report: Option<&HostReport>, (by, of): (usize, usize)| {
            let unreached =
                Unreached { host: "old".to_owned(), by, of, most: of > 1 && 2 * by > of };
            let unreached = Some(&unreached).filter(|it| it.by > 0);
            let (why, own, is_asked) = (None, None, of > 0);
            HostLine { host: &host, state, report, why, own, unreached, is_asked }.health()
        };
        let report = HostReport { problems: Some(BTreeMap::new()), ..HostReport::default() };
        for (state, report) in [(NodeState::Python, None), (NodeState::Alive, Some(&report))] {
            assert_eq!(health(state, report, (0, 3)), Health::Well);
            assert_eq!(health(state, report, (1, 3)), Health::Well);
            assert_eq!(health(state, report, (2, 3)), Health::NotWell);
        }
        assert_eq!(health(NodeState::Python, None, (1, 1)), Health::NotWell, "no host reaches it");
        assert_eq!(
            health(NodeState::Alive, Some(&report), (1, 1)),
            Health::Well,
            "its peer is not"
        );
        assert_eq!(health(NodeState::Python, None, (0, 0)), Health::Unknown, "nobody asks it");
        assert_eq!(health(NodeState::Reserved, None, (1, 1)), Health::Well);
    }
}
