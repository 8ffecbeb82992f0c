//! What people see: on a terminal of 80 columns, and in a pipe.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::run;
use crate::support::disk::EXECUTABLE;
use crate::support::echo::Echo;
use crate::support::{Cluster, Node, Place, Pod, eventually};

const COLUMNS: usize = 80;

/// The first word of a table's head.
fn is_head(word: &str) -> bool {
    word.len() > 1 && word.chars().all(|it| it.is_ascii_uppercase() || it == ' ')
}

/// What `humanz-agent` with these words prints on a terminal.
fn on_terminal(host: &Node, words: &str) -> String {
    let line = format!("stty cols {COLUMNS} rows 24; {EXECUTABLE} {words}");
    let script = format!(
        "TERM=xterm ETCD_HOST=192.0.2.2 POLICY=on script --quiet --return --command '{line}' /dev/null </dev/null"
    );
    host.shell(&script).stdout.replace('\r', "")
}

/// Without what sets colours.
fn plain(text: &str) -> String {
    let mut pieces = text.split("\x1b[");
    let first = pieces.next().unwrap_or_default().to_owned();
    first
        + &pieces
            .filter_map(|piece| piece.split_once('m'))
            .map(|(_, text)| text)
            .collect::<String>()
}

/// Settings of the agents.
const SETTINGS: &[(&str, &str)] =
    &[("PROBE_INTERVAL", "1s"), ("RESYNC_INTERVAL", "1s"), ("POLICY", "on"), ("FLOWS", "on")];

/// Objects in etcd whose tables are wide.
const OBJECTS: &[&str] = &[
    "net create a-tenant-with-a-long-name/front-of-the-shop --cidr 10.32.0.0/16 --cidr fd00:32::/64 --pins 10.32.255.0/24",
    "policy create a-tenant-with-a-long-name/what-web-may-ask",
    "policy rule-add a-tenant-with-a-long-name/what-web-may-ask --direction out --action deny --cidr 2001:db8:1234:5678::/64 --except 2001:db8:1234:5678:9abc::/80 --priority 9",
    "profile create a-tenant-with-a-long-name/gold-as-agreed --dscp 46 --egress-rate 100M --egress-burst 2M",
    "group create a-tenant-with-a-long-name/web-servers --policies what-web-may-ask --default deny --profile gold-as-agreed",
    "ns create shop --tenant a-tenant-with-a-long-name --group web-servers --network front-of-the-shop --allow *",
    "pin create shop/web-with-quite-a-long-name-0 --address 10.32.255.6",
];

/// Commands that print a table: every one whose file in src/command makes one.
const TABLES: &[(&str, &[&str])] = &[
    ("config.rs", &["config"]),
    ("connectivity/paths.rs", &["connectivity test"]),
    ("doctor.rs", &["doctor"]),
    ("doctor/all.rs", &["doctor --all"]),
    ("endpoint/mod.rs", &["endpoint ls"]),
    ("explain/print.rs", &["explain a-pod-with-quite-a-long-name-0123456789 b 80"]),
    // With its seven columns it is wider yet.
    ("flows.rs", &[]),
    ("ipam/list.rs", &["ipam ls"]),
    ("nodes/list.rs", &["nodes ls"]),
    ("objects/pin.rs", &["pin ls"]),
    ("objects/tenant.rs", &["tenant ls"]),
    ("objects/verbs.rs", &["net ls", "group ls", "profile ls", "ns ls"]),
    ("pods/all.rs", &["pods --all"]),
    ("pods/mod.rs", &["pods"]),
    ("policy/list.rs", &["policy ls"]),
    ("policy/rules.rs", &["policy rule-ls a-tenant-with-a-long-name/what-web-may-ask"]),
    ("probe.rs", &["probe"]),
    ("probe/reports.rs", &["probe --matrix"]),
    ("routes.rs", &["routes"]),
    ("status/all.rs", &["status --all"]),
    ("status/screen.rs", &["status"]),
    ("table.rs", &[]),
    ("top.rs", &["top --seconds 1"]),
    ("top/all.rs", &["top --all"]),
];

#[test]
fn every_command_that_prints_a_table_is_known() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/command");
    let grep = Command::new("grep").args(["-rl", "Table::new"]).arg(&source).output().unwrap();
    let found = String::from_utf8(grep.stdout).unwrap();
    let name = |line: &str| line.strip_prefix(source.to_str()?)?.get(1..).map(str::to_owned);
    let found: BTreeSet<String> = found.lines().filter_map(name).collect();
    assert_eq!(found, TABLES.iter().map(|(file, _)| (*file).to_owned()).collect());
}

#[test]
fn a_terminal_has_colours_and_no_line_that_it_would_break() {
    let cluster = Cluster::new(2);
    let agents = cluster.start_agents(SETTINGS);
    let host = &cluster.hosts[0];
    let names = ["a-pod-with-quite-a-long-name-0123456789", "b"];
    let [pod, other] = names.map(|name| Pod::add(host, name));
    for line in OBJECTS {
        run(host, line, SETTINGS).ok();
    }
    let _listener = Echo::serve(&other, 80);
    // Something that was connected to.
    pod.run("curl -s -m 3 http://192.0.2.2:2379/version");
    // A problem for everybody who lists them.
    host.run("ip route add 10.244.77.0/24 via 192.0.2.12").ok();
    for (words, wanted) in [("probe --matrix", "h2"), ("doctor --all", "route-conflict")] {
        eventually(words, Duration::from_secs(60), || {
            let shown = run(host, words, SETTINGS);
            if shown.stdout.contains(wanted) { Ok(()) } else { Err(shown.to_string()) }
        });
    }
    for words in TABLES.iter().flat_map(|(_, commands)| *commands) {
        let shown = on_terminal(host, words);
        let text = plain(&shown);
        // A command to copy stays on one line.
        let mut broken = text.lines().filter(|line| !line.contains(" # "));
        let long = broken.find(|line| line.chars().count() > COLUMNS);
        assert_eq!(long, None, "{words}: {shown}");
        // A head in capitals, and a row below it.
        let head = text.lines().position(|line| line.split("  ").next().is_some_and(is_head));
        let below = head.map(|at| text.lines().skip(at + 1).count());
        assert!(below > Some(0), "{words}: {shown}");
    }
    host.run("ip route del 10.244.77.0/24").ok();
    eventually("a good state is green", Duration::from_secs(30), || {
        let shown = on_terminal(host, "status");
        if shown.contains("\x1b[32m") { Ok(()) } else { Err(shown) }
    });
    // Names are long, whatever the state.
    let piped = run(host, "policy rule-ls a-tenant-with-a-long-name/what-web-may-ask", &[]).stdout;
    assert!(!piped.contains('\x1b') && piped.lines().any(|line| line.len() > COLUMNS), "{piped}");
    drop(agents);
}
