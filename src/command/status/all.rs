//! `status --all`: a line for each host.

use serde_json::{Value, json};

use crate::command::all_hosts::{AllHosts, Health, HostLine, ProblemCounts};
use crate::command::json;
use crate::command::nodes::node::object;
use crate::command::status::status_answer::StatusAnswer;
use crate::command::table::{Cell, Style, Table, Tone, printable};
use crate::inspect::cluster::ClusterView;
use crate::lease::records::{Backend, NodeRecord};
use crate::settings::Settings;
use crate::settings::exit::Exit;

/// What no host publishes.
const NOT_KNOWN: &str = "which policies each host has in force: hosts do not publish it (humanz-agent policy ls on each says it)";

/// With more hosts only those are listed that are not well.
const SHOWN: usize = 64;

/// Asks etcd, and the agent for the reports; if it does not answer, etcd for these, too.
///
/// # Errors
/// There is no list of hosts.
pub fn found(settings: &Settings, style: Style) -> Result<StatusAnswer, Exit> {
    let all = AllHosts::read(settings)?;
    let (lines, cluster, remarks) = (all.lines(), &all.cluster, &all.remarks);
    let fine = remarks.is_empty() && lines.iter().all(|line| line.health() == Health::Well);
    let hosts: Vec<Value> = lines.iter().map(|line| value(cluster, line)).collect();
    let value = json!({
        "hosts": hosts, "origin": json::origin(cluster), "remarks": remarks, "not_known": [NOT_KNOWN],
    });
    Ok(StatusAnswer { fine, value, text: text(cluster, &lines, remarks, style) })
}

fn value(cluster: &ClusterView, line: &HostLine<'_>) -> Value {
    let mut value = object(cluster, line.host);
    value["well"] = match line.health() {
        Health::Well => json!(true),
        Health::NotWell => json!(false),
        Health::Unknown => Value::Null,
    };
    value["report"] = json!(line.report);
    value["no_report"] = json!(line.why);
    value
}

fn text(cluster: &ClusterView, lines: &[HostLine<'_>], remarks: &[String], style: Style) -> String {
    let heads = ["HOST", "STATE", "VERSION", "MTU", "VIA", "ENCRYPTS", "REACHES", "PROBLEMS"];
    let mut table = Table::new(&heads);
    let shown = lines.iter().filter(|line| lines.len() <= SHOWN || line.health() != Health::Well);
    shown.take(SHOWN).for_each(|line| table.row(cells(cluster, line)));
    let mut text = table.render(style) + "\n";
    for remark in remarks {
        text.push_str(&style.paint(Tone::Bad, &format!("! {}", printable(remark))));
        text.push('\n');
    }
    for line in style.lines(0, &format!("not known here: {NOT_KNOWN}")) {
        text.push_str(&style.paint(Tone::Faint, &line));
        text.push('\n');
    }
    let count = |wanted| lines.iter().filter(|line| line.health() == wanted).count();
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

fn cells(cluster: &ClusterView, line: &HostLine<'_>) -> [Cell; 8] {
    let node = cluster.snapshot.nodes.get(line.host).map(|node| &node.value);
    let own = if *line.host == cluster.own { "*" } else { "" };
    let reaches = line.report.map(|report| format!("{} of {}", report.answer, report.asked));
    let problems = line.problems().map(problems);
    let why = line.why.or(line.report.map(|_| "an earlier version does not say it"));
    let tone = match line.health() {
        Health::Well => Tone::Good,
        Health::NotWell => Tone::Bad,
        Health::Unknown => Tone::Odd,
    };
    [
        Cell::new(format!("{}{own}", line.host)),
        Cell::new(line.state.word()).tone(tone),
        Cell::new(node.map_or("", |node| &node.version)),
        Cell::new(node.map(|node| node.mtu.to_string()).unwrap_or_default()),
        Cell::new(node.map(|node| via(node)).unwrap_or_default()),
        Cell::new(node.map_or("", |node| encrypts(node))),
        Cell::new(reaches.unwrap_or_default()),
        match (problems, why) {
            (Some(problems), _) => Cell::new(problems).tone(Tone::Bad),
            (None, why) => Cell::new(why.unwrap_or_default()).tone(Tone::Faint),
        },
    ]
}

/// How other hosts reach its pods; without the end of a tunnel always by a route.
fn via(node: &NodeRecord) -> String {
    match (&node.backend, node.tunnel) {
        (Backend::Vxlan | Backend::Auto, None) => Backend::Direct.to_string(),
        (backend, _) => backend.to_string(),
    }
}

fn encrypts(node: &NodeRecord) -> &'static str {
    if node.wireguard.is_some() { "yes" } else { "no" }
}

/// `etcd, firewall 2`
fn problems(problems: &ProblemCounts) -> String {
    let each = problems.iter().map(|(kind, count)| match count {
        1 => kind.to_string(),
        count => format!("{kind} {count}"),
    });
    each.collect::<Vec<_>>().join(", ")
}
