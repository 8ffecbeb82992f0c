//! `status --all`: a line for each host.

use serde_json::{Value, json};

use crate::command::all_hosts::{AllHosts, Health, HostLine, ProblemCounts};
use crate::command::json;
use crate::command::nodes::node::{NodeState, object};
use crate::command::status::status_answer::StatusAnswer;
use crate::command::table::{Cell, Style, Table, Tone};
use crate::inspect::cluster::ClusterView;
use crate::lease::records::{Backend, NodeRecord, PolicyEnforcement};
use crate::settings::Settings;
use crate::settings::exit::Exit;

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
        "hosts": hosts, "origin": json::origin(cluster), "remarks": remarks, "not_known": not_known(&lines),
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
    value["policies"] = json!(line.policies());
    value["report"] = json!(line.report);
    value["no_report"] = json!(line.why);
    value
}

/// What cannot be said.
fn not_known(lines: &[HostLine<'_>]) -> Vec<String> {
    let said = |line: &&HostLine<'_>| {
        line.policies().is_some_and(|policies| policies != PolicyEnforcement::Unknown)
    };
    let count =
        lines.iter().filter(|line| line.state != NodeState::Reserved && !said(line)).count();
    let what = "hosts have in force of policies: no agent there publishes it (yet)";
    (count > 0).then(|| format!("what {count} of {} {what}", lines.len())).into_iter().collect()
}

fn text(cluster: &ClusterView, lines: &[HostLine<'_>], remarks: &[String], style: Style) -> String {
    let heads = ["HOST", "STATE", "VERSION", "MTU", "VIA", "ENCRYPTS", "POLICIES", "REACHES"];
    let (mut table, mut problems) = (Table::new(&heads), Table::new(&["HOST", "PROBLEMS"]));
    let shown = lines.iter().filter(|line| lines.len() <= SHOWN || line.health() != Health::Well);
    for line in shown.take(SHOWN) {
        table.row(cells(cluster, line));
        problems_of(line).into_iter().for_each(|cell| problems.row([host(cluster, line), cell]));
    }
    let mut text = table.render(style) + "\n";
    if !problems.is_empty() {
        text += &(problems.render(style) + "\n");
    }
    text.extend(remarks.iter().map(|remark| style.remark(Tone::Bad, remark)));
    let not_known = not_known(lines).into_iter();
    text.extend(not_known.map(|what| style.sentence(Tone::Faint, &format!("not known: {what}"))));
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
    text + &style.sentence(tone, &last)
}

fn host(cluster: &ClusterView, line: &HostLine<'_>) -> Cell {
    let own = if *line.host == cluster.own { "*" } else { "" };
    Cell::new(format!("{}{own}", line.host))
}

fn cells(cluster: &ClusterView, line: &HostLine<'_>) -> [Cell; 8] {
    let node = cluster.snapshot.nodes.get(line.host).map(|node| &node.value);
    let mtu = node.and_then(|node| node.known_mtu());
    let reaches = line.report.map(|report| format!("{} of {}", report.answer, report.asked));
    let tone = match line.health() {
        Health::Well => Tone::Good,
        Health::NotWell => Tone::Bad,
        Health::Unknown => Tone::Odd,
    };
    [
        host(cluster, line),
        Cell::new(line.state.word()).tone(tone),
        Cell::new(node.map_or("", |node| &node.version)),
        Cell::new(mtu.map(|mtu| mtu.to_string()).unwrap_or_default()),
        Cell::new(node.map(|node| via(node)).unwrap_or_default()),
        Cell::new(node.map_or("", |node| encrypts(node))),
        enforced(line.policies().unwrap_or(PolicyEnforcement::Unknown)),
        Cell::new(reaches.unwrap_or_default()),
    ]
}

fn enforced(policies: PolicyEnforcement) -> Cell {
    let tone = match policies {
        PolicyEnforcement::Off | PolicyEnforcement::InForce => Tone::Plain,
        PolicyEnforcement::Behind | PolicyEnforcement::Unknown => Tone::Odd,
        PolicyEnforcement::NotInForce => Tone::Bad,
    };
    Cell::new(policies.words()).tone(tone)
}

/// Its problems, or why they are not known; `None`: it has none.
fn problems_of(line: &HostLine<'_>) -> Option<Cell> {
    match line.problems() {
        Some(found) => (!found.is_empty()).then(|| Cell::new(problems(found)).tone(Tone::Bad)),
        None => {
            let why = line.why.or(line.report.map(|_| "an earlier version does not say it"));
            why.map(|why| Cell::new(why).tone(Tone::Faint))
        }
    }
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
