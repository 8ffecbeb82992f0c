//! `names`, and the completion of bash with it.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::cluster::Cluster;
use crate::support::disk::EXECUTABLE;
use crate::support::node::command;
use crate::support::{Node, Place, Pod};
use crate::{object, refused, run};

const SETTINGS: &[(&str, &str)] = &[("IPV6_SUBNET", ""), ("POLICY", "on")];

fn names(host: &Node, kind: &str) -> Vec<String> {
    let ended = run(host, &format!("names {kind}"), SETTINGS);
    assert_eq!(ended.stderr, "", "{ended}");
    ended.ok().split_whitespace().map(str::to_owned).collect()
}

/// What bash offers after these words.
fn offered(host: &Node, typed: &str) -> String {
    let script = format!(
        "source /root/completion; COMP_WORDS=({EXECUTABLE} {typed}); \
         COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _humanz-agent; echo \"${{COMPREPLY[*]}}\""
    );
    let mut shell = command("bash -euc");
    let ended = host.run_command(shell.arg(script).envs(SETTINGS.iter().copied()), "");
    assert_eq!(ended.stderr, "", "{ended}");
    ended.ok().trim().to_owned()
}

#[test]
fn names_of_pods_hosts_and_objects_are_completed() {
    let cluster = Cluster::new(2);
    let [h1, h2] = &cluster.hosts[..] else { unreachable!() };
    h1.write("/root/completion", include_str!("../../packaging/completion/bash"));
    assert!(names(h1, "groups").is_empty() && names(h1, "hosts").is_empty());
    let agents = cluster.start_agents(SETTINGS);
    for line in [
        "net create blue/front --cidr 10.32.0.0/16",
        "policy create blue/p",
        "group create blue/web --policies p",
        "ns create shop --tenant green",
        "profile create gold --dscp 46",
    ] {
        run(h1, line, SETTINGS).ok();
    }
    cluster.etcd.put("/humanz/v1-policies/Group/blue/not-understood", "{");
    let (web, db) = (Pod::add(h1, "web"), Pod::add(h1, "db"));
    // Who may write the store is root, or was: a former plugin, a restored copy.
    let dir = "/run/humanz/ipam/humanz";
    h1.shell(&format!(
        "for file in {dir}/{} {dir}/owners/{}:eth0; do \
         sed 's#default/db#default/$(touch /root/ran)#' $file >/tmp/new; cat /tmp/new >$file; done",
        db.v4(),
        db.attachment.container
    ))
    .ok();
    assert!(run(h1, "pods", SETTINGS).stdout.contains("$(touch"));
    h1.shell("mkdir '/run/humanz/ipam/$(touch ran)' /run/humanz/ipam/-rf").ok();
    assert_eq!(
        (names(h1, "pods"), names(h1, "stores")),
        (vec!["default/web".to_owned()], vec!["humanz".to_owned()])
    );
    for (typed, wanted) in [
        ("ipam show ''", "default/web"),
        ("explain default/web d", "default/web"),
        ("policy test --from = default/w", "default/web"),
        ("nodes show ''", "h1 h2"),
        ("nodes roles h1 ''", "h1 h2"),
        ("net show ''", "blue/front"),
        ("net set b", "blue/front"),
        ("group rm ''", "blue/not-understood blue/web"),
        ("group set blue/web --policies ''", "p"),
        ("group set blue/web --profile ''", "default/gold"),
        ("policy rm GroupPolicy ''", "blue/p"),
        ("policy rule-add ''", "blue/p"),
        ("ns show ''", "shop"),
        ("ns set shop --tenant ''", "blue default green"),
        ("ipam ls --network ''", "humanz"),
        ("net create ''", ""),
    ] {
        assert_eq!(offered(h1, typed), wanted, "{typed}");
    }
    assert_eq!(names(h1, "addresses"), [web.v4().to_string(), db.v4().to_string()]);
    let value = object(&run(h1, "names hosts --json", SETTINGS));
    assert_eq!(value, json!({"names": ["h1", "h2"], "schema": 1}));
    refused(&run(h1, "names gruops", SETTINGS), 2, &["\"gruops\" is no kind of names"]);

    // What is known without etcd is not waited for, nor is what is not.
    cluster.etcd.freeze();
    agents.iter().for_each(|agent| agent.kill());
    let start = Instant::now();
    assert_eq!(names(h2, "hosts"), ["h1", "h2"]);
    assert!(names(h2, "groups").is_empty());
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    cluster.etcd.kill();
    assert!(h1.read("/root/ran").is_none());
}
