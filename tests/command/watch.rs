//! The subcommand `watch`.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::cluster::Alone;
use crate::support::disk::EXECUTABLE;
use crate::support::node::command;
use crate::support::{Agent, Place, Process, eventually};

const SETTINGS: &[(&str, &str)] = &[("SUBNET_SOURCE", "static"), ("ETCD_HOST", "")];

/// Waits until it shows a line with these words, doing `change` again and again.
fn shows(watch: &Process, words: &str, change: impl Fn()) {
    eventually(&format!("{words:?} is shown"), Duration::from_secs(30), || {
        change();
        let log = watch.log();
        if log.contains(words) { Ok(()) } else { Err(log) }
    });
}

#[test]
fn watch_shows_changes_with_and_without_an_agent() {
    let alone = Alone::new();
    let host = &alone.host;
    let watch = |line: &str| {
        let mut watch = command(&format!("{EXECUTABLE} watch --standalone {line}"));
        host.spawn(&mut watch)
    };
    let kernel = watch("");
    shows(&kernel, "no agent serves this host", || {});
    shows(&kernel, "link w7 was", || {
        host.run("ip link add w7 type veth peer name w8");
        host.run("ip link del w7");
    });
    let agent = Agent::start(host, SETTINGS);
    agent.wait_ready();
    agent.process.signal(Signal::SIGSTOP);
    let beside = watch("");
    shows(&beside, "the agent does not answer within 5s", || {});
    shows(&beside, "link w7 was", || {
        host.run("ip link add w7 type veth peer name w8");
        host.run("ip link del w7");
    });
    agent.process.signal(Signal::SIGCONT);
    let watch = watch("--json");
    shows(&watch, "added nft table inet humanz", || {
        host.run("nft delete table inet humanz");
    });
    let line = watch.log().lines().next().unwrap().to_owned();
    let value: serde_json::Value =
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
    assert_eq!(value["schema"], 1, "{value}");
    agent.stop();
    assert_eq!(watch.wait(Duration::from_secs(30)).code(), Some(69), "{}", watch.log());
    assert!(watch.log().contains("the agent has ended"), "{}", watch.log());
}
