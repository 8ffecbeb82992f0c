//! Pure. The status as text.

use serde_json::Value;

use crate::command::table::{Cell, Style, Table, Tone, facts, printable};

/// Hosts that are listed one by one; of more only those that something is wrong with.
const PEERS: usize = 12;

/// Repairs and changes that are shown.
const LATEST: usize = 5;

/// One screen.
pub fn screen(value: &Value, style: Style) -> String {
    let mut text = facts(&[
        ("host", host(value)),
        ("agent", agent(value)),
        ("lease", lease(value)),
        store(value),
        ("pods", pods(value)),
        ("firewall", firewall(value)),
        ("hosts", hosts(value)),
    ]);
    let peers = peers(value);
    if !peers.is_empty() {
        text.push('\n');
        text.push_str(&peers.render(style));
    }
    section(&mut text, "changes that wait for an agent", listed(&value["drift"]), style);
    section(&mut text, "repaired lately", latest(&value["repairs"]), style);
    let faults = list(&value["faults"]);
    if faults.is_empty() {
        text.push_str(&format!("\n{}\n", style.paint(Tone::Good, "nothing is wrong")));
        return text;
    }
    let heading = if faults.len() == 1 { "wrong" } else { "wrong (begin with the first)" };
    text.push_str(&format!("\n{}\n", style.paint(Tone::Bad, heading)));
    for (position, fault) in faults.iter().enumerate() {
        let what = printable(string(&fault["what"]));
        text.push_str(&format!("  {}. {what}\n", position + 1));
        if let Some(cure) = fault["cure"].as_str() {
            text.push_str(&format!("     -> {}\n", printable(cure)));
        }
    }
    text
}

fn host(value: &Value) -> String {
    let node = &value["node"];
    let addresses = joined(&node["addresses"], ", ");
    let addresses = if addresses.is_empty() { addresses } else { format!(", {addresses}") };
    format!("{}{addresses} (machine id {})", string(&node["name"]), string(&node["machine_id"]))
}

fn agent(value: &Value) -> String {
    if value["agent"]["answers"] != true {
        return format!("does not answer: {}", string(&value["agent"]["error"]));
    }
    let node = &value["node"];
    let ready = if value["ready"] == true { "ready" } else { "NOT ready: pods cannot start" };
    let hanging = list(&value["loops"]).iter().filter(|beat| hangs(beat));
    let hanging: Vec<&str> = hanging.map(|beat| string(&beat["name"])).collect();
    let hanging = match hanging.is_empty() {
        true => String::new(),
        false => format!("; HANGS: {}", hanging.join(", ")),
    };
    format!(
        "{}, version {}, pid {}, since {}{hanging}",
        ready,
        string(&node["version"]),
        node["pid"],
        string(&node["started"])
    )
}

fn hangs(beat: &Value) -> bool {
    beat["seconds_since_beat"].as_f64() > beat["limit"].as_f64()
}

fn lease(value: &Value) -> String {
    let lease = &value["lease"];
    let subnets = joined(&lease["subnets"], ", ");
    if subnets.is_empty() {
        return "not known".to_owned();
    }
    let since = lease["since"].as_str().map(|since| format!(", since {since}"));
    format!("{subnets} (from {}{})", string(&lease["source"]), since.unwrap_or_default())
}

/// Who tells the hosts, and how it goes with him.
fn store(value: &Value) -> (&'static str, String) {
    let (etcd, kubernetes) = (&value["etcd"], &value["kubernetes"]);
    match (kubernetes.is_object(), etcd.is_null()) {
        (true, _) => ("kubernetes", api(kubernetes)),
        (false, true) => ("etcd", "none: this host serves itself".to_owned()),
        (false, false) => ("etcd", members(etcd)),
    }
}

/// Nobody could be asked whether the hosts are as they are shown.
fn is_stale(value: &Value) -> bool {
    value["etcd"]["error"].is_string() || value["kubernetes"]["error"].is_string()
}

fn api(kubernetes: &Value) -> String {
    let version = kubernetes["version"].as_i64().map(|version| format!(", version {version}"));
    match (kubernetes["connected"].as_str(), kubernetes["error"].as_str()) {
        (_, Some(error)) => error.to_owned(),
        (Some(server), None) => format!("{server} answers{}", version.unwrap_or_default()),
        (None, None) => "no answer yet".to_owned(),
    }
}

fn members(etcd: &Value) -> String {
    let endpoints = joined(&etcd["endpoints"], ", ");
    let revision = etcd["revision"].as_i64().map(|revision| format!(", revision {revision}"));
    let revision = revision.unwrap_or_default();
    match (etcd["connected"].as_str(), etcd["error"].as_str()) {
        // What a member says begins with where it is.
        (_, Some(error)) if error.starts_with("etcd ") => format!("{}{revision}", &error[5..]),
        (_, Some(error)) => format!("{endpoints}: {error}{revision}"),
        (Some(member), None) => format!("{member} answers{revision}"),
        (None, None) => format!("{endpoints}: no answer yet"),
    }
}

fn pods(value: &Value) -> String {
    let pods = &value["pods"];
    let mut lines = Vec::new();
    let mut ports = 0;
    for network in list(&pods["networks"]) {
        let mut line =
            format!("{} in network {}", network["attachments"], string(&network["name"]));
        for room in list(&network["free"]) {
            let subnet = string(&room["subnet"]);
            match (room["free"].as_u64(), room["usable"].as_u64()) {
                (Some(free), Some(usable)) => {
                    line.push_str(&format!("; {free} of {usable} addresses of {subnet} are free"));
                }
                _ => line.push_str(&format!("; {subnet} is never full")),
            }
        }
        ports += network["host_ports"].as_u64().unwrap_or(0);
        lines.push(line);
    }
    let limited = pods["limited"].as_u64().unwrap_or(0);
    lines.insert(
        0,
        format!(
            "{} plugged in, {limited} with a limited rate, {ports} ports of the host",
            pods["attached"]
        ),
    );
    lines.join("\n")
}

fn firewall(value: &Value) -> String {
    let firewall = &value["firewall"];
    match (firewall["ok"].as_bool(), firewall["fault"].as_str()) {
        (Some(true), _) => "lets pods through".to_owned(),
        (_, Some(fault)) => fault.to_owned(),
        _ => "not known".to_owned(),
    }
}

fn hosts(value: &Value) -> String {
    let Some(peers) = value["peers"].as_array() else { return "others are not known".to_owned() };
    let count = |is: &dyn Fn(&&Value) -> bool| peers.iter().filter(is).count();
    let reached = count(&|peer| peer["reachable"] == true);
    let silent = count(&|peer| peer["alive"] == false);
    let stale = if is_stale(value) { ", as far as was known last" } else { "" };
    let silent = match silent {
        _ if !stale.is_empty() => String::new(),
        0 => ", every agent runs".to_owned(),
        silent => format!(", the agents of {silent} are silent"),
    };
    let silent = if peers.is_empty() { "" } else { &silent };
    let others = if peers.len() == 1 { "1 other" } else { &format!("{} others", peers.len()) };
    let are = if reached == 1 { "is" } else { "are" };
    format!("{others}, {reached} {are} reached{silent}{stale}")
}

fn peers(value: &Value) -> Table {
    let mut table = Table::new(&["HOST", "STATE", "SUBNETS", "VIA", "WHY NOT"]);
    let peers = list(&value["peers"]);
    let fine = |peer: &Value| peer["reachable"] == true && peer["alive"] == true;
    let many = peers.len() > PEERS;
    for peer in peers.iter().filter(|peer| !many || !fine(peer)).take(2 * PEERS) {
        let (state, tone) = match (peer["reachable"].as_bool(), peer["alive"].as_bool()) {
            (Some(true), Some(true)) => ("reached", Tone::Good),
            (Some(true), _) if is_stale(value) => ("reached", Tone::Good),
            (Some(true), _) => ("silent", Tone::Odd),
            _ => ("unreachable", Tone::Bad),
        };
        table.row([
            Cell::new(string(&peer["name"])),
            Cell::new(state).tone(tone),
            Cell::new(joined(&peer["subnets"], ",")),
            Cell::new(joined(&peer["via"], ",")),
            Cell::new(string(&peer["fault"])),
        ]);
    }
    table
}

fn section(text: &mut String, heading: &str, lines: Vec<String>, style: Style) {
    if lines.is_empty() {
        return;
    }
    text.push_str(&format!("\n{}\n", style.paint(Tone::Strong, heading)));
    for line in lines {
        text.push_str(&format!("  {}\n", printable(&line)));
    }
}

/// The first lines of a list of texts, and how many more there are.
fn listed(value: &Value) -> Vec<String> {
    let lines = list(value);
    let mut shown: Vec<String> =
        lines.iter().take(PEERS).map(|line| string(line).to_owned()).collect();
    if lines.len() > PEERS {
        shown.push(format!("and {} more", lines.len() - PEERS));
    }
    shown
}

/// The last changes, the latest first.
fn latest(value: &Value) -> Vec<String> {
    let entries = list(value).iter().rev().take(LATEST);
    let line = |entry: &Value| {
        format!("{}  {} ({})", string(&entry["at"]), string(&entry["what"]), string(&entry["why"]))
    };
    entries.map(line).collect()
}

fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn joined(value: &Value, between: &str) -> String {
    list(value).iter().filter_map(Value::as_str).collect::<Vec<_>>().join(between)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Whatever an agent of another version leaves out or writes otherwise, there is a screen.
    #[test]
    fn nothing_that_is_missing_or_odd_costs_the_screen() {
        for value in [
            json!({}),
            json!({ "peers": [{}, 1], "faults": [{}], "repairs": ["x"], "pods": 7 }),
            json!({ "agent": { "answers": true }, "lease": [], "etcd": "up", "loops": [{}] }),
        ] {
            let text = screen(&value, Style::default());
            assert!(text.lines().count() >= 7, "{text}");
        }
    }

    #[test]
    fn of_many_hosts_only_those_with_a_fault_are_listed() {
        let peer = |number: usize| {
            json!({ "name": format!("h{number}"), "alive": true, "reachable": number != 7,
                    "fault": if number == 7 { Some("no way") } else { None } })
        };
        let value = json!({ "peers": (0..40).map(peer).collect::<Vec<_>>() });
        let text = screen(&value, Style::default());
        assert!(text.contains("40 others, 39 are reached, every agent runs"), "{text}");
        assert!(text.contains("h7") && !text.contains("h8"), "{text}");
    }

    #[test]
    fn whoever_tells_the_hosts_has_a_line() {
        let check = |value: Value, line: &str| {
            let text = screen(&value, Style::default());
            assert!(text.lines().any(|found| found == line), "{line:?} is not in:\n{text}");
        };
        let endpoint = "http://192.0.2.2:2379";
        let error = format!("etcd {endpoint}: refused");
        check(
            json!({ "etcd": { "endpoints": [endpoint], "error": error, "revision": 7 } }),
            "etcd      http://192.0.2.2:2379: refused, revision 7",
        );
        check(json!({ "etcd": null }), "etcd      none: this host serves itself");
        let answers = json!({ "connected": "https://k8s:6443", "version": 9 });
        check(
            json!({ "etcd": null, "kubernetes": answers }),
            "kubernetes  https://k8s:6443 answers, version 9",
        );
        let peers = json!([{ "name": "h2", "alive": false, "reachable": true }]);
        let value = json!({ "etcd": null, "kubernetes": { "error": "refused" }, "peers": peers });
        check(value.clone(), "kubernetes  refused");
        check(value, "hosts       1 other, 1 is reached, as far as was known last");
    }

    #[test]
    fn what_is_wrong_stands_in_order_with_what_to_do() {
        let value = json!({ "faults": [{ "what": "a", "cure": "b" }, { "what": "c\u{1b}", "cure": null }] });
        let text = screen(&value, Style::default());
        assert!(
            text.ends_with("wrong (begin with the first)\n  1. a\n     -> b\n  2. c\\u{1b}\n"),
            "{text}"
        );
    }
}
