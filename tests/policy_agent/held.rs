//! Pods that other hosts must know before they are released, and running ones, which are never held again.

use std::time::Duration;

use serde_json::{Value, json};

use crate::etcd::{FROM_ETCD, apply};
use crate::hosts::pod_object;
use crate::start::connect;
use crate::support::{Agent, Cluster, Node, Place, eventually, local, pod, soon, wait};
use crate::traffic::{Flood, Server};
use crate::{FILE, add, only_from, write_policies};

/// What a pod's status says of its quarantine: why, and since when.
pub fn quarantine(host: &Node, pod: &str) -> Option<(String, String)> {
    let status = local::status(host);
    let all = status["policies"]["quarantine"].as_array().unwrap().clone();
    let one = all.iter().find(|one| one["pod"] == pod)?;
    let text = |field: &str| one[field].as_str().unwrap_or_default().to_owned();
    Some((text("why"), text("since")))
}

fn has_member(host: &Node, address: &str) -> bool {
    host.run("nft list table inet humanz-policy").stdout.contains(address)
}

const KEPT: &str = "/var/lib/humanz/policy.json";
const PUBLISHED: &str = "/var/lib/humanz/published.json";

/// Pods of `app` take nothing from those with one of `others`, in no namespace.
fn denied(name: &str, app: &str, others: &[&str]) -> Value {
    json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": name},
        "spec": {"tier": "Admin", "priority": 1,
            "subject": {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": app}}}},
            "ingress": [{"action": "Deny", "from": [{"pods": {"namespaceSelector": {},
                "podSelector": {"matchExpressions":
                    [{"key": "app", "operator": "In", "values": others}]}}}]}]},
    })
}

/// An agent that is killed between etcd's commit and its own file has sent more than that file says.
#[test]
fn a_reused_address_waits_for_its_withdrawal_whatever_the_disk_says() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &[only_from("db", &["web"])]);
    let agents = cluster.start_agents(FROM_ETCD);
    let db = add(h1, "db", "db");
    let mut server = Server::open(&db);
    // Its own policy, so that h2 has a file of before.
    let first = add(h2, "first", "other");
    soon("the policies are kept", || h2.read(KEPT).is_some());
    let before = h2.read(KEPT).unwrap();
    let web = add(h2, "web", "web");
    let to = db.v4();
    let flood = Flood::start(&web, to);
    server.wait(web.v4());
    drop(flood);
    agents[1].kill();
    h2.write(KEPT, &before);
    cluster.etcd.kill();
    let (address, text) = (web.v4(), web.v4().to_string());
    web.delete();
    pod::make_netns(h2, "late");
    let late = connect(h2, "late", "other", &text).unwrap();
    let known = server.received(address);
    let flood = Flood::start(&late, to);
    for noted in [true, false] {
        if !noted {
            h2.run(&format!("rm -f {PUBLISHED}")).ok();
        }
        let agent = Agent::start(h2, FROM_ETCD);
        agent.wait_ready();
        flood.go_on();
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(server.received(address), known, "noted: {noted}");
        assert!(has_member(h1, &text), "the control: the other host knows the former pod");
        let wanted = if noted { "former pod" } else { "not known" };
        let (why, since) = quarantine(h2, "shop/late").unwrap();
        assert!(why.contains(wanted) && !since.is_empty(), "{why} since {since}");
        local::wait_problem(h2, "policy", "pod shop/late");
        let metrics = local::get(h2, "/metrics").1;
        let reason = if noted { "former owner" } else { "members unknown" };
        let line = format!("humanz_policy_quarantined_pods{{reason=\"{reason}\"}} 1");
        assert!(metrics.contains(&line), "{metrics}");
        let explained = Agent::run(h2, "explain shop/late shop/first udp/5000", FROM_ETCD);
        assert!(explained.stdout.contains(wanted), "{explained:?}");
        // Those that ran before go on.
        assert_eq!(quarantine(h2, "shop/first"), None);
        agent.kill();
    }
    cluster.etcd.start();
    let agent = Agent::start(h2, FROM_ETCD);
    agent.wait_ready();
    soon("the withdrawal", || !has_member(h1, &text));
    eventually("the release", 3 * wait::SOON, || match quarantine(h2, "shop/late") {
        None => Ok(()),
        Some(why) => Err(format!("{why:?}")),
    });
    flood.go_on();
    assert_eq!(server.received(address), known);
    let mut own = Server::open(&first);
    let _own = Flood::start(&late, first.v4());
    own.wait(address);
    agent.stop();
}

/// Packets of quarantined pods that the table dropped.
fn dropped(host: &Node) -> u64 {
    let text = host.run("nft -j list counter inet humanz-policy unknown").stdout;
    let found: Value = serde_json::from_str(&text).unwrap();
    found["nftables"][1]["counter"]["packets"].as_u64().unwrap()
}

/// Whatever rules come, and though etcd does not know which groups it is in.
#[test]
fn a_running_pod_is_never_held_again() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    write_policies(h1, &[]);
    write_policies(h2, &[]);
    let settings = [FROM_ETCD, &[("POLICY_FILE", FILE)]].concat();
    let agents = cluster.start_agents(&settings);
    let (db, free) = (add(h1, "db", "db"), add(h1, "free", "free"));
    let web = add(h2, "web", "web");
    let (mut server, mut other) = (Server::open(&db), Server::open(&free));
    let (_denied, flood) = (Flood::start(&web, db.v4()), Flood::start(&web, free.v4()));
    server.wait(web.v4());
    other.wait(web.v4());
    // New groups that a rule denies, of which it is a member.
    for number in 0..10 {
        apply(h1, &[denied("deny", "db", &["web", &format!("n{number}")])]);
        std::thread::sleep(Duration::from_millis(200));
        other.wait(web.v4());
    }
    assert_eq!(dropped(h2), 0, "packets of a running pod");
    server.wait_silence(web.v4(), std::time::Instant::now());
    // A group that etcd cannot learn of.
    apply(h1, &[denied("deny", "db", &["bad"])]);
    server.wait(web.v4());
    soon("the other host has the rule, too", || {
        local::get(h2, "/v1/policies").1.contains("\"bad\"")
    });
    cluster.etcd.kill();
    write_policies(h2, &[pod_object("web", "bad", "h2", &web)]);
    local::status_when(h2, "etcd is away", |status| {
        local::problem(status, "etcd", "policies in etcd").is_some()
    });
    let late = add(h2, "late", "bad");
    let new = Flood::start(&late, db.v4());
    flood.go_on();
    other.wait(web.v4());
    server.wait(web.v4());
    assert_eq!(quarantine(h2, "shop/web"), None);
    assert!(quarantine(h2, "shop/late").unwrap().0.contains("a rule denies"));
    new.go_on();
    assert_eq!(server.received(late.v4()), 0);
    // Over a restart, too.
    agents[1].kill();
    let agent = Agent::start(h2, &settings);
    agent.wait_ready();
    other.wait(web.v4());
    new.go_on();
    assert_eq!(server.received(late.v4()), 0);
    cluster.etcd.start();
    server.wait_silence(web.v4(), std::time::Instant::now());
    other.wait(web.v4());
    eventually("the release", 3 * wait::SOON, || match quarantine(h2, "shop/late") {
        None => Ok(()),
        Some(why) => Err(format!("{why:?}")),
    });
    new.go_on();
    assert_eq!(server.received(late.v4()), 0);
    agents[0].stop();
    agent.stop();
}
