//! `status --all`: a line for each host, from its records in etcd and the report that its agent publishes.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::api::reachability::{HostReport, Reachability};
use crate::api::status::Status;
use crate::command::json;
use crate::command::nodes::node::{NodeState, names, object};
use crate::command::status::status_answer::StatusAnswer;
use crate::command::table::{Cell, Style, Table, Tone, printable};
use crate::inspect::agent_socket;
use crate::inspect::cluster::{self, ClusterView};
use crate::lease::records::NodeName;
use crate::net::{ProblemKind, Severity};
use crate::settings::Settings;
use crate::settings::exit::Exit;

/// With more hosts only those are listed that are not well.
const SHOWN: usize = 64;

/// One host.
struct HostLine<'a> {
    host: &'a NodeName,
    state: NodeState,
    report: Option<&'a HostReport>,
    /// Why there is no report.
    why: Option<&'a str>,
    /// What the agent of this host says, where it publishes nothing.
    own_problems: Option<BTreeMap<ProblemKind, u32>>,
}

/// Asks etcd, and the agent for the reports.
///
/// # Errors
/// There is no list of hosts.
pub fn found(settings: &Settings, style: Style) -> Result<StatusAnswer, Exit> {
    let cluster = cluster::read(settings)?;
    let (reports, mut remarks) = reports(settings);
    remarks.extend(cluster.stale.as_ref().map(json::stale));
    let own = own_problems(settings);
    let lines = names(&cluster.snapshot).into_iter().map(|host| {
        let own_problems = own.clone().filter(|_| *host == cluster.own);
        HostLine { own_problems, ..line(&cluster, &reports, host) }
    });
    let lines: Vec<HostLine<'_>> = lines.collect();
    let fine = remarks.is_empty() && lines.iter().all(|line| health(line) == Health::Well);
    let hosts: Vec<Value> = lines.iter().map(|line| value(&cluster, line)).collect();
    let value = json!({ "hosts": hosts, "origin": json::origin(&cluster), "remarks": remarks });
    Ok(StatusAnswer { fine, value, text: text(&cluster, &lines, &remarks, style) })
}

/// The reports of all hosts, and why some are missing.
fn reports(settings: &Settings) -> (Reachability, Vec<String>) {
    let answer = agent_socket::of(settings).and_then(|path| agent_socket::get(path, "/v1/matrix"));
    let read = answer.and_then(|value| {
        serde_json::from_value::<Reachability>(value).map_err(|error| error.to_string())
    });
    match read {
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

/// The problems of this host, if its agent answers.
fn own_problems(settings: &Settings) -> Option<BTreeMap<ProblemKind, u32>> {
    let answer = agent_socket::of(settings).and_then(|path| agent_socket::get(path, "/v1/status"));
    let status = answer.and_then(Status::read).ok()?;
    let mut counts = BTreeMap::new();
    let problems = status.problems.0?.into_iter();
    for problem in problems.filter(|problem| problem.severity() != Severity::Note) {
        *counts.entry(problem.kind).or_default() += 1;
    }
    Some(counts)
}

fn line<'a>(cluster: &ClusterView, reports: &'a Reachability, host: &'a NodeName) -> HostLine<'a> {
    let why = reports.silent.iter().find(|silent| silent.host == host.as_str());
    HostLine {
        host,
        state: NodeState::of(cluster, host),
        report: reports.rows.iter().find(|report| report.host == host.as_str()),
        why: why.map(|silent| silent.why.as_str()),
        own_problems: None,
    }
}

/// As far as is known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Health {
    Well,
    NotWell,
    /// Its agent says nothing of itself.
    Unknown,
}

fn health(line: &HostLine<'_>) -> Health {
    match (line.state, line.report) {
        // The first has no agent that could say it, the second is not there yet.
        (NodeState::Python | NodeState::Reserved, _) => Health::Well,
        (NodeState::Silent | NodeState::Unknown, _) => Health::NotWell,
        (NodeState::Alive, None) => match &line.own_problems {
            Some(problems) => health_of(problems),
            None => Health::Unknown,
        },
        (NodeState::Alive, Some(report)) if has_faults(report) => Health::NotWell,
        (NodeState::Alive, Some(report)) => {
            report.problems.as_ref().map_or(Health::Unknown, health_of)
        }
    }
}

fn has_faults(report: &HostReport) -> bool {
    !report.faults.is_empty() || report.more_faults != 0
}

fn health_of(problems: &BTreeMap<ProblemKind, u32>) -> Health {
    if problems.is_empty() { Health::Well } else { Health::NotWell }
}

fn value(cluster: &ClusterView, line: &HostLine<'_>) -> Value {
    let mut value = object(cluster, line.host);
    value["well"] = match health(line) {
        Health::Well => json!(true),
        Health::NotWell => json!(false),
        Health::Unknown => Value::Null,
    };
    value["report"] = json!(line.report);
    value["no_report"] = json!(line.why);
    value
}

fn text(cluster: &ClusterView, lines: &[HostLine<'_>], remarks: &[String], style: Style) -> String {
    let mut table = Table::new(&["HOST", "STATE", "VERSION", "MTU", "REACHES", "PROBLEMS"]);
    let shown = lines.iter().filter(|line| lines.len() <= SHOWN || health(line) != Health::Well);
    shown.take(SHOWN).for_each(|line| table.row(cells(cluster, line)));
    let mut text = table.render(style) + "\n";
    for remark in remarks {
        text.push_str(&style.paint(Tone::Bad, &format!("! {}", printable(remark))));
        text.push('\n');
    }
    let count = |wanted| lines.iter().filter(|line| health(line) == wanted).count();
    let mut last = format!("{} of {} hosts are well", count(Health::Well), lines.len());
    let unknown = count(Health::Unknown);
    if unknown > 0 {
        last += &format!(", {unknown} cannot be known");
    }
    let tone = if count(Health::Well) == lines.len() { Tone::Good } else { Tone::Bad };
    if count(Health::NotWell) > 0 {
        last += "; humanz-agent status on a host shows its problems with their fixes";
    }
    text + &style.paint(tone, &last)
}

fn cells(cluster: &ClusterView, line: &HostLine<'_>) -> [Cell; 6] {
    let node = cluster.snapshot.nodes.get(line.host).map(|node| &node.value);
    let own = if *line.host == cluster.own { "*" } else { "" };
    let reaches = line.report.map(|report| format!("{} of {}", report.answer, report.asked));
    let known = line.report.and_then(|report| report.problems.as_ref());
    let problems = known.or(line.own_problems.as_ref()).map(problems);
    let why = line.why.or(line.report.map(|_| "an earlier version does not say it"));
    let tone = match health(line) {
        Health::Well => Tone::Good,
        Health::NotWell => Tone::Bad,
        Health::Unknown => Tone::Odd,
    };
    [
        Cell::new(format!("{}{own}", line.host)),
        Cell::new(line.state.word()).tone(tone),
        Cell::new(node.map_or("", |node| &node.version)),
        Cell::new(node.map(|node| node.mtu.to_string()).unwrap_or_default()),
        Cell::new(reaches.unwrap_or_default()),
        match (problems, why) {
            (Some(problems), _) => Cell::new(problems).tone(Tone::Bad),
            (None, why) => Cell::new(why.unwrap_or_default()).tone(Tone::Faint),
        },
    ]
}

/// `etcd, firewall 2`
fn problems(problems: &BTreeMap<ProblemKind, u32>) -> String {
    let each = problems.iter().map(|(kind, count)| match count {
        1 => kind.to_string(),
        count => format!("{kind} {count}"),
    });
    each.collect::<Vec<_>>().join(", ")
}
