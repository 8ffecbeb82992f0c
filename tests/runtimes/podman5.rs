//! podman 5, which has netavark and no CNI: that of Debian 13.

use crate::scene::{ROOT, Scene, address_in};
use crate::support::disk::{EXECUTABLE, debian_13};
use crate::support::node::command;
use crate::support::{Ended, Node, Place, eventually};

/// Where it is on the host.
const FIVE: &str = "/tmp/five/root";

/// The tree of podman 5 on a host, with the host's network, settings and store.
struct Podman5<'a>(&'a Scene);

impl<'a> Podman5<'a> {
    fn new(scene: &'a Scene) -> Self {
        let tree = debian_13();
        let host = scene.host();
        host.shell(&format!(
            "mkdir -p /tmp/five/up /tmp/five/work {FIVE}
             mount -t overlay -o lowerdir={},upperdir=/tmp/five/up,workdir=/tmp/five/work five {FIVE}
             mkdir -p /etc/cni/net.d /opt/cni/bin /run/humanz
             cd {FIVE} && mkdir -p etc/cni opt/cni var/log .{ROOT} etc/containers
             for name in proc sys dev run etc/cni opt/cni var/log {ROOT}; do mount --rbind /${{name#/}} ./$name; done
             mount -t cgroup2 cgroup2 sys/fs/cgroup
             touch usr/sbin/humanz-agent && mount --bind {EXECUTABLE} usr/sbin/humanz-agent",
            tree.display()
        ))
        .ok();
        host.write(
            &format!("{FIVE}/etc/containers/containers.conf"),
            "[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nruntime = \"crun\"
             [containers]\nlog_driver = \"k8s-file\"\ncgroups = \"disabled\"\n",
        );
        host.write(
            &format!("{FIVE}/etc/containers/policy.json"),
            r#"{"default":[{"type":"insecureAcceptAnything"}]}"#,
        );
        Self(scene)
    }

    fn host(&self) -> &Node {
        self.0.host()
    }

    /// A line in the tree.
    fn line(&self, line: &str) -> Ended {
        let mut command = command(&format!(
            "chroot {FIVE} /bin/busybox env -i HOME=/root PATH=/usr/sbin:/usr/bin"
        ));
        self.host().run_command(command.args(line.split(' ')), "")
    }

    /// Starts a container, which serves its `/etc`.
    fn start(&self, name: &str, options: &str) -> Ended {
        let limits = "--ulimit nofile=1024:1024 --ulimit nproc=1024:1024";
        let run = format!("run --detach --name {name} {limits} {options} --rootfs {ROOT}");
        self.podman(&format!("{run} /bin/httpd -f -p 80 -h /etc"))
    }

    fn podman(&self, line: &str) -> Ended {
        self.line(&format!("podman --storage-driver vfs {line}"))
    }

    /// Programs of the host in the network of a container: podman's own exec finds another root, that of the host, from
    /// inside a chroot.
    fn inside(&self, container: &str, line: &str) -> Ended {
        self.host().run(&format!("nsenter --net={} {line}", self.network_of(container)))
    }

    fn network_of(&self, container: &str) -> String {
        let pid = self.podman(&format!("inspect {container} --format {{{{.State.Pid}}}}")).ok();
        format!("/proc/{}/ns/net", pid.trim())
    }

    fn address(&self, container: &str) -> String {
        let shown = self.inside(container, "ip -4 address").ok();
        address_in(&shown).unwrap_or_else(|| panic!("no address: {shown}"))
    }

    /// Containers come, reach each other and the host, restart and go.
    fn containers_come_and_go(&self) {
        self.podman("network create --driver humanz mine").ok();
        let refused = self.podman("network create --driver humanz --subnet 10.9.0.0/24 other");
        assert!(refused.stderr.contains("subnets"), "{refused}");
        self.start("first", "--network mine --publish 8080:80").ok();
        let address = self.address("first");
        let inspected =
            self.podman("inspect first --format {{.NetworkSettings.Networks.mine.IPAddress}}").ok();
        assert_eq!(inspected.trim(), address);
        self.host().run(&format!("ping -n -c 1 -W 3 {address}")).ok();
        let fixed = "--network mine:ip=10.244.1.77,mac=02:11:22:33:44:55,interface_name=net7";
        self.start("second", fixed).ok();
        assert_eq!(self.address("second"), "10.244.1.77");
        self.inside("second", &format!("ping -n -c 1 -W 3 {address}")).ok();
        let taken = self.start("third", "--network mine:ip=10.244.1.77");
        assert!(taken.stderr.contains("is taken by") && taken.stderr.contains("second"), "{taken}");
        self.podman("rm --force third").ok();

        let node = self.host().v4();
        eventually("the port of the host answers", crate::scene::SOON, || {
            let got = self.host().shell(&format!(
                "printf 'GET /hello HTTP/1.0\\r\\n\\r\\n' | nsenter --net={} busybox nc -w 5 {node} 8080",
                self.network_of("second")
            ));
            if got.stdout.contains(crate::scene::HELLO) { Ok(()) } else { Err(got.to_string()) }
        });
        self.podman("restart --time 0 first").ok();
        self.host().run(&format!("ping -n -c 1 -W 3 {}", self.address("first"))).ok();
        self.killed("first");
        for name in ["first", "second"] {
            self.podman(&format!("rm --force --time 0 {name}")).ok();
        }
        self.podman("network rm mine").ok();
        self.0.has_no_pod();
    }

    /// The process of a container is killed, and it is started again.
    fn killed(&self, name: &str) {
        let before = self.network_of(name);
        let pid = before.split('/').nth(2).unwrap_or_default();
        self.host().run(&format!("kill -9 {pid}")).ok();
        eventually("it runs again", crate::scene::SOON, || {
            let said = self.podman(&format!("start {name}"));
            if self.network_of(name) != before { Ok(()) } else { Err(said.to_string()) }
        });
        self.host().run(&format!("ping -n -c 1 -W 3 {}", self.address(name))).ok();
    }
}

#[test]
fn containers_of_podman_5_have_the_network_that_init_put_in_place() {
    let scene = Scene::alone("podman5");
    let podman = Podman5::new(&scene);
    let said = podman.line("busybox env ETCD_HOST= humanz-agent init").ok();
    assert!(
        said.contains("+ link /usr/local/libexec/netavark/humanz -> /opt/cni/bin/humanz-agent"),
        "{said}"
    );
    assert!(said.contains("podman network create --driver humanz humanz"), "{said}");
    podman.containers_come_and_go();
    podman.line("humanz-agent uninstall --purge").ok();
    let links = podman.host().list(&format!("{FIVE}/usr/local/libexec"));
    assert!(links.is_empty(), "{links:?}");
    let refused = podman.podman("network create --driver humanz late");
    assert!(refused.stderr.contains("failed to find driver or plugin"), "{refused}");
}

/// With the link that packages have.
#[test]
fn containers_of_podman_5_have_the_network_of_the_agent() {
    let scene = Scene::new("podman5-agent", &[]);
    let podman = Podman5::new(&scene);
    let link = format!("ln -s ../../sbin/humanz-agent {FIVE}/usr/libexec/netavark/humanz");
    podman.host().shell(&link).ok();
    podman.containers_come_and_go();
}
