//! `probe --matrix`: which host reaches which, by the reports of all hosts.
//!
//! A host that most do not reach has a problem itself: in a large network, reports with a fault of no
//! other host are left out.

use std::time::Duration;

use crate::api::reachability::{HostReport, Reachability};
use crate::command::call::{Call, Outcome};
use crate::command::table::{Cell, Style, Table, Tone};
use crate::inspect::agent_socket;
use crate::settings::exit::{self, Exit};

/// Rows of a table. With more hosts, only reports with faults of their own are shown.
const SHOWN: usize = 64;

/// Faults of a report that are shown; `--json` has all.
const FAULTS: usize = 6;

/// Asks the agent, which reads etcd. `hosts`: whose reports; empty: all.
///
/// # Errors
/// No agent answers, or there is no such host.
pub fn run(call: &mut Call<'_>, hosts: &[String], as_json: bool) -> Result<Outcome, Exit> {
    let loaded = call.load()?;
    let unavailable = |why| Exit::new(exit::UNAVAILABLE, why);
    let answer =
        agent_socket::of(&loaded.settings).and_then(|path| agent_socket::get(path, "/v1/matrix"));
    let found = serde_json::from_value(answer.map_err(unavailable)?);
    let mut found: Reachability = found.map_err(|error| unavailable(error.to_string()))?;
    let silent = found.silent.iter().map(|silent| &silent.host);
    let known: Vec<&String> = found.rows.iter().map(|report| &report.host).chain(silent).collect();
    if let Some(host) = hosts.iter().find(|host| !known.contains(host)) {
        let why = match known.len() {
            0 => "this host knows of no others".to_owned(),
            all => format!("none of the {all} known hosts is called {host:?}"),
        };
        return Err(Exit::new(exit::FAILURE, why));
    }
    if !hosts.is_empty() {
        found.rows.retain(|report| hosts.contains(&report.host));
        found.silent.retain(|silent| hosts.contains(&silent.host));
    }
    let text = text(&found, call.style);
    let mut value = serde_json::json!(found);
    value["from"] = "host".into();
    call.answer(as_json, found.rows.iter().all(is_fine), value, &text)
}

/// It reaches all hosts that it probes.
fn is_fine(report: &HostReport) -> bool {
    report.faults.is_empty() && report.more_faults == 0
}

/// It does not reach hosts that most reach.
fn is_strange(report: &HostReport, found: &Reachability) -> bool {
    let has_problem = |host: &str| found.unreached.iter().any(|it| it.host == host && it.most);
    report.more_faults != 0 || report.faults.iter().any(|fault| !has_problem(&fault.host))
}

fn text(found: &Reachability, style: Style) -> String {
    let count = found.rows.len();
    let mut reports =
        Table::new(&["HOST", "ASKED", "ANSWER", "MEDIAN", "SLOWEST", "REPORTED AT", "FAULTS"]);
    let shown = found.rows.iter().filter(|report| count <= SHOWN || is_strange(report, found));
    shown.take(SHOWN).for_each(|report| reports.row(cells(report)));
    let mut unreached = Table::new(&["NOT REACHED WELL", "BY"]);
    for host in found.unreached.iter().take(SHOWN) {
        let by = format!("{} of {}", host.by, host.of);
        unreached.row([Cell::new(&host.host), Cell::new(by).tone(Tone::Bad)]);
    }
    let mut silent = Table::new(&["NO REPORT", "WHY"]);
    for host in found.silent.iter().take(SHOWN) {
        silent.row([Cell::new(&host.host), Cell::new(&host.why).tone(Tone::Faint)]);
    }
    let tables = [reports, unreached, silent].into_iter().filter(|table| !table.is_empty());
    let mut text: String = tables.map(|table| table.render(style) + "\n").collect();
    for remark in &found.remarks {
        text.push_str(&style.remark(Tone::Odd, remark));
    }
    let all = count + found.silent.len();
    let lost = found.rows.iter().filter(|report| !is_fine(report)).count();
    let (tone, faults) = match (count, lost) {
        (0, _) => (Tone::Odd, String::new()),
        (_, 0) => (Tone::Good, "; no faults".to_owned()),
        _ => (Tone::Bad, format!("; {lost} of them with faults")),
    };
    let by = if count == 0 { "" } else { " (asked by the hosts, not by their pods)" };
    text + &style.sentence(tone, &format!("{count} of {all} hosts report{faults}{by}"))
}

fn cells(report: &HostReport) -> [Cell; 7] {
    [
        Cell::new(&report.host),
        Cell::new(report.asked.to_string()),
        Cell::new(report.answer.to_string()),
        Cell::new(latency(report.median_seconds)),
        Cell::new(latency(report.slowest_seconds)),
        Cell::new(&report.at).tone(Tone::Faint),
        Cell::new(faults(report)).tone(Tone::Bad),
    ]
}

/// `212µs`, or nothing.
fn latency(seconds: Option<f64>) -> String {
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.map_or_else(String::new, |time| format!("{time:.1?}"))
}

/// `h3 silent, h4 large 1450 and 7 more`
fn faults(report: &HostReport) -> String {
    let listed = report.faults.iter().map(|fault| format!("{} {}", fault.host, fault.kind));
    let shown = listed.take(FAULTS).collect::<Vec<_>>().join(", ");
    let more = report.faults.len().saturating_sub(FAULTS) + report.more_faults as usize;
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn row(host: &str, faults: Value, more: u32) -> Value {
        json!({"host": host, "at": "2026-11-22T04:00:00Z", "asked": 2, "answer": 2, "median_seconds": 0.0002,
               "slowest_seconds": null, "faults": faults, "more_faults": more, "seconds": {}})
    }

    #[test]
    fn hosts_are_shown_with_their_faults() {
        let lost = json!([{"host": "h3", "kind": "silent", "what": ""}]);
        let value = json!({
            "host": "h1", "hosts": 4, "rows": [row("h1", json!([]), 0), row("h2", lost, 7)],
            "untold": [{"host": "h4\u{1b}[2J", "why": "its agent does not run"}],
            "unreached": [{"host": "h3", "by": 1, "of": 2}], "remarks": ["etcd is away"],
        });
        let shown = text(&serde_json::from_value(value).unwrap(), Style::default());
        let wanted = "\
HOST  ASKED  ANSWER  MEDIAN   SLOWEST  REPORTED AT           FAULTS
h1    2      2       200.0µs  -        2026-11-22T04:00:00Z  -
h2    2      2       200.0µs  -        2026-11-22T04:00:00Z  h3 silent and 7 more

NOT REACHED WELL  BY
h3                1 of 2

NO REPORT    WHY
h4\\u{1b}[2J  its agent does not run

! etcd is away
2 of 3 hosts report; 1 of them with faults (asked by the hosts, not by their pods)
";
        assert_eq!(shown, wanted);
    }

    #[test]
    fn of_many_hosts_only_those_with_faults_are_shown() {
        let lost = |host: &str| json!([{"host": host, "kind": "large 1450", "what": ""}]);
        let fine = (0..1000).map(|n| row(&format!("n{n}"), lost("dead"), 0));
        let rows: Vec<Value> = fine.chain([row("ill", lost("n7"), 0)]).collect();
        let dead = json!([{"host": "dead", "by": 1000, "of": 1001, "most": true}]);
        let found = json!({"rows": rows, "unreached": dead});
        let shown = text(&serde_json::from_value(found).unwrap(), Style::default());
        assert_eq!(shown.lines().count(), 7, "{shown}");
        assert!(shown.contains("n7 large 1450"), "{shown}");
    }
}
