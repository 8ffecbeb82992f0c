//! SUBNET_SOURCE=kubernetes and POLICY=kubernetes: real agents, and an API server of the tests' own.
#![allow(
    clippy::unwrap_used,
    clippy::let_underscore_must_use,
    clippy::print_stdout,
    reason = "a test stops at the first failure and prints its measurements"
)]

use humanz_test_support as support;

mod access;
mod api;
mod beside_etcd;
mod certificates;
mod chart;
mod cnp;
#[path = "../policy/conformance.rs"]
mod conformance;
mod controller;
mod enforced;
mod exchange;
mod hostile;
mod kubelets;
mod looked_at;
mod moved;
mod netpol;
mod objects;
mod own;
mod partly_away;
mod policies;
mod rbac;
#[path = "../policy/reachability.rs"]
#[allow(dead_code, reason = "tests/policy uses all of it")]
mod reachability;
mod shares;
mod state;
#[allow(dead_code, reason = "tests/policy_agent uses all of it")]
#[path = "../policy_agent/traffic.rs"]
mod traffic;
#[path = "../policy/upstream.rs"]
mod upstream;
mod watching;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use api::{Api, TOKEN, URL};
use support::wait::SOON;
use support::{Agent, Cluster, Node, Place, eventually, facts};

const KUBECONFIG: &str = "/etc/humanz/kubeconfig";

/// Port of the pods that listen.
const PORT: u16 = 5000;

const VARIABLES: &[(&str, &str)] =
    &[("SUBNET_SOURCE", "kubernetes"), ("KUBECONFIG", KUBECONFIG), ("ETCD_HOST", "")];

/// A node as its kubelet and kube-controller-manager make it; `subnets` may be none yet.
fn node(name: &str, subnets: &[&str], addresses: &[&str]) -> Value {
    let mut spec = json!({});
    if let Some(first) = subnets.first() {
        spec = json!({"podCIDR": first, "podCIDRs": subnets});
    }
    let internal =
        addresses.iter().map(|address| json!({"type": "InternalIP", "address": address}));
    let mut addresses: Vec<Value> = internal.collect();
    addresses.push(json!({"type": "Hostname", "address": name}));
    json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": {"name": name, "uid": name, "creationTimestamp": "2026-11-20T18:46:00Z"},
        "spec": spec,
        "status": {
            "addresses": addresses,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "nodeInfo": {"machineID": "", "bootID": "", "kubeletVersion": "v1.34.0"},
            "images": [{"names": ["registry.k8s.io/pause:3.10"], "sizeBytes": 319_000}],
        }
    })
}

/// The node of a host of the cluster: h3 has 10.244.3.0/24.
fn node_of(host: &Node) -> Value {
    let number = host.name().trim_start_matches('h');
    let (v4, v6) = (host.v4().to_string(), host.v6().to_string());
    let subnets = [format!("10.244.{number}.0/24"), format!("fd10:244:0:{number}::/64")];
    node(host.name(), &[&subnets[0], &subnets[1]], &[&v4, &v6])
}

/// A kubeconfig with a token in a file beside it, as an operator would write it.
fn give_kubeconfig(api: &Api, host: &Node) {
    host.inside(|| std::fs::create_dir_all("/etc/humanz")).unwrap();
    host.write("/etc/humanz/ca.pem", &api.certificates.text("ca.pem"));
    host.write("/etc/humanz/token", TOKEN);
    host.write(KUBECONFIG, &kubeconfig("tokenFile: token"));
}

/// With that line for the user.
fn kubeconfig(user: &str) -> String {
    format!(
        "apiVersion: v1
kind: Config
clusters:
- cluster:
    certificate-authority: ca.pem
    server: {URL}
  name: c
contexts:
- context:
    cluster: c
    user: humanz
  name: humanz@c
current-context: humanz@c
preferences: {{}}
users:
- name: humanz
  user:
    {user}
"
    )
}

/// Hosts with a kubeconfig, and an API that knows them all.
struct Scene {
    api: Api,
    cluster: Cluster,
}

impl Scene {
    fn new(near: u8, far: u8) -> Self {
        let cluster = Cluster::routed(near, far);
        let api = Api::start(&cluster.etcd.node);
        for host in &cluster.hosts {
            give_kubeconfig(&api, host);
            api.put(node_of(host));
        }
        Self { api, cluster }
    }

    fn host(&self, number: usize) -> &Node {
        &self.cluster.hosts[number - 1]
    }

    /// The agent of host `number` with further variables, ready.
    fn serve(&self, number: usize, more: &[(&str, &str)]) -> Agent {
        let agent = Agent::start(self.host(number), &with(more));
        agent.wait_ready();
        agent
    }
}

fn with<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    VARIABLES.iter().chain(more).copied().collect()
}

/// Waits until the host's routes are these: destination, next hop.
fn routes_become(host: &Node, wanted: &[(&str, &str)]) {
    let wanted: BTreeMap<String, String> =
        wanted.iter().map(|(to, via)| ((*to).to_owned(), (*via).to_owned())).collect();
    eventually(&format!("{}: routes {wanted:?}", host.name()), 2 * SOON, || {
        let found = facts::routes(host);
        if found == wanted { Ok(()) } else { Err(format!("{found:?}")) }
    });
}

/// Waits until the agent has logged `words`.
fn wait_logged(agent: &Agent, words: &str) {
    agent.wait_log(&[words]);
}

/// How often a line of the log contains `words`.
fn count(agent: &Agent, words: &str) -> usize {
    agent.log().lines().filter(|line| line.contains(words)).count()
}

/// The most memory that a process ever had, in kB.
fn peak_kb(host: &Node) -> u64 {
    let status = host.shell("cat /proc/$(pidof humanz-agent | cut -d' ' -f1)/status").ok();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().to_owned();
    line.split_whitespace().next().unwrap().parse().unwrap()
}
