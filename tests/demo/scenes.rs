//! The steps of the demo, in order.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::page::{Page, milliseconds, row};
use crate::support::cluster::OUTSIDE;
use crate::support::disk::EXECUTABLE;
use crate::support::node::command;
use crate::support::process::lock;
use crate::support::wait::{SOON, eventually};
use crate::support::watch::Watch;
use crate::support::web::Web;
use crate::support::{Agent, Cluster, Node, Pinger, Place, Pod, facts, local, ping};
use crate::tidy;

/// Both address families.
const VARIABLES: &[(&str, &str)] = &[("IPV6_SUBNET", "fd10:244::/48")];

/// The hosts and their processes.
pub struct Stage {
    pods: Vec<Pod>,
    agents: Vec<Agent>,
    cluster: Cluster,
}

impl Stage {
    pub fn set_up(page: &mut Page) -> Self {
        let folder: Arc<Mutex<Option<PathBuf>>> = Arc::default();
        let known = Arc::clone(&folder);
        tidy::when_interrupted(move || lock(&known).clone());
        let cluster = Cluster::new(3);
        *lock(&folder) = Some(cluster.disks().to_owned());
        let rows = cluster.hosts.iter().map(|host| row([&host.name(), &host.v4(), &host.v6()]));
        page.table(&rows.collect::<Vec<_>>());
        Self { pods: Vec::new(), agents: Vec::new(), cluster }
    }

    pub fn hosts_lease_subnets(&mut self, page: &mut Page) {
        page.chapter("Every host gets a piece of the address space");
        page.text(
            "On each host the agent starts with one setting: the address of etcd. It takes a subnet \
             for its host's pods that no other host has, and makes a bridge, a switch in software, \
             for them.",
        );
        let agents: Vec<Agent> =
            self.cluster.hosts.iter().map(|host| Agent::start(host, VARIABLES)).collect();
        let mut rows = Vec::new();
        let mut longest = Duration::ZERO;
        for agent in &agents {
            let ready = agent.wait_ready();
            longest = longest.max(ready);
            let gateways = facts::addresses(&agent.host, "humanz0").join("   ");
            let ready = format!("ready after {}", milliseconds(ready));
            rows.push(row([&agent.host.name(), &"bridge humanz0", &gateways, &ready]));
        }
        page.table(&rows);
        page.text("This is what etcd holds now, one key for each host:");
        let keys = self.cluster.etcd.list("/humanz/hosts/");
        let rows: Vec<_> = keys.iter().map(|(key, value)| row([key, &"=", value])).collect();
        page.table(&rows);
        page.remember("start of an agent until its host is ready", milliseconds(longest));
        self.agents = agents;
    }

    pub fn hosts_have_routes(&mut self, page: &mut Page) {
        page.chapter("Every host knows the way to the others");
        page.text(
            "The agents watch etcd. For every other host they keep a route in the kernel: its \
             subnet, via its address. No tunnel, no proxy: the kernel forwards the packets.",
        );
        let mut rows = Vec::new();
        for host in &self.cluster.hosts {
            for (subnet, via) in all_routes(host) {
                rows.push(row([&host.name(), &subnet, &format!("via {via}")]));
            }
        }
        page.table(&rows);
    }

    pub fn pods_are_connected(&mut self, page: &mut Page) {
        page.chapter("Pods are connected");
        page.text(
            "A container runtime would now make a container and run the plugin that the agent \
             installed, /opt/cni/bin/humanz, with \"ADD\". The demo does just that, twice on each \
             host. The plugin plugs the pod into the bridge and gives it an address of each family.",
        );
        let mut rows = Vec::new();
        let mut times = Vec::new();
        for host in &self.cluster.hosts {
            for name in ["web", "db"] {
                let pod = Pod::add(host, name);
                let took = format!("connected in {}", milliseconds(pod.took));
                rows.push(row([&pod.label(), &pod.v4(), &pod.v6(), &took]));
                times.push(pod.took);
                self.pods.push(pod);
            }
        }
        page.table(&rows);
        times.sort();
        page.remember("connecting a pod (median of six)", milliseconds(times[times.len() / 2]));
    }

    pub fn all_pods_of_all_hosts_reach_each_other(&mut self, page: &mut Page) {
        page.chapter("Everybody reaches everybody");
        page.text("Each pod pings each pod. Round trips in milliseconds, IPv4 / IPv6:");
        let mut heading = vec![String::new()];
        heading.extend(self.pods.iter().map(Pod::label));
        let mut rows = vec![heading];
        for from in &self.pods {
            let mut cells = vec![from.label()];
            for to in &self.pods {
                let trip =
                    |address| ping::round_trip(from, address).unwrap_or_else(|e| panic!("{e}"));
                let text = |time: Duration| format!("{:.2}", time.as_secs_f64() * 1000.0);
                cells.push(format!("{} / {}", text(trip(to.v4())), text(trip(to.v6()))));
            }
            rows.push(cells);
        }
        page.table(&rows);
        let pairs = self.pods.len() * self.pods.len();
        page.remember(
            "pairs of pods that reach each other",
            format!("{pairs} of {pairs}, both families"),
        );
    }

    pub fn pods_reach_the_outside(&mut self, page: &mut Page) {
        page.chapter("Pods reach the outside, under the name of their host");
        page.text(
            "A server beyond the hosts' router knows no way back to a pod. Therefore what a pod \
             sends there leaves under its host's address (\"masquerade\"); between pods addresses \
             stay as they are.",
        );
        let pod = &self.pods[0];
        let outside = Web::serve(&self.cluster.outside, OUTSIDE[0]);
        outside.fetch(pod);
        let other = &self.pods[2];
        let inside = Web::serve(other, other.v4());
        inside.fetch(pod);
        let seen = |web: &Web| web.seen().iter().map(ToString::to_string).collect::<String>();
        page.table(&[
            row([&"who", &"fetches 1 MB from", &"which sees it come from"]),
            row([&pod.label(), &"the outside", &format!("{} (host h1)", seen(&outside))]),
            row([&pod.label(), &other.label(), &format!("{} (the pod itself)", seen(&inside))]),
        ]);
    }

    pub fn etcd_stops(&mut self, page: &mut Page) {
        page.chapter("etcd is killed, and pods do not notice");
        page.text(
            "Pods keep pinging each other, a hundred times a second, while etcd is killed. A new \
             pod is connected meanwhile: the plugin needs neither etcd nor the agent.",
        );
        let pingers = [(0, 2), (2, 4), (4, 0)].map(|(from, to)| {
            let to = &self.pods[to];
            Pinger::start(&self.pods[from], to.v4())
        });
        self.cluster.etcd.kill();
        let start = Instant::now();
        let pod = Pod::add(&self.cluster.hosts[1], "late");
        let far = &self.pods[5];
        let trip = ping::round_trip(&pod, far.v4()).unwrap_or_else(|e| panic!("{e}"));
        std::thread::sleep(Duration::from_secs(3).saturating_sub(start.elapsed()));
        let away = start.elapsed();
        self.cluster.etcd.restart();
        let mut rows = vec![row([
            &pod.label(),
            &format!("connected in {}", milliseconds(pod.took)),
            &format!("reaches {} in {}", far.label(), milliseconds(trip)),
        ])];
        let (mut sent, mut lost) = (0, 0);
        for pinger in pingers {
            let report = pinger.report();
            sent += report.sent;
            lost += report.lost.len();
            rows.push(row([
                &report.name,
                &format!("{} pings sent", report.sent),
                &format!("{} lost", report.lost.len()),
            ]));
        }
        page.table(&rows);
        page.remember(
            &format!("pings lost while etcd was away for {:.0} s", away.as_secs_f64()),
            format!("{lost} of {sent}"),
        );
        pod.delete();
    }

    pub fn an_agent_dies(&mut self, page: &mut Page) {
        page.chapter("An agent is killed, and a pod is added meanwhile");
        page.text("The agent of h2 gets SIGKILL. Its host's network stays as it is.");
        self.agents.remove(1).kill();
        let host = &self.cluster.hosts[1];
        let pod = Pod::add(host, "meanwhile");
        let to = &self.pods[0];
        let trip = ping::round_trip(&pod, to.v4()).unwrap_or_else(|e| panic!("{e}"));
        page.table(&[row([
            &pod.label(),
            &format!("connected in {}", milliseconds(pod.took)),
            &format!("reaches {} in {}", to.label(), milliseconds(trip)),
        ])]);
        let subnet = self.cluster.etcd.get("/humanz/hosts/h2").unwrap();
        let agent = Agent::start(host, VARIABLES);
        let ready = milliseconds(agent.wait_ready());
        page.text(&format!(
            "The agent is started again: after {ready} it has taken up its work, with the same \
             subnet, {subnet}."
        ));
        page.remember("pod connected without an agent", milliseconds(pod.took));
        assert_eq!(self.cluster.etcd.get("/humanz/hosts/h2"), Some(subnet));
        self.agents.push(agent);
        pod.delete();
    }

    pub fn a_route_is_deleted(&mut self, page: &mut Page) {
        page.chapter("Somebody deletes a route by hand");
        let host = &self.cluster.hosts[0];
        let (subnet, via) = all_routes(host).remove(0);
        let watch = Watch::links(host);
        let start = Instant::now();
        host.run(&format!("ip route del {subnet}")).ok();
        let took = milliseconds(watch.after(start, &[&subnet, &via]));
        page.table(&[
            row([&"h1 #", &format!("ip route del {subnet}")]),
            row([&"", &format!("the kernel sends the agent an event; the route is back {took} after the deletion")]),
        ]);
        page.remember("a route deleted by hand is back after", took);
    }

    pub fn an_operator_asks(&mut self, page: &mut Page) {
        page.chapter("An operator asks");
        page.text(
            "The same executable answers questions, here on h1. Before the last one somebody adds a \
             firewall rule that drops what h1 forwards to the pods of h2.",
        );
        let host = &self.cluster.hosts[0];
        local::status_when(host, "etcd is back", |status| !status["etcd"]["connected"].is_null());
        ask(page, host, "status");
        ask(page, host, "nodes ls");
        let (near, far) = (&self.pods[0], &self.pods[2]);
        let rule = format!("add rule inet mine forward ip daddr {} drop", far.v4());
        for line in [
            "add table inet mine",
            "add chain inet mine forward { type filter hook forward priority 0; }",
            &rule,
        ] {
            host.run_command(command("nft").arg(line), "").ok();
        }
        page.transcript(&format!("nft {rule}"), "");
        ask(page, host, &format!("explain default/{} {}", near.attachment.container, far.v4()));
        host.run("nft delete table inet mine").ok();
    }

    pub fn pods_are_deleted(&mut self, page: &mut Page) {
        page.chapter("Pods go");
        let times = self.pods.drain(..).map(|pod| {
            let start = Instant::now();
            pod.delete();
            start.elapsed()
        });
        let mut times: Vec<Duration> = times.collect();
        times.sort();
        let left: usize = self.cluster.hosts.iter().map(|host| facts::veths(host).len()).sum();
        page.text(&format!(
            "Every pod is disconnected (\"DEL\") and its address given back. Interfaces left on the \
             hosts: {left}."
        ));
        page.remember("disconnecting a pod (median of six)", milliseconds(times[times.len() / 2]));
    }
}

/// Runs a subcommand on a host and shows its output; some exit with 1 when they find a problem.
fn ask(page: &mut Page, host: &Node, line: &str) {
    let mut humanz = command(&format!("{EXECUTABLE} {line}"));
    humanz.env("ETCD_HOST", "etcd").envs(VARIABLES.iter().copied());
    let answer = host.run_command(&mut humanz, "");
    assert!(matches!(answer.status.code(), Some(0 | 1)) && answer.stderr.is_empty(), "{answer}");
    page.transcript(&format!("humanz-agent {line}"), &answer.stdout);
}

/// The routes of a host, once it has one of each family to both other hosts.
fn all_routes(host: &Node) -> Vec<(String, String)> {
    eventually(&format!("{} has its routes", host.name()), SOON, || {
        let routes = facts::routes(host);
        if routes.len() == 4 {
            Ok(routes.into_iter().collect())
        } else {
            Err(format!("{routes:?}"))
        }
    })
}
