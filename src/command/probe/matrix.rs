//! `probe --matrix`: which host reaches which, as the agents tell each other.
//!
//! A host that most do not reach is ill itself: with many hosts, rows that name no other are left out.

use std::time::Duration;

use serde_json::Value;

use crate::command::call::{Call, Outcome};
use crate::command::table::{Cell, Style, Table, Tone, printable};
use crate::inspect::agent_socket;
use crate::settings::exit::{self, Exit};

/// With more hosts only the rows with faults of their own are shown, and so many at most.
const SHOWN: usize = 64;

/// Faults of a row that are shown; `--json` has all that are told.
const FAULTS: usize = 6;

/// Asks the agent, which asks etcd. `hosts`: whose rows; all if none is named.
///
/// # Errors
/// No agent answers, or there is no such host.
pub fn run(call: &mut Call<'_>, hosts: &[String], as_json: bool) -> Result<Outcome, Exit> {
    let told = call.told_beside_agent()?;
    let asked =
        agent_socket::of(&told.settings).and_then(|path| agent_socket::get(path, "/v1/matrix"));
    let mut value = asked.map_err(|why| Exit::new(exit::UNAVAILABLE, why))?;
    let known: Vec<&str> = list(&value, "rows").chain(list(&value, "untold")).map(name).collect();
    if let Some(host) = hosts.iter().find(|host| !known.contains(&host.as_str())) {
        let why = format!("no host is called {host:?} (of {})", known.len());
        return Err(Exit::new(exit::FAILURE, why));
    }
    if !hosts.is_empty() {
        for key in ["rows", "untold"] {
            let meant = |row: &Value| hosts.iter().any(|host| host == name(row));
            value[key] = list(&value, key).filter(|row| meant(row)).cloned().collect();
        }
    }
    let fine = list(&value, "rows").all(is_fine);
    let text = text(&value, call.style);
    call.answer(as_json, fine, value, &text)
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

fn name(row: &Value) -> &str {
    row["host"].as_str().unwrap_or_default()
}

/// It reaches all that it asked.
fn is_fine(row: &Value) -> bool {
    list(row, "faults").next().is_none() && row["more_faults"] == 0
}

/// It does not reach hosts that most reach.
fn is_strange(row: &Value, value: &Value) -> bool {
    let is_ill =
        |host| list(value, "unreached").any(|ill| name(ill) == host && ill["most"] == true);
    row["more_faults"] != 0 || list(row, "faults").any(|fault| !is_ill(name(fault)))
}

fn text(value: &Value, style: Style) -> String {
    let told = list(value, "rows").count();
    let mut table =
        Table::new(&["HOST", "ASKED", "ANSWER", "MEDIAN", "SLOWEST", "TOLD AT", "FAULTS"]);
    let shown = list(value, "rows").filter(|row| told <= SHOWN || is_strange(row, value));
    shown.take(SHOWN).for_each(|row| table.row(cells(row)));
    let mut text = part(&table, style);
    text.push_str(&unreached(value, style));
    text.push_str(&untold(value, style));
    for remark in list(value, "remarks").filter_map(Value::as_str) {
        text.push_str(&style.paint(Tone::Odd, &format!("! {}", printable(remark))));
        text.push('\n');
    }
    let all = told + list(value, "untold").count();
    let lost = list(value, "rows").filter(|row| !is_fine(row)).count();
    let summary = match (told, lost) {
        (0, _) => style.paint(Tone::Odd, &format!("none of {all} hosts tells what it sees")),
        (_, 0) => style.paint(Tone::Good, &format!("{told} of {all} hosts tell; no faults")),
        _ => style.paint(Tone::Bad, &format!("{told} of {all} hosts tell; {lost} of them faults")),
    };
    text + &summary
}

fn cells(row: &Value) -> [Cell; 7] {
    [
        Cell::new(name(row)),
        Cell::new(row["asked"].to_string()),
        Cell::new(row["answer"].to_string()),
        Cell::new(time(&row["median_seconds"])),
        Cell::new(time(&row["slowest_seconds"])),
        Cell::new(row["at"].as_str().unwrap_or_default()).tone(Tone::Faint),
        Cell::new(faults(row)).tone(Tone::Bad),
    ]
}

/// A table and a blank line, if there is anything in it.
fn part(table: &Table, style: Style) -> String {
    if table.is_empty() { String::new() } else { table.render(style) + "\n" }
}

/// `212µs`, or nothing.
fn time(seconds: &Value) -> String {
    let time = seconds.as_f64().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.map_or_else(String::new, |time| format!("{time:.1?}"))
}

/// `h3 silent, h4 large 1450 and 7 more`
fn faults(row: &Value) -> String {
    let word =
        |fault: &Value| format!("{} {}", name(fault), fault["kind"].as_str().unwrap_or_default());
    let named: Vec<String> = list(row, "faults").map(word).collect();
    let shown = named.iter().take(FAULTS).cloned().collect::<Vec<_>>().join(", ");
    let more =
        named.len().saturating_sub(FAULTS) as u64 + row["more_faults"].as_u64().unwrap_or_default();
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

/// The hosts that others do not reach: who is named by most is most likely ill himself.
fn unreached(value: &Value, style: Style) -> String {
    let mut table = Table::new(&["NOT REACHED WELL", "BY"]);
    for host in list(value, "unreached").take(SHOWN) {
        let by = format!("{} of {}", host["by"], host["of"]);
        table.row([Cell::new(name(host)), Cell::new(by).tone(Tone::Bad)]);
    }
    part(&table, style)
}

fn untold(value: &Value, style: Style) -> String {
    let mut table = Table::new(&["TELLS NOTHING", "WHY"]);
    for host in list(value, "untold").take(SHOWN) {
        let why = Cell::new(host["why"].as_str().unwrap_or_default()).tone(Tone::Faint);
        table.row([Cell::new(name(host)), why]);
    }
    part(&table, style)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(host: &str, faults: Value, more: u32) -> Value {
        json!({"host": host, "at": "2026-11-22T04:00:00Z", "asked": 2, "answer": 2, "median_seconds": 0.0002,
               "slowest_seconds": null, "faults": faults, "more_faults": more, "seconds": {}})
    }

    #[test]
    fn hosts_are_shown_with_what_they_do_not_reach() {
        let lost = json!([{"host": "h3", "kind": "silent", "what": ""}]);
        let value = json!({
            "host": "h1", "hosts": 4, "rows": [row("h1", json!([]), 0), row("h2", lost, 7)],
            "untold": [{"host": "h4\u{1b}[2J", "why": "its agent does not run"}],
            "unreached": [{"host": "h3", "by": 1, "of": 2}], "remarks": ["etcd is away"],
        });
        let shown = text(&value, Style::default());
        let wanted = "\
HOST  ASKED  ANSWER  MEDIAN   SLOWEST  TOLD AT               FAULTS
h1    2      2       200.0µs  -        2026-11-22T04:00:00Z  -
h2    2      2       200.0µs  -        2026-11-22T04:00:00Z  h3 silent and 7 more

NOT REACHED WELL  BY
h3                1 of 2

TELLS NOTHING  WHY
h4\\u{1b}[2J    its agent does not run

! etcd is away
2 of 3 hosts tell; 1 of them faults";
        assert_eq!(shown, wanted);
    }

    #[test]
    fn of_many_hosts_only_the_faulty_are_shown() {
        let lost = |host: &str| json!([{"host": host, "kind": "large 1450", "what": ""}]);
        let fine = (0..1000).map(|n| row(&format!("n{n}"), lost("dead"), 0));
        let rows: Vec<Value> = fine.chain([row("ill", lost("n7"), 0)]).collect();
        let dead = json!([{"host": "dead", "by": 1000, "of": 1001, "most": true}]);
        let shown = text(&json!({"rows": rows, "unreached": dead}), Style::default());
        assert_eq!(shown.lines().count(), 7, "{shown}");
        assert!(shown.contains("n7 large 1450"), "{shown}");
    }
}
