//! A denied pod sends without end while everything changes that can: not one of its packets arrives, and
//! the connection beside it loses none. `POLICY_LEAK=whole` does as much as a night of a busy host.

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::RcvBufForce;
use serde_json::{Value, json};

use crate::one_host::is_closed;
use crate::start::InNetns;
use crate::support::cni::Network;
use crate::support::process::lock;
use crate::support::wait::{SOON, patience};
use crate::support::{Agent, Cluster, Node, Place, Pod, eventually, pod};
use crate::traffic::Flood;
use crate::{FILE, PORT, STANDALONE, add, alone, attachment, only_from, serve, write_policies};

fn is_whole() -> bool {
    std::env::var("POLICY_LEAK").is_ok_and(|text| text == "whole")
}

/// Counts all packets to a pod, at once.
struct Counter {
    received: Arc<std::sync::Mutex<BTreeMap<IpAddr, u64>>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Counter {
    fn open(at: &impl Place) -> Counter {
        let socket = at.spot().inside(|| UdpSocket::bind(("::", PORT)).unwrap());
        setsockopt(&socket, RcvBufForce, &(64 << 20)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let (received, ends) = (Arc::default(), Arc::default());
        let counter: (Arc<std::sync::Mutex<BTreeMap<IpAddr, u64>>>, Arc<AtomicBool>) =
            (Arc::clone(&received), Arc::clone(&ends));
        let thread = std::thread::spawn(move || {
            let (received, ends) = counter;
            while !ends.load(Ordering::Relaxed) {
                if let Ok((_, from)) = socket.recv_from(&mut [0; 16]) {
                    *lock(&received).entry(from.ip().to_canonical()).or_default() += 1;
                    let _gone = socket.send_to(b"answer", from);
                }
            }
        });
        Counter { received, ends, thread: Some(thread) }
    }

    fn of(&self, source: IpAddr) -> u64 {
        lock(&self.received).get(&source).copied().unwrap_or(0)
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _panicked = self.thread.take().map(JoinHandle::join);
    }
}

/// Packets that the kernel had no time for, before any rule: on a machine that is slow enough (the second number of
/// each processor's line in softnet_stat).
fn full_queues(host: &Node) -> u64 {
    let lines = host.shell("cat /proc/net/softnet_stat").ok();
    let dropped = |line: &str| u64::from_str_radix(line.split(' ').nth(1).unwrap(), 16).unwrap();
    lines.lines().map(dropped).sum()
}

/// Numbers that look random, from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// `web` may reach `db`, `other` never; everything else is as it comes.
fn policies(random: &mut Random) -> Vec<Value> {
    let app = |number: u64| format!("app{number}");
    let peers: Vec<String> = (0..random.below(4)).map(|_| app(random.below(20))).collect();
    let peers: Vec<&str> = peers.iter().map(String::as_str).chain(["web"]).collect();
    let mut all = vec![only_from("db", &peers)];
    for number in 0..random.below(6) {
        all.push(only_from(&app(number), &[&app(random.below(20)), "db"]));
    }
    for number in 0..random.below(5) {
        // Pods of other hosts, and one of this host by another name.
        let address = format!("10.250.{number}.{}", 2 + random.below(200));
        all.push(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "shop", "name": format!("far{number}"),
                "labels": {"app": app(random.below(20))}},
            "spec": {"nodeName": "elsewhere"}, "status": {"podIPs": [{"ip": address}]},
        }));
    }
    if random.below(2) == 0 {
        all.push(json!({
            "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
            "metadata": {"name": "a"},
            "spec": {"tier": "Admin", "priority": random.below(1000), "subject": {"namespaces": {}},
                "ingress": [{"action": "Pass", "from": [{"namespaces": {}}]}]},
        }));
    }
    all
}

/// What somebody does to the table that opens nothing, or that nobody can while an agent has it: one that was
/// just started may not have it yet.
fn damage(host: &Node, random: &mut Random) {
    let mut done = vec![
        "nft add chain inet humanz-policy mine",
        "nft flush set inet humanz-policy epoch",
        "nft flush chain inet humanz-policy judged",
        "nft add counter inet humanz-policy mine",
        "nft add element inet humanz-policy in4 '{ 10.244.1.250 : accept }'",
        "nft add rule inet humanz-policy unknown counter",
        "nft flush set inet humanz-policy self4",
    ];
    if is_closed(host) {
        done.extend(["nft delete table inet humanz-policy", "nft flush table inet humanz-policy"]);
    }
    // The table may be in the middle of a change.
    host.shell(done[random.below(done.len() as u64) as usize]);
}

#[test]
fn nothing_of_a_denied_pod_arrives_whatever_changes() {
    let (changes, kills) = match (is_whole(), patience()) {
        (true, _) => (10_000, 100),
        (false, 1) => (400, 8),
        // In an emulated machine the floods leave a change eight seconds.
        _ => (40, 4),
    };
    let alone = alone();
    let host = &alone.host;
    let seed = std::process::id();
    println!("seed {seed}");
    let mut random = Random(u64::from(seed));
    write_policies(host, &policies(&mut random));
    let mut agent = serve(host, &[]);
    let (db, web) = (add(host, "db", "db"), add(host, "web", "web"));
    let other = add(host, "other", "other");
    let counter = Counter::open(&db);
    // What is sent before both ends know each other's MAC may be lost.
    for (from, to) in [(web.v4(), db.v4()), (web.v6(), db.v6())] {
        let _first = Flood::start(&web, to);
        eventually("the first packets", SOON, || match counter.of(from) {
            0..10 => Err("none".to_owned()),
            _ => Ok(()),
        });
    }
    std::thread::sleep(Duration::from_millis(300));
    lock(&counter.received).clear();
    let floods = [db.v4(), db.v6()].map(|to| [Flood::start(&web, to), Flood::start(&other, to)]);
    let full = full_queues(host);
    let begun = Instant::now();
    let (mut made, mut damaged) = (0, 0);
    for change in 1..=changes {
        write_policies(host, &policies(&mut random));
        match random.below(8) {
            0 => {
                damage(host, &mut random);
                damaged += 1;
            }
            1 if change % 10 == 0 => {
                let name = format!("p{change}");
                let app = format!("app{}", random.below(20));
                add(host, &name, &app).delete();
                made += 1;
            }
            _ => std::thread::sleep(Duration::from_millis(random.below(30))),
        }
        if change % (changes / kills) == 0 {
            agent.process.signal(Signal::SIGKILL);
            agent.process.wait(SOON);
            write_policies(host, &policies(&mut random));
            damage(host, &mut random);
            agent = Agent::start(host, STANDALONE);
            if random.below(2) == 0 {
                agent.wait_ready();
            }
        }
        for source in [other.v4(), other.v6()] {
            assert_eq!(counter.of(source), 0, "seed {seed}, change {change}");
        }
    }
    let took = begun.elapsed();
    let [sent, denied] = [0, 1].map(|at| floods.each_ref().map(|both| both[at].sent()));
    drop(floods);
    let arrived = || [web.v4(), web.v6()].map(|source| counter.of(source));
    let full = full_queues(host) - full;
    eventually("the allowed ones", SOON, || {
        let (arrived, sent) = (arrived(), sent);
        let all = arrived.iter().zip(&sent).all(|(arrived, sent)| arrived + full >= *sent);
        if all {
            Ok(())
        } else {
            Err(format!("{arrived:?} of {sent:?} arrived, {full} found a full queue"))
        }
    });
    let arrived = arrived();
    println!(
        "{changes} changes, {kills} kills, {damaged} damages, {made} pods in {took:?}: {denied:?} denied packets, \
         0 arrived; {arrived:?} allowed ones arrived of at least {sent:?}"
    );
    agent.wait_ready();
    agent.stop();
}

/// Pods that start, one after the other, at two addresses to which `other` and `web` send all the time.
fn starts(host: &Node, count: u64, names: &str, floods: [&Pod; 2], in_force: bool) {
    let [other, web] = floods;
    let IpAddr::V6(v6) = web.v6() else { panic!("{} is no IPv6", web.v6()) };
    let [a, b, c, d, ..] = v6.segments();
    let addresses: [IpAddr; 2] = [[10, 244, 1, 77].into(), [a, b, c, d, 0, 0, 0, 0x77].into()];
    let flood = |from: &Pod| addresses.map(|to| Flood::start(from, to));
    let (denied, _allowed) = (flood(other), flood(web));
    let arrived = |counter: &Counter, from: &Pod| [from.v4(), from.v6()].map(|it| counter.of(it));
    let mut reached = Vec::new();
    for number in 0..count {
        let name = format!("{names}{number}");
        pod::make_netns(host, &name);
        let counter = Counter::open(&InNetns(host, format!("/run/netns/{name}")));
        let mut to = attachment(&name, "db");
        to.runtime = json!({"ips": addresses});
        let begun = Instant::now();
        let db = Pod::connect(host, &Network::of(host), to).unwrap();
        if in_force {
            eventually("allowed packets", SOON, || match arrived(&counter, web) {
                [v4, v6] if v4 > 0 && v6 > 0 => Ok(()),
                arrived => Err(format!("{arrived:?}")),
            });
            reached.push(begun.elapsed());
        } else {
            denied.iter().for_each(Flood::go_on);
            assert_eq!(arrived(&counter, web), [0, 0], "{name}: before its release");
        }
        assert_eq!(arrived(&counter, other), [0, 0], "{name}");
        db.delete();
    }
    reached.sort_unstable();
    println!(
        "{count} starts {names}: {:?} denied packets, 0 arrived",
        denied.each_ref().map(Flood::sent)
    );
    if let Some(median) = reached.get(reached.len() / 2) {
        println!(
            "reachable for allowed peers {median:?} after ADD began, {:?} at most",
            reached.last()
        );
        // Not only after another second.
        assert!(*median < Duration::from_millis(800) * patience(), "{reached:?}");
    }
}

#[test]
fn nothing_arrives_at_pods_that_start_with_and_without_an_agent_and_etcd() {
    let count = if is_whole() { 334 } else { 12 };
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    write_policies(host, &[only_from("db", &["web"])]);
    let settings = [("POLICY", "on"), ("POLICY_FILE", FILE), ("IPV6_SUBNET", "fd10::/48")];
    let agent = Agent::start(host, &settings);
    agent.wait_ready();
    let (web, other) = (add(host, "web", "web"), add(host, "other", "other"));
    starts(host, count, "up", [&other, &web], true);
    cluster.etcd.kill();
    starts(host, count, "cut", [&other, &web], true);
    agent.kill();
    starts(host, count, "dead", [&other, &web], false);
}
