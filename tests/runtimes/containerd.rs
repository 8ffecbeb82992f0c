//! containerd by `ctr`, its own client, which runs the plugins itself.

use std::process::Command;

use crate::scene::{ROOT, SOON, Scene, address_in};
use crate::skipped;
use crate::support::node::command;
use crate::support::{Ended, Place, Process, eventually};

/// Where its socket is in a node.
pub const SOCKET: &str = "/run/containerd.sock";
/// A configuration without the kubelet's service.
const NO_CRI: &str = "disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n";

#[test]
fn containers_of_containerd_reach_each_other_and_leave_nothing() {
    if skipped() {
        return;
    }
    let scene = Scene::new("containerd", &[]);
    let containerd = Containerd::start(&scene, NO_CRI);
    let first = containerd.spawn("first", "/bin/sleep 1000");
    let address = eventually("an address of the first container", SOON, || {
        let shown =
            containerd.run(&["task", "exec", "--exec-id", "a", "first", "/bin/ip", "-4", "a"]);
        address_in(&shown.stdout).ok_or_else(|| format!("{shown}\n{}", first.log()))
    });
    let host = scene.host();
    host.run(&format!("ping -n -c 1 -W 3 {address}")).ok();
    let second = containerd.spawn("second", &format!("/bin/ping -c 1 -W 3 {address}"));
    let ended = second.wait(SOON);
    assert!(ended.success(), "ping from the second container: {}", second.log());
    containerd.run(&["task", "kill", "--signal", "KILL", "first"]).ok();
    first.wait(SOON);
    scene.has_no_pod();
    scene.plugin_log_has(&["ADD", "DEL"]);
}

/// containerd of this machine, with folders and socket of the host's own.
pub struct Containerd<'a> {
    scene: &'a Scene,
    server: Process,
}

impl<'a> Containerd<'a> {
    /// `configuration`: additional content of the file, tables last.
    pub fn start(scene: &'a Scene, configuration: &str) -> Self {
        let host = scene.host();
        host.write(
            "/etc/containerd.toml",
            &format!(
                "version = 2\nroot = \"/var/lib/containerd\"\nstate = \"/run/containerd\"
                 oom_score = 0\n{configuration}[grpc]\naddress = \"{SOCKET}\"\n"
            ),
        );
        let server = host.spawn(&mut command("containerd --config /etc/containerd.toml"));
        let containerd = Self { scene, server };
        eventually("containerd answers", SOON, || {
            let answer = containerd.run(&["version"]);
            let log = || format!("{answer}\n{}", containerd.log());
            if answer.succeeded() { Ok(()) } else { Err(log()) }
        });
        containerd
    }

    pub fn log(&self) -> String {
        self.server.log()
    }

    /// Runs a container with a network in the foreground.
    fn spawn(&self, name: &str, line: &str) -> Process {
        let mut run = self.ctr(&["run", "--rm", "--cni", "--rootfs", ROOT, name]);
        self.scene.host().spawn(run.args(line.split(' ')))
    }

    fn run(&self, arguments: &[&str]) -> Ended {
        self.scene.host().run_command(&mut self.ctr(arguments), "")
    }

    fn ctr(&self, arguments: &[&str]) -> Command {
        let mut ctr = command(&format!("ctr --address {SOCKET} --namespace"));
        ctr.arg(&self.scene.cgroups.name).args(arguments);
        ctr
    }
}
