//! A host with an agent, on which a runtime starts containers.

use std::time::Duration;

use crate::support::node::command;
use crate::support::{Agent, Alone, Node, Place, eventually, facts};

/// The root file system of containers.
pub const ROOT: &str = "/var/lib/root";
/// The content of its file `/etc/hello`.
pub const HELLO: &str = "hello";
/// `fetch ADDRESS PORT` prints that file of another container (busybox's wget wants NSS).
const FETCH: &str = "#!/bin/sh
printf 'GET /hello HTTP/1.0\\r\\n\\r\\n' | nc -w 5 $1 $2 | tail -n 1
";
/// How long a runtime may take for one thing on a busy machine.
pub const SOON: Duration = Duration::from_secs(60);

/// A host with an agent, and a root file system for containers.
pub struct Scene {
    pub cgroups: Cgroups,
    _agent: Option<Agent>,
    alone: Alone,
}

impl Scene {
    /// With one address family, unless `variables` say otherwise.
    pub fn new(runtime: &str, variables: &[(&str, &str)]) -> Self {
        let scene = Scene::alone(runtime);
        let variables = [&[("ETCD_HOST", ""), ("SUBNET_SOURCE", "static")], variables].concat();
        let agent = Agent::start(scene.host(), &variables);
        agent.wait_ready();
        Self { _agent: Some(agent), ..scene }
    }

    /// Without an agent.
    pub fn alone(runtime: &str) -> Self {
        let alone = Alone::new();
        let host = &alone.host;
        host.shell(&format!(
            "mkdir -p {ROOT}/bin {ROOT}/proc {ROOT}/sys {ROOT}/dev {ROOT}/etc {ROOT}/run {ROOT}/tmp
             cp $(command -v busybox) {ROOT}/bin/busybox
             printf '{HELLO}' >{ROOT}/etc/hello
             for name in sh sleep ping ip httpd nc tail; do ln -s busybox {ROOT}/bin/$name; done"
        ))
        .ok();
        host.write(&format!("{ROOT}/bin/fetch"), FETCH);
        host.run(&format!("chmod +x {ROOT}/bin/fetch")).ok();
        Self { cgroups: Cgroups::new(runtime), _agent: None, alone }
    }

    pub fn host(&self) -> &Node {
        &self.alone.host
    }

    /// No veth and no reserved address is left.
    pub fn has_no_pod(&self) {
        let host = self.host();
        eventually("no pod is left", SOON, || {
            let (veths, addresses) = (facts::veths(host), reserved(host));
            if veths.is_empty() && addresses.is_empty() {
                return Ok(());
            }
            Err(format!("{veths:?} {addresses:?}"))
        });
    }

    pub fn plugin_log_has(&self, verbs: &[&str]) {
        let log = self.host().read("/var/log/humanz.log").unwrap_or_default();
        for verb in verbs {
            assert!(log.contains(verb), "{verb} in /var/log/humanz.log:\n{log}");
        }
    }
}

/// Names in the address store that are addresses.
fn reserved(host: &Node) -> Vec<String> {
    let mut names = host.list("/run/humanz/ipam/humanz");
    names.retain(|name| name.parse::<std::net::IpAddr>().is_ok());
    names
}

/// The first IPv4 address that is not 127.0.0.1 in what `ip address` prints.
pub fn address_in(shown: &str) -> Option<String> {
    let mut inet = shown.lines().filter_map(|line| line.trim().strip_prefix("inet "));
    let line = inet.find(|line| !line.starts_with("127."))?;
    line.split('/').next().map(String::from)
}

/// Where containers of a test have their cgroups on this machine; emptied ones of a killed runtime
/// would stay.
pub struct Cgroups {
    pub name: String,
}

impl Cgroups {
    fn new(runtime: &str) -> Self {
        Self { name: format!("humanz-{runtime}-{}", std::process::id()) }
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        let path = format!("*/{}*", self.name);
        let mut find = command("find /sys/fs/cgroup -depth -type d -path");
        drop(find.args([&path, "-exec", "rmdir", "{}", ";"]).output());
    }
}
