//! Real container runtimes with humanz as their network. `SKIP_RUNTIMES=1` leaves them out.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first surprise, and tells what it left out"
)]

mod support;

use std::process::Command;
use std::time::Duration;

use support::node::command;
use support::{Agent, Alone, Ended, Node, Place, Process, eventually, facts};

const ROOT: &str = "/var/lib/root";
const SOON: Duration = Duration::from_secs(30);

#[test]
fn containers_of_containerd_reach_each_other_and_leave_nothing() {
    if skipped() {
        return;
    }
    let scene = Scene::new("containerd");
    let containerd = Containerd::start(&scene);
    let first = containerd.spawn("first", "/bin/sleep 1000");
    let address = eventually("an address of the first container", SOON, || {
        let shown =
            containerd.run(&["task", "exec", "--exec-id", "a", "first", "/bin/ip", "-4", "a"]);
        address_in(&shown.stdout).ok_or_else(|| format!("{shown}\n{}", first.log()))
    });
    let host = &scene.alone.host;
    host.run(&format!("ping -n -c 1 -W 3 {address}")).ok();
    let second = containerd.spawn("second", &format!("/bin/ping -c 1 -W 3 {address}"));
    let ended = second.wait(SOON);
    assert!(ended.success(), "ping from the second container: {}", second.log());
    containerd.run(&["task", "kill", "--signal", "KILL", "first"]).ok();
    first.wait(SOON);
    scene.has_no_pod();
    scene.plugin_log_tells(&["ADD", "DEL"]);
}

#[test]
fn containers_of_podman_reach_each_other_and_leave_nothing() {
    if skipped() {
        return;
    }
    let scene = Scene::new("podman");
    let podman = Podman::new(&scene);
    podman.run_container("first", &["--detach"], "/bin/sleep 1000").ok();
    let address = podman.run(&["exec", "first", "/bin/ip", "-4", "a"]).ok();
    let address = address_in(&address).unwrap_or_else(|| panic!("no address: {address}"));
    scene.alone.host.run(&format!("ping -n -c 1 -W 3 {address}")).ok();
    podman.run_container("second", &["--rm"], &format!("/bin/ping -c 1 -W 3 {address}")).ok();
    let wanted = "10.244.1.77";
    let fixed = podman.run_container("third", &["--rm", "--ip", wanted], "/bin/ip -4 a").ok();
    assert_eq!(address_in(&fixed).as_deref(), Some(wanted), "{fixed}");
    podman.run(&["rm", "--force", "--time", "0", "first"]).ok();
    scene.has_no_pod();
}

fn skipped() -> bool {
    let skip = std::env::var("SKIP_RUNTIMES").is_ok_and(|value| value == "1");
    if skip {
        println!("left out: SKIP_RUNTIMES=1");
    }
    skip
}

/// A host with an agent, and a root file system for containers.
struct Scene {
    _agent: Agent,
    cgroups: Cgroups,
    alone: Alone,
}

impl Scene {
    fn new(runtime: &str) -> Self {
        let alone = Alone::new();
        let host = &alone.host;
        host.shell(&format!(
            "mkdir -p {ROOT}/bin {ROOT}/proc {ROOT}/sys {ROOT}/dev {ROOT}/etc {ROOT}/run {ROOT}/tmp
             cp $(command -v busybox) {ROOT}/bin/busybox
             for name in sh sleep ping ip; do ln -s busybox {ROOT}/bin/$name; done"
        ))
        .ok();
        let agent = Agent::start(host, &[("ETCD_HOST", ""), ("SUBNET_SOURCE", "static")]);
        agent.wait_ready();
        Self { _agent: agent, cgroups: Cgroups::new(runtime), alone }
    }

    /// No veth and no reserved address is left.
    fn has_no_pod(&self) {
        let host = &self.alone.host;
        eventually("no pod is left", SOON, || {
            let (veths, addresses) = (facts::veths(host), reserved(host));
            if veths.is_empty() && addresses.is_empty() {
                return Ok(());
            }
            Err(format!("{veths:?} {addresses:?}"))
        });
    }

    fn plugin_log_tells(&self, verbs: &[&str]) {
        let log = self.alone.host.read("/var/log/humanz.log").unwrap_or_default();
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
fn address_in(shown: &str) -> Option<String> {
    let mut inet = shown.lines().filter_map(|line| line.trim().strip_prefix("inet "));
    let line = inet.find(|line| !line.starts_with("127."))?;
    line.split('/').next().map(String::from)
}

/// Where containers of a test have their cgroups on this machine; emptied ones of a killed runtime
/// would stay.
struct Cgroups {
    name: String,
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

/// containerd of this machine, with folders and socket of the host's own.
struct Containerd<'a> {
    scene: &'a Scene,
    server: Process,
}

impl<'a> Containerd<'a> {
    fn start(scene: &'a Scene) -> Self {
        let host = &scene.alone.host;
        host.write(
            "/etc/containerd.toml",
            "version = 2\nroot = \"/var/lib/containerd\"\nstate = \"/run/containerd\"\noom_score = 0
             disabled_plugins = [\"io.containerd.grpc.v1.cri\"]
             [grpc]\naddress = \"/run/containerd.sock\"\n",
        );
        let server = host.spawn(&mut command("containerd --config /etc/containerd.toml"));
        let containerd = Self { scene, server };
        eventually("containerd answers", SOON, || {
            let answer = containerd.run(&["version"]);
            let log = || format!("{answer}\n{}", containerd.server.log());
            if answer.succeeded() { Ok(()) } else { Err(log()) }
        });
        containerd
    }

    /// Runs a container with a network in the foreground.
    fn spawn(&self, name: &str, line: &str) -> Process {
        let mut run = self.ctr(&["run", "--rm", "--cni", "--rootfs", ROOT, name]);
        self.scene.alone.host.spawn(run.args(line.split(' ')))
    }

    fn run(&self, arguments: &[&str]) -> Ended {
        self.scene.alone.host.run_command(&mut self.ctr(arguments), "")
    }

    fn ctr(&self, arguments: &[&str]) -> Command {
        let mut ctr = command("ctr --address /run/containerd.sock --namespace");
        ctr.arg(&self.scene.cgroups.name).args(arguments);
        ctr
    }
}

/// podman with its CNI back end.
struct Podman<'a> {
    scene: &'a Scene,
}

impl<'a> Podman<'a> {
    fn new(scene: &'a Scene) -> Self {
        let host = &scene.alone.host;
        host.run("mkdir -p /etc/containers").ok();
        host.write(
            "/etc/containers/containers.conf",
            "[network]\nnetwork_backend = \"cni\"\ncni_plugin_dirs = [\"/opt/cni/bin\"]
             network_config_dir = \"/etc/cni/net.d\"\ndefault_network = \"humanz\"
             [engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nruntime = \"runc\"
             [containers]\nlog_driver = \"k8s-file\"\n",
        );
        let policy = r#"{"default":[{"type":"insecureAcceptAnything"}]}"#;
        host.write("/etc/containers/policy.json", policy);
        Self { scene }
    }

    fn run_container(&self, name: &str, options: &[&str], line: &str) -> Ended {
        let parent = format!("/{}", self.scene.cgroups.name);
        let mut run = command("podman run --network humanz --cap-add NET_RAW --cgroup-parent");
        run.args([&parent, "--name", name]).args(options);
        // A machine may forbid to raise limits: these are the ones that are there.
        run.args(["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]);
        run.args(["--rootfs", ROOT]).args(line.split(' '));
        self.scene.alone.host.run_command(&mut run, "")
    }

    fn run(&self, arguments: &[&str]) -> Ended {
        self.scene.alone.host.run_command(command("podman").args(arguments), "")
    }
}
