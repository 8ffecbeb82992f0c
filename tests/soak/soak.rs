//! `make soak`: four hosts, an etcd and pods for an hour (SOAK: seconds), while everything that can
//! break breaks; at the end nothing may be left over, and nothing may have grown.
//!
//! Everything is real (kernel, etcd, agent, plugin); only the hosts are namespaces of this machine.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it prints its progress and stops at the first failure"
)]

use humanz_test_support as support;

mod leaks;
mod tenants;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use leaks::{Count, count, grown};
use serde_json::{Value, json};
use support::cni::{Attachment, Network, PLUGINS};
use support::pod::make_netns;
use support::{Agent, Cluster, Node, Pinger, Place, Pod, eventually, facts};
use tenants::{SETTINGS, Stop, Tenants};

/// How long the hosts may take to be whole again.
const WHOLE: Duration = Duration::from_secs(90);

/// Warm-up rounds before the first count.
const WARM_UP: usize = 12;

/// The longest silence between pods that a round may bring: a host's rules or routes are gone for a
/// moment, and this machine is busy.
const SILENCE: Duration = Duration::from_secs(5);

/// Three permanent hosts, and one that joins and leaves.
struct Scene {
    pods: Vec<Pod>,
    agents: Vec<Agent>,
    /// With a pod in a network of a tenant.
    guest: Option<(Agent, Pod)>,
    tenants: Arc<Tenants>,
    cluster: Cluster,
    longest: BTreeMap<&'static str, Duration>,
}

/// A failure of a round, and its function.
type Event = (&'static str, fn(&mut Scene));

const EVENTS: [Event; 10] = [
    ("pods come and go", Scene::nothing),
    ("an agent is killed", Scene::kill_an_agent),
    ("nft flush ruleset", Scene::flush),
    ("etcd is killed", Scene::kill_etcd),
    ("plugins are killed", Scene::kill_plugins),
    ("routes are deleted", Scene::delete_routes),
    ("a host joins or leaves", Scene::join_or_leave),
    ("etcd stands still", Scene::freeze_etcd),
    ("etcd forgets its history", Scene::compact_etcd),
    ("etcd loses its data", Scene::empty_etcd),
];

fn main() -> ExitCode {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("the soak makes network namespaces: run it as root");
        return ExitCode::FAILURE;
    }
    let seconds = std::env::var("SOAK").ok().and_then(|text| text.parse().ok()).unwrap_or(3600);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut scene = Scene::start();
    let mut first = None;
    let mut round = 0;
    while Instant::now() < end || round < WARM_UP + EVENTS.len() {
        let (what, event) = EVENTS[round % EVENTS.len()];
        scene.round(what, event);
        round += 1;
        if round == WARM_UP {
            first = Some(scene.settled());
        } else if round % EVENTS.len() == 0 {
            println!("round {round}: {}", scene.counts().join("; "));
        }
    }
    let (first, last) = (first.unwrap_or_default(), scene.settled());
    println!("{round} rounds; the longest silence between pods in each kind:");
    for (what, silence) in &scene.longest {
        println!("  {what}: {silence:.1?}");
    }
    let mut leaks: Vec<String> = scene
        .longest
        .iter()
        .filter(|(_, gap)| **gap > SILENCE)
        .map(|(what, gap)| format!("{what}: pods were silent for {gap:.1?}"))
        .collect();
    println!("leaks: what there was after {WARM_UP} rounds → at the end");
    for (name, before) in &first {
        let now = last.get(name).copied().unwrap_or_default();
        println!("  {name}: {} → {}", before.value, now.value);
        leaks.extend(grown(name, *before, now));
    }
    for leak in &leaks {
        println!("LEAK {leak}");
    }
    if leaks.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Scene {
    fn start() -> Scene {
        let cluster = Cluster::new(4);
        let agents: Vec<Agent> =
            cluster.hosts[..3].iter().map(|host| Agent::start(host, SETTINGS)).collect();
        for agent in &agents {
            agent.wait_ready();
        }
        let pods = cluster.hosts[..3].iter().map(|host| Pod::add(host, "stays")).collect();
        let (tenants, longest) = (Arc::default(), BTreeMap::new());
        Scene { pods, agents, guest: None, tenants, cluster, longest }
    }

    /// Pods are added, a failure happens, pods are deleted; others communicate meanwhile.
    fn round(&mut self, what: &'static str, event: fn(&mut Scene)) {
        self.whole();
        let pairs = [(0, 1), (1, 2), (2, 0)];
        let pingers: Vec<Pinger> =
            pairs.iter().map(|(a, b)| Pinger::start(&self.pods[*a], self.pods[*b].v4())).collect();
        let passing = self.churn();
        self.while_tenants_start_pods(event);
        self.tenants.whole(&self.cluster.hosts[..3]);
        self.tenants.next(&self.cluster.hosts[0]);
        thread::scope(|scope| {
            for pod in passing {
                scope.spawn(|| pod.delete());
            }
        });
        for pinger in pingers {
            let gap = pinger.report().longest_gap();
            let longest = self.longest.entry(what).or_default();
            *longest = gap.max(*longest);
        }
    }

    /// The failure, and its end, while pods in networks of tenants come and go.
    fn while_tenants_start_pods(&mut self, event: fn(&mut Scene)) {
        let hosts = self.cluster.hosts[..3].to_vec();
        self.tenants.apply(&hosts[0]);
        let tenants = Arc::clone(&self.tenants);
        let stopped = AtomicBool::new(false);
        thread::scope(|scope| {
            let _stop = Stop(&stopped);
            for host in &hosts {
                scope.spawn(|| tenants.churn(host, &stopped));
            }
            event(self);
            self.whole();
        });
    }

    /// Two pods on each host, at once.
    fn churn(&self) -> Vec<Pod> {
        thread::scope(|scope| {
            let hosts = self.cluster.hosts[..3].iter();
            let adding = hosts.flat_map(|host| {
                ["p1", "p2"].map(|name| scope.spawn(move || Pod::add(host, name)))
            });
            let adding: Vec<_> = adding.collect();
            adding.into_iter().map(|pod| pod.join().unwrap()).collect()
        })
    }

    /// Every host has a route to every other.
    fn whole(&self) {
        let hosts = 3 + usize::from(self.guest.is_some());
        for agent in self.agents.iter().chain(self.guest.iter().map(|(agent, _)| agent)) {
            eventually(&format!("{} has all routes", agent.host.name()), WHOLE, || {
                let mut routes = facts::routes(&agent.host);
                routes.retain(|to, _| to.starts_with("10.244."));
                let rules = agent.host.run("nft list table inet humanz").succeeded();
                match routes.len() == hosts - 1 && rules {
                    true => Ok(()),
                    false => Err(format!("{routes:?}, rules: {rules}\n{}", agent.log())),
                }
            });
        }
    }

    fn nothing(&mut self) {}

    /// Never the first one: its memory is watched.
    fn kill_an_agent(&mut self) {
        let agent = self.agents.remove(1);
        agent.kill();
        let host = agent.host.clone();
        drop(agent);
        self.agents.push(Agent::start(&host, SETTINGS));
        self.agents[2].wait_ready();
    }

    fn flush(&mut self) {
        for host in &self.cluster.hosts[..3] {
            host.run("nft flush ruleset").ok();
        }
    }

    fn delete_routes(&mut self) {
        for host in &self.cluster.hosts[..3] {
            host.run("ip route flush proto 104").ok();
        }
    }

    fn kill_etcd(&mut self) {
        self.cluster.etcd.kill();
        thread::sleep(Duration::from_secs(2));
        self.cluster.etcd.restart();
    }

    fn freeze_etcd(&mut self) {
        self.cluster.etcd.freeze();
        thread::sleep(Duration::from_secs(8));
        self.cluster.etcd.thaw();
    }

    fn compact_etcd(&mut self) {
        self.cluster.etcd.compact();
        self.cluster.etcd.restart();
    }

    fn empty_etcd(&mut self) {
        self.cluster.etcd.restart_empty();
        eventually("all hosts are in etcd again", WHOLE, || {
            let hosts = self.cluster.etcd.list("/humanz/hosts/").len();
            let there = 3 + usize::from(self.guest.is_some());
            if hosts == there { Ok(()) } else { Err(format!("{hosts} hosts")) }
        });
        self.tenants.apply(&self.cluster.hosts[0]);
    }

    /// The fourth host starts its agent, or gives its subnet back and is taken off.
    fn join_or_leave(&mut self) {
        match self.guest.take() {
            None => {
                let guest = Agent::start(&self.cluster.hosts[3], SETTINGS);
                guest.wait_ready();
                let pod = tenants::started(&guest.host, "blue/guest");
                self.guest = Some((guest, pod));
            }
            Some((guest, pod)) => {
                pod.delete();
                guest.stop();
                Agent::run(&guest.host, "uninstall --release", SETTINGS).ok();
            }
        }
    }

    /// ADD and DEL are killed on whatever line they are; the runtime then calls DEL.
    fn kill_plugins(&mut self) {
        thread::scope(|scope| {
            for host in &self.cluster.hosts[..3] {
                scope.spawn(|| kill_plugins_on(host));
            }
        });
    }

    /// The counts at rest.
    fn settled(&mut self) -> BTreeMap<String, Count> {
        if self.guest.is_some() {
            self.join_or_leave();
        }
        self.whole();
        self.tenants.no_blocks(&self.cluster);
        // After a loss of data an agent notices within ten seconds that its etcd lease is gone.
        eventually("every agent shows that it lives", WHOLE, || {
            let alive = self.cluster.etcd.list("/humanz/v1/alive/").len();
            if alive == 3 { Ok(()) } else { Err(format!("{alive} do")) }
        });
        thread::sleep(Duration::from_secs(3));
        let mut counts = BTreeMap::new();
        for agent in &self.agents {
            count(&agent.host, agent.host.name() == "h1", &mut counts);
        }
        // The counter is there from the first number on that is drawn after a loss of data.
        let keys = self.cluster.etcd.list("/humanz/").into_iter();
        let keys = keys.filter(|(key, _)| key != "/humanz/counter").count() as u64;
        counts.insert("keys in etcd".to_owned(), Count { value: keys, spare: 0 });
        counts
    }

    /// Memory and descriptors of the agents, over time.
    fn counts(&self) -> Vec<String> {
        let of = |agent: &Agent| {
            let mut counts = BTreeMap::new();
            count(&agent.host, true, &mut counts);
            let process = counts.iter().filter(|(name, _)| name.contains("agent"));
            let values: Vec<String> =
                process.map(|(name, count)| format!("{name} {}", count.value)).collect();
            values.join(", ")
        };
        self.agents.iter().map(of).collect()
    }
}

fn kill_plugins_on(host: &Node) {
    let network = Network::of(host);
    let kind = network.plugins[0]["type"].as_str().unwrap().to_owned();
    for (number, milliseconds) in [1, 2, 4, 7, 11, 16].into_iter().enumerate() {
        let name = format!("killed{number}");
        make_netns(host, &name);
        let of = match number % 2 {
            0 => Attachment::new(&name),
            _ => {
                let of = tenants::attachment("blue/killed", json!({}));
                Attachment { container: name.clone(), netns: format!("/run/netns/{name}"), ..of }
            }
        };
        for verb in ["ADD", "DEL"] {
            let (_, conf) = network.invocation(verb, &network.plugins[0], Some(&of), &Value::Null);
            host.write("/tmp/killed.json", &conf);
            // It may have ended before.
            host.shell(&format!(
                "CNI_COMMAND={verb} CNI_CONTAINERID={} CNI_NETNS={} CNI_IFNAME=eth0 \
                 CNI_PATH={PLUGINS} timeout -s KILL 0.{milliseconds:03} {PLUGINS}/{kind} \
                 </tmp/killed.json || true",
                of.container, of.netns
            ));
        }
        network.del(host, &of, &Value::Null).unwrap();
        host.run(&format!("ip netns del {name}")).ok();
    }
}
