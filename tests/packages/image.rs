//! The image, run as the manifest says, by podman.

use std::collections::{BTreeMap, BTreeSet};

use crate::built::{package, root};
use crate::support::cluster::Alone;
use crate::support::node::command;
use crate::support::{Place, Pod, eventually};

use crate::machine::LONG;

/// Mounts of the manifest, as podman's `--volume` takes them: host path, path inside, options.
fn volumes() -> Vec<(String, String)> {
    let manifest = std::fs::read_to_string(root().join("packaging/daemonset.yaml")).unwrap();
    let value = |line: &str, key: &str| {
        let rest = line.split_once(key)?.1;
        Some(rest.split([',', '}']).next()?.trim().to_owned())
    };
    let named =
        |line: &'static str, key: &str| Some((value(line, "- {name: ")?, value(line, key)?));
    let lines: Vec<&'static str> =
        manifest.leak().lines().filter(|line| !line.trim().starts_with('#')).collect();
    let paths: BTreeMap<_, _> =
        lines.iter().filter_map(|line| named(line, "hostPath: {path: ")).collect();
    let mounts = lines.iter().filter_map(|line| {
        let (name, inside) = named(line, "mountPath: ")?;
        let path = paths.get(&name)?.clone();
        let slave = line.contains("mountPropagation: HostToContainer").then_some(",rslave");
        let read_only = line.contains("readOnly: true").then_some(",ro");
        let options = ["rbind", slave.unwrap_or(""), read_only.unwrap_or("")].concat();
        Some((path.clone(), format!("{path}:{inside}:{options}")))
    });
    mounts.collect()
}

#[test]
fn a_container_serves_its_host_and_can_be_removed() {
    if std::env::var("SKIP_RUNTIMES").is_ok_and(|value| value == "1") {
        return println!("left out: SKIP_RUNTIMES=1");
    }
    let alone = Alone::new();
    let host = &alone.host;
    // The container has a /proc of its own, which knows only the machine's boot.
    host.run("umount /proc/sys/kernel/random/boot_id").ok();
    host.shell("mkdir -p /etc/containers").ok();
    host.write("/etc/containers/policy.json", r#"{"default":[{"type":"insecureAcceptAnything"}]}"#);
    let settings = "[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n\
         runtime = \"runc\"\n[containers]\nlog_driver = \"k8s-file\"\n";
    host.write("/etc/containers/containers.conf", settings);
    let archive = std::fs::read(package("tar")).unwrap();
    host.inside(|| std::fs::write("/run/image.tar", archive).unwrap());
    host.run("podman --storage-driver vfs load --quiet --input /run/image.tar").ok();

    let mut run = command("podman --storage-driver vfs run --detach --name agent --network host");
    run.args(["--privileged", "--read-only", "--read-only-tmpfs=false"]);
    let cgroups = Cgroups(format!("humanz-image-{}", std::process::id()));
    run.args(["--cgroup-parent", &format!("/{}", cgroups.0)]);
    run.args(["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]);
    let volumes = volumes();
    assert_eq!(volumes.len(), 10, "{volumes:?}");
    for (path, volume) in volumes {
        host.shell(&format!("test -e {path} || mkdir -p {path}")).ok();
        run.arg("--volume").arg(volume);
    }
    // A pod that host-local gave its address.
    host.shell("mkdir -p /var/lib/cni/networks/humanz").ok();
    host.write("/var/lib/cni/networks/humanz/10.244.1.77", "older\r\neth0");
    run.args(["--env", "SUBNET_SOURCE=static", "--env", "SUBNET=10.244.1.0/24"]);
    host.run_command(run.arg(image()), "").ok();
    eventually("the agent serves", LONG, || {
        let there = host.read("/etc/cni/net.d/05-humanz.conflist");
        there
            .map(drop)
            .ok_or_else(|| host.run("podman --storage-driver vfs logs agent").to_string())
    });
    let inside = |words: &str| {
        host.run(&format!("podman --storage-driver vfs exec agent humanz-agent {words}"))
    };
    inside("ready --wait 20").ok();
    let addresses = inside("ipam ls").ok();
    assert!(addresses.contains("10.244.1.77") && addresses.contains("older"), "{addresses}");
    inside("ipam free 10.244.1.77 --force").ok();
    for probe in probes() {
        host.run(&format!("podman --storage-driver vfs exec agent {probe}")).ok();
    }
    let format = "{{index .Labels \"org.opencontainers.image.version\"}} {{index .Labels \"org.opencontainers.image.title\"}}";
    let mut inspect = command("podman --storage-driver vfs image inspect --format");
    let labels = host.run_command(inspect.args([format, &image()]), "").ok();
    assert_eq!(labels.trim(), concat!(env!("CARGO_PKG_VERSION"), " humanz"));
    let (pod, other) = (Pod::add(host, "a"), Pod::add(host, "b"));
    // The names of pods, their namespaces and the plugin's log are the host's.
    let explained = inside("explain default/a default/b").ok();
    assert!(!explained.contains("gone or incomplete"), "{explained}");
    inside("status").ok();
    inside("doctor --bundle /var/log/humanz-bundle.tar").ok();
    // The bundle lies on the node.
    let bundle = host.run("tar -tf /var/log/humanz-bundle.tar").ok();
    assert!(bundle.lines().count() > 5, "{bundle}");
    // With pods of its own, which are gone then.
    let tested = inside("connectivity test").ok();
    assert!(tested.contains("paths are open"), "{tested}");
    let left = inside("ipam ls").ok();
    assert_eq!(left.matches("attached").count(), 2, "{left}");
    other.delete();
    host.run("podman --storage-driver vfs rm --force --time 10 agent").ok();
    host.run("podman --storage-driver vfs rmi --force --all").ok();
    pod.run("ping -n -c 1 -W 3 10.244.1.1").ok();
    pod.check().unwrap();
    pod.delete();
}

/// The commands by which the kubelet asks a container of either manifest.
fn probes() -> BTreeSet<String> {
    let mut probes = BTreeSet::new();
    for manifest in ["daemonset.yaml", "daemonset-kubernetes.yaml"] {
        let text = std::fs::read_to_string(root().join("packaging").join(manifest)).unwrap();
        let before = probes.len();
        let lines = text.lines().filter_map(|line| line.trim().strip_prefix("exec: {command: ["));
        probes.extend(lines.map(|words| words.trim_end_matches("]}").replace(',', "")));
        assert!(probes.len() >= before.max(2), "{manifest}: {probes:?}");
    }
    probes
}

/// As the manifest names it.
fn image() -> String {
    let manifest = std::fs::read_to_string(root().join("packaging/daemonset.yaml")).unwrap();
    let line = manifest.lines().find_map(|line| line.trim().strip_prefix("image: "));
    let name = line.unwrap().to_owned();
    assert!(name.ends_with(env!("CARGO_PKG_VERSION")), "{name}");
    name
}

/// Where the container has its cgroups on this machine; emptied ones would stay.
struct Cgroups(String);

impl Drop for Cgroups {
    fn drop(&mut self) {
        let path = format!("*/{}*", self.0);
        let mut find = command("find /sys/fs/cgroup -depth -type d -path");
        drop(find.args([&path, "-exec", "rmdir", "{}", ";"]).output());
    }
}
