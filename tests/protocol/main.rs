//! The executable as runtimes call it: variables, stdin, stdout, exit code. No bridge, no agent.

// A test stops at the first failure.
#![allow(clippy::unwrap_used)]

use humanz_test_support as support;

mod configurations;
mod loopback;
mod netavark;
mod roles;
mod variables;

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Value, json};
use support::cluster::Alone;
use support::cni::PLUGINS;
use support::disk::EXECUTABLE;
use support::node::command;
use support::{Ended, Node, Place};

/// A machine with the executable under its three names, and the namespace `pod`.
struct Machine {
    node: Node,
    _alone: Alone,
}

const NETNS: &str = "/run/netns/pod";

impl Machine {
    fn new() -> Self {
        let alone = Alone::new();
        let node = alone.host.clone();
        node.shell(&format!(
            "mkdir -p {PLUGINS} && cd {PLUGINS}
             for name in humanz loopback humanz-agent; do ln -s {EXECUTABLE} $name; done
             ip netns add pod"
        ))
        .ok();
        Self { node, _alone: alone }
    }

    /// Addresses of the network `net` that are handed out.
    fn reserved(&self) -> Vec<String> {
        let mut names = self.node.list("/run/humanz/ipam/net");
        names.retain(|name| name.parse::<IpAddr>().is_ok());
        names
    }

    fn loopback_is_up(&self) -> bool {
        self.node.run("ip -n pod link show lo").ok().contains("LOOPBACK,UP")
    }
}

/// One execution: the input of a runtime, which a test can change.
#[derive(Clone)]
struct Call {
    plugin: &'static str,
    variables: BTreeMap<&'static str, String>,
    stdin: String,
}

impl Call {
    fn new(plugin: &'static str, command: &str) -> Self {
        let variables = [
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_NETNS", NETNS),
            ("CNI_IFNAME", if plugin == "loopback" { "lo" } else { "eth0" }),
            ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=p"),
            ("CNI_PATH", PLUGINS),
        ];
        let call = Self {
            plugin,
            variables: variables.map(|(name, value)| (name, value.to_owned())).into(),
            stdin: String::new(),
        };
        call.conf(json!({}))
    }

    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.variables.insert(name, value.to_owned());
        self
    }

    fn without(mut self, name: &str) -> Self {
        self.variables.remove(name);
        self
    }

    /// A whole configuration with `keys` over it; null takes a key away.
    fn conf(mut self, keys: Value) -> Self {
        let mut conf = json!({
            "cniVersion": "1.1.0", "name": "net", "type": self.plugin,
            "bridge": "hzt0", "createBridge": false, "subnet": "10.9.9.0/24",
        });
        for (key, value) in keys.as_object().unwrap() {
            conf[key] = value.clone();
        }
        conf.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        self.stdin = conf.to_string();
        self
    }

    fn stdin(mut self, text: &str) -> Self {
        self.stdin = text.to_owned();
        self
    }

    fn run(&self, machine: &Machine) -> Ended {
        let mut command = command(&format!("{PLUGINS}/{}", self.plugin));
        command.envs(&self.variables);
        machine.node.run_command(&mut command, &self.stdin)
    }

    /// The error object of a call that fails: alone on stdout, with the keys of the specification.
    fn refused(&self, machine: &Machine) -> Refusal {
        refusal(self.run(machine))
    }

    /// A call that succeeds and says nothing.
    fn silent(&self, machine: &Machine) {
        let ended = self.run(machine);
        assert!(ended.succeeded(), "{ended}");
        assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("", ""), "{}", ended.what);
    }

    /// The one JSON object of a call that succeeds; nothing on stderr.
    fn answer(&self, machine: &Machine) -> Value {
        let ended = self.run(machine);
        assert!(ended.succeeded(), "{ended}");
        assert_eq!(ended.stderr, "", "{}", ended.what);
        serde_json::from_str(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {ended}"))
    }
}

#[derive(Debug)]
struct Refusal {
    code: u64,
    version: String,
    msg: String,
    details: String,
}

impl Refusal {
    /// It is of `code`, and its text (message and details) has all of `words`.
    #[track_caller]
    fn says(&self, code: u64, words: &[&str]) {
        assert_eq!(self.code, code, "{self:?}");
        let text = format!("{}; {}", self.msg, self.details);
        for word in words {
            assert!(text.contains(word), "no {word:?} in {self:?}");
        }
    }
}

#[track_caller]
fn refusal(ended: Ended) -> Refusal {
    assert!(!ended.succeeded(), "it succeeded: {ended}");
    assert!(ended.status.code().is_some(), "a signal ended it: {ended}");
    let object: Value = serde_json::from_str(&ended.stdout)
        .unwrap_or_else(|e| panic!("stdout is not one JSON object ({e}): {ended}"));
    let text = |key: &str| object[key].as_str().map(str::to_owned);
    let known = ["cniVersion", "code", "details", "msg"];
    let strange = object.as_object().unwrap().keys().find(|key| !known.contains(&key.as_str()));
    assert_eq!(strange, None, "{ended}");
    Refusal {
        code: object["code"].as_u64().unwrap_or_else(|| panic!("no code: {ended}")),
        version: text("cniVersion").unwrap_or_else(|| panic!("no cniVersion: {ended}")),
        msg: text("msg").filter(|msg| !msg.is_empty()).unwrap_or_else(|| panic!("no msg: {ended}")),
        details: text("details").unwrap_or_default(),
    }
}
