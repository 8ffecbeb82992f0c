//! POLICY=kubernetes: subnets and members of groups through etcd, policies and own pods from the API.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::enforced::{add, connect, label};
use crate::policies::{namespace, pod, policy};
use crate::rbac::role_beside_etcd;
use crate::support::local::{status, wait_problem};
use crate::support::wait::SOON;
use crate::support::{Agent, Node, Place, Pod, eventually, soon};
use crate::traffic::{Flood, Server};
use crate::{KUBECONFIG, Scene, node};

pub const ON: &[(&str, &str)] = &[("POLICY", "kubernetes"), ("KUBECONFIG", KUBECONFIG)];

/// Hosts whose nodes have podCIDRs that nobody uses, and no more permissions than the manifest's.
pub fn shop(count: u8) -> Scene {
    let scene = Scene::new(count, 0);
    scene.api.enforce(role_beside_etcd());
    for (number, host) in scene.cluster.hosts.iter().enumerate() {
        let unused = format!("172.30.{number}.0/24");
        let mut object = node(host.name(), &[&unused], &[&host.v4().to_string()]);
        object["metadata"]["labels"] = json!({"zone": host.name()});
        scene.api.put(object);
    }
    scene.api.put(namespace("shop", json!({})));
    scene
}

/// An object of humanz in the tenant `default`.
pub fn own(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "humanz.io/v1", "kind": kind,
        "metadata": {"tenant": "default", "name": name}, "spec": spec})
}

pub fn apply(host: &Node, objects: &[Value]) {
    host.write("/etc/objects.json", &json!(objects).to_string());
    Agent::run(host, "policy apply -f /etc/objects.json", ON).ok();
}

fn health(host: &Node) -> Vec<(String, bool)> {
    let status = status(host);
    let sources = status["policies"]["sources"].as_array().unwrap().iter();
    let one =
        |source: &Value| (source["source"].as_str().unwrap().to_owned(), source["healthy"] == true);
    sources.map(one).collect()
}

pub fn wait_health(host: &Node, kubernetes: bool, etcd: bool) {
    let wanted = [("kubernetes".to_owned(), kubernetes), ("etcd".to_owned(), etcd)];
    eventually(&format!("{}: {wanted:?}", host.name()), 6 * SOON, || {
        let found = health(host);
        if found == wanted { Ok(()) } else { Err(format!("{found:?}")) }
    });
}

/// Nothing of `from` arrives while others do.
pub fn check_denied(server: &mut Server, denied: &[(&Pod, &Flood)], allowed: &Pod) {
    let received = |server: &mut Server| {
        denied.iter().map(|(pod, _)| server.received(pod.v4())).collect::<Vec<_>>()
    };
    let before = received(server);
    denied.iter().for_each(|(_, flood)| flood.go_on());
    server.wait(allowed.v4());
    assert_eq!(received(server), before);
}

/// Of the API each host asks for its own pods and its own node alone.
fn check_requests(scene: &Scene) {
    let requests = scene.api.requests();
    for (path, field) in [("/api/v1/pods?", "spec.nodeName"), ("/api/v1/nodes?", "metadata.name")] {
        let of = requests.iter().filter(|line| line.contains(path));
        assert!(of.clone().count() >= 2 * scene.cluster.hosts.len(), "{path}");
        for line in of {
            assert!(line.contains(&format!("fieldSelector={field}%3Dh")), "{line}");
        }
    }
}

#[test]
fn a_pod_labelled_on_one_host_is_a_member_on_another_and_no_host_watches_all_pods() {
    let scene = shop(3);
    scene.api.put(policy("db"));
    let agents = scene.cluster.start_agents(ON);
    let db = add(&scene, 1, "db", false);
    let (web, other) = (add(&scene, 2, "web", true), add(&scene, 3, "other", true));
    let mut server = Server::open(&db);
    let floods = [&web, &other].map(|pod| Flood::start(pod, db.v4()));
    server.wait(web.v4());
    check_denied(&mut server, &[(&other, &floods[1])], &web);
    let mut times = Vec::new();
    for _ in 0..5 {
        let begun = Instant::now();
        label(&scene, "other", "web");
        let before = server.received(other.v4());
        soon("packets of the new member", || server.received(other.v4()) > before);
        times.push(begun.elapsed());
        let begun = Instant::now();
        label(&scene, "other", "other");
        server.wait_silence(other.v4(), begun);
    }
    times.sort();
    println!("label on host C → its packets arrive on host A: {times:?}");
    assert!(times[2] < Duration::from_secs(1), "{times:?}");

    // What the API says of addresses gives nobody a member: a pod is what its own host says.
    scene.api.put(pod("liar", "web", "h2", &[&other.v4().to_string()]));
    let _liar = connect(scene.host(2), "liar").unwrap();
    scene.api.put(pod("ghost", "web", "h9", &[&other.v4().to_string()]));
    check_denied(&mut server, &[(&other, &floods[1])], &web);
    check_requests(&scene);
    for host in &scene.cluster.hosts {
        wait_health(host, true, true);
        assert_eq!(status(host)["policies"]["quarantine"], json!([]), "{}", host.name());
    }
    agents.iter().for_each(Agent::stop);
}

#[test]
fn what_holds_stays_while_the_api_or_etcd_or_both_are_away_and_over_a_restart() {
    let scene = shop(2);
    let (api, [h1, h2]) = (&scene.api, [scene.host(1), scene.host(2)]);
    api.put(policy("db"));
    let mut agents = scene.cluster.start_agents(ON);
    let db = add(&scene, 1, "db", false);
    let (web, other) = (add(&scene, 2, "web", true), add(&scene, 2, "other", true));
    let mut server = Server::open(&db);
    let floods = [&web, &other].map(|pod| Flood::start(pod, db.v4()));
    let denied = [(&other, &floods[1])];
    server.wait(web.v4());

    api.stop();
    wait_health(h1, false, true);
    check_denied(&mut server, &denied, &web);
    // Nobody has described it: the runtime's words, which are those of a pod that may do everything, do not count.
    let late = connect(h2, "late").unwrap();
    let from_late = Flood::start(&late, db.v4());
    check_denied(&mut server, &[denied[0], (&late, &from_late)], &web);
    api.run();
    wait_health(h1, true, true);
    wait_health(h2, true, true);
    check_denied(&mut server, &[denied[0], (&late, &from_late)], &web);
    api.put(pod("late", "web", "h2", &[]));
    server.wait(late.v4());

    // A pod that comes while etcd is away is in force on its own host, and a member on others later.
    scene.cluster.etcd.kill();
    wait_health(h1, true, false);
    label(&scene, "other", "web");
    check_denied(&mut server, &denied, &web);
    scene.cluster.etcd.start();
    server.wait(other.v4());
    let begun = Instant::now();
    label(&scene, "other", "other");
    server.wait_silence(other.v4(), begun);
    // What a loss of power takes away is what the last second brought.
    for host in [h1, h2] {
        let kept = "cd /var/lib/humanz && test -e policy.json && ! test -e policy.json.outdated";
        soon("what holds is on disk", || host.shell(kept).succeeded());
    }

    // Both are away, and the kernel is empty of policies.
    api.stop();
    scene.cluster.etcd.kill();
    for (agent, host) in agents.drain(..).zip([h1, h2]) {
        agent.kill();
        drop(agent);
        host.run("nft delete table inet humanz-policy").ok();
    }
    let agents = [h1, h2].map(|host| Agent::start(host, ON));
    for agent in &agents {
        agent.wait_ready();
    }
    server.wait_silence(other.v4(), Instant::now());
    check_denied(&mut server, &denied, &web);
    wait_health(h1, false, false);
    scene.cluster.etcd.start();
    api.run();
    wait_health(h1, true, true);
    wait_health(h2, true, true);
    check_denied(&mut server, &denied, &web);
    label(&scene, "other", "web");
    server.wait(other.v4());
    agents.iter().for_each(Agent::stop);
}

/// READY waits for blocks that nobody has confirmed, but not where no pod can start in them.
#[test]
fn a_host_with_blocks_is_ready_while_nothing_is_known_of_policies() {
    let scene = shop(1);
    let host = scene.host(1);
    let network = own("Network", "front", json!({"subnets": ["10.32.0.0/16"]}));
    let rule = json!({"apiVersion": "humanz.io/v1", "kind": "NamespaceRule",
        "metadata": {"name": "shop"}, "spec": {"network": "front"}});
    apply(host, &[network, rule]);
    let mut agents = scene.cluster.start_agents(ON);
    let db = add(&scene, 1, "db", false);
    assert!(db.v4().to_string().starts_with("10.32."), "{}", db.result);
    agents.remove(0).kill();
    assert!(host.list("/var/lib/humanz").contains(&"blocks.json".to_owned()));
    host.run("rm -f /var/lib/humanz/policy.json").ok();
    scene.api.stop();
    let again = Agent::start(host, ON);
    again.wait_ready();
    assert!(connect(host, "late").is_err(), "nobody knows its network");
    again.stop();
}

#[test]
fn groups_of_etcd_hold_beside_policies_of_the_api() {
    let scene = shop(2);
    let (api, [h1, h2]) = (&scene.api, [scene.host(1), scene.host(2)]);
    let from_ops =
        json!({"rules": [{"direction": "in", "action": "allow", "peer": {"group": "ops"}}]});
    let mut rule = own("NamespaceRule", "shop", json!({"allow": ["ops"]}));
    rule["spec"]["pods"] = json!([{"match": "db*", "group": "store"}]);
    apply(
        h1,
        &[
            own("GroupPolicy", "from-ops", from_ops),
            own("Group", "store", json!({"policies": ["from-ops"], "default": {"in": "deny"}})),
            own("Group", "ops", json!({})),
            rule,
        ],
    );
    let agents = scene.cluster.start_agents(ON);
    let db = add(&scene, 1, "db", false);
    // In a group by an annotation of the API, by a label of the API, and not at all.
    let mut object = pod("web", "web", "h2", &[]);
    object["metadata"]["annotations"] = json!({"humanz.io/group": "ops"});
    api.put(object);
    let web = connect(h2, "web").unwrap();
    let other = add(&scene, 2, "other", false);
    let mut server = Server::open(&db);
    let floods = [&web, &other].map(|pod| Flood::start(pod, db.v4()));
    server.wait(web.v4());
    check_denied(&mut server, &[(&other, &floods[1])], &web);
    api.edit_of("Pod", "shop/other", |pod| {
        pod["metadata"]["labels"]["humanz.io/group"] = json!("ops");
    });
    server.wait(other.v4());
    // A pod in no group, with a policy of the API.
    let plain = add(&scene, 1, "plain", false);
    label(&scene, "plain", "db");
    let mut server = Server::open(&plain);
    let floods = [&web, &other].map(|pod| Flood::start(pod, plain.v4()));
    server.wait(other.v4());
    let begun = Instant::now();
    api.put(policy("db"));
    server.wait_silence(other.v4(), begun);
    check_denied(&mut server, &[(&other, &floods[1])], &web);

    // Who may create pods in a namespace is in no group that its rule does not allow.
    api.put(namespace("free", json!({})));
    let ask = |namespace: &str, group: &str| {
        let mut object = pod("thief", "web", "h2", &[]);
        object["metadata"]["namespace"] = json!(namespace);
        object["metadata"]["annotations"] = json!({"humanz.io/group": group});
        api.put(object);
        let of_pod = wait_problem(h2, "policy", &format!("pod {namespace}/thief"));
        // That a pod is in quarantine has this kind and subject, too.
        let what = of_pod["what"].as_str().unwrap();
        assert!(what.contains("is not allowed for pods of"), "{what}");
    };
    ask("free", "ops");
    ask("shop", "store");
    agents.iter().for_each(Agent::stop);
}

/// A rule about nodes finds them by the labels of the API, which each host publishes of itself.
#[test]
fn nodes_are_found_by_their_labels_in_the_api() {
    let scene = shop(2);
    let h1 = scene.host(1);
    scene.api.serve_custom("ClusterNetworkPolicy", true);
    scene.api.put(json!({"kind": "ClusterNetworkPolicy",
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "metadata": {"name": "nodes"},
        "spec": {"tier": "Admin", "priority": 5, "subject": {"namespaces": {}}, "egress": [
            {"action": "Deny", "to": [{"nodes": {"matchLabels": {"zone": "h2"}}}]}]}}));
    let agents = scene.cluster.start_agents(ON);
    let _db = add(&scene, 1, "db", false);
    let address = scene.host(2).v4().to_string();
    eventually("the other node's address", 3 * SOON, || {
        let table = h1.run("nft list table inet humanz-policy").stdout;
        if table.contains(&address) { Ok(()) } else { Err(table) }
    });
    let table = h1.run("nft list table inet humanz-policy").stdout;
    assert!(!table.contains("172.30."), "{table}");
    scene.api.edit("h2", |node| node["metadata"]["labels"] = json!({"zone": "other"}));
    soon("it is no longer one", || {
        !h1.run("nft list table inet humanz-policy").stdout.contains(&address)
    });
    agents.iter().for_each(Agent::stop);
}

#[test]
fn a_reload_adds_the_policies_of_the_api_and_takes_them_away() {
    let scene = shop(1);
    let host = scene.host(1);
    scene.api.put(policy("db"));
    let configure = |policy: &str| {
        host.write("/etc/humanz/agent.env", &format!("POLICY={policy}\nKUBECONFIG={KUBECONFIG}\n"));
    };
    configure("on");
    let agent = Agent::start(host, &[]);
    agent.wait_ready();
    let (db, near) = (add(&scene, 1, "db", false), add(&scene, 1, "near", false));
    let mut server = Server::open(&db);
    let _flood = Flood::start(&near, db.v4());
    server.wait(near.v4());
    let begun = Instant::now();
    configure("kubernetes");
    agent.reload();
    server.wait_silence(near.v4(), begun);
    wait_health(host, true, true);
    configure("on");
    agent.reload();
    server.wait(near.v4());
    soon("the API is no source any longer", || health(host) == [("etcd".to_owned(), true)]);

    // Nor does what it said come back while it is away, by another reload or by a start.
    let is_kept =
        || host.read("/var/lib/humanz/policy.json").is_none_or(|it| it.contains("\"db\""));
    soon("what is kept has none of it", || !is_kept());
    scene.api.stop();
    configure("kubernetes");
    agent.reload();
    wait_health(host, false, true);
    let source = || status(host)["policies"]["sources"][0].clone();
    assert_eq!((&source()["policies"], &source()["read"]), (&json!(0), &Value::Null));
    server.wait(near.v4());
    agent.kill();
    let agent = Agent::start(host, &[]);
    agent.wait_ready();
    assert_eq!(source()["policies"], 0);
    server.wait(near.v4());
    agent.stop();
}

#[test]
fn a_host_that_is_no_node_of_the_api_says_so() {
    let scene = shop(1);
    let host = scene.host(1);
    scene.api.delete("h1");
    let agent = Agent::start(host, ON);
    agent.wait_ready();
    let of_host = wait_problem(host, "policy", "host h1");
    assert!(
        of_host["fix"].as_str().unwrap().contains("set NODE_NAME to the node's name"),
        "{of_host}"
    );
    agent.stop();
    // Before a start the settings say what is missing.
    let file = ("KUBECONFIG", "/etc/none");
    let checked = Agent::run(host, "check-config", &[("POLICY", "kubernetes"), file]);
    assert!(checked.stderr.contains("KUBECONFIG=/etc/none: "), "{checked}");
}
