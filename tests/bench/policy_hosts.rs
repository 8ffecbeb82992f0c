//! How soon policies hold on many hosts that share one etcd: each an agent of its own, on the processors of
//! this machine. `POLICY_HOSTS` is another number of hosts.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::policy::{connect, only_from, row};
use crate::series::middle;
use crate::support::node::{Node, Place, command};
use crate::support::{Agent, Cluster, Pod};
use crate::table::Table;
use crate::usage;
use crate::workspace::Workspace;

const HOSTS: u8 = 50;
const TURNS: usize = 11;
const PORT: u16 = 9000;
const PATIENCE: Duration = Duration::from_secs(60);
/// In which the agents have done what a change asks of them.
const WINDOW: Duration = Duration::from_millis(500);

const SETTINGS: &[(&str, &str)] = &[("IPV6_SUBNET", ""), ("POLICY", "on")];

pub fn measure(_: &mut Workspace, table: &mut Table) {
    let hosts = std::env::var("POLICY_HOSTS").ok().and_then(|text| text.parse().ok());
    let cluster = Cluster::new(hosts.unwrap_or(HOSTS));
    let hosts = &cluster.hosts[..];
    hosts.iter().for_each(|host| know_the_others(host, hosts));
    let agents = cluster.start_agents(SETTINGS);
    apply(&hosts[0], &["nobody"]);
    let pods: Vec<Pod> = hosts[1..].iter().map(|host| connect(host, "db", "db")).collect();
    changes(&cluster, &pods, table);
    new_pods(&cluster, &agents, &pods, table);
    drop((pods, agents));
}

/// All hosts share this machine's table of neighbours, where 1,024 find room that may be dropped again (`gc_thresh3`):
/// those of 50 hosts do not, and the first packets of all were lost for 20 s. Real hosts have a table each.
fn know_the_others(host: &Node, hosts: &[Node]) {
    let others = hosts.iter().filter(|other| other.v4() != host.v4());
    let lines = others.flat_map(|other| {
        let mac = other.mac();
        [IpAddr::V4(other.v4()), IpAddr::V6(other.v6())]
            .map(|address| format!("neighbour add {address} lladdr {mac} dev eth0 nud permanent\n"))
    });
    host.run_command(&mut command("ip -batch -"), &lines.collect::<String>()).ok();
}

/// The policy for the pods `db`, and nine that concern nobody.
fn apply(host: &Node, from: &[&str]) {
    let more = (0..9).map(|number| only_from(&format!("app{number}"), &["nobody"]));
    let all: Vec<_> = [only_from("db", from)].into_iter().chain(more).collect();
    host.write("/etc/policies.json", &json!(all).to_string());
    Agent::run(host, "policy apply -f /etc/policies.json", SETTINGS).ok();
}

/// Sends to each of `pods` again and again until it has received its first packet, and when that was.
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
        let received: Vec<OnceLock<Instant>> = self.pods.iter().map(|_| OnceLock::new()).collect();
        let from = thread::scope(|scope| {
            for (server, received) in self.servers.iter().zip(&received) {
                scope.spawn(|| {
                    server.recv(&mut [0; 4]).unwrap();
                    received.set(Instant::now()).unwrap();
                });
            }
            let from = begin();
            let client = from.spot().inside(|| UdpSocket::bind("0.0.0.0:0").unwrap());
            scope.spawn(|| self.send(client, &received));
            from
        });
        (*received.iter().filter_map(OnceLock::get).max().unwrap(), from)
    }

    fn send(&self, client: UdpSocket, received: &[OnceLock<Instant>]) {
        let begun = Instant::now();
        let mut waiting: Vec<_> = self.pods.iter().zip(received).collect();
        while !waiting.is_empty() && begun.elapsed() < PATIENCE {
            waiting.retain(|(_, time)| time.get().is_none());
            for (pod, _) in &waiting {
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

/// What the other hosts' agents need for one peer more is what they need while it comes, less what they need in as much
/// time while nothing happens.
fn new_pods(cluster: &Cluster, agents: &[Agent], pods: &[Pod], table: &mut Table) {
    let (mut taken, mut adds, mut cpus) = (Vec::new(), Vec::new(), Vec::new());
    let hosts = &cluster.hosts[..];
    let used = || agents[1..].iter().map(|agent| usage::of(agent.process.pid())).sum::<Duration>();
    let used_since = |before: Duration| (used() - before).as_secs_f64() * 1e3 / pods.len() as f64;
    apply(&hosts[0], &["web"]);
    for number in 0..TURNS {
        thread::sleep(WINDOW);
        let before = used();
        thread::sleep(WINDOW);
        let idle = used_since(before);
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
        thread::sleep(WINDOW.saturating_sub(begun.elapsed()));
        cpus.push(used_since(before) - idle);
        pod.delete();
    }
    let hosts = hosts.len();
    let floor = format!("ADD alone {:.0} ms", middle(adds));
    let what = format!("{hosts} hosts: ADD began → reachable for allowed peers on all");
    row(what, (100.0, "ms"), middle(taken), &floor, table);
    let what = format!("{hosts} hosts: CPU of another host's agent for one peer more");
    row(what, (1.0, "ms"), middle(cpus), "", table);
}
