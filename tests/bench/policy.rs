//! What policies cost: to load, to change, for a packet, for a pod that starts, in memory. Every figure of a
//! host with policies is taken by turns with that of a host without.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::series::middle;
use crate::support::cluster::Alone;
use crate::support::cni::{Attachment, Network};
use crate::support::node::{Node, Place};
use crate::support::wait::{SOON, eventually};
use crate::support::{Agent, Pod, pod};
use crate::table::{Row, Table};
use crate::traffic::{self, ECHO, Servers};
use crate::usage;
use crate::workspace::Workspace;

pub const FILE: &str = "/etc/humanz/policies.json";

const PODS: usize = 250;
const TURN: Duration = Duration::from_millis(80);
const TURNS: usize = 41;
const STARTS: usize = 40;
/// Until agents have done what the last pod left to do, and the kernel has ended its network namespace, which takes it
/// longer the more there are: an ADD waits for its lock.
const QUIET: Duration = Duration::from_millis(250);
/// Until what a change of policies has left without use is gone, too: what comes before would find it there.
const TIDY: Duration = Duration::from_millis(1500);

pub fn measure(_: &mut Workspace, table: &mut Table) {
    let (off, on) = (Side::start(false), Side::start(true));
    for policies in [0, 10, 1000] {
        on.write(policies, 0);
        settled(&off, &on, policies, table);
    }
    on.write(0, 0);
    first_packets(&off, &on, table);
    starts(&off, &on, "", table);
    let add = |number: usize| [&off, &on].map(|side| side.add(&format!("p{number}"), number));
    let pods: Vec<[Pod; 2]> = (0..PODS).map(add).collect();
    load(&on, table);
    one_peer(&on, table);
    starts(&off, &on, ", 250 pods and 1,000 policies", table);
    memory(&on, 0, table);
    memory(&on, 50_000, table);
    drop(pods);
}

/// A host with or without policies, and two of its pods.
pub struct Side {
    alone: Alone,
    _agent: Agent,
    pub from: Pod,
    pub to: Pod,
    _servers: Servers,
}

impl Side {
    fn start(policies: bool) -> Side {
        Side::start_with(&[("POLICY", if policies { "on" } else { "off" })])
    }

    pub fn start_with(more: &[(&str, &str)]) -> Side {
        let alone = Alone::new();
        alone.host.shell("mkdir -p /etc/humanz").ok();
        alone.host.write(FILE, "[]");
        let settings = [
            ("SUBNET_SOURCE", "static"),
            ("SUBNET", "10.244.0.0/22"),
            ("ETCD_HOST", ""),
            ("IPV6_SUBNET", ""),
            ("POLICY_FILE", FILE),
            ("RUST_LOG", "info,humanz::agent=debug"),
        ];
        let agent = Agent::start(&alone.host, &[&settings[..], more].concat());
        agent.wait_ready();
        let (from, to) = (connect(&alone.host, "from", "web"), connect(&alone.host, "to", "db"));
        let servers = Servers::start(&to, to.v4());
        Side { alone, _agent: agent, from, to, _servers: servers }
    }

    pub fn host(&self) -> &Node {
        &self.alone.host
    }

    fn add(&self, name: &str, number: usize) -> Pod {
        connect(self.host(), name, &format!("app{}", number % 1000))
    }

    /// Puts so many policies of three rules each in force, and one for the pods of this bench; peers are so
    /// many pods of other hosts.
    pub fn write(&self, policies: usize, peers: usize) {
        let own = only_from("db", &["web"]);
        let more = (0..policies).map(|number| {
            let peers = [1, 2, 3].map(|next| format!("app{}", (number + next) % policies.max(1)));
            only_from(&format!("app{number}"), &peers.each_ref().map(String::as_str))
        });
        let peers = (0..peers).map(|number| peer(number, policies));
        let all: Vec<Value> = [own].into_iter().chain(more).chain(peers).collect();
        self.host().write("/etc/humanz/new", &Value::from(all).to_string());
        let before = self.agent_log().len();
        self.host().run(&format!("mv /etc/humanz/new {FILE}")).ok();
        eventually("policies in force", 6 * SOON, || {
            let log = self.agent_log();
            match log[before..].contains("looked at") {
                true => Ok(()),
                false => Err("no reconcile yet".to_owned()),
            }
        });
    }

    fn agent_log(&self) -> String {
        self._agent.process.log()
    }

    /// How long the last reconcile took, in milliseconds.
    fn last_reconcile(&self) -> f64 {
        let log = self.agent_log();
        let line = log.lines().rev().find(|line| line.contains("looked at")).unwrap();
        duration(line.rsplit(" in ").next().unwrap()) * 1e3
    }
}

/// How long the plugin of `host` took for its last call, in milliseconds, as it logs it itself.
pub fn last_call(host: &Node, verb: &str) -> f64 {
    let log = host.shell("tail -2 /var/log/humanz.log").ok();
    let line = log.lines().rev().find(|line| line.contains(&format!(" {verb} "))).unwrap();
    line.split(' ').find_map(|word| word.strip_prefix("ms=")).unwrap().parse().unwrap()
}

/// In seconds, as `{:?}` writes them.
fn duration(text: &str) -> f64 {
    let text = text.trim();
    for (unit, factor) in [("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9), ("s", 1.0)] {
        if let Some(number) = text.strip_suffix(unit) {
            return number.parse::<f64>().unwrap() * factor;
        }
    }
    panic!("{text} is no time");
}

pub fn connect(host: &Node, name: &str, app: &str) -> Pod {
    pod::make_netns(host, name);
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name};app={app}");
    let attachment = Attachment { args, ..Attachment::new(name) };
    Pod::connect(host, &Network::of(host), attachment).unwrap_or_else(|e| panic!("{name}: {e}"))
}

pub fn only_from(app: &str, from: &[&str]) -> Value {
    let rule = |app: &&str| json!({"from": [{"podSelector": {"matchLabels": {"app": app}}}]});
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": app},
        "spec": {
            "podSelector": {"matchLabels": {"app": app}},
            "ingress": from.iter().map(rule).collect::<Vec<_>>(),
        },
    })
}

fn peer(number: usize, apps: usize) -> Value {
    let address =
        format!("10.{}.{}.{}", 100 + number / 60_000, number / 250 % 240, number % 250 + 2);
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "shop", "name": format!("peer{number}"),
            "labels": {"app": format!("app{}", number % apps.max(1))}},
        "spec": {"nodeName": "elsewhere"}, "status": {"podIPs": [{"ip": address}]},
    })
}

/// A figure, its limit and the unit of both; `floor`: what it is compared with.
pub fn row(what: String, (limit, unit): (f64, &str), reached: f64, floor: &str, table: &mut Table) {
    let text = format!("{reached:.2} {unit}");
    table.push(Row {
        what,
        floor: floor.to_owned(),
        target: format!("≤ {limit:.1} {unit}"),
        reached: format!("{text} ({:.2} of the target)", reached / limit),
        humanz: text,
        met: Some(reached <= limit),
        ..Row::default()
    });
}

/// By turns; the medians of the differences, and of what it is without.
fn difference(
    mut without: impl FnMut() -> f64,
    mut with: impl FnMut() -> f64,
    turns: usize,
) -> (f64, f64) {
    let (mut more, mut floor) = (Vec::new(), Vec::new());
    for turn in 0..turns {
        let [without, with] = match turn % 2 {
            0 => [without(), with()],
            _ => {
                let with = with();
                [without(), with]
            }
        };
        more.push(with - without);
        floor.push(without);
    }
    (middle(more), middle(floor))
}

fn settled(off: &Side, on: &Side, policies: usize, table: &mut Table) {
    let trip = |side: &Side| {
        traffic::round_trip(&side.from, SocketAddr::new(side.to.v4(), ECHO), TURN) / 2.0
    };
    let (more, floor) = difference(|| trip(off), || trip(on), TURNS);
    let what = format!("a settled packet, {policies} policies: more by");
    row(what, (0.2, "µs"), more, &format!("without {floor:.1} µs"), table);
}

/// Microseconds until the first packet of a connection was received by its pod.
fn first_packet(side: &Side, server: &UdpSocket) -> f64 {
    let to = SocketAddr::new(side.to.v4(), 9000);
    let each = (0..200).map(|_| {
        let client = side.from.spot().inside(|| UdpSocket::bind("0.0.0.0:0").unwrap());
        let begun = Instant::now();
        client.send_to(b"x", to).unwrap();
        server.recv(&mut [0; 4]).unwrap();
        begun.elapsed().as_secs_f64() * 1e6
    });
    middle(each.collect())
}

fn first_packets(off: &Side, on: &Side, table: &mut Table) {
    let any: IpAddr = [0, 0, 0, 0].into();
    let server = |side: &Side| side.to.spot().inside(|| UdpSocket::bind((any, 9000)).unwrap());
    let (off_server, on_server) = (server(off), server(on));
    let measure = |rules: usize| {
        let peers: Vec<String> = (1..rules).map(|number| format!("nobody{number}")).collect();
        let peers: Vec<&str> = peers.iter().map(String::as_str).chain(["web"]).collect();
        on.host().write("/etc/humanz/new", &json!([only_from("db", &peers)]).to_string());
        on.host().run(&format!("mv /etc/humanz/new {FILE}")).ok();
        std::thread::sleep(Duration::from_millis(500));
        difference(|| first_packet(off, &off_server), || first_packet(on, &on_server), 15)
    };
    for rules in [1, 10, 100] {
        let ((more, floor), target) = (measure(rules), 2.0 + 0.06 * rules as f64);
        let what = format!("a first packet, {rules} rules: more by");
        row(what, (target, "µs"), more, &format!("without {floor:.1} µs"), table);
    }
}

fn starts(off: &Side, on: &Side, beside: &str, table: &mut Table) {
    let (mut adds, mut deletes) = (Vec::new(), Vec::new());
    // ADD and DEL walk through the host's connections: the 9,000 of the first packets, which the kernel keeps for two
    // minutes, take 6 ms of either.
    for side in [off, on] {
        side.host().run("conntrack -F").ok();
    }
    std::thread::sleep(TIDY);
    let (mut floors, used) = (Vec::new(), usage::cpu(on.host()));
    for number in 0..STARTS {
        let turn = |side: &Side| {
            let name = format!("start{number}");
            pod::make_netns(side.host(), &name);
            std::thread::sleep(QUIET);
            let args =
                format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name};app=app1");
            let attachment = Attachment { args, ..Attachment::new(&name) };
            let pod = Pod::connect(side.host(), &Network::of(side.host()), attachment).unwrap();
            let added = last_call(side.host(), "ADD");
            // The end of a link takes the kernel 18 to 30 ms, with or without policies: as long as that is not part of
            // DEL the difference can be seen.
            pod.run("ip link del eth0").ok();
            std::thread::sleep(QUIET);
            pod.delete();
            let deleted = last_call(side.host(), "DEL");
            [added, deleted]
        };
        let [with, without] = match number % 2 {
            0 => [turn(on), turn(off)],
            _ => {
                let without = turn(off);
                [turn(on), without]
            }
        };
        adds.push(with[0] - without[0]);
        deletes.push(with[1] - without[1]);
        floors.push(without);
    }
    // What follows an answer or a DEL is part of its price.
    std::thread::sleep(Duration::from_secs(1));
    let cpu = (usage::cpu(on.host()) - used).as_secs_f64() * 1e3 / STARTS as f64;
    let floor = |verb: usize| {
        let taken = floors.iter().map(|of| of[verb]).collect();
        format!("without {:.1} ms", middle(taken))
    };
    let (add, delete) = (middle(adds), middle(deletes));
    row(format!("ADD with policies{beside}: more by"), (0.6, "ms"), add, &floor(0), table);
    let what = format!("DEL without a link, with policies{beside}: more by");
    row(what, (0.1, "ms"), delete, &floor(1), table);
    let what = format!("  the agent's CPU for both{beside}");
    let humanz = format!("{cpu:.1} ms");
    table.push(Row { what, humanz, ..Row::default() });
}

fn load(on: &Side, table: &mut Table) {
    let taken = (0..5).map(|_| {
        on.write(0, 0);
        std::thread::sleep(TIDY);
        on.write(1000, 0);
        on.last_reconcile()
    });
    let milliseconds = middle(taken.collect());
    let what = "250 pods: 1,000 policies, 3,000 rules put in force".to_owned();
    row(what, (300.0, "ms"), milliseconds, "", table);
}

fn one_peer(on: &Side, table: &mut Table) {
    let (mut reconciles, mut cpus) = (Vec::new(), Vec::new());
    std::thread::sleep(TIDY);
    for number in 1..=10 {
        let before = usage::cpu(on.host());
        on.write(1000, number);
        cpus.push((usage::cpu(on.host()) - before).as_secs_f64() * 1e3);
        reconciles.push(on.last_reconcile());
    }
    let (reconcile, cpu) = (middle(reconciles), middle(cpus));
    let what = "one peer more, among 1,000 policies".to_owned();
    let floor = format!("with the file {cpu:.1} ms of CPU");
    row(what, (1.0, "ms"), reconcile, &floor, table);
}

fn memory(on: &Side, peers: usize, table: &mut Table) {
    on.write(1000, peers);
    let (now, most, own) = usage::memory(on.host());
    let what = format!("memory of the agent, 250 pods, 1,000 policies, {peers} peers in a file");
    row(what, (40.0, "MiB"), now, &format!("at most {most:.0}, alone {own:.0} MiB"), table);
}
