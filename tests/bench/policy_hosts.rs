//! How soon policies hold on many hosts that share one etcd: each an agent of its own, on the processors of
//! this machine. `POLICY_HOSTS` is another number of hosts.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::policy::{connect, only_from, row};
use crate::series::middle;
use crate::support::node::{Node, Place};
use crate::support::{Agent, Cluster, Pod};
use crate::table::Table;
use crate::usage;
use crate::workspace::Workspace;

const HOSTS: u8 = 50;
const TURNS: usize = 11;
const PORT: u16 = 9000;
const PATIENCE: Duration = Duration::from_secs(60);

const SETTINGS: &[(&str, &str)] = &[("IPV6_SUBNET", ""), ("POLICY", "on")];

pub fn measure(_: &mut Workspace, table: &mut Table) {
    let hosts = std::env::var("POLICY_HOSTS").ok().and_then(|text| text.parse().ok());
    let cluster = Cluster::new(hosts.unwrap_or(HOSTS));
    let agents = cluster.start_agents(SETTINGS);
    let hosts = &cluster.hosts[..];
    apply(&hosts[0], &["nobody"]);
    let pods: Vec<Pod> = hosts[1..].iter().map(|host| connect(host, "db", "db")).collect();
    changes(&cluster, &pods, table);
    new_pods(hosts, &pods, table);
    drop((pods, agents));
}

/// The policy for the pods `db`, and nine that concern nobody.
fn apply(host: &Node, from: &[&str]) {
    let more = (0..9).map(|number| only_from(&format!("app{number}"), &["nobody"]));
    let all: Vec<_> = [only_from("db", from)].into_iter().chain(more).collect();
    host.write("/etc/policies.json", &json!(all).to_string());
    Agent::run(host, "policy apply -f /etc/policies.json", SETTINGS).ok();
}

/// Sends to all of `pods` again and again, and receives when each received its first packet.
struct FirstPackets<'a> {
    pods: &'a [Pod],
    servers: Vec<UdpSocket>,
}

impl<'a> FirstPackets<'a> {
    fn to(pods: &'a [Pod]) -> FirstPackets<'a> {
        let open = |pod: &Pod| {
            let server = pod.spot().inside(|| UdpSocket::bind(("0.0.0.0", PORT)).unwrap());
            server.set_read_timeout(Some(PATIENCE)).unwrap();
            server
        };
        FirstPackets { pods, servers: pods.iter().map(open).collect() }
    }

    /// When the last of the pods received its first packet from the pod that `begin` gives.
    fn all_received(&self, begin: impl FnOnce() -> Pod) -> (Instant, Pod) {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let (sender, times): (_, Receiver<Instant>) = channel();
            for server in &self.servers {
                let sender = sender.clone();
                scope.spawn(move || {
                    server.recv(&mut [0; 4]).unwrap();
                    sender.send(Instant::now()).unwrap();
                });
            }
            let from = begin();
            let client = from.spot().inside(|| UdpSocket::bind("0.0.0.0:0").unwrap());
            scope.spawn(|| self.send(client, &done));
            let last = self.servers.iter().map(|_| times.recv_timeout(PATIENCE).unwrap()).max();
            done.store(true, Ordering::Relaxed);
            (last.unwrap(), from)
        })
    }

    fn send(&self, client: UdpSocket, done: &AtomicBool) {
        while !done.load(Ordering::Relaxed) {
            for pod in self.pods {
                drop(client.send_to(b"x", SocketAddr::new(pod.v4(), PORT)));
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// From the moment just before the changed policy is sent to etcd, which is before any host has learned of it: what
/// `policy apply` needs to get there is not the hosts' time.
fn changes(cluster: &Cluster, pods: &[Pod], table: &mut Table) {
    let (hosts, mut taken) = (&cluster.hosts[..], Vec::new());
    apply(&hosts[0], &["web"]);
    let (key, allows) = stored(cluster);
    let mut web = Some(connect(&hosts[0], "web", "web"));
    for _ in 0..TURNS {
        apply(&hosts[0], &["nobody"]);
        thread::sleep(Duration::from_millis(500));
        let traffic = FirstPackets::to(pods);
        let (begun, last, pod) = thread::scope(|scope| {
            let put = scope.spawn(|| cluster.etcd.put(&key, allows.as_str()));
            let (last, pod) = traffic.all_received(|| web.take().unwrap());
            (put.join().unwrap(), last, pod)
        });
        taken.push((last - begun).as_secs_f64() * 1e3);
        web = Some(pod);
    }
    let what = format!("{} hosts: a policy changed in etcd → in force on all", hosts.len());
    row(what, (100.0, "ms"), middle(taken), &applying(&hosts[0]), table);
}

/// The key and the value of the policy for the pods `db`.
fn stored(cluster: &Cluster) -> (String, String) {
    let stored = cluster.etcd.list("/humanz/v1-policies/NetworkPolicy/");
    stored.into_iter().find(|(key, _)| key.ends_with("/db")).expect("the policy is in etcd")
}

/// What the command alone takes, which reads etcd, compares and writes.
fn applying(host: &Node) -> String {
    let taken = (0..5).map(|turn| {
        let begun = Instant::now();
        apply(host, &[if turn % 2 == 0 { "nobody" } else { "nobody2" }]);
        begun.elapsed().as_secs_f64() * 1e3
    });
    format!("policy apply itself {:.0} ms", middle(taken.collect()))
}

fn new_pods(hosts: &[Node], pods: &[Pod], table: &mut Table) {
    let (mut taken, mut adds, mut cpus) = (Vec::new(), Vec::new(), Vec::new());
    let used = || hosts[1..].iter().map(usage::cpu).sum::<Duration>();
    apply(&hosts[0], &["web"]);
    for number in 0..TURNS {
        thread::sleep(Duration::from_millis(500));
        let (traffic, before) = (FirstPackets::to(pods), used());
        let begun = Instant::now();
        let mut added = Duration::ZERO;
        let (last, pod) = traffic.all_received(|| {
            let pod = connect(&hosts[0], &format!("new{number}"), "web");
            added = begun.elapsed();
            pod
        });
        taken.push((last - begun).as_secs_f64() * 1e3);
        adds.push(added.as_secs_f64() * 1e3);
        thread::sleep(Duration::from_millis(300));
        cpus.push((used() - before).as_secs_f64() * 1e3 / pods.len() as f64);
        pod.delete();
    }
    let hosts = hosts.len();
    let floor = format!("ADD alone {:.0} ms", middle(adds));
    let what = format!("{hosts} hosts: ADD began → reachable for allowed peers on all");
    row(what, (100.0, "ms"), middle(taken), &floor, table);
    let what = format!("{hosts} hosts: CPU of another host's agent for one peer more");
    row(what, (1.0, "ms"), middle(cpus), "", table);
}
