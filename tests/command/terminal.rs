//! What people see: on a terminal of 80 columns, and in a pipe.

use std::time::Duration;

use crate::run;
use crate::support::disk::EXECUTABLE;
use crate::support::{Cluster, Node, Place, Pod, eventually};

const COLUMNS: usize = 80;

/// What `humanz-agent` with these words prints on a terminal.
fn on_terminal(host: &Node, words: &str) -> String {
    let line = format!("stty cols {COLUMNS} rows 24; {EXECUTABLE} {words}");
    let script = format!(
        "TERM=xterm ETCD_HOST=192.0.2.2 script --quiet --return --command '{line}' /dev/null </dev/null"
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

#[test]
fn a_terminal_has_colours_and_no_line_that_it_would_break() {
    let cluster = Cluster::new(2);
    let agents = cluster.start_agents(&[("PROBE_INTERVAL", "1s")]);
    let host = &cluster.hosts[0];
    let _pods = ["a-pod-with-quite-a-long-name-0123456789", "b"].map(|name| Pod::add(host, name));
    for words in [
        "status",
        "nodes ls",
        "ipam ls",
        "routes",
        "pods",
        "probe",
        "probe --matrix",
        "status --all",
        "doctor --all",
        "pods --all",
    ] {
        let shown = on_terminal(host, words);
        let long =
            plain(&shown).lines().find(|line| line.chars().count() > COLUMNS).map(str::to_owned);
        assert_eq!(long, None, "{words}: {shown}");
        assert!(!shown.trim().is_empty(), "{words}");
    }
    eventually("a good state is green", Duration::from_secs(30), || {
        let shown = on_terminal(host, "status");
        if shown.contains("\x1b[32m") { Ok(()) } else { Err(shown) }
    });
    let piped = run(host, "status --all", &[]).stdout;
    assert!(!piped.contains('\x1b') && piped.lines().any(|line| line.len() > COLUMNS), "{piped}");
    drop(agents);
}
