//! A part of the API is away while the rest of it goes on to answer.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::api::Mode;
use crate::beside_etcd::{self, apply, own};
use crate::enforced::{ON, add, connect, label, shop};
use crate::objects::{OF_API, custom, serve_all};
use crate::policies::{admin, pod, policy};
use crate::rbac::role;
use crate::support::local::{has_problem, problems, status, status_when, wait_problem};
use crate::support::{Agent, soon};
use crate::traffic::{Flood, Server};

/// Before it asked again, an agent that had just started took one answer for the end of all such policies.
#[test]
fn an_api_that_does_not_have_a_resource_yet_when_the_agent_starts_opens_nothing() {
    let scene = shop();
    let (api, h1) = (&scene.api, scene.host(1));
    api.serve_custom("ClusterNetworkPolicy", true);
    api.put(admin("all"));
    let agent = scene.serve(1, ON);
    let (db, near) = (add(&scene, 1, "db", true), add(&scene, 1, "near", true));
    let mut server = Server::open(&db);
    let flood = Flood::start(&near, db.v4());
    flood.go_on();
    assert_eq!(server.received(near.v4()), 0);
    agent.stop();
    api.serve_custom("ClusterNetworkPolicy", false);
    let before = api.requests().len();
    let agent = scene.serve(1, ON);
    let asked = |what: &str| api.requests()[before..].iter().any(|line| line.contains(what));
    soon("the answer that there is none", || asked("/clusternetworkpolicies?limit"));
    soon("the lists of the others", || asked("/networkpolicies?watch"));
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        flood.go_on();
        assert_eq!(server.received(near.v4()), 0, "after {:?}", begun.elapsed());
    }
    wait_problem(h1, "kubernetes-api", "clusternetworkpolicies");
    agent.stop();
}

/// Before they were held, a pod that started after its policy was open while policies alone were not followed.
#[test]
fn a_pod_that_starts_while_policies_alone_are_not_followed_is_in_quarantine() {
    let scene = shop();
    let (api, h1) = (&scene.api, scene.host(1));
    let agent = scene.serve(1, ON);
    let (near, old) = (add(&scene, 1, "near", true), add(&scene, 1, "old", true));
    let mut without = role();
    without.retain(|rule| !rule.permits("list", "/apis/networking.k8s.io/v1/networkpolicies"));
    api.enforce(without);
    api.break_watches();
    wait_problem(h1, "kubernetes-api", "networkpolicies");
    status_when(h1, "everything else is followed", |status| {
        problems(status, "kubernetes-api").count() == 1
    });

    api.put(policy("db"));
    api.put(pod("db", "db", "h1", &[]));
    let db = connect(h1, "db").unwrap();
    let (mut shut, mut open) = (Server::open(&db), Server::open(&old));
    let floods = [&db, &old].map(|to| Flood::start(&near, to.v4()));
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        floods.iter().for_each(Flood::go_on);
        assert_eq!(shut.received(near.v4()), 0, "after {:?}", begun.elapsed());
    }
    open.wait(near.v4());
    wait_problem(h1, "kubernetes-api", "networkpolicies");
    let log = h1.read("/var/log/humanz.log").unwrap();
    assert!(log.contains("does not know the pod yet, or is not followed"), "{log}");
    let quarantine = &status(h1)["policies"]["quarantine"];
    assert_eq!(quarantine.as_array().unwrap().len(), 1, "{quarantine}");
    assert!(quarantine.to_string().contains("or its policies are not followed"), "{quarantine}");

    // They are followed again: the pod is judged by the policy that came before it.
    api.enforce(role());
    status_when(h1, "no pod in quarantine", |status| {
        status["policies"]["quarantine"].as_array().is_some_and(Vec::is_empty)
    });
    floods.iter().for_each(Flood::go_on);
    assert_eq!(shut.received(near.v4()), 0);
    label(&scene, "near", "web");
    shut.wait(near.v4());

    // Watches that break and go on at once hold up a pod by seconds at most.
    api.break_watches();
    let begun = Instant::now();
    let late = add(&scene, 1, "late", true);
    let _flood = Flood::start(&near, late.v4());
    Server::open(&late).wait(near.v4());
    println!("a pod was reached {:?} after watches broke", begun.elapsed());
    status_when(h1, "everything is followed again", |it| !has_problem(it, "kubernetes-api"));
    agent.stop();
}

/// Before they counted as not followed, a pod was open until the next list, up to 15 s, and nothing said so.
#[test]
fn a_pod_that_starts_while_watches_of_policies_end_at_once_is_in_quarantine() {
    let scene = shop();
    let (api, h1) = (&scene.api, scene.host(1));
    api.set_mode_of("NetworkPolicy", Mode::Brief);
    let agent = scene.serve(1, ON);
    let near = add(&scene, 1, "near", true);
    let why = wait_problem(h1, "kubernetes-api", "networkpolicies")["what"].to_string();
    assert!(why.contains("watch networkpolicies: it ends at once"), "{why}");
    api.put(policy("db"));
    api.put(pod("db", "db", "h1", &[]));
    let db = connect(h1, "db").unwrap();
    let mut server = Server::open(&db);
    let flood = Flood::start(&near, db.v4());
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(5) {
        flood.go_on();
        assert_eq!(server.received(near.v4()), 0, "after {:?}", begun.elapsed());
    }
    api.set_mode_of("NetworkPolicy", Mode::Well);
    label(&scene, "near", "web");
    server.wait(near.v4());
    status_when(h1, "everything is followed again", |it| !has_problem(it, "kubernetes-api"));
    agent.stop();
}

/// A rule that denies a group waits for etcd, which has the members on other hosts; what places new pods does not.
#[test]
fn a_pod_starts_in_no_former_network_while_another_rule_waits_for_etcd() {
    let scene = beside_etcd::shop(1);
    let (api, host) = (&scene.api, scene.host(1));
    serve_all(&scene);
    let network = json!({"apiVersion": "humanz.io/v1", "kind": "Network",
        "metadata": {"tenant": "blue", "name": "front"}, "spec": {"subnets": ["10.32.0.0/16"]}});
    apply(host, &[network, own("Group", "unused", json!({}))]);
    let agent = Agent::start(host, OF_API);
    agent.wait_ready();
    let plans = || host.read("/run/humanz/ipam/.networks.json").unwrap_or_default();
    soon("the network", || plans().contains("10.32.0.0/16"));
    api.put(pod("before", "before", "h1", &[]));
    let before = connect(host, "before").unwrap();
    assert!(before.v4().to_string().starts_with("10.244."), "{}", before.v4());
    scene.cluster.etcd.kill();
    let deny = json!({"direction": "in", "action": "deny", "peer": {"group": "ops"}});
    api.put(custom("GroupPolicy", "not-ops", json!({"rules": [deny]})));
    api.put(custom("Group", "ops", json!({})));
    api.put(custom("Group", "store", json!({"policies": ["not-ops"]})));
    api.put(custom("NamespaceRule", "shop", json!({"tenant": "blue", "network": "front"})));
    wait_problem(host, "policy", "a change of policies");
    soon("the rule of the namespace", || plans().contains("shop"));
    api.put(pod("late", "late", "h1", &[]));
    assert_eq!(connect(host, "late").err(), Some(11));
    agent.stop();
}
