//! What the user of one namespace writes holds up no pod of another one.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::start::connect;
use crate::support::cni::Network;
use crate::support::local::status_when;
use crate::support::wait::patience;
use crate::support::{Node, Pod, pod, soon};
use crate::traffic::{Flood, Server};
use crate::{PORT, add, alone, attachment, counters, serve, write_policies};

/// Where the pod has its address that the policy lets through, and one beside it.
const IN_A_BLOCK: &str = "10.244.1.201";
const IN_NO_BLOCK: &str = "10.244.1.202";

/// Pods of `shop` with the label `app` of `web` may connect to these blocks and ports alone.
fn only_to(blocks: impl Iterator<Item = String>, ports: Vec<Value>) -> Value {
    let blocks: Vec<Value> = blocks.map(|cidr| json!({"ipBlock": {"cidr": cidr}})).collect();
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": "many"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"],
            "egress": [{"to": blocks, "ports": ports}],
        },
    })
}

/// So many blocks that do not touch, and so many ports by name: one of the blocks and one further port are real.
fn many(count: usize) -> Value {
    let block = |number: usize| {
        format!("198.{}.{}.{}/32", 18 + number / 10_000, number / 100 % 100, number % 100 * 2)
    };
    let named = |number: usize| json!({"port": format!("p{number}"), "protocol": "UDP"});
    let port = json!({"port": PORT, "protocol": "UDP"});
    let blocks = (0..count).map(block).chain([format!("{IN_A_BLOCK}/32")]);
    only_to(blocks, (0..count).map(named).chain([port]).collect())
}

/// A pod of another namespace.
fn add_elsewhere(host: &Node, name: &str) -> Pod {
    pod::make_netns(host, name);
    let mut to = attachment(name, name);
    to.args = to.args.replace("NAMESPACE=shop", "NAMESPACE=elsewhere");
    Pod::connect(host, &Network::of(host), to).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Before peers and ports of a rule added up, this policy was a million rules of the kernel's table.
#[test]
fn a_policy_of_many_blocks_and_ports_delays_no_other_pod() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[]);
    let agent = serve(host, &[]);
    let web = add(host, "web", "web");
    let other = add_elsewhere(host, "other");
    pod::make_netns(host, "in");
    pod::make_netns(host, "out");
    let allowed = connect(host, "in", "db", IN_A_BLOCK).unwrap();
    let denied = connect(host, "out", "db", IN_NO_BLOCK).unwrap();
    write_policies(host, &[many(1_000)]);
    for name in ["at-once", "in-force"] {
        let begun = Instant::now();
        let late = add_elsewhere(host, name);
        let mut server = Server::open(&late);
        let flood = Flood::start(&other, late.v4());
        server.wait(other.v4());
        drop(flood);
        let took = begun.elapsed();
        println!("{name}: reached {took:?} after the beginning of its ADD");
        assert!(took < Duration::from_secs(5) * patience(), "{name}: {took:?}");
        soon("the policy is in force", || counters(host).contains("np/shop/many/out/deny"));
    }
    let (mut reached, mut shut) = (Server::open(&allowed), Server::open(&denied));
    let (_allowed, denied_flood) =
        (Flood::start(&web, allowed.v4()), Flood::start(&web, denied.v4()));
    reached.wait(web.v4());
    denied_flood.go_on();
    assert_eq!(shut.received(web.v4()), 0);
    agent.stop();
}

/// Before blocks counted as lines, ten times as many of them took the agent half a minute and 300 MB.
#[test]
fn policies_of_many_blocks_hold_up_their_own_pods_alone() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[]);
    let agent = serve(host, &[]);
    let web = add(host, "web", "web");
    let other = add_elsewhere(host, "other");
    let block = |number: usize| {
        let cidr = format!("198.{}.{}.{}/32", number >> 15, number >> 7 & 255, number % 128 * 2);
        json!({"ipBlock": {"cidr": cidr}})
    };
    let rule = |at: usize| json!({"to": (at * 2_500..(at + 1) * 2_500).map(block).collect::<Vec<Value>>()});
    let policy = |at: usize| {
        let mut policy = only_to(std::iter::empty(), Vec::new());
        policy["metadata"]["name"] = json!(format!("many{at}"));
        policy["spec"]["egress"] = (at * 4..(at + 1) * 4).map(rule).collect();
        policy
    };
    write_policies(host, &(0..10).map(policy).collect::<Vec<Value>>());
    let status = status_when(host, "a pod in quarantine", |status| {
        status["policies"]["quarantine"].as_array().is_some_and(|all| all.len() == 1)
    });
    let quarantine = &status["policies"]["quarantine"][0];
    assert_eq!(quarantine["pod"], "shop/web", "{quarantine}");
    assert_eq!(quarantine["addresses"][0], web.v4().to_string(), "{quarantine}");
    let late = add_elsewhere(host, "late");
    let mut server = Server::open(&late);
    let flood = Flood::start(&other, late.v4());
    server.wait(other.v4());
    drop(flood);
    write_policies(host, &(0..2).map(policy).collect::<Vec<Value>>());
    status_when(host, "no pod in quarantine", |status| {
        status["policies"]["quarantine"].as_array().is_some_and(Vec::is_empty)
    });
    agent.stop();
}

/// For the pods of `shop` that it selects: so many lines of the table.
fn lines(name: &str, pods: Value, lines: usize) -> Value {
    let from = json!([{"podSelector": {"matchLabels": {"app": "web"}}}]);
    let rule = |at| json!({"from": from, "ports": [{"port": at + 1}]});
    let ingress: Vec<Value> = (0..lines / 2).map(rule).collect();
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": name},
        "spec": {"podSelector": pods, "ingress": ingress},
    })
}

/// Pods of the same rules share a program: before there was a limit twelve pods with a small policy each made twelve of
/// the large one.
#[test]
fn pods_that_differ_in_small_policies_do_not_multiply_a_large_one() {
    let alone = alone();
    let host = &alone.host;
    let own = |at| lines(&format!("own{at}"), json!({"matchLabels": {"app": format!("a{at}")}}), 2);
    let small: Vec<Value> = (0..4).map(own).collect();
    let large = [lines("all", json!({}), 9_000)];
    write_policies(host, &[&large[..], &small[..]].concat());
    let agent = serve(host, &[]);
    let pods: Vec<Pod> = (0..4).map(|at| add(host, &format!("a{at}"), &format!("a{at}"))).collect();
    let held = |count: usize| {
        let what = format!("{count} pods in quarantine");
        let status = status_when(host, &what, |status| {
            status["policies"]["quarantine"].as_array().is_some_and(|all| all.len() == count)
        });
        status["policies"]["quarantine"].to_string()
    };
    let why = held(2);
    assert!(why.contains("take more lines of this host's table than they may"), "{why}");
    let (one, other) = (add_elsewhere(host, "one"), add_elsewhere(host, "other"));
    let mut server = Server::open(&one);
    let flood = Flood::start(&other, one.v4());
    server.wait(other.v4());
    drop(flood);
    write_policies(host, &small);
    held(0);
    drop(pods);
    agent.stop();
}
