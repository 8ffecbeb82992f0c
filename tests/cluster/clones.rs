//! A machine and its copy: one name, one machine id, one state.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::disputed::{
    CONFIGURATION, gateway, no_pod_starts, reaches_its_gateway, subnet, until_not_ready,
    until_ready,
};
use crate::support::cni::Network;
use crate::support::wait::SOON;
use crate::support::{Agent, Cluster, Node, Pinger, Place, Pod, eventually, facts, local};

const NAME: &[(&str, &str)] = &[("NODE_NAME", "h1")];

/// Gives `clone` what identifies `original`.
fn copy_disk(original: &Node, clone: &Node) {
    clone.run("mkdir -p /var/lib/humanz").ok();
    for file in ["/etc/machine-id", "/var/lib/humanz/state.json"] {
        clone.write(file, &original.read(file).unwrap());
    }
}

#[test]
fn a_clone_that_served_without_etcd_gives_out_no_address_once_etcd_answers() {
    let cluster = Cluster::new(2);
    let [original, clone] = &cluster.hosts[..] else { panic!("two hosts") };
    let first = Agent::start(original, &[]);
    first.wait_ready();
    let subnet = subnet(&cluster, "h1");
    copy_disk(original, clone);
    first.process.signal(Signal::SIGSTOP);
    cluster.part(clone, &cluster.etcd.node);
    let copy = Agent::start(clone, NAME);
    copy.wait_ready();
    let (pod, network) = (Pod::add(clone, "while-nobody-knew"), Network::of(clone));
    cluster.join();
    let words = ["h1", "may still live"];
    until_not_ready(clone, &words);
    no_pod_starts(clone, "while-it-waits", &network, &words);
    first.process.signal(Signal::SIGCONT);
    let words = ["h1", "does not serve"];
    until_not_ready(clone, &words);
    no_pod_starts(clone, "once-decided", &network, &words);
    until_ready(original);
    reaches_its_gateway(&pod, clone, &gateway(&subnet));

    // A start without etcd forgets nothing of it.
    copy.kill();
    no_pod_starts(clone, "without-agent", &network, &words);
    cluster.part(clone, &cluster.etcd.node);
    let copy = Agent::start(clone, NAME);
    until_not_ready(clone, &["does not serve", "until etcd says"]);
    no_pod_starts(clone, "without-etcd", &network, &words);
    reaches_its_gateway(&pod, clone, &gateway(&subnet));
    Pod::add(original, "later").delete();
    copy.stop();
}

/// The longest time in which both give out addresses: as long as the original stands still after the end of
/// its alive key, and this.
#[test]
fn an_original_that_wakes_after_its_clone_took_over_gives_out_no_address() {
    let cluster = Cluster::new(2);
    let [original, clone] = &cluster.hosts[..] else { panic!("two hosts") };
    let first = Agent::start(original, &[]);
    first.wait_ready();
    let (subnet, pod) = (subnet(&cluster, "h1"), Pod::add(original, "running"));
    let network = Network::of(original);
    copy_disk(original, clone);
    let address = original.v4();
    clone.run(&format!("ip address add {address}/32 dev lo")).ok();
    first.process.signal(Signal::SIGSTOP);
    let stalled = Instant::now();
    let copy = Agent::start(clone, &[NAME[0], ("NODE_IP", &address.to_string())]);
    until_not_ready(clone, &["h1", "may still live"]);
    eventually("the clone serves", 4 * SOON, || {
        clone.read(CONFIGURATION).map(drop).ok_or_else(|| copy.log())
    });
    let waited = stalled.elapsed();
    println!("the clone took over after {waited:?}");
    assert!(waited > Duration::from_secs(15), "before the end of the alive key: {waited:?}");
    first.process.signal(Signal::SIGCONT);
    let woke = Instant::now();
    until_not_ready(original, &["h1", "does not serve"]);
    no_pod_starts(original, "late", &network, &["h1", "does not serve"]);
    let took = woke.elapsed();
    println!("the original gives out no address {took:?} after it woke");
    assert!(took < Duration::from_secs(5), "{took:?}");
    reaches_its_gateway(&pod, original, &gateway(&subnet));
    copy.stop();
}

#[test]
fn an_original_that_is_stalled_keeps_its_name_and_its_clone_waits() {
    let cluster = Cluster::new(2);
    let [original, clone] = &cluster.hosts[..] else { panic!("two hosts") };
    let first = Agent::start(original, &[]);
    first.wait_ready();
    let (subnet, pod) = (subnet(&cluster, "h1"), Pod::add(original, "running"));
    copy_disk(original, clone);
    let instance = || {
        let alive = cluster.etcd.get("/humanz/v1/alive/h1").expect("it is kept");
        serde_json::from_str::<Value>(&alive).unwrap()["instance"].clone()
    };
    let before = instance();
    first.process.signal(Signal::SIGSTOP);
    let copy = Agent::start(clone, &[("NODE_NAME", "h1")]);
    until_not_ready(clone, &["h1", "may still live"]);
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(instance(), before, "nobody takes the name");
    assert_eq!(clone.read(CONFIGURATION), None, "nor serves what the original knew");
    // Nor because calls fail meanwhile, for longer than a host waits that knows itself.
    cluster.part(clone, &cluster.etcd.node);
    local::status_when(clone, "a failed call", |status| local::has_problem(status, "etcd"));
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(clone.read(CONFIGURATION), None, "a failed call makes nobody an original");
    cluster.join();
    first.process.signal(Signal::SIGCONT);
    let words = ["which came second, does not serve"];
    eventually("the copy stands back", 4 * SOON, || {
        let (code, body) = local::get(clone, "/readyz");
        let hit = code == 503 && !body.contains("may still live");
        if hit && words.iter().all(|word| body.contains(word)) { Ok(()) } else { Err(body) }
    });
    assert_eq!((instance(), self::subnet(&cluster, "h1")), (before, subnet.clone()));
    until_ready(original);
    reaches_its_gateway(&pod, original, &gateway(&subnet));
    Pod::add(original, "later").delete();
    assert_eq!(clone.read(CONFIGURATION), None);
    copy.stop();
}

#[test]
fn a_cloned_machine_does_not_serve_and_the_original_loses_no_packet() {
    let cluster = Cluster::new(3);
    let [original, other, clone] = &cluster.hosts[..] else { panic!("three hosts") };
    let first = Agent::start(original, &[]);
    first.wait_ready();
    let second = Agent::start(other, &[]);
    second.wait_ready();
    let (near, far) = (Pod::add(original, "a"), Pod::add(other, "a"));
    let pinger = Pinger::start(&far, near.v4());
    first.stop();
    copy_disk(original, clone);
    let first = Agent::start(original, &[]);
    first.wait_ready();
    let node = cluster.etcd.get("/humanz/v1/nodes/h1").unwrap();

    let copy = Agent::start(clone, &[("NODE_NAME", "h1")]);
    let words = ["h1", "machine id", "NODE_NAME"];
    until_not_ready(clone, &words);
    local::wait_problem(original, "lease", "etcd");
    // Longer than an agent waits for etcd before it serves what it knew.
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(clone.read(CONFIGURATION), None);
    assert_eq!(facts::addresses(clone, "humanz0"), Vec::<String>::new());
    until_ready(original);
    assert_eq!(cluster.etcd.get("/humanz/v1/nodes/h1"), Some(node), "nothing is written");
    Pod::add(original, "b").delete();
    pinger.report().assert_nothing_lost();
    copy.stop();
    local::status_when(original, "no copy", |status| !local::has_problem(status, "lease"));
}

/// It finds the alive key of its own crash, and etcd is gone before that ends.
#[test]
fn a_host_that_boots_after_a_crash_serves_within_a_minute_though_etcd_goes_away() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let agent = Agent::start(host, &[]);
    agent.wait_ready();
    Pod::add(host, "before").delete();
    agent.kill();
    drop(agent);
    cluster.reboot(host);
    let agent = Agent::start(host, &[]);
    let crashed = Instant::now();
    until_not_ready(host, &["h1", "may still live"]);
    cluster.part(host, &cluster.etcd.node);
    eventually("it serves", 8 * SOON, || {
        let (code, body) = local::get(host, "/readyz");
        if code == 200 { Ok(()) } else { Err(body) }
    });
    println!("it serves after {:?}", crashed.elapsed());
    Pod::add(host, "without-etcd").delete();
    agent.stop();
}
