//! Policies of the API in force: hosts with agents, pods and real packets.

use std::time::Instant;

use serde_json::{Value, json};

use crate::policies::{namespace, pod, policy};
use crate::rbac::role;
use crate::support::cni::{Attachment, Network};
use crate::support::local::has_problem;
use crate::support::pod::make_netns;
use crate::support::wait::SOON;
use crate::support::{Agent, Node, Place, Pod, eventually, soon};
use crate::traffic::{Flood, Server};
use crate::{Scene, wait_logged, with};

pub const ON: &[(&str, &str)] = &[("POLICY", "on")];

/// Hosts h1 and h2, the namespace `shop`, and no more permissions than the manifest's.
pub fn shop() -> Scene {
    let scene = Scene::new(2, 0);
    scene.api.enforce(role());
    scene.api.put(namespace("shop", json!({})));
    scene
}

/// The runtime's labels are those of a pod that may do everything.
fn attachment(name: &str) -> Attachment {
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name};app=web");
    Attachment { args, ..Attachment::new(name) }
}

pub fn connect(host: &Node, name: &str) -> Result<Pod, u64> {
    make_netns(host, name);
    Pod::connect(host, &Network::of(host), attachment(name)).map_err(|error| error.code)
}

/// A pod as a cluster starts it: the API knows it and its host, then it is connected; its addresses
/// follow, as far as `reported`.
pub fn add(scene: &Scene, number: usize, name: &str, reported: bool) -> Pod {
    let host = scene.host(number);
    scene.api.put(pod(name, name, host.name(), &[]));
    let added = connect(host, name).unwrap();
    if reported {
        let address = added.v4().to_string();
        scene.api.put(pod(name, name, host.name(), &[&address]));
    }
    added
}

pub fn label(scene: &Scene, name: &str, app: &str) {
    let change = |pod: &mut Value| pod["metadata"]["labels"]["app"] = json!(app);
    scene.api.edit_of("Pod", &format!("shop/{name}"), change);
}

#[test]
fn a_test_of_connectivity_has_its_pods_although_the_api_knows_none() {
    let scene = shop();
    let agents = [scene.serve(1, ON), scene.serve(2, ON)];
    let h1 = scene.host(1);
    soon("policies", || has_table(h1));
    let tested = Agent::run(h1, "connectivity test", &[]);
    assert!(tested.stdout.contains("paths are open"), "{}{}", tested.stdout, tested.stderr);
    agents.iter().for_each(Agent::stop);
}

fn has_table(host: &Node) -> bool {
    host.run("nft list tables").ok().contains("humanz-policy")
}

#[test]
fn policies_of_the_api_reach_running_connections_and_hold_while_it_is_away() {
    let scene = shop();
    let (api, h1) = (&scene.api, scene.host(1));
    let (agent, _other) = (scene.serve(1, ON), scene.serve(2, ON));
    // The API never learns the addresses of the pods of h1: its own store has them.
    let (db, near) = (add(&scene, 1, "db", false), add(&scene, 1, "near", false));
    let (web, far) = (add(&scene, 2, "web", true), add(&scene, 2, "far", true));
    let mut server = Server::open(&db);
    let to = db.v4();
    let floods = [&near, &web, &far].map(|pod| Flood::start(pod, to));
    [&near, &web, &far].iter().for_each(|pod| server.wait(pod.v4()));

    let begun = Instant::now();
    api.put(policy("db"));
    for denied in [&near, &far] {
        server.wait_silence(denied.v4(), begun);
    }
    soon("replies", || {
        server.received(web.v4());
        floods[1].answered() > 3
    });
    let before = [&near, &far].map(|pod| server.received(pod.v4()));
    let new = [&near, &far].map(|pod| Flood::start(pod, to));
    new.iter().for_each(Flood::go_on);
    server.wait(web.v4());
    assert_eq!([&near, &far].map(|pod| server.received(pod.v4())), before, "new connections");

    for (name, pod) in [("near", &near), ("far", &far)] {
        label(&scene, name, "web");
        server.wait(pod.v4());
        let begun = Instant::now();
        label(&scene, name, name);
        server.wait_silence(pod.v4(), begun);
    }

    // Nobody says anything: what holds stays, over a restart that finds an empty kernel, too.
    api.stop();
    let holds = |server: &mut Server| {
        let before = [&near, &far].map(|pod| server.received(pod.v4()));
        floods.iter().for_each(Flood::go_on);
        server.wait(web.v4());
        assert_eq!([&near, &far].map(|pod| server.received(pod.v4())), before);
    };
    holds(&mut server);
    agent.stop();
    h1.run("nft delete table inet humanz-policy").ok();
    let agent = scene.serve(1, ON);
    for denied in [&near, &far] {
        server.wait_silence(denied.v4(), Instant::now());
    }
    holds(&mut server);

    // A pod that nobody has described yet is in quarantine until the API knows it.
    let late = connect(h1, "late").unwrap();
    let log = h1.read("/var/log/humanz.log").unwrap();
    assert!(log.contains("does not know the pod yet"), "{log}");
    let mut late_server = Server::open(&late);
    let from_web = Flood::start(&web, late.v4());
    from_web.go_on();
    assert_eq!(late_server.received(web.v4()), 0);
    let status = || -> Value {
        let text = Agent::run(h1, "status --json", &with(ON)).stdout;
        serde_json::from_str(&text).unwrap()
    };
    let problem = |status: &Value| {
        let all = status["problems"].as_array().unwrap().iter();
        let of_pod = all.filter(|problem| problem["subject"] == "pod shop/late");
        of_pod.cloned().collect::<Vec<Value>>()
    };
    let seen = status();
    let [first] = &problem(&seen)[..] else { panic!("{seen:#}") };
    assert_eq!(first["kind"], "policy");
    let quarantine = &seen["policies"]["quarantine"];
    assert_eq!(quarantine[0]["pod"], "shop/late", "{quarantine}");
    assert_eq!(
        (&quarantine[0]["since"], quarantine.as_array().unwrap().len()),
        (&first["since"], 1)
    );
    assert!(seen["policies"]["sources"][0]["healthy"] == false, "{}", seen["policies"]);
    // One that goes is one no longer, and the other is since when it was.
    let gone = connect(h1, "gone").unwrap();
    soon("two pods in quarantine", || status()["policies"]["quarantine"][1].is_object());
    gone.delete();
    soon("one of them to go", || status()["policies"]["quarantine"][1].is_null());
    assert_eq!(problem(&status())[0]["since"], first["since"]);
    api.run();
    eventually("everything is followed again", 3 * SOON, || {
        let status = status();
        let is_away = has_problem(&status, "kubernetes-api");
        if is_away { Err(format!("{status:#}")) } else { Ok(()) }
    });
    holds(&mut server);
    from_web.go_on();
    assert_eq!(late_server.received(web.v4()), 0);
    api.put(pod("late", "late", "h1", &[]));
    late_server.wait(web.v4());
    soon("the end of the problem", || {
        let seen = status();
        problem(&seen).is_empty() && seen["policies"]["sources"][0]["healthy"] == true
    });
    label(&scene, "late", "db");
    late_server.wait(web.v4());
    let begun = Instant::now();
    label(&scene, "web", "other");
    late_server.wait_silence(web.v4(), begun);
    agent.stop();
}

/// A pod with `K8S_POD_UID`.
fn connect_as(host: &Node, name: &str, uid: Option<&str>) -> Pod {
    let container = format!("{name}-{}", uid.unwrap_or("any"));
    make_netns(host, &container);
    let mut args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name}");
    args.extend(uid.map(|uid| format!(";K8S_POD_UID={uid}")));
    let attachment = Attachment { args, ..Attachment::new(&container) };
    Pod::connect(host, &Network::of(host), attachment).unwrap()
}

#[test]
fn a_pod_that_comes_again_with_its_name_is_not_judged_by_the_former_ones_labels() {
    let scene = shop();
    let (api, h1) = (&scene.api, scene.host(1));
    let agent = scene.serve(1, ON);
    api.put(policy("db"));
    let db = add(&scene, 1, "db", false);
    let mut server = Server::open(&db);
    let describe = |uid: &str, app: &str| {
        let mut object = pod("s-0", app, "h1", &[]);
        object["metadata"]["uid"] = json!(uid);
        api.put(object);
    };
    describe("u1", "web");
    let former = connect_as(h1, "s-0", Some("u1"));
    let flood = Flood::start(&former, db.v4());
    server.wait(former.v4());
    drop(flood);
    former.delete();

    // The API still describes the former one. A runtime that passes no UID is the control.
    let unknown = connect_as(h1, "s-0", None);
    let flood = Flood::start(&unknown, db.v4());
    server.wait(unknown.v4());
    drop(flood);
    unknown.delete();
    let new = connect_as(h1, "s-0", Some("u2"));
    let log = h1.read("/var/log/humanz.log").unwrap();
    assert!(log.lines().last().unwrap_or_default().contains("does not know the pod yet"), "{log}");
    let before = server.received(new.v4());
    let flood = Flood::start(&new, db.v4());
    flood.go_on();
    assert_eq!(server.received(new.v4()), before);
    describe("u2", "other");
    flood.go_on();
    assert_eq!(server.received(new.v4()), before);
    describe("u2", "web");
    server.wait(new.v4());
    drop(flood);

    // The mirror of a static pod has another UID than the pod.
    let mut mirror = pod("static", "web", "h1", &[]);
    mirror["metadata"]["uid"] = json!("of the mirror");
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "u3"});
    api.put(mirror);
    let of_file = connect_as(h1, "static", Some("u3"));
    let _flood = Flood::start(&of_file, db.v4());
    server.wait(of_file.v4());
    agent.stop();
}

#[test]
fn a_reload_turns_policies_on_and_off() {
    let scene = shop();
    let host = scene.host(1);
    scene.api.put(policy("db"));
    let configure = |more: &str| {
        let text = format!("SUBNET_SOURCE=kubernetes\nKUBECONFIG={}\n{more}", crate::KUBECONFIG);
        host.write("/etc/humanz/agent.env", &text);
    };
    configure("");
    let agent = Agent::start(host, &[("ETCD_HOST", "")]);
    agent.wait_ready();
    let (db, near) = (add(&scene, 1, "db", true), add(&scene, 1, "near", true));
    let mut server = Server::open(&db);
    let flood = Flood::start(&near, db.v4());
    for _ in 0..2 {
        server.wait(near.v4());
        assert!(!has_table(host));
        configure("POLICY=on\n");
        agent.reload();
        server.wait_silence(near.v4(), Instant::now());
        flood.go_on();
        configure("");
        agent.reload();
    }
    server.wait(near.v4());
    let requests = || scene.api.requests().iter().filter(|line| line.contains("/pods?")).count();
    let (before, watches) = (requests(), scene.api.watches());
    scene.api.break_watches();
    soon("nodes are watched again", || scene.api.watches() > watches);
    assert_eq!(requests(), before, "nothing is asked for that nobody needs");
    agent.stop();
}

#[test]
fn a_host_that_may_not_read_policies_cuts_no_pod_off_and_starts_none() {
    let scene = shop();
    let (api, host) = (&scene.api, scene.host(1));
    let agent = scene.serve(1, ON);
    let (db, near) = (add(&scene, 1, "db", true), add(&scene, 1, "near", true));
    agent.stop();
    // As if policies were turned on now, with the role of an earlier manifest.
    host.run("nft delete table inet humanz-policy").ok();
    host.run("rm /var/lib/humanz/policy.json").ok();
    let mut earlier = role();
    earlier.retain(|rule| !rule.permits("list", "/apis/networking.k8s.io/v1/networkpolicies"));
    api.enforce(earlier);
    let mut server = Server::open(&db);
    let flood = Flood::start(&near, db.v4());
    let agent = Agent::start(host, &with(ON));
    wait_logged(&agent, "give its account the role");
    let log = || host.read("/var/log/humanz.log").unwrap_or_default();
    soon("the plugin learns why no pod starts", || {
        assert_eq!(connect_once(host), Some(11));
        log().contains("no policies have been read yet")
    });
    flood.go_on();
    server.wait(near.v4());
    assert!(!has_table(host));
    api.put(policy("db"));
    api.enforce(role());
    eventually("the table", 3 * SOON, || has_table(host).then_some(()).ok_or_else(String::new));
    agent.wait_ready();
    server.wait_silence(near.v4(), Instant::now());
    assert_eq!(connect_once(host), None);
    agent.stop();
}

/// The code that ADD fails with; a pod that starts is deleted.
fn connect_once(host: &Node) -> Option<u64> {
    match connect(host, "once") {
        Ok(pod) => {
            pod.delete();
            None
        }
        Err(code) => {
            host.run("ip netns del once").ok();
            Some(code)
        }
    }
}
