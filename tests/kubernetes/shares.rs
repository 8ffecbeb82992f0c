//! A namespace whose policies select all pods a thousand times takes its own share of what hosts keep, and no more.

use std::time::Instant;

use serde_json::{Value, json};

use crate::beside_etcd;
use crate::enforced::{self, ON, add};
use crate::policies::{namespace, pod, policy};
use crate::support::cni::{Attachment, Network};
use crate::support::local::{problem, status, wait_problem};
use crate::support::pod::make_netns;
use crate::support::{Agent, Node, Pod, soon};
use crate::traffic::{Flood, Server};
use crate::{Scene, peak_kb};

/// As many as a namespace may have.
const SELECTORS: usize = 1_000;

const CROWD: &str = "NetworkPolicies of namespace crowd";

/// The problem of the namespace says which of its limits it is about.
fn says(host: &Node, words: &str) {
    let problem = wait_problem(host, "policy", CROWD);
    assert!(problem["what"].as_str().unwrap().contains(words), "{problem}");
}

/// Each of its peers finds all pods.
fn greedy() -> Value {
    let peer = |at| {
        let without = json!({"key": "x", "operator": "NotIn", "values": [format!("{at}")]});
        json!({"namespaceSelector": {}, "podSelector": {"matchExpressions": [without]}})
    };
    let from: Vec<Value> = (0..SELECTORS).map(peer).collect();
    let mut greedy = policy("greedy");
    greedy["metadata"]["namespace"] = json!("crowd");
    greedy["spec"] = json!({"podSelector": {}, "ingress": [{"from": from}]});
    greedy
}

fn crowd_pod(name: &str, host: &str, addresses: &[&str]) -> Value {
    let mut pod = pod(name, name, host, addresses);
    pod["metadata"]["namespace"] = json!("crowd");
    pod
}

/// A pod of the crowd.
fn add_crowd(scene: &Scene, host: &Node, name: &str) -> Pod {
    scene.api.put(crowd_pod(name, host.name(), &[]));
    make_netns(host, name);
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=crowd;K8S_POD_NAME={name}");
    Pod::connect(host, &Network::of(host), Attachment { args, ..Attachment::new(name) }).unwrap()
}

/// Of other namespaces the policies are in force: web reaches db, other does not.
fn check_others(db: &Pod, web: &Pod, other: &Pod) {
    let mut server = Server::open(db);
    let floods = [web, other].map(|pod| Flood::start(pod, db.v4()));
    server.wait(web.v4());
    // The policies came after the pods: the problem is there as soon as they are read, before they are in force.
    server.wait_silence(other.v4(), Instant::now());
    beside_etcd::check_denied(&mut server, &[(other, &floods[1])], web);
}

#[test]
fn members_of_a_namespaces_peers_are_kept_up_to_its_share() {
    let scene = enforced::shop();
    let (api, h1) = (&scene.api, scene.host(1));
    api.put(namespace("crowd", json!({})));
    for number in 0..1_000 {
        let address = format!("fd10:244:0:2::{number:x}:1");
        api.put(crowd_pod(&format!("c{number}"), "h2", &[&address]));
    }
    let _agents = [scene.serve(1, ON), scene.serve(2, ON)];
    let (db, web) = (add(&scene, 1, "db", false), add(&scene, 2, "web", true));
    let (other, _crowd) = (add(&scene, 2, "other", true), add_crowd(&scene, h1, "crowd"));
    api.put(policy("db"));
    api.put(greedy());
    says(h1, "more than 200000 pods and nodes in all");
    check_others(&db, &web, &other);
    let peak = peak_kb(h1);
    println!("peak of the agent: {peak} kB");
    // 200,000 found pods, where a million were kept.
    assert!(peak < 200_000, "{peak} kB");
}

#[test]
fn hosts_publish_members_of_a_namespaces_peers_up_to_its_share() {
    let scene = beside_etcd::shop(2);
    let (api, h1) = (&scene.api, scene.host(1));
    api.put(namespace("crowd", json!({})));
    let agents = scene.cluster.start_agents(beside_etcd::ON);
    let (db, web) = (add(&scene, 2, "db", false), add(&scene, 1, "web", false));
    let other = add(&scene, 1, "other", false);
    let crowd: Vec<Pod> =
        (0..8).map(|number| add_crowd(&scene, h1, &format!("c{number}"))).collect();
    api.put(greedy());
    api.put(policy("db"));
    says(h1, "more than 5000 pods of this host in all");
    check_others(&db, &web, &other);
    // With ten pods of the host, of 1,000 groups 500; and one of the other policies, and the generation.
    soon("502 keys", || scene.cluster.etcd.list("/humanz/v1-members/h1/").len() == 502);

    api.delete_of("NetworkPolicy", "crowd/greedy");
    soon("the problem ends", || problem(&status(h1), "policy", CROWD).is_none());
    drop(crowd);
    agents.iter().for_each(Agent::stop);
}
