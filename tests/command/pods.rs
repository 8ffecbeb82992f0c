//! The pods of this host, and of all hosts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::cluster::Cluster;
use crate::support::{Agent, Node, Place, Pod, eventually};
use crate::{object, refused, run};

const ANSWERS: &str = "/humanz/v1-pods/";
const REQUESTS: &str = "/humanz/v1/requests/";
const BOTH: [(&str, &str); 1] = [("IPV6_SUBNET", "fd10::/48")];

/// `host: pod addresses` of every pod that `pods --all --json` shows.
fn shown(value: &Value) -> Vec<String> {
    let hosts = value["hosts"].as_array().unwrap().iter();
    let of = |host: &Value| {
        let name = host["host"].as_str().unwrap().to_owned();
        let pods = host["pods"].as_array().unwrap().clone().into_iter();
        pods.map(move |pod| {
            let addresses = pod["addresses"].as_array().unwrap().iter();
            let addresses: Vec<&str> = addresses.map(|it| it.as_str().unwrap()).collect();
            format!("{name}: {} {}", pod["pod"].as_str().unwrap(), addresses.join(","))
        })
    };
    hosts.flat_map(of).collect()
}

fn of(host: &Node, pod: &Pod) -> String {
    let addresses: Vec<String> = pod.addresses().iter().map(ToString::to_string).collect();
    format!("{}: default/{} {}", host.name(), pod.attachment.container, addresses.join(","))
}

#[test]
fn pods_of_all_hosts_are_listed_from_any_host() {
    let cluster = Cluster::new(3);
    let [h1, h2, h3] = &cluster.hosts[..] else { unreachable!() };
    let agents = cluster.start_agents(&BOTH);
    let pods: Vec<(&Node, Pod)> = [(h1, "a"), (h1, "b"), (h2, "a"), (h3, "c")]
        .map(|(host, name)| (host, Pod::add(host, name)))
        .into();
    let all: Vec<String> = pods.iter().map(|(host, pod)| of(host, pod)).collect();
    assert_eq!(cluster.etcd.list(ANSWERS), [], "nobody has asked");
    for host in [h1, h2, h3] {
        let value = object(&run(host, "pods --all --json", &[]));
        assert_eq!(shown(&value), all, "{value:#}");
        assert_eq!(cluster.etcd.list(REQUESTS), [], "the request is over");
    }
    let answers = cluster.etcd.pairs(ANSWERS);
    assert!(answers.iter().all(|answer| answer.lease() != 0), "they would stay: {answers:?}");
    let text = run(h2, "pods --all", &[]).ok();
    assert!(text.contains("h2*") && text.contains("4 pods on 3 of 3 hosts"), "{text}");

    let own = run(h1, "pods", &[]).ok();
    let row = format!("default/b  {}", pods[1].1.v4());
    assert!(own.contains(&row) && own.contains("attached"), "{row} in {own}");
    let value = object(&run(h1, "pods --json", &[]));
    assert_eq!(value["pods"].as_array().unwrap().len(), 2, "{value:#}");

    agents[2].stop();
    let some = run(h1, "pods --all", &[]);
    assert_eq!(some.status.code(), Some(1), "{some}");
    for words in ["! h3: its agent does not run", "3 pods on 2 of 3 hosts"] {
        assert!(some.stdout.contains(words), "{words} in {some}");
    }
    // Neither of them is needed for the host's own.
    let of_h3 = run(h3, "pods", &[]).ok();
    assert!(of_h3.contains("default/c"), "{of_h3}");
    let from_h3 = object(&run(h3, "pods --all --json", &BOTH));
    assert_eq!(shown(&from_h3), all, "{from_h3:#}");
    cluster.etcd.kill();
    refused(&run(h1, "pods --all", &[("ETCD_TIMEOUT", "1s")]), 69, &["etcd does not answer"]);
    run(h1, "pods", &[]).ok();
}

/// Runs `pods --all` on `host` while somebody writes `value` as the answer of h2 again and again.
fn with_answer(cluster: &Cluster, host: &Node, value: &[u8]) -> crate::Ended {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                cluster.etcd.put(&format!("{ANSWERS}h2"), value);
                cluster.etcd.put(&format!("{ANSWERS}$(id)"), value);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let ended = run(host, "pods --all", &[]);
        done.store(true, Ordering::Relaxed);
        ended
    })
}

#[test]
fn a_host_speaks_for_its_own_addresses_and_its_answer_reaches_no_terminal() {
    let cluster = Cluster::new(2);
    let [h1, _] = &cluster.hosts[..] else { unreachable!() };
    let agents = cluster.start_agents(&[]);
    let web = Pod::add(h1, "web");
    // It is stolen, and its alive key stays for half a minute.
    agents[1].kill();
    let answer = |pod: &str, addresses: &[&str]| {
        let pods = [json!({"pod": pod, "network": "\u{1b}[2J", "addresses": addresses})];
        json!({"schema": 1, "pods": pods}).to_string()
    };
    let (web_v4, million) = (web.v4().to_string(), "x".repeat(1 << 20));
    // Which of the two has which subnet, is a race.
    let subnet = cluster.etcd.get("/humanz/hosts/h2").unwrap();
    let own_v4 = subnet.replace(".0/24", ".9");
    let own = answer("shop/\u{1b}]0;x\u{7}db", &[&own_v4]);
    let foreign = format!("h2: 1 addresses that are not in its subnets are left out: {web_v4}");
    for (value, words) in [
        (own, "1 addresses"),
        (answer("shop/db", &[&web_v4]), &foreign),
        (answer("shop/db", &["192.0.2.2", "::1"]), "h2: 2 addresses that are not in its subnets"),
        (r#"{"schema":1,"pods":[],"more":7}"#.to_owned(), "h2: 7 more pods"),
        ("garbage".to_owned(), "h2: its answer is none: "),
        (million, "h2: its answer is none: "),
    ] {
        let ended = with_answer(&cluster, h1, value.as_bytes());
        let is_own = words == "1 addresses";
        assert_eq!(ended.status.success(), is_own, "{ended}");
        assert_eq!(ended.stdout.contains(words), !is_own, "{words} in {ended}");
        assert!(ended.stdout.contains("default/web"), "{ended}");
        let is_shown = ended.stdout.contains(&own_v4) && ended.stdout.contains("h2 ");
        assert_eq!(is_shown, is_own, "{ended}");
        assert!(!ended.stdout.contains(['\u{1b}', '\u{7}']), "{ended}");
        assert!(ended.stdout.len() < 2000, "{}", ended.stdout.len());
    }
}

/// Whoever asks all the time costs the others one answer in two seconds.
#[test]
fn requests_in_a_row_get_few_answers() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let agent = Agent::start(host, &[]);
    agent.wait_ready();
    let begun = Instant::now();
    let answer = format!("{ANSWERS}h1");
    while begun.elapsed() < Duration::from_secs(5) {
        for number in 0..20 {
            cluster.etcd.put(&format!("{REQUESTS}h{number}"), "x".repeat(1000));
        }
    }
    eventually("an answer", crate::support::wait::SOON, || match cluster.etcd.version(&answer) {
        0 => Err("none".to_owned()),
        _ => Ok(()),
    });
    let (count, most) = (cluster.etcd.version(&answer), begun.elapsed().as_secs() as i64 / 2 + 2);
    assert!(count <= most, "{count} answers");
    // Nothing else happened to it.
    assert!(!agent.log().contains("WARN"), "{}", agent.log());
}
