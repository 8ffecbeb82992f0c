//! A host that has the plugin and nothing else: no agent, no etcd.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::process::Command;

use serde_json::{Value, json};

use super::cluster::Alone;
use super::cni::PLUGINS;
use super::disk::EXECUTABLE;
use super::node::{Node, Place, command};
use super::process::Ended;

/// Where the addresses of the network `net` are kept.
pub const STORE: &str = "/run/humanz/ipam/net";

pub struct PluginHost {
    alone: Alone,
}

/// One call of a plugin, as a runtime makes it.
#[derive(Clone)]
pub struct Call {
    pub conf: Value,
    pub variables: Vec<(&'static str, String)>,
    /// Words before the plugin's own name, as in `strace -f`.
    pub wrapper: String,
}

/// The output of a plugin.
#[derive(Debug)]
pub struct Answer {
    /// stdout; `Null` if it is no JSON.
    pub value: Value,
    pub ended: Ended,
}

impl PluginHost {
    pub fn new() -> Self {
        let host = Self { alone: Alone::new() };
        host.shell(&format!("mkdir -p {PLUGINS}; ln -s {EXECUTABLE} {PLUGINS}/humanz")).ok();
        host
    }

    /// A namespace for a container of that name.
    pub fn netns(&self, name: &str) {
        super::pod::make_netns(&self.alone.host, name);
    }

    /// ADD of a fresh namespace and container of that name.
    ///
    /// # Panics
    /// If it fails.
    pub fn add(&self, conf: &Value, name: &str) -> Value {
        self.netns(name);
        Call::new("ADD", conf, name).run(self).ok()
    }

    /// Leftovers of pods: links, addresses and owners in the store, host ports, neighbours on the
    /// bridge.
    pub fn leftovers(&self) -> BTreeSet<String> {
        let mut left = BTreeSet::new();
        left.extend(
            super::facts::veths(&self.alone.host).into_iter().map(|veth| format!("link {veth}")),
        );
        for name in self.list(STORE) {
            if name.parse::<std::net::IpAddr>().is_ok() || name == "quarantine" {
                left.insert(format!("file {name}"));
            }
        }
        left.extend(
            self.list(&format!("{STORE}/owners")).into_iter().map(|name| format!("owner {name}")),
        );
        left.extend(self.ports().into_iter().map(|port| format!("port {port}")));
        left.extend(self.guards().into_iter().map(|guard| format!("guard {guard}")));
        // Without the state, which changes with time; link-local ones change by themselves.
        let neighbours = self.run("ip neigh show dev hz0").stdout;
        let known = neighbours.lines().filter_map(|line| line.split_once(" lladdr "));
        let known = known.filter(|(address, _)| !address.starts_with("fe80:"));
        left.extend(known.map(|(address, _)| format!("neighbour {address}")));
        left
    }

    /// The guards of links that are there.
    pub fn guards(&self) -> Vec<String> {
        let links = self.ip("link show");
        let links = links.as_array().expect("a list");
        let mut chains = self.guard_chains();
        chains.retain(|chain| links.iter().any(|link| link["ifname"] == chain.as_str()));
        chains
    }

    /// All guards: newer kernels keep that of a link that went, until somebody removes it.
    pub fn guard_chains(&self) -> Vec<String> {
        let listed = self.run("nft list table netdev humanz").stdout;
        let chains = listed.lines().filter_map(|line| line.trim().strip_prefix("chain hz"));
        chains.map(|line| format!("hz{}", line.trim_end_matches(" {"))).collect()
    }

    /// The DNAT targets: the elements of all maps, in nft's syntax.
    fn ports(&self) -> Vec<String> {
        let listed = self.run("nft list maps inet").stdout;
        let maps = listed.split("elements = {").skip(1).filter_map(|map| map.split('}').next());
        maps.flat_map(|map| map.split(',')).map(|element| element.trim().to_owned()).collect()
    }

    /// # Panics
    /// If a pod has left anything.
    pub fn assert_clean(&self, when: &str) {
        let left = self.leftovers();
        assert!(left.is_empty(), "left {when}: {left:?}");
    }

    /// `ip -j LINE` as JSON; `Null` if it failed.
    pub fn ip(&self, line: &str) -> Value {
        serde_json::from_str(&self.run(&format!("ip -j {line}")).stdout).unwrap_or(Value::Null)
    }

    /// The same in a pod.
    pub fn pod_ip(&self, pod: &str, line: &str) -> Value {
        self.ip(&format!("-n {pod} {line}"))
    }
}

impl Deref for PluginHost {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.alone.host
    }
}

/// A configuration of the network `net` on the bridge `hz0`, with `keys` added or replaced.
pub fn conf(version: &str, keys: Value) -> Value {
    let mut conf =
        json!({ "cniVersion": version, "name": "net", "type": "humanz", "bridge": "hz0" });
    conf.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    conf
}

impl Call {
    /// `verb` for `eth0` of the container `name` in the namespace of that name.
    pub fn new(verb: &str, conf: &Value, name: &str) -> Self {
        let variables = vec![
            ("CNI_COMMAND", verb.to_owned()),
            ("CNI_CONTAINERID", name.to_owned()),
            ("CNI_NETNS", format!("/run/netns/{name}")),
            ("CNI_IFNAME", "eth0".to_owned()),
            ("CNI_PATH", PLUGINS.to_owned()),
        ];
        Self { conf: conf.clone(), variables, wrapper: String::new() }
    }

    /// The same with another value of a variable; empty: without it.
    pub fn with(mut self, name: &'static str, value: &str) -> Self {
        self.variables.retain(|(given, _)| *given != name);
        if !value.is_empty() {
            self.variables.push((name, value.to_owned()));
        }
        self
    }

    /// The same with one more key in the configuration.
    pub fn key(mut self, key: &str, value: Value) -> Self {
        self.conf[key] = value;
        self
    }

    /// The same, run by `wrapper`.
    pub fn under(mut self, wrapper: &str) -> Self {
        wrapper.clone_into(&mut self.wrapper);
        self
    }

    pub fn command(&self) -> Command {
        let mut command = command(&format!("{} {PLUGINS}/humanz", self.wrapper));
        command.envs(self.variables.iter().map(|(name, value)| (*name, value)));
        command
    }

    pub fn run(&self, host: &Node) -> Answer {
        self.run_with(host, &self.conf.to_string())
    }

    /// The same with these bytes on stdin.
    pub fn run_with(&self, host: &Node, stdin: &str) -> Answer {
        let ended = host.run_command(&mut self.command(), stdin);
        let value = serde_json::from_str(&ended.stdout).unwrap_or(Value::Null);
        Answer { value, ended }
    }
}

impl Answer {
    /// # Panics
    /// If the plugin failed, or talked to people although all was well.
    pub fn ok(self) -> Value {
        assert!(self.ended.succeeded() && self.ended.stderr.is_empty(), "{}", self.ended);
        self.value
    }

    /// The error object's code.
    ///
    /// # Panics
    /// If there is no error object, or the plugin succeeded.
    pub fn code(&self) -> u64 {
        assert!(!self.ended.succeeded(), "{}", self.ended);
        assert!(self.value["cniVersion"].is_string(), "{}", self.ended);
        self.value["code"].as_u64().unwrap_or_else(|| panic!("no error object: {}", self.ended))
    }

    /// The error object's text, with its details.
    pub fn error(&self) -> String {
        let text = |key: &str| self.value[key].as_str().unwrap_or_default().to_owned();
        let _checked = self.code();
        format!("{} {}", text("msg"), text("details"))
    }
}

/// A container of a [`PluginHost`], in the namespace of its name.
pub struct Container {
    host: Node,
    netns: String,
}

impl PluginHost {
    pub fn container(&self, name: &str) -> Container {
        Container { host: self.alone.host.clone(), netns: format!("/run/netns/{name}") }
    }

    /// A namespace `outside` at the other end of the host's uplink, with 192.0.2.99 and fd99::99,
    /// which reaches nothing but the host.
    pub fn outside(&self) -> Container {
        self.shell(
            "ip netns add outside; ip link set eth0-cable netns outside
             ip -n outside link set lo up; ip -n outside link set eth0-cable up
             ip -n outside addr add 192.0.2.99/24 dev eth0-cable
             ip -n outside addr add fd99::99/64 dev eth0-cable nodad",
        )
        .ok();
        self.container("outside")
    }
}

impl Place for Container {
    fn node(&self) -> &Node {
        &self.host
    }

    fn netns(&self) -> Option<&str> {
        Some(&self.netns)
    }

    fn label(&self) -> String {
        self.netns.clone()
    }

    fn addresses(&self) -> Vec<std::net::IpAddr> {
        Vec::new()
    }
}
