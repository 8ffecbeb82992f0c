//! Policies in force on hosts with agents, pods and real packets.

// A test stops at the first failure and may print its measurements.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use humanz_test_support as support;

mod beside;
mod changed_networks;
mod configured_group;
mod costs;
mod drops;
mod etcd;
mod families;
mod flows;
mod foreign_errors;
mod full_etcd;
mod grown_pool;
mod guide;
mod held;
mod here;
mod host_addresses;
mod hostile_networks;
mod hosts;
mod interface_policies;
mod kills;
mod known_blocks;
mod leak;
mod live;
mod many_hosts;
mod meta_plugin;
mod mistaken;
mod mute_agent;
mod older_configuration;
mod one_host;
mod other_versions;
mod own_node;
mod pin_kills;
mod pins;
mod profiles;
mod seen;
mod settings;
mod silent_sources;
mod slow_disk;
mod socket;
mod start;
mod tenant_ends;
mod tenant_guide;
mod tenant_interfaces;
mod tenant_kills;
mod tenant_ways;
mod tenants;
mod traffic;
mod unserved;
mod without_agent;
mod without_rule;

use serde_json::{Value, json};

use support::cluster::Alone;
use support::cni::{Attachment, Network};
use support::{Agent, Node, Place, Pod};

/// Where the policies are.
const FILE: &str = "/etc/humanz/policies.json";

/// A host that serves itself, with policies.
const STANDALONE: &[(&str, &str)] = &[
    ("SUBNET_SOURCE", "static"),
    ("ETCD_HOST", ""),
    ("IPV6_SUBNET", "fd10::/48"),
    ("POLICY", "on"),
    ("POLICY_FILE", FILE),
];

/// Port of the pods that listen.
const PORT: u16 = 5000;

fn serve(host: &Node, more: &[(&str, &str)]) -> Agent {
    let agent = Agent::start(host, &[STANDALONE, more].concat());
    agent.wait_ready();
    agent
}

/// Replaces the file of policies at once, as an editor does that writes a new file.
fn write_policies(host: &Node, policies: &[Value]) {
    host.shell("mkdir -p /etc/humanz").ok();
    host.write("/etc/humanz/new", &json!(policies).to_string());
    host.run(&format!("mv /etc/humanz/new {FILE}")).ok();
}

/// Pods with the label `app` of one of `from` may connect to those of `app` in the namespace `shop`.
fn only_from(app: &str, from: &[&str]) -> Value {
    let peer = |app: &&str| json!({"podSelector": {"matchLabels": {"app": app}}});
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": app},
        "spec": {
            "podSelector": {"matchLabels": {"app": app}},
            "ingress": [{"from": from.iter().map(peer).collect::<Vec<_>>()}],
        },
    })
}

/// A pod of the namespace `shop` with the label `app`.
fn attachment(name: &str, app: &str) -> Attachment {
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name};app={app}");
    Attachment { args, ..Attachment::new(name) }
}

fn add(host: &Node, name: &str, app: &str) -> Pod {
    support::pod::make_netns(host, name);
    let added = Pod::connect(host, &Network::of(host), attachment(name, app));
    added.unwrap_or_else(|error| panic!("{name}: ADD: {error}"))
}

fn alone() -> Alone {
    Alone::new()
}

fn counters(host: &Node) -> String {
    host.run("nft list counters table inet humanz-policy").stdout
}
