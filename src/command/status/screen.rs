//! Pure. The status as text.

use crate::api::status::{
    ChangeStatus, ConnectionStatus, EtcdStatus, KeyStage, KeyStatus, KubernetesStatus, Loop,
    PeerStatus, PolicySourceStatus, Status,
};
use crate::command::severity::since;
use crate::command::single_machine;
use crate::command::status::shown::Shown;
use crate::command::table::{Cell, Style, Table, Tone, facts, printable};
use crate::net::{Problem, Severity};

/// Hosts that are listed one by one; of more only those that something is wrong with.
const PEERS: usize = 12;

/// Repairs and changes that are shown.
const LATEST: usize = 5;

/// One screen.
pub fn screen(shown: &Shown, style: Style) -> String {
    let status = &shown.status;
    let mut rows = vec![
        ("host", host(status)),
        ("agent", agent(shown)),
        ("lease", lease(status)),
        store(status),
        ("pods", pods(shown)),
        ("firewall", firewall(status)),
        ("policies", policies(status)),
        ("hosts", if shown.agent.single_machine { "no others".to_owned() } else { hosts(status) }),
    ];
    rows.extend(status.encryption.as_ref().map(|key| ("encryption", encryption(key))));
    let mut text = facts(&rows, style);
    let peers = peers(status);
    if !peers.is_empty() {
        text.push('\n');
        text.push_str(&peers.render(style));
    }
    section(&mut text, "pending changes", listed(shown.pending.as_deref()), style);
    section(&mut text, "latest repairs", latest(status.repairs.as_deref()), style);
    let problems = status.problems.0.as_deref().unwrap_or_default();
    if problems.is_empty() {
        let verdict = match status.ready {
            Some(false) => {
                style.paint(Tone::Odd, "not ready yet; nothing wrong has been found so far")
            }
            _ => style.paint(Tone::Good, "nothing is wrong"),
        };
        text.push_str(&format!("\n{verdict}\n"));
        return text;
    }
    let heading =
        if problems.len() == 1 { "Problem" } else { "Problems (fix the first one first)" };
    text.push_str(&format!("\n{}\n", style.paint(Tone::Bad, heading)));
    for (position, problem) in problems.iter().enumerate() {
        text.push_str(&entry(position + 1, problem, style));
    }
    text
}

/// The fix stays on one line: it may be a command to copy.
fn entry(number: usize, problem: &Problem, style: Style) -> String {
    let severity = match problem.severity() {
        Severity::Error => String::new(),
        other => format!("{}: ", other.name()),
    };
    let what = format!("{severity}{}{}", printable(&problem.what), since(problem));
    let mut lines = vec![];
    let mut before = format!("  {number}. ");
    for line in style.lines(before.len(), &what) {
        lines.push(format!("{before}{line}\n"));
        before = " ".repeat(before.len());
    }
    let fix = problem.fix.as_deref().map(|fix| format!("     -> {}\n", printable(fix)));
    lines.into_iter().chain(fix).collect()
}

fn host(status: &Status) -> String {
    let node = &status.node;
    let addresses = node.addresses.iter().flatten().map(|address| format!(", {address}"));
    format!("{}{} (machine id {})", node.name, addresses.collect::<String>(), node.machine_id)
}

fn agent(shown: &Shown) -> String {
    if shown.agent.single_machine {
        return single_machine::STATE.to_owned();
    }
    if !shown.agent.answers {
        return format!("does not answer: {}", shown.agent.error.as_deref().unwrap_or_default());
    }
    let Status { node, loops, ready, .. } = &shown.status;
    let ready = if *ready == Some(true) { "ready" } else { "NOT ready: pods cannot start" };
    let hangs = |beat: &&Loop| beat.seconds_since_beat > beat.limit;
    let hanging: Vec<&str> = loops.iter().filter(hangs).map(|beat| beat.name.as_str()).collect();
    let hanging = match hanging.is_empty() {
        true => String::new(),
        false => format!("; HANGS: {}", hanging.join(", ")),
    };
    let started = node.started.as_deref().unwrap_or_default();
    let pid = node.pid.map(|pid| pid.to_string()).unwrap_or_default();
    format!("{ready}, version {}, pid {pid}, since {started}{hanging}", node.version)
}

fn lease(status: &Status) -> String {
    let lease = status.lease.clone().unwrap_or_default();
    let subnets = lease.subnets.unwrap_or_default();
    if subnets.is_empty() {
        return "unknown".to_owned();
    }
    let subnets: Vec<String> = subnets.iter().map(ToString::to_string).collect();
    let since = lease.since.map(|since| format!(", since {since}"));
    let blocks: String =
        lease.blocks.iter().map(|it| format!("; {} {}", it.block, it.network)).collect();
    let (source, since) = (lease.source.unwrap_or_default(), since.unwrap_or_default());
    format!("{} (from {source}{since}){blocks}", subnets.join(", "))
}

/// Where the hosts are known from, and how that is.
fn store(status: &Status) -> (&'static str, String) {
    match (&status.kubernetes, &status.etcd) {
        (Some(kubernetes), _) => ("kubernetes", api(kubernetes)),
        (None, None) => ("etcd", "none: this host serves itself".to_owned()),
        (None, Some(etcd)) => ("etcd", members(etcd)),
    }
}

/// The store does not confirm what is shown of the hosts.
fn is_stale(status: &Status) -> bool {
    let etcd = status.etcd.iter().map(|etcd| &etcd.connection);
    let kubernetes = status.kubernetes.iter().map(|kubernetes| &kubernetes.connection);
    etcd.chain(kubernetes).any(|connection| connection.error.is_some())
}

fn api(KubernetesStatus { connection, version, .. }: &KubernetesStatus) -> String {
    let version = version.map(|version| format!(", version {version}"));
    connected(connection, &version.unwrap_or_default())
}

fn members(EtcdStatus { connection, endpoints, revision, .. }: &EtcdStatus) -> String {
    let revision = revision.map(|revision| format!(", revision {revision}")).unwrap_or_default();
    match connection {
        ConnectionStatus { connected: None, error: None, .. } => {
            format!("{}: no answer yet", endpoints.join(", "))
        }
        connection => connected(connection, &revision),
    }
}

fn connected(
    ConnectionStatus { connected, error, .. }: &ConnectionStatus,
    version: &str,
) -> String {
    match (connected, error) {
        (Some(server), Some(error)) => format!("{server} answers{version}; {error}"),
        (Some(server), None) => format!("{server} answers{version}"),
        (None, Some(error)) => format!("no answer: {error}{version}"),
        (None, None) => "no answer yet".to_owned(),
    }
}

/// A pod may have several.
fn interfaces(count: usize) -> String {
    format!("{count} interface{}", if count == 1 { "" } else { "s" })
}

fn pods(shown: &Shown) -> String {
    let pods = &shown.pods;
    let ports: usize = pods.networks.iter().map(|network| network.host_ports).sum();
    let taken_over = match pods.taken_over {
        0 => String::new(),
        number => format!(", {number} taken over from an earlier plugin"),
    };
    let mut lines = vec![format!(
        "{} plugged in{taken_over}, {} with a limited rate, {ports} ports of the host",
        interfaces(pods.attached),
        pods.limited
    )];
    for network in &pods.networks {
        let mut line = format!("{} in network {}", interfaces(network.attachments), network.name);
        for room in &network.free {
            let subnet = &room.subnet;
            match (room.free, room.usable) {
                (Some(free), Some(usable)) => {
                    line.push_str(&format!("; {free} of {usable} addresses of {subnet} are free"));
                }
                _ => line.push_str(&format!("; {subnet} is never full")),
            }
        }
        lines.push(line);
    }
    lines.join("\n")
}

fn encryption(key: &KeyStatus) -> String {
    let change = match key.stage {
        KeyStage::Steady | KeyStage::Unknown => "",
        KeyStage::Leaving => "; it is changed: hosts go over to the second device",
        KeyStage::Returning => "; it was changed: hosts return to the first device",
    };
    format!("WireGuard, this host's key is of {}{change}", key.made)
}

fn firewall(status: &Status) -> String {
    match &status.firewall {
        Some(firewall) if firewall.ok => "lets pods through".to_owned(),
        Some(firewall) => firewall.fault.clone().unwrap_or_default(),
        None => "unknown".to_owned(),
    }
}

fn policies(status: &Status) -> String {
    let Some(policies) = &status.policies else { return "unknown".to_owned() };
    if !policies.on {
        return "off".to_owned();
    }
    let mut lines = match policies.known {
        _ if policies.unjudged => {
            vec![
                "on, but pods are not judged, every packet passes: none have been read yet"
                    .to_owned(),
            ]
        }
        false => vec!["on; none have been read yet".to_owned()],
        true => vec![format!(
            "on: {} with {}, {} on this host{}",
            count(policies.policies, "policy", "policies"),
            count(policies.rules, "rule", "rules"),
            count(policies.pods, "pod", "pods"),
            match policies.quarantine.len() {
                0 => String::new(),
                number => format!(", {number} in quarantine"),
            }
        )],
    };
    lines.extend(policies.sources.iter().map(source));
    let has = |name: &str| policies.sources.iter().any(|source| source.source == name);
    let objects = policies.objects.as_deref().filter(|_| has("kubernetes"));
    lines.extend(objects.map(|of| {
        match (of, has("etcd")) {
            ("kubernetes", true) => {
                "groups and rules of namespaces: those of kubernetes; networks: those of etcd"
                    .to_owned()
            }
            ("kubernetes", false) => {
                "groups and rules of namespaces: those of kubernetes".to_owned()
            }
            (of, _) => format!("groups, networks and rules of namespaces: those of {of}"),
        }
    }));
    lines.join("\n")
}

fn source(source: &PolicySourceStatus) -> String {
    let read = match (&source.read, source.policies) {
        (Some(read), _) => format!("read {read}"),
        (None, 0) => "nothing read yet".to_owned(),
        (None, _) => "what held before the agent started".to_owned(),
    };
    let health = match (source.healthy, source.problems) {
        (true, 0) => String::new(),
        (true, number) => format!(", {}", count(number, "problem", "problems")),
        (false, _) => ", not followed now".to_owned(),
    };
    let policies = count(source.policies, "policy", "policies");
    format!("{} from {}, {read}{health}", policies, source.source)
}

fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

fn hosts(status: &Status) -> String {
    let Some(peers) = &status.peers else { return "other hosts: unknown".to_owned() };
    let reached = peers.iter().filter(|peer| is_reached(peer)).count();
    let unknown = match peers.iter().filter(|peer| peer.reachable && !is_reached(peer)).count() {
        0 => String::new(),
        unknown => format!(", {unknown} not asked"),
    };
    let silent = peers.iter().filter(|peer| !peer.alive).count();
    let stale = if is_stale(status) { ", as far as was known last" } else { "" };
    let silent = match silent {
        _ if !stale.is_empty() => String::new(),
        0 => ", every agent runs".to_owned(),
        silent => format!(", the agents of {silent} are silent"),
    };
    let silent = if peers.is_empty() { "" } else { &silent };
    let others = if peers.len() == 1 { "1 other" } else { &format!("{} others", peers.len()) };
    let are = if reached == 1 { "is" } else { "are" };
    // A rule that drops what pods send lets the host's own packets through.
    let by = if reached == 0 { "" } else { " (asked by this host, not by its pods)" };
    format!("{others}, {reached} {are} reached{by}{unknown}{silent}{stale}")
}

/// There is a way, and it has answered.
fn is_reached(peer: &PeerStatus) -> bool {
    peer.reachable && peer.probe.as_ref().is_some_and(|probe| probe.seconds.is_some())
}

fn peers(status: &Status) -> Table {
    let mut table = Table::new(&["HOST", "STATE", "SUBNETS", "VIA", "WHY NOT"]);
    let peers = status.peers.as_deref().unwrap_or_default();
    let fine = |peer: &PeerStatus| peer.reachable && peer.alive;
    let many = peers.len() > PEERS;
    for peer in peers.iter().filter(|peer| !many || !fine(peer)).take(2 * PEERS) {
        let (state, tone) = match (peer.reachable, peer.alive) {
            (true, alive) if alive || is_stale(status) => match is_reached(peer) {
                true => ("reached", Tone::Good),
                false => ("not asked", Tone::Odd),
            },
            (true, _) => ("silent", Tone::Odd),
            (false, _) => ("unreachable", Tone::Bad),
        };
        let via: Vec<&str> = peer.via.iter().flatten().map(String::as_str).collect();
        table.row([
            Cell::new(&peer.name),
            Cell::new(state).tone(tone),
            Cell::new(peer.subnets.join(",")),
            Cell::new(via.join(",")),
            Cell::new(peer.fault.as_deref().unwrap_or_default()),
        ]);
    }
    table
}

fn section(text: &mut String, heading: &str, lines: Vec<String>, style: Style) {
    if lines.is_empty() {
        return;
    }
    text.push_str(&format!("\n{}\n", style.paint(Tone::Strong, heading)));
    for line in lines.iter().flat_map(|line| style.lines(2, &printable(line))) {
        text.push_str(&format!("  {line}\n"));
    }
}

/// The first lines, and how many more there are.
fn listed(lines: Option<&[String]>) -> Vec<String> {
    let lines = lines.unwrap_or_default();
    let mut shown: Vec<String> = lines.iter().take(PEERS).cloned().collect();
    if lines.len() > PEERS {
        shown.push(format!("and {} more", lines.len() - PEERS));
    }
    shown
}

/// The last changes, the latest first.
fn latest(changes: Option<&[ChangeStatus]>) -> Vec<String> {
    let latest = changes.unwrap_or_default().iter().rev().take(LATEST);
    latest.map(|change| format!("{}  {} ({})", change.at, change.what, change.why)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(status: Value) -> Shown {
        Shown { status: serde_json::from_value(status).unwrap(), ..Shown::default() }
    }

    /// An agent of another release may leave fields out, and have more.
    #[test]
    fn missing_fields_do_not_cost_the_screen() {
        for value in [
            json!({}),
            json!({ "peers": [{}], "problems": [], "repairs": [{ "moon": 7 }] }),
            json!({ "lease": {}, "etcd": {}, "loops": [{}], "sun": [] }),
        ] {
            let text = screen(&read(value), Style::default());
            assert!(text.lines().count() >= 7, "{text}");
        }
    }

    #[test]
    fn of_many_hosts_only_those_with_a_fault_are_listed() {
        let peer = |number: usize| {
            json!({ "name": format!("h{number}"), "alive": true, "reachable": number != 7,
                    "probe": if number == 8 { None } else { Some(json!({ "seconds": 0.001 })) },
                    "fault": if number == 7 { Some("no way") } else { None } })
        };
        let shown = read(json!({ "peers": (0..40).map(peer).collect::<Vec<_>>() }));
        let text = screen(&shown, Style::default());
        let line = "40 others, 38 are reached (asked by this host, not by its pods), 1 not asked, \
                    every agent runs";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("h7") && !text.contains("h8"), "{text}");
    }

    #[test]
    fn the_source_of_the_hosts_has_a_line() {
        let check = |value: Value, line: &str| {
            let text = screen(&read(value), Style::default());
            assert!(text.lines().any(|found| found == line), "{line:?} is not in:\n{text}");
        };
        let endpoint = "http://192.0.2.2:2379";
        let error = format!("etcd {endpoint}: refused");
        check(
            json!({ "etcd": { "endpoints": [endpoint], "error": error, "revision": 7 } }),
            "etcd      no answer: etcd http://192.0.2.2:2379: refused, revision 7",
        );
        check(json!({ "etcd": null }), "etcd      none: this host serves itself");
        let answers = json!({ "connected": "https://k8s:6443", "version": 9 });
        check(
            json!({ "etcd": null, "kubernetes": answers }),
            "kubernetes  https://k8s:6443 answers, version 9",
        );
        let peers = json!([{ "name": "h2", "alive": false, "reachable": true }]);
        let value = json!({ "etcd": null, "kubernetes": { "error": "refused" }, "peers": peers });
        check(value.clone(), "kubernetes  no answer: refused");
        check(value, "hosts       1 other, 0 are reached, 1 not asked, as far as was known last");
    }

    #[test]
    fn policies_have_a_line_for_each_source() {
        let check = |value: Value, wanted: &[&str]| {
            let text = screen(&read(json!({ "policies": value })), Style::default());
            let lines: Vec<&str> =
                text.lines().skip_while(|it| !it.starts_with("policies")).collect();
            assert_eq!(lines[..wanted.len()], *wanted, "{text}");
        };
        check(json!(null), &["policies  unknown"]);
        check(json!({ "on": false }), &["policies  off", "hosts     other hosts: unknown"]);
        let file = json!({ "source": "file", "healthy": false });
        check(
            json!({ "on": true, "sources": [file] }),
            &[
                "policies  on; none have been read yet",
                "          0 policies from file, nothing read yet, not followed now",
            ],
        );
        check(
            json!({ "on": true, "unjudged": true }),
            &[
                "policies  on, but pods are not judged, every packet passes: none have been read yet",
            ],
        );
        let api = json!({ "source": "kubernetes", "healthy": true, "policies": 2, "problems": 1,
            "read": "2026-11-20T18:46:00Z" });
        let quarantine = [json!({ "pod": "shop/web" })];
        check(
            json!({ "on": true, "known": true, "policies": 2, "rules": 1, "pods": 3,
                "quarantine": quarantine, "sources": [api] }),
            &[
                "policies  on: 2 policies with 1 rule, 3 pods on this host, 1 in quarantine",
                "          2 policies from kubernetes, read 2026-11-20T18:46:00Z, 1 problem",
            ],
        );
    }

    #[test]
    fn each_problem_has_its_time_and_its_fix() {
        let value = json!({ "problems": [
            { "kind": "change-pending", "subject": "x", "what": "a", "fix": "b",
              "since": "2026-11-20T18:46:00Z" },
            { "kind": "networkd", "subject": "x", "what": "c\u{1b}", "fix": null, "since": null },
        ] });
        let text = screen(&read(value), Style::default());
        let wanted = "Problems (fix the first one first)\n  1. a (since 2026-11-20T18:46:00Z)\n     \
                      -> b\n  2. warning: c\\u{1b}\n";
        assert!(text.ends_with(wanted), "{text}");
    }

    #[test]
    fn a_host_that_is_not_ready_is_not_called_well() {
        for (ready, wanted) in
            [(true, "\nnothing is wrong\n"), (false, "\nnot ready yet; nothing wrong")]
        {
            let text = screen(&read(json!({ "ready": ready, "problems": [] })), Style::default());
            assert!(text.contains(wanted), "{text}");
        }
    }

    #[test]
    fn the_faults_of_an_agent_of_an_earlier_release_are_shown() {
        let value = json!({ "faults": [{ "what": "a", "cure": "b" }] });
        let text = screen(&read(value), Style::default());
        assert!(text.ends_with("Problem\n  1. warning: a\n     -> b\n"), "{text}");
    }
}
