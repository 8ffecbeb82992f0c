//! podman with its CNI back end.

use crate::scene::{ROOT, Scene, address_in};
use crate::skipped;
use crate::support::node::command;
use crate::support::{Agent, Ended, Place};

#[test]
fn containers_of_podman_reach_each_other_and_leave_nothing() {
    if skipped() {
        return;
    }
    let scene = Scene::new("podman", &[]);
    let podman = Podman::new(&scene);
    podman.run_container("first", &["--detach"], "/bin/sleep 1000").ok();
    let address = podman.run(&["exec", "first", "/bin/ip", "-4", "a"]).ok();
    let address = address_in(&address).unwrap_or_else(|| panic!("no address: {address}"));
    scene.host().run(&format!("ping -n -c 1 -W 3 {address}")).ok();
    podman.run_container("second", &["--rm"], &format!("/bin/ping -c 1 -W 3 {address}")).ok();
    let wanted = "10.244.1.77";
    let fixed = podman.run_container("third", &["--rm", "--ip", wanted], "/bin/ip -4 a").ok();
    assert_eq!(address_in(&fixed).as_deref(), Some(wanted), "{fixed}");
    podman.run(&["rm", "--force", "--time", "0", "first"]).ok();
    scene.has_no_pod();
}

/// As the manual says it, without any agent.
#[test]
fn podman_has_the_network_that_init_put_in_place() {
    if skipped() {
        return;
    }
    let scene = Scene::alone("podman-init");
    let said = Agent::run(scene.host(), "init", &[("ETCD_HOST", "")]).ok();
    assert!(said.contains("podman run --network humanz with an image"), "{said}");
    let podman = Podman::new(&scene);
    podman.run_container("first", &["--detach"], "/bin/sleep 1000").ok();
    let address = podman.run(&["exec", "first", "/bin/ip", "-4", "a"]).ok();
    let address = address_in(&address).unwrap_or_else(|| panic!("no address: {address}"));
    podman.run_container("second", &["--rm"], &format!("/bin/ping -c 1 -W 3 {address}")).ok();
    podman.run(&["rm", "--force", "--time", "0", "first"]).ok();
    scene.has_no_pod();
    Agent::run(scene.host(), "uninstall --purge", &[("ETCD_HOST", "")]).ok();
    assert!(scene.host().list("/opt/cni/bin").is_empty());
}

/// podman with its CNI back end.
struct Podman<'a> {
    scene: &'a Scene,
}

impl<'a> Podman<'a> {
    fn new(scene: &'a Scene) -> Self {
        let host = scene.host();
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
        self.scene.host().run_command(&mut run, "")
    }

    fn run(&self, arguments: &[&str]) -> Ended {
        self.scene.host().run_command(command("podman").args(arguments), "")
    }
}
