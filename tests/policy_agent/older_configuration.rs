//! A runtime that has the CNI configuration from before POLICY=on: the plugin announces none of its pods.

use std::time::Duration;

use serde_json::json;

use crate::support::cni::Network;
use crate::support::wait::patience;
use crate::support::{Node, Pod, local, pod, soon};
use crate::traffic::{Flood, Server};
use crate::{add, alone, attachment, only_from, serve, write_policies};

/// So that no regular check finds a pod.
const ON: &[(&str, &str)] = &[("RESYNC_INTERVAL", "3600s"), ("RUST_LOG", "debug")];

/// As a runtime starts a pod that has read no configuration since `network`.
fn add_by(host: &Node, network: &Network, name: &str, more: &str) -> Pod {
    pod::make_netns(host, name);
    let mut asked = attachment(name, name);
    asked.args.push_str(more);
    Pod::connect(host, network, asked).unwrap()
}

#[test]
fn a_pod_of_a_configuration_from_before_policies_is_judged_or_a_problem_without_a_regular_check() {
    let alone = alone();
    let host = &alone.host;
    let other = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "shop", "name": "other", "uid": "u1"},
        "spec": {"nodeName": "h1"}, "status": {"podIP": "10.244.9.9"}});
    write_policies(host, &[only_from("db", &["web"]), other]);
    let off = serve(host, &[("POLICY", "off")]);
    let before = Network::of(host);
    off.stop();
    let agent = serve(host, ON);
    let (web, mon) = (add(host, "web", "web"), add(host, "mon", "mon"));
    let readings = || {
        let is_one = |line: &&str| line.contains("looked at") && line.contains("pods: true");
        agent.log().lines().filter(is_one).count()
    };
    // Longer than a plugin's announcement is waited for: these pods were announced, and no reason to read the store.
    let found = readings();
    std::thread::sleep(Duration::from_millis(1500) * patience());
    assert_eq!(readings(), found, "{}", agent.log());

    let db = add_by(host, &before, "db", "");
    let mut server = Server::open(&db);
    let (allowed, denied) = (Flood::start(&web, db.v4()), Flood::start(&mon, db.v4()));
    server.wait(web.v4());
    denied.go_on();
    assert_eq!(server.received(mon.v4()), 0);
    assert!(readings() > found, "{}", agent.log());
    drop((server, allowed, denied));

    // One that no source knows stays in quarantine, and that is seen.
    let _other = add_by(host, &before, "other", ";K8S_POD_UID=u2");
    let is_seen = || local::problem(&local::status(host), "policy", "pod shop/other").is_some();
    soon("the problem", is_seen);
    agent.stop();
}
