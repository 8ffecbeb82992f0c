//! `connectivity test` from one host alone: the agent of another one attaches pods there, and removes them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::disk::EXECUTABLE;
use crate::support::node::command;
use crate::support::{Agent, Cluster, Ended, Node, Place, Process, eventually, facts};
use crate::{DUAL_STACK, TUNNELS};

const REQUESTS: &str = "/humanz/v1/connectivity/";
const ANSWERS: &str = "/humanz/v1-connectivity/";

/// The etcd lease of a request, a look of the agent, and of the one that removes what others left.
const GONE_WITHIN: Duration = Duration::from_secs(60);

/// An address that nobody has: every path to one takes seconds.
const SILENT: &str = " --outside 192.0.2.250";

fn test(host: &Node, options: &str) -> Ended {
    let ended = Agent::run(host, &format!("connectivity test{options}"), DUAL_STACK);
    println!("{ended}");
    ended
}

fn refused(ended: &Ended, words: &[&str]) {
    assert_eq!(ended.status.code(), Some(69), "{ended}");
    words.iter().for_each(|word| assert!(ended.stderr.contains(word), "{word} in {ended}"));
}

/// Containers that have addresses on `host`.
fn containers(host: &Node) -> Vec<String> {
    let listed = Agent::run(host, "ipam ls --json", DUAL_STACK).ok();
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let of = |entry: &Value| entry["container"].as_str().unwrap().to_owned();
    let mut all: Vec<_> = listed["addresses"].as_array().unwrap().iter().map(of).collect();
    all.dedup();
    all
}

/// No interface, address or port of a pod is left, nor a key.
fn nothing_is_left(cluster: &Cluster, host: &Node) {
    eventually(&format!("{}: all is gone", host.name()), GONE_WITHIN, || {
        let left = (facts::veths(host), containers(host), cluster.etcd.list(REQUESTS));
        let is_gone = left.0.is_empty() && left.1.is_empty() && left.2.is_empty();
        if is_gone { Ok(()) } else { Err(format!("{left:?}")) }
    });
    let rules = host.run("nft list table inet humanz").ok();
    assert!(!rules.contains("8471"), "{rules}");
}

/// A test on `host` that takes a minute; `other` has pods for it.
fn slow_test(host: &Node, other: &Node) -> Process {
    let line = format!("{EXECUTABLE} connectivity test{}", SILENT.repeat(20));
    let process = host.spawn(command(&line).env("ETCD_HOST", "192.0.2.2"));
    eventually("the other host has pods", Duration::from_secs(20), || {
        match (containers(other).len(), containers(host).len()) {
            // One that was killed may have left some here, which the next one, or the agent, removes later.
            (2, 2..) => Ok(()),
            found => Err(format!("{found:?}: {}", process.log())),
        }
    });
    process
}

#[test]
fn two_pods_on_each_of_two_hosts_are_tried_from_one_and_nothing_is_left() {
    let cluster = Cluster::new(2);
    let agents = cluster.start_agents(DUAL_STACK);
    let [h1, h2] = &cluster.hosts[..] else { unreachable!() };
    for (host, other) in [(h1, h2), (h2, h1)] {
        let ended = test(host, " --json");
        let found: Value = serde_json::from_str(&ended.ok()).unwrap();
        let paths = found["paths"].as_array().unwrap();
        for pod in [1, 2] {
            for way in ["", ", full size", ", TCP"] {
                let name = format!("pod -> pod {pod} of {}{way}", other.name());
                let of_both = paths.iter().filter(|path| path["path"] == *name);
                assert_eq!(of_both.count(), 2, "{name} in {found:#}");
            }
        }
        assert!(paths.iter().all(|path| path["ok"] == true), "{found:#}");
        nothing_is_left(&cluster, h1);
        nothing_is_left(&cluster, h2);
    }
    let shown = test(h1, "").ok();
    assert!(
        shown.contains("paths are open") && !shown.contains("pods of other hosts ("),
        "{shown}"
    );
    nothing_is_left(&cluster, h2);
    // An answer goes with an etcd lease of its own.
    assert!(cluster.etcd.pairs(ANSWERS).iter().all(|answer| answer.lease() != 0));

    // Pods are there, and their host loses what comes from others.
    h2.shell(
        "nft add table inet mine
         nft add chain inet mine forward '{ type filter hook forward priority 0; }'
         nft add rule inet mine forward iifname eth0 meta nfproto ipv4 drop",
    )
    .ok();
    let lost = test(h1, " --host h2");
    assert_eq!(lost.status.code(), Some(1), "{lost}");
    let is_lost = |line: &str| line.starts_with("pod -> pod 1 of h2 ") && line.contains('✗');
    assert!(lost.stdout.lines().any(is_lost), "{lost}");
    h2.run("nft delete table inet mine").ok();
    nothing_is_left(&cluster, h2);
    for agent in &agents {
        assert!(!agent.log().contains("WARN"), "{}", agent.log());
    }
}

#[test]
fn a_test_that_is_killed_leaves_nothing_on_either_host() {
    let cluster = Cluster::new(2);
    let mut agents = cluster.start_agents(DUAL_STACK);
    let [h1, h2] = &cluster.hosts[..] else { unreachable!() };
    let killed = slow_test(h1, h2);
    killed.kill();
    nothing_is_left(&cluster, h1);
    nothing_is_left(&cluster, h2);

    // The agent that is asked ends, which its program notices.
    let stopped = slow_test(h1, h2);
    agents[1].stop();
    assert_eq!((facts::veths(h2), containers(h2)), (vec![], vec![]), "they end with the agent");
    agents[1] = Agent::start(h2, DUAL_STACK);
    agents[1].wait_ready();
    stopped.signal(Signal::SIGINT);
    stopped.wait(Duration::from_secs(20));
    nothing_is_left(&cluster, h1);
    let killed = slow_test(h1, h2);
    agents[1].kill();
    eventually("they end with the agent", Duration::from_secs(20), || {
        let left = containers(h2);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    killed.kill();

    // The agent and its program are killed: the next start removes what they left.
    agents[1] = Agent::start(h2, DUAL_STACK);
    agents[1].wait_ready();
    eventually("the request of the killed test is gone", GONE_WITHIN, || {
        let left = cluster.etcd.list(REQUESTS);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    let last = slow_test(h1, h2);
    let program = containers(h2)[0].split('-').nth(2).unwrap().to_owned();
    h2.shell(&format!("kill -KILL {program}")).ok();
    agents[1].kill();
    last.kill();
    assert_eq!(containers(h2).len(), 2, "nobody has removed them");
    agents[1] = Agent::start(h2, DUAL_STACK);
    agents[1].wait_ready();
    nothing_is_left(&cluster, h2);
    nothing_is_left(&cluster, h1);
}

#[test]
fn one_test_at_a_time_has_pods_of_a_host_and_others_hear_why() {
    let cluster = Cluster::new(3);
    let _agents = cluster.start_agents(DUAL_STACK);
    let [h1, h2, h3] = &cluster.hosts[..] else { unreachable!() };
    let first = slow_test(h1, h2);
    let words = ["h2 refuses: it holds pods for a test of h1", "humanz-agent connectivity serve"];
    refused(&test(h3, " --host h2"), &words);
    refused(&test(h1, " --host h2"), &["a test of this host with h2 runs"]);
    assert_eq!(containers(h2).len(), 2);
    // Without a choice the rest is tried.
    let shown = test(h1, "").ok();
    assert!(shown.contains("pods of other hosts (a test of this host with h2 runs"), "{shown}");
    first.signal(Signal::SIGINT);
    first.wait(Duration::from_secs(20));
    // At once, as an operator does.
    let ended = test(h3, " --host h2").ok();
    assert!(ended.contains("pod -> pod 1 of h2"), "{ended}");
    for (host, code) in [("h1", 2), ("h9", 1), ("h/2", 2)] {
        assert_eq!(test(h1, &format!(" --host {host}")).status.code(), Some(code), "{host}");
    }
    [h1, h2, h3].iter().for_each(|host| nothing_is_left(&cluster, host));
}

#[test]
fn pods_that_are_taken_away_during_a_test_are_no_lost_packets() {
    let cluster = Cluster::new(2);
    let agents = cluster.start_agents(&[("IPV6_SUBNET", "")]);
    let [h1, h2] = &cluster.hosts[..] else { unreachable!() };
    // Nobody answers until the one who asks is stopped: it would end before anybody has looked.
    agents[1].process.signal(Signal::SIGSTOP);
    let line = format!("{EXECUTABLE} connectivity test");
    let process = h1.spawn(command(&line).env("ETCD_HOST", "192.0.2.2"));
    let there = |keys: &str, value: &str, what: &str| {
        eventually(what, Duration::from_secs(20), || {
            let keys = cluster.etcd.list(keys);
            let is_there = keys.iter().any(|(_, found)| found.contains(value));
            if is_there { Ok(()) } else { Err(format!("{keys:?}: {}", process.log())) }
        });
    };
    there(REQUESTS, "", "the request");
    process.signal(Signal::SIGSTOP);
    agents[1].process.signal(Signal::SIGCONT);
    there(ANSWERS, "pods", "the answer");
    cluster.etcd.delete_all(REQUESTS);
    eventually("the other host has no pods any more", Duration::from_secs(20), || {
        let left = containers(h2);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    process.signal(Signal::SIGCONT);
    process.wait(Duration::from_secs(90));
    let said = process.log();
    println!("{said}");
    assert!(said.contains("pods of h2 to the end (h2 took them away during the test"), "{said}");
    nothing_is_left(&cluster, h1);
}

/// How long it asks.
const ASKING: Duration = Duration::from_secs(10);

#[test]
fn a_host_that_asks_all_the_time_gets_two_pods_and_its_keys_do_nothing_else() {
    let cluster = Cluster::new(2);
    let agents = cluster.start_agents(DUAL_STACK);
    let [_, h2] = &cluster.hosts[..] else { unreachable!() };
    let long = "x".repeat(1 << 20);
    for key in ["h1", "h1/", "/h2", "h1/h2/h3", "$(reboot)/h2", "h1/../h2", &long, "h1/h1"] {
        cluster.etcd.put(&format!("{REQUESTS}{key}"), "garbage");
    }
    let begun = Instant::now();
    let turns = || agents[1].log().matches("asks for two pods").count();
    let (mut most, mut value) = (0, long.as_str());
    // Where programs run slowly, until there were turns.
    let lasts = |time: Duration| time < ASKING || (time < 9 * ASKING && turns() < 2);
    while lasts(begun.elapsed()) {
        for host in ["h1", "h3", "x"] {
            cluster.etcd.delete_all(&format!("{REQUESTS}{host}/h2"));
            cluster.etcd.put(&format!("{REQUESTS}{host}/h2"), value);
        }
        // Long ones again and again would keep the disk busy, which other tests need.
        value = &long[..1000];
        most = most.max(containers(h2).len());
    }
    assert!((1..=2).contains(&most), "{most} pods");
    assert!(cluster.etcd.list(ANSWERS).len() >= 3, "each had an answer");
    let (turns, time, log) = (turns(), begun.elapsed(), agents[1].log());
    assert!(agents[1].process.ended().is_none(), "{log}");
    // Two seconds lie between two.
    let most_turns = 1 + usize::try_from(time.as_secs() / 2).unwrap();
    assert!((2..=most_turns).contains(&turns), "{turns} turns in {time:?}: {log}");
    assert!(log.lines().map(str::len).max() < Some(2_000), "a long line");
    cluster.etcd.delete_all(REQUESTS);
    nothing_is_left(&cluster, h2);
}

/// Runs a test with h2 on `host` while somebody writes `value` as the answer of h2 again and again.
fn with_answer(cluster: &Cluster, host: &Node, value: &str) -> Ended {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                cluster.etcd.put(&format!("{ANSWERS}h2/h1"), value);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let ended = test(host, " --host h2");
        done.store(true, Ordering::Relaxed);
        ended
    })
}

#[test]
fn a_host_that_does_not_answer_refuses_or_lies_is_reported_with_the_way_by_hand() {
    let cluster = Cluster::new(2);
    let agents = cluster.start_agents(&[DUAL_STACK[0], ("PROBE_INTERVAL", "0")]);
    let [h1, _] = &cluster.hosts[..] else { unreachable!() };
    refused(&test(h1, " --host h2"), &["h2 refuses: PROBE_INTERVAL=0 there", "by hand"]);
    // As an earlier version, which does not know such requests; its alive key stays for half a minute.
    agents[1].kill();
    let begun = Instant::now();
    let by_hand = "by hand: humanz-agent connectivity serve there prints what to add";
    refused(&test(h1, " --host h2"), &["h2 does not answer: an earlier version", by_hand]);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let pods =
        |address: &str| format!(r#"{{"schema":1,"state":{{"pods":[[{address}],[{address}]]}}}}"#);
    for (value, words) in [
        (pods(r#""192.0.2.2""#), "addresses that are not in its subnets"),
        (pods(r#""10.244.200.1""#), "addresses that are not in its subnets"),
        (pods(r#""::1""#), "addresses that are not in its subnets"),
        (pods(""), "the answer of h2 is none"),
        (r#"{"schema":1,"state":{"pods":[]}}"#.to_owned(), "the answer of h2 is none"),
        ("garbage".to_owned(), "the answer of h2 is none"),
        ("x".repeat(1 << 16), "the answer of h2 is none"),
        (r#"{"schema":1,"state":{"busy":"\u001b[2J"}}"#.to_owned(), "the answer of h2 is none"),
        (r#"{"schema":1,"state":"failed"}"#.to_owned(), "h2 cannot attach pods"),
    ] {
        let ended = with_answer(&cluster, h1, &value);
        refused(&ended, &[words]);
        assert!(!ended.stderr.contains('\u{1b}') && ended.stderr.len() < 1_000, "{ended}");
    }
    nothing_is_left(&cluster, h1);
}

#[test]
fn it_works_with_tunnels_and_with_policies() {
    let cluster = Cluster::new(2);
    let variables = [TUNNELS, &[("POLICY", "on")]].concat();
    let _agents = cluster.start_agents(&variables);
    let shown = Agent::run(&cluster.hosts[0], "connectivity test", &variables).ok();
    assert!(shown.contains("pod -> pod 2 of h2, full size"), "{shown}");
    cluster.hosts.iter().for_each(|host| nothing_is_left(&cluster, host));
}
