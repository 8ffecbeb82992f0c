//! A pod: a network namespace that the plugin has attached.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::cni::{Attachment, Failure, Network};
use super::node::{Node, Place};

pub struct Pod {
    pub attachment: Attachment,
    pub network: Network,
    /// The result of ADD.
    pub result: Value,
    /// How long ADD took, the start of the process included.
    pub took: Duration,
    host: Node,
}

impl Pod {
    /// A new namespace on `host`, connected as the host's CNI configuration says. It asks for all
    /// that a pod can ask for: see [`requested_settings`].
    pub fn add(host: &Node, name: &str) -> Self {
        make_netns(host, name);
        let attachment = Attachment { runtime: requested_settings(name), ..Attachment::new(name) };
        Self::connect(host, &Network::of(host), attachment)
            .unwrap_or_else(|e| panic!("{}/{name}: ADD: {e}", host.name()))
    }

    pub fn try_add(host: &Node, name: &str, network: &Network) -> Result<Self, Box<Failure>> {
        make_netns(host, name);
        Self::connect(host, network, Attachment::new(name))
    }

    /// Connects a namespace that is there already.
    pub fn connect(
        host: &Node,
        network: &Network,
        attachment: Attachment,
    ) -> Result<Self, Box<Failure>> {
        let start = Instant::now();
        let result = network.add(host, &attachment)?;
        let took = start.elapsed();
        Ok(Self { attachment, network: network.clone(), result, took, host: host.clone() })
    }

    pub fn check(&self) -> Result<(), Box<Failure>> {
        self.network.check(&self.host, &self.attachment, &self.result)
    }

    /// DEL, then removes the namespace.
    pub fn delete(self) {
        let deleted = self.network.del(&self.host, &self.attachment, &self.result);
        deleted.unwrap_or_else(|e| panic!("{}: DEL: {e}", self.label()));
        self.host.run(&format!("ip netns del {}", self.attachment.container)).ok();
    }

    /// Its first IPv4 address.
    pub fn v4(&self) -> IpAddr {
        self.first(IpAddr::is_ipv4)
    }

    /// Its first IPv6 address.
    pub fn v6(&self) -> IpAddr {
        self.first(IpAddr::is_ipv6)
    }

    /// The gateways that ADD named.
    pub fn gateways(&self) -> Vec<IpAddr> {
        self.ips().filter_map(|ip| ip["gateway"].as_str()?.parse().ok()).collect()
    }

    fn first(&self, family: impl Fn(&IpAddr) -> bool) -> IpAddr {
        let found = self.addresses().into_iter().find(family);
        found.unwrap_or_else(|| panic!("{}: no such address: {}", self.label(), self.result))
    }

    fn ips(&self) -> impl Iterator<Item = &Value> {
        self.result["ips"].as_array().into_iter().flatten()
    }
}

/// A host port of its own, [`host_port`], and limits far above what a test sends.
pub fn requested_settings(name: &str) -> Value {
    json!({
        "portMappings": [{
            "hostPort": host_port(name), "containerPort": CONTAINER_PORT, "protocol": "tcp"
        }],
        "bandwidth": {
            "ingressRate": 1_000_000_000, "ingressBurst": 10_000_000,
            "egressRate": 1_000_000_000, "egressBurst": 10_000_000
        },
    })
}

/// The port of the host that leads to [`CONTAINER_PORT`] of the pod `name`; pods of one host with
/// different names have different ones, as far as tests go.
pub fn host_port(name: &str) -> u16 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    10_000 + u16::try_from(hasher.finish() % 20_000).expect("below 20,000")
}

/// The container port behind the host port of a pod: the port of [`super::web::Web`].
pub const CONTAINER_PORT: u16 = 8000;

/// An empty network namespace with `lo` up, as a runtime makes it before ADD.
pub fn make_netns(host: &Node, name: &str) {
    host.run(&format!("ip netns add {name}")).ok();
    host.run(&format!("ip -n {name} link set lo up")).ok();
}

impl Place for Pod {
    fn node(&self) -> &Node {
        &self.host
    }

    fn netns(&self) -> Option<&str> {
        Some(&self.attachment.netns)
    }

    fn label(&self) -> String {
        format!("{}/{}", self.host.name(), self.attachment.container)
    }

    fn addresses(&self) -> Vec<IpAddr> {
        let address = |ip: &Value| ip["address"].as_str()?.split('/').next()?.parse().ok();
        let mut addresses: Vec<IpAddr> = self.ips().filter_map(address).collect();
        addresses.sort_by_key(IpAddr::is_ipv6);
        addresses
    }
}
