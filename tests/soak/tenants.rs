//! Networks of tenants while everything breaks: networks, pods and fixed addresses come and go on all hosts, no address is
//! two pods', and every block is given back.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::WHOLE;
use crate::support::cni::{Attachment, Failure, Network};
use crate::support::ping::round_trip;
use crate::support::pod::make_netns;
use crate::support::{Agent, Cluster, Node, Place, Pod, eventually};

/// Of every agent.
pub const SETTINGS: &[(&str, &str)] =
    &[("IPV6_SUBNET", "fd10::/48"), ("POLICY", "on"), ("BLOCK_RELEASE_AFTER", "1s")];

/// The addresses of the pod `blue/db-0`.
const PINNED: [&str; 2] = ["10.32.255.2", "fd00:32::ffff:2"];

/// Passing networks have this many names.
const NAMES: usize = 5;

/// Between two pods of a host.
const PAUSE: Duration = Duration::from_millis(100);

/// What happened to pods in networks of tenants so far.
#[derive(Default)]
pub struct Tenants {
    round: AtomicUsize,
    /// The pod of each address.
    running: Mutex<BTreeMap<IpAddr, String>>,
    started: AtomicUsize,
    refused: AtomicUsize,
}

/// Lets the pods of a round end when it goes out of scope.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Tenants {
    fn round(&self) -> usize {
        self.round.load(Ordering::Relaxed)
    }

    /// The network of this round: four blocks of each family for three hosts.
    fn passing(&self) -> String {
        format!("passing{}", self.round() % NAMES)
    }

    /// Everything that hosts know from etcd, with the network of this round.
    fn objects(&self) -> Vec<Value> {
        let number = 40 + self.round() % NAMES;
        let passing = json!({"subnets": [format!("10.{number}.0.0/27"), format!("fd00:{number}::/120")],
            "blocks": {"v4": 29, "v6": 122}});
        let front = json!({"subnets": ["10.32.0.0/16", "fd00:32::/64"],
            "pins": ["10.32.255.0/24", "fd00:32::ffff:0/112"]});
        let rule = |tenant: &str| json!({"tenant": tenant, "network": "front", "allow": ["*"]});
        vec![
            object("Network", json!({"tenant": "blue", "name": "front"}), front),
            object(
                "Network",
                json!({"tenant": "red", "name": "front"}),
                json!({"subnets": ["10.33.0.0/16", "fd00:33::/64"]}),
            ),
            object("Network", json!({"tenant": "blue", "name": self.passing()}), passing),
            object("NamespaceRule", json!({"name": "blue"}), rule("blue")),
            object("NamespaceRule", json!({"name": "red"}), rule("red")),
            object(
                "Pin",
                json!({"namespace": "blue", "name": "db-0"}),
                json!({"addresses": PINNED}),
            ),
        ]
    }

    /// Puts them into etcd: the next network, or all of them after a loss of data.
    pub fn apply(&self, host: &Node) {
        host.write("/etc/objects.json", &json!(self.objects()).to_string());
        eventually("the objects of tenants are in etcd", WHOLE, || {
            let applied = Agent::run(host, "policy apply -f /etc/objects.json", SETTINGS);
            if applied.succeeded() { Ok(()) } else { Err(applied.to_string()) }
        });
    }

    /// Pods of both tenants come and go on `host` until it is stopped.
    pub fn churn(&self, host: &Node, stopped: &AtomicBool) {
        let passing = self.passing();
        let pods = [
            ("blue/front", json!({})),
            ("blue/both", json!({"humanz.io/networks": format!("front,{passing}@eth1")})),
            ("red/front", json!({})),
            ("blue/passing", json!({"humanz.io/network": passing})),
        ];
        while !stopped.load(Ordering::Relaxed) {
            for (name, words) in &pods {
                match start(host, name, words.clone()) {
                    Ok(pod) => self.hold(pod),
                    Err(refused) => {
                        assert_eq!(refused.code, 11, "{}: {name}: {refused}", host.name());
                        self.refused.fetch_add(1, Ordering::Relaxed);
                    }
                }
                thread::sleep(PAUSE);
            }
        }
    }

    /// Its addresses are nobody else's while it runs.
    fn hold(&self, pod: Pod) {
        let running = || self.running.lock().unwrap_or_else(PoisonError::into_inner);
        for address in pod.addresses() {
            if let Some(other) = running().insert(address, pod.label()) {
                panic!("{address} is that of {other} and of {}", pod.label());
            }
        }
        self.started.fetch_add(1, Ordering::Relaxed);
        thread::sleep(PAUSE);
        for address in pod.addresses() {
            running().remove(&address);
        }
        pod.delete();
    }

    /// Pods of a tenant reach each other, and nobody else's; the pod with fixed addresses is on another host each time.
    pub fn whole(&self, hosts: &[Node]) {
        let [blue1, blue2, red] = [(0, "blue/one"), (1, "blue/two"), (1, "red/one")]
            .map(|(host, name)| started(&hosts[host], name));
        for to in blue2.addresses() {
            eventually(&format!("{} reaches {to}", blue1.label()), WHOLE, || {
                round_trip(&blue1, to).map(drop)
            });
        }
        for to in red.addresses() {
            let ping = blue1.run(&format!("ping -n -c 1 -W 1 {to}"));
            assert!(ping.stdout.contains(" 100% packet loss"), "another tenant: {ping}");
        }
        let pinned = started(&hosts[self.round() % hosts.len()], "blue/db-0");
        let found: Vec<String> = pinned.addresses().iter().map(ToString::to_string).collect();
        assert_eq!(found, PINNED);
        [blue1, blue2, red, pinned].into_iter().for_each(Pod::delete);
    }

    /// The network of this round goes, which it can once its blocks have been given back.
    pub fn next(&self, host: &Node) {
        eventually("the network of the round is removed", WHOLE, || {
            let line = format!("policy rm Network blue/{}", self.passing());
            let removed = Agent::run(host, &line, SETTINGS);
            if removed.succeeded() { Ok(()) } else { Err(removed.to_string()) }
        });
        self.round.fetch_add(1, Ordering::Relaxed);
    }

    /// At rest.
    pub fn no_blocks(&self, cluster: &Cluster) {
        eventually("every block is given back", WHOLE, || {
            let held = cluster.etcd.list("/humanz/v1-blocks/");
            if held.is_empty() { Ok(()) } else { Err(format!("{held:?}")) }
        });
        let [started, refused] =
            [&self.started, &self.refused].map(|it| it.load(Ordering::Relaxed));
        println!("{started} pods in networks of tenants so far, {refused} refused");
        assert!(started > self.round(), "{started} pods in {} rounds", self.round());
    }
}

fn object(kind: &str, metadata: Value, spec: Value) -> Value {
    json!({"apiVersion": "humanz.io/v1", "kind": kind, "metadata": metadata, "spec": spec})
}

/// A pod `namespace/name`, as a runtime starts it: after a failure nothing is left.
fn start(host: &Node, pod: &str, annotations: Value) -> Result<Pod, Box<Failure>> {
    let attachment = attachment(pod, annotations);
    make_netns(host, &attachment.container);
    let network = Network::of(host);
    let started = Pod::connect(host, &network, attachment.clone());
    if started.is_err() {
        network.del(host, &attachment, &Value::Null).unwrap();
        host.run(&format!("ip netns del {}", attachment.container)).ok();
    }
    started
}

pub fn attachment(pod: &str, annotations: Value) -> Attachment {
    let (namespace, name) = pod.split_once('/').unwrap();
    Attachment {
        args: format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}"),
        runtime: json!({"io.kubernetes.cri.pod-annotations": annotations}),
        ..Attachment::new(&format!("{namespace}-{name}"))
    }
}

/// The same, as often as it takes.
pub fn started(host: &Node, pod: &str) -> Pod {
    eventually(&format!("{}: {pod} starts", host.name()), WHOLE, || {
        start(host, pod, json!({})).map_err(|error| error.to_string())
    })
}
