//! `status --all`: a line for each host, from its records in etcd and the report that its agent publishes.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::api::reachability::{HostReport, Reachability};
use crate::command::json;
use crate::command::nodes::node::{NodeState, names, object};
use crate::command::status::status_answer::StatusAnswer;
use crate::command::table::{Cell, Style, Table, Tone, printable};
use crate::inspect::agent_socket;
use crate::inspect::cluster::{self, ClusterView};
use crate::lease::records::NodeName;
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
}

/// Asks etcd, and the agent for the reports.
///
/// # Errors
/// There is no list of hosts.
pub fn found(settings: &Settings, style: Style) -> Result<StatusAnswer, Exit> {
    let cluster = cluster::read(settings)?;
    let (reports, mut remarks) = reports(settings);
    remarks.extend(cluster.stale.as_ref().map(json::stale));
    let lines: Vec<HostLine<'_>> =
        names(&cluster.snapshot).into_iter().map(|host| line(&cluster, &reports, host)).collect();
    let fine = remarks.is_empty() && lines.iter().all(is_well);
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

fn line<'a>(cluster: &ClusterView, reports: &'a Reachability, host: &'a NodeName) -> HostLine<'a> {
    let why = reports.silent.iter().find(|silent| silent.host == host.as_str());
    HostLine {
        host,
        state: NodeState::of(cluster, host),
        report: reports.rows.iter().find(|report| report.host == host.as_str()),
        why: why.map(|silent| silent.why.as_str()),
    }
}

/// As far as is known; a host that runs the Python agent, or is not there yet, says nothing of itself.
fn is_well(line: &HostLine<'_>) -> bool {
    match (line.state, line.report) {
        (NodeState::Alive, Some(report)) => {
            report.problems.is_empty() && report.faults.is_empty() && report.more_faults == 0
        }
        (NodeState::Alive, None) => line.why.is_some(),
        (NodeState::Python | NodeState::Reserved, _) => true,
        (NodeState::Silent | NodeState::Unknown, _) => false,
    }
}

fn value(cluster: &ClusterView, line: &HostLine<'_>) -> Value {
    let mut value = object(cluster, line.host);
    value["well"] = json!(is_well(line));
    value["report"] = json!(line.report);
    value["no_report"] = json!(line.why);
    value
}

fn text(cluster: &ClusterView, lines: &[HostLine<'_>], remarks: &[String], style: Style) -> String {
    let mut table = Table::new(&["HOST", "STATE", "VERSION", "MTU", "REACHES", "PROBLEMS"]);
    let shown = lines.iter().filter(|line| lines.len() <= SHOWN || !is_well(line));
    shown.take(SHOWN).for_each(|line| table.row(cells(cluster, line)));
    let mut text = table.render(style) + "\n";
    for remark in remarks {
        text.push_str(&style.paint(Tone::Bad, &format!("! {}", printable(remark))));
        text.push('\n');
    }
    let well = lines.iter().filter(|line| is_well(line)).count();
    let (tone, more) = match well == lines.len() {
        true => (Tone::Good, ""),
        false => (Tone::Bad, "; humanz-agent status on a host shows its problems with their fixes"),
    };
    text + &style.paint(tone, &format!("{well} of {} hosts are well{more}", lines.len()))
}

fn cells(cluster: &ClusterView, line: &HostLine<'_>) -> [Cell; 6] {
    let node = cluster.snapshot.nodes.get(line.host).map(|node| &node.value);
    let own = if *line.host == cluster.own { "*" } else { "" };
    let reaches = line.report.map(|report| format!("{} of {}", report.answer, report.asked));
    let problems = line.report.map(|report| problems(&report.problems));
    let tone = if is_well(line) { Tone::Good } else { Tone::Bad };
    [
        Cell::new(format!("{}{own}", line.host)),
        Cell::new(line.state.word()).tone(tone),
        Cell::new(node.map_or("", |node| &node.version)),
        Cell::new(node.map(|node| node.mtu.to_string()).unwrap_or_default()),
        Cell::new(reaches.unwrap_or_default()),
        match (problems, line.why) {
            (Some(problems), _) => Cell::new(problems).tone(Tone::Bad),
            (None, why) => Cell::new(why.unwrap_or_default()).tone(Tone::Faint),
        },
    ]
}

/// `etcd, firewall 2`
fn problems<K: ToString>(problems: &BTreeMap<K, u32>) -> String {
    let each = problems.iter().map(|(kind, count)| match count {
        1 => kind.to_string(),
        count => format!("{} {count}", kind.to_string()),
    });
    each.collect::<Vec<_>>().join(", ")
}
