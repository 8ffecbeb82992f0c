//! POLICY_GROUP: the group of pods that nothing else puts into one.

use serde_json::{Value, json};

use crate::etcd::{FROM_ETCD, apply, own, pings, pod};
use crate::support::cni::Network;
use crate::support::{Agent, Cluster, Node, Place, Pod, local, pod as pods, soon};
use crate::traffic::{Flood, Server};
use crate::{STANDALONE, add, alone, attachment, serve, write_policies};

const BASE: &[(&str, &str)] = &[("POLICY_GROUP", "base")];

/// The group `name`, whose pods are reached by those of `from` alone.
fn closed(name: &str, from: &str) -> [Value; 2] {
    let rules = json!([{"direction": "in", "action": "allow", "peer": {"group": from}}]);
    let spec = json!({"policies": [name], "default": {"in": "deny"}});
    [own("GroupPolicy", name, json!({"rules": rules})), own("Group", name, spec)]
}

#[test]
fn a_pod_that_asks_for_no_group_is_in_that_of_the_settings_whoever_is_away_when_it_starts() {
    let alone = alone();
    let host = &alone.host;
    let groups = [&closed("base", "ops")[..], &[own("Group", "ops", json!({}))]].concat();
    write_policies(host, &groups);
    let agent = serve(host, BASE);
    let (db, web) = (add(host, "db", "db"), add(host, "web", "web"));
    let ops = pod(host, "ops", Some("ops"));
    let reached = |to: &Pod| {
        let mut server = Server::open(to);
        let denied = Flood::start(&web, to.v4());
        denied.go_on();
        let _allowed = Flood::start(&ops, to.v4());
        server.wait(ops.v4());
        assert_eq!(server.received(web.v4()), 0, "{}", to.label());
    };
    reached(&db);
    let shown = Agent::run(host, "endpoint show shop/db", STANDALONE).ok();
    assert!(shown.lines().any(|line| line == "group      default/base"), "{shown}");
    agent.kill();
    // What is on disk does not open a namespace whose pods get a group.
    pods::make_netns(host, "late");
    let mut other = attachment("late", "late");
    other.args = other.args.replace("=shop", "=other");
    let late = Pod::connect(host, &Network::of(host), other).unwrap();
    let mut server = Server::open(&late);
    let floods = [Flood::start(&ops, late.v4()), Flood::start(&web, late.v4())];
    floods.iter().for_each(Flood::go_on);
    assert_eq!((server.received(ops.v4()), server.received(web.v4())), (0, 0));
    drop((server, floods));
    let agent = serve(host, BASE);
    reached(&late);
    reached(&db);
    agent.stop();
}

#[test]
fn a_group_of_the_settings_that_is_missing_or_not_allowed_is_a_problem_and_a_reload_corrects_it() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &closed("base", "ops"));
    let configure =
        |group: &str| host.write("/etc/humanz/agent.env", &format!("POLICY_GROUP={group}\n"));
    configure("bsae");
    let agent = serve(host, &[]);
    let (db, web) = (add(host, "db", "db"), add(host, "web", "web"));
    let problems = || -> Vec<String> {
        let status = local::status(host);
        local::problems(&status, "policy")
            .map(|it| it["what"].as_str().unwrap().to_owned())
            .collect()
    };
    soon("the problem", || {
        let found = problems();
        found.len() == 1
            && found[0].starts_with("POLICY_GROUP=default/bsae: there is no such group")
    });
    let mut server = Server::open(&db);
    let flood = Flood::start(&web, db.v4());
    server.wait(web.v4());
    configure("base");
    agent.reload();
    server.wait_silence(web.v4(), std::time::Instant::now());
    soon("the end of the problem", || problems().is_empty());
    // The namespace has a rule now: what that does not allow the settings do not give.
    let ruled = |allow: Value| {
        let rule = json!({"apiVersion": "humanz.io/v1", "kind": "NamespaceRule",
            "metadata": {"name": "shop"}, "spec": {"tenant": "blue", "allow": allow}});
        write_policies(host, &[&closed("base", "ops")[..], &[rule]].concat());
    };
    ruled(json!([]));
    server.wait(web.v4());
    let what = |name: &str| {
        format!(
            "pod shop/{name}: POLICY_GROUP: group default/base is not allowed for pods of this namespace"
        )
    };
    soon("the problem", || problems() == [what("db"), what("web")]);
    ruled(json!(["default/base"]));
    server.wait_silence(web.v4(), std::time::Instant::now());
    soon("the end of the problem", || problems().is_empty());
    drop(flood);
    agent.stop();
}

#[test]
fn pods_of_other_hosts_are_members_of_the_group_of_the_settings() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(
        h1,
        &[
            &closed("store", "base")[..],
            &[own("Group", "base", json!({})), own("Group", "ops", json!({}))],
        ]
        .concat(),
    );
    let agents = cluster.start_agents(FROM_ETCD);
    let store = pod(h1, "store", Some("store"));
    let (plain, ops) = (pod(h2, "plain", None), pod(h2, "ops", Some("ops")));
    soon("a route", || pings(&ops, plain.v4()));
    assert!(!pings(&plain, store.v4()) && !pings(&plain, store.v6()));
    let differs = |host: &Node| -> Vec<String> {
        let status = local::status(host);
        let found = local::problems(&status, "policy").map(|it| it["what"].as_str().unwrap());
        found.filter(|what| what.starts_with("POLICY_GROUP is not")).map(str::to_owned).collect()
    };
    let what = |is: &str| vec![format!("POLICY_GROUP is not the same on all hosts: {is}")];
    assert_eq!((differs(h1), differs(h2)), (vec![], vec![]));
    for (number, host) in [h1, h2].into_iter().enumerate() {
        host.shell("mkdir -p /etc/humanz").ok();
        host.write("/etc/humanz/agent.env", "POLICY_GROUP=base\n");
        agents[number].reload();
        // Each host has the problem, as one, until it is the same on both.
        soon("what differs", || match number {
            0 => {
                differs(h1) == what("default/base on this one, not set on host h2")
                    && differs(h2) == what("not set on this one, default/base on host h1")
            }
            _ => differs(h1).is_empty() && differs(h2).is_empty(),
        });
    }
    soon("the member", || pings(&plain, store.v4()) && pings(&plain, store.v6()));
    assert!(!pings(&ops, store.v4()) && !pings(&ops, store.v6()));
    agents.iter().for_each(Agent::stop);
}
