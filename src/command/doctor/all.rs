//! `doctor --all`: the problems of every host, by kind, from what their agents publish.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::command::all_hosts::{AllHosts, Health, HostLine};
use crate::command::call::{Call, Outcome};
use crate::command::doctor::unenforced;
use crate::command::nodes::node::NodeState;
use crate::command::severity::word;
use crate::command::table::{Cell, Style, Table, Tone, printable};
use crate::lease::Snapshot;
use crate::lease::records::PolicyEnforcement;
use crate::net::ProblemKind;
use crate::net::gather::Gather;
use crate::settings::Settings;
use crate::settings::exit::Exit;

/// Hosts that are listed for a problem; further ones are counted.
const SHOWN: usize = 8;

/// One thing that is wrong in the network, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SharedProblem {
    kind: ProblemKind,
    what: String,
    /// With what makes each special, as in `h3 (silent)`.
    hosts: Vec<String>,
    fix: Cow<'static, str>,
}

/// # Errors
/// There is no list of hosts.
pub fn run(call: &mut Call<'_>, settings: &Settings, as_json: bool) -> Result<Outcome, Exit> {
    let all = AllHosts::read(settings)?;
    let lines = all.lines();
    let mut problems = published(&lines);
    problems.extend(without_agent(&lines));
    problems.extend(unreached(&lines));
    problems.extend(different(&all.cluster.snapshot));
    problems.extend(unenforced(&all, &lines, settings));
    problems.sort_by_key(|problem| (problem.kind.severity(), problem.kind));
    let unknown = lines.iter().filter(|line| line.health() == Health::Unknown);
    let unknown: Vec<&str> = unknown.map(|line| line.host.as_str()).collect();
    let values: Vec<Value> = problems.iter().map(value).collect();
    let value = json!({
        "hosts": lines.len(), "problems": values, "unknown": unknown, "remarks": all.remarks,
    });
    let text = text(&problems, lines.len(), &unknown, &all.remarks, call.style);
    let fine = problems.is_empty() && unknown.is_empty() && all.remarks.is_empty();
    call.answer(as_json, fine, value, &text)
}

/// What agents say of their hosts.
fn published(lines: &[HostLine<'_>]) -> Vec<SharedProblem> {
    let mut hosts: BTreeMap<ProblemKind, Vec<String>> = BTreeMap::new();
    for line in lines {
        for (kind, count) in line.problems().into_iter().flatten() {
            let host = match count {
                1 => line.host.to_string(),
                count => format!("{} ({count})", line.host),
            };
            hosts.entry(*kind).or_default().push(host);
        }
    }
    let each = hosts.into_iter().map(|(kind, hosts)| SharedProblem {
        kind,
        what: "reported by the agent".to_owned(),
        hosts,
        fix: "humanz-agent doctor # on that host: it has the object and the fix".into(),
    });
    each.collect()
}

fn without_agent(lines: &[HostLine<'_>]) -> Option<SharedProblem> {
    let silent = lines.iter().filter(|line| line.state == NodeState::Silent);
    let hosts: Vec<String> = silent.map(|line| line.host.to_string()).collect();
    let first = hosts.first()?.clone();
    Some(SharedProblem {
        kind: ProblemKind::AgentDown,
        what: "no agent runs".to_owned(),
        hosts,
        fix: format!(
            "systemctl start humanz-agent # on that host, or its pod on Kubernetes; one that is permanently gone: \
             humanz-agent nodes rm {first}"
        )
        .into(),
    })
}

/// Paths between hosts, by the host that is not reached.
fn unreached(lines: &[HostLine<'_>]) -> Option<SharedProblem> {
    let mut by: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for fault in lines.iter().filter_map(|line| line.report).flat_map(|report| &report.faults) {
        *by.entry((&fault.host, &fault.kind)).or_default() += 1;
    }
    let hosts: Vec<String> = by
        .into_iter()
        .map(|((host, kind), count)| format!("{host} ({kind}, reported by {count})"))
        .collect();
    (!hosts.is_empty()).then_some(SharedProblem {
        kind: ProblemKind::HostUnanswered,
        what: "not reached".to_owned(),
        hosts,
        fix: "humanz-agent probe --matrix # shows from where".into(),
    })
}

/// Versions and pods' MTUs, where hosts differ.
fn different(snapshot: &Snapshot) -> Vec<SharedProblem> {
    let each = |of: &dyn Fn(&crate::lease::records::NodeRecord) -> String| {
        let mut hosts: BTreeMap<String, usize> = BTreeMap::new();
        for node in snapshot.nodes.values() {
            *hosts.entry(of(&node.value)).or_default() += 1;
        }
        let hosts = hosts.into_iter().map(|(value, count)| format!("{value} on {count}"));
        let hosts: Vec<String> = hosts.collect();
        (hosts.len() > 1).then_some(hosts)
    };
    let version = each(&|node| node.version.to_string()).map(|hosts| SharedProblem {
        kind: ProblemKind::AgentVersion,
        what: "agents of several versions".to_owned(),
        hosts,
        fix: "humanz-agent nodes ls # shows each: finish the upgrade".into(),
    });
    let mtu = each(&|node| node.mtu.to_string()).map(|hosts| SharedProblem {
        kind: ProblemKind::Mtu,
        what: "pods of several MTUs".to_owned(),
        hosts,
        fix: "humanz-agent status --all # set MTU to the smallest on each host, if that is not wanted".into(),
    });
    version.into_iter().chain(mtu).collect()
}

/// Hosts with `POLICY=off`, where there are policies.
fn unenforced(
    all: &AllHosts,
    lines: &[HostLine<'_>],
    settings: &Settings,
) -> Option<SharedProblem> {
    let is_off = |line: &&HostLine<'_>| line.policies() == Some(PolicyEnforcement::Off);
    let hosts: Vec<String> = lines.iter().filter(is_off).map(|it| it.host.to_string()).collect();
    if hosts.is_empty() {
        return None;
    }
    let of_agent = || all.has_own_rules().then(|| "policies".to_owned());
    let there = unenforced::in_etcd(settings).or_else(of_agent)?;
    Some(SharedProblem {
        kind: ProblemKind::PolicyOff,
        what: format!("POLICY=off, and there are {there}"),
        hosts,
        fix: "humanz-agent config --changed # on that host: with POLICY=on it enforces them".into(),
    })
}

fn value(problem: &SharedProblem) -> Value {
    let SharedProblem { kind, what, hosts, fix } = problem;
    json!({ "kind": kind, "severity": kind.severity(), "what": what, "hosts": hosts, "fix": fix })
}

fn text(
    problems: &[SharedProblem],
    hosts: usize,
    unknown: &[&str],
    remarks: &[String],
    style: Style,
) -> String {
    let mut text = String::new();
    if !problems.is_empty() {
        let mut table = Table::new(&["IS", "WHAT", "SEEN", "HOSTS"]);
        for problem in problems {
            let (word, tone) = word(problem.kind.severity());
            let what = Cell::new(problem.kind.name());
            let hosts = Cell::new(shown(&problem.hosts));
            table.row([Cell::new(word).tone(tone), what, Cell::new(&problem.what), hosts]);
        }
        text = table.render(style) + "\n";
        let fixes: BTreeSet<(&str, &str)> =
            problems.iter().map(|problem| (problem.kind.name(), &*problem.fix)).gather();
        text.extend(fixes.iter().map(|(kind, fix)| format!("{kind}: {fix}\n")));
    }
    for remark in remarks {
        text += &style.remark(Tone::Bad, remark);
    }
    if !unknown.is_empty() {
        let all: Vec<String> = unknown.iter().map(|host| (*host).to_owned()).collect();
        let unknown = format!("unknown, because their agents publish nothing: {}", shown(&all));
        text += &style.sentence(Tone::Plain, &unknown);
    }
    let more = style.sentence(Tone::Plain, MORE);
    match problems.is_empty() && unknown.is_empty() && remarks.is_empty() {
        true => {
            let fine = format!("the agents of {hosts} hosts report no problem");
            style.sentence(Tone::Good, &fine) + &more
        }
        false => format!("{text}\n{more}"),
    }
}

/// What was checked, and what was not.
const MORE: &str = "checked: what agents publish; humanz-agent doctor on a host also checks its runtimes, disks and kernel";

/// `h1, h2 and 7 more`
fn shown(hosts: &[String]) -> String {
    let first: Vec<String> = hosts.iter().take(SHOWN).map(|host| printable(host)).collect();
    match hosts.len().saturating_sub(SHOWN) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_problem_is_one_line_with_its_first_hosts() {
        let hosts: Vec<String> = (0..20).map(|number| format!("h{number}")).collect();
        let problem = |kind, hosts| SharedProblem {
            kind,
            what: "reported by the agent".to_owned(),
            hosts,
            fix: "do it".into(),
        };
        let problems = [
            problem(ProblemKind::Etcd, hosts),
            problem(ProblemKind::Mtu, vec!["h\u{1b}[2J".to_owned()]),
        ];
        let lines = "\
IS       WHAT  SEEN                   HOSTS
wrong    etcd  reported by the agent  h0, h1, h2, h3, h4, h5, h6, h7 and 12 more
warning  mtu   reported by the agent  h\\u{1b}[2J

etcd: do it
mtu: do it

";
        let with_more = |text: &str| format!("{text}{MORE}\n");
        assert_eq!(text(&problems, 21, &[], &[], Style::default()), with_more(lines));
        let fine = with_more("the agents of 21 hosts report no problem\n");
        assert_eq!(text(&[], 21, &[], &[], Style::default()), fine);
        let unknown = text(&[], 2, &["h2"], &[], Style::default());
        let silent = "unknown, because their agents publish nothing: h2\n\n";
        assert_eq!(unknown, with_more(silent));
    }
}
