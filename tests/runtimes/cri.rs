//! containerd as the kubelet uses it: pod sandboxes by its CRI service.

use std::collections::HashMap;
use std::net::IpAddr;

use tonic::Status;

use crate::client::{
    Client, Condition, ContainerConfig, ContainerMetadata, CreateContainer, Exec, ExecEnded, Id,
    Image, LinuxSandbox, Nothing, PortMapping, RunSandbox, RuntimeState, SandboxConfig,
    SandboxMetadata, SandboxState,
};
use crate::containerd::{Containerd, SOCKET};
use crate::scene::{HELLO, ROOT, SOON, Scene};
use crate::skipped;
use crate::support::ping::all_reach;
use crate::support::{Place, eventually};

/// The name of the image of sandboxes and containers.
const IMAGE: &str = "test.local/busybox:1";

#[test]
fn sandboxes_get_the_addresses_that_the_runtime_reports_and_reach_each_other() {
    if skipped() {
        return;
    }
    let scene = Scene::new("cri", &DUAL_STACK);
    let kubelet = Kubelet::start(&scene);
    let [first, mut second] = ["first", "second"].map(|name| kubelet.run(name, &[]));
    let addresses = first.addresses();
    assert!(
        matches!(addresses[..], [IpAddr::V4(_), IpAddr::V6(_)]),
        "an address of each family, IPv4 first: {addresses:?}"
    );
    assert_ne!(addresses, second.addresses());
    all_reach(&[scene.host()], &[addresses.clone(), second.addresses()].concat());
    second.start_container("sleep 1000");
    for address in &addresses {
        second.exec(&format!("ping -c 1 -W 3 {address}"));
    }
    // containerd has `lo` made by the plugin of that name.
    for address in ["127.0.0.1", "::1"] {
        second.exec(&format!("ping -c 1 -W 3 {address}"));
    }
    for sandbox in [first, second] {
        sandbox.remove();
    }
    scene.has_no_pod();
    kubelet.has_kept_nothing();
}

#[test]
fn a_host_port_forwards_to_its_sandbox_until_it_is_stopped() {
    if skipped() {
        return;
    }
    let scene = Scene::new("ports", &DUAL_STACK);
    let host = scene.host();
    let kubelet = Kubelet::start(&scene);
    let mut server = kubelet.run("server", &[(8080, 80)]);
    server.start_container("httpd -f -p [::]:80 -h /etc");
    let mut client = kubelet.run("client", &[]);
    client.start_container("sleep 1000");
    let curl = |address: &str| format!("curl -sS --noproxy * -m 5 -f http://{address}:8080/hello");
    for address in host.addresses() {
        let bracketed =
            if address.is_ipv6() { format!("[{address}]") } else { address.to_string() };
        host.until_ok(&curl(&bracketed), SOON);
        for sandbox in [&client, &server] {
            assert_eq!(sandbox.exec(&format!("fetch {address} 8080")), HELLO, "{address}");
        }
    }
    host.run(&curl("127.0.0.1")).ok();
    let taken = kubelet.try_run("second", &[(8080, 80)]).map(|_| ()).unwrap_err();
    assert!(taken.message().contains("8080"), "{taken}");
    server.remove();
    let next = kubelet.run("next", &[(8080, 80)]);
    for sandbox in [client, next] {
        sandbox.remove();
    }
    scene.has_no_pod();
    kubelet.has_kept_nothing();
}

#[test]
fn a_sandbox_whose_namespace_vanished_is_stopped_and_leaves_nothing() {
    if skipped() {
        return;
    }
    let scene = Scene::new("vanished", &[]);
    let kubelet = Kubelet::start(&scene);
    let sandbox = kubelet.run("first", &[(8080, 80)]);
    scene.host().shell("for name in /run/netns/*; do umount -l $name; rm $name; done").ok();
    sandbox.remove();
    scene.has_no_pod();
    kubelet.has_kept_nothing();
}

const DUAL_STACK: [(&str, &str); 1] = [("IPV6_SUBNET", "fd00:10:244::/48")];

/// Speaks to a containerd that has an image.
struct Kubelet<'a> {
    scene: &'a Scene,
    containerd: Containerd<'a>,
    client: Client<'a>,
}

/// A pod's network namespace, and its processes.
struct Sandbox<'a> {
    kubelet: &'a Kubelet<'a>,
    config: SandboxConfig,
    id: String,
    container: Option<String>,
}

impl<'a> Kubelet<'a> {
    fn start(scene: &'a Scene) -> Self {
        let containerd = Containerd::start(scene, &configuration());
        let client = Client { host: scene.host(), socket: SOCKET };
        let kubelet = Self { scene, containerd, client };
        import_image(scene);
        kubelet.wait_network_ready();
        kubelet
    }

    /// Until containerd has read the configuration that the agent wrote.
    fn wait_network_ready(&self) {
        eventually("NetworkReady", SOON, || {
            let state: RuntimeState =
                self.client.call("Status", Nothing {}).map_err(|e| self.log(&e.to_string()))?;
            let conditions = state.status.unwrap_or_default().conditions;
            let ready = |c: &&Condition| c.kind == "NetworkReady" && c.status;
            conditions.iter().find(ready).map(|_| ()).ok_or_else(|| format!("{conditions:?}"))
        });
    }

    fn log(&self, why: &str) -> String {
        format!("{why}\n{}", self.containerd.log())
    }

    fn run(&'a self, name: &str, ports: &[(i32, i32)]) -> Sandbox<'a> {
        let run = self.try_run(name, ports);
        run.unwrap_or_else(|e| panic!("RunPodSandbox: {}", self.log(&e.to_string())))
    }

    /// `ports`: TCP ports of the host, and those of the sandbox that they lead to.
    fn try_run(&'a self, name: &str, ports: &[(i32, i32)]) -> Result<Sandbox<'a>, Status> {
        let mapping =
            |&(host_port, container_port)| PortMapping { protocol: 0, container_port, host_port };
        let config = SandboxConfig {
            metadata: Some(SandboxMetadata {
                name: name.to_owned(),
                uid: format!("uid-{name}"),
                namespace: "default".to_owned(),
            }),
            hostname: name.to_owned(),
            log_directory: format!("/var/log/pods/{name}"),
            port_mappings: ports.iter().map(mapping).collect(),
            annotations: HashMap::new(),
            linux: Some(LinuxSandbox { cgroup_parent: format!("/{}", self.scene.cgroups.name) }),
        };
        self.scene.host().run(&format!("mkdir -p {}", config.log_directory)).ok();
        let request = RunSandbox { config: Some(config.clone()) };
        let Id { id } = self.client.call("RunPodSandbox", request)?;
        Ok(Sandbox { kubelet: self, config, id, container: None })
    }

    /// # Panics
    /// If the runtime refuses, with its log.
    fn call<A, B>(&self, method: &'static str, request: A) -> B
    where
        A: prost::Message + 'static,
        B: prost::Message + Default + 'static,
    {
        let answer = self.client.call(method, request);
        answer.unwrap_or_else(|e| panic!("{method}: {}", self.log(&e.to_string())))
    }

    /// No namespace, and no result of an ADD that a DEL would want.
    fn has_kept_nothing(&self) {
        for folder in ["/run/netns", "/var/lib/cni/results"] {
            let kept = self.scene.host().list(folder);
            assert!(kept.is_empty(), "{folder}: {kept:?}");
        }
    }
}

impl Sandbox<'_> {
    /// As the runtime reports to the kubelet.
    fn addresses(&self) -> Vec<IpAddr> {
        let id = Id { id: self.id.clone() };
        let state: SandboxState = self.kubelet.call("PodSandboxStatus", id);
        let network = state.status.and_then(|status| status.network).unwrap_or_default();
        let others = network.additional_ips.iter().map(|more| &more.ip);
        let parse = |ip: &String| ip.parse().unwrap_or_else(|e| panic!("{ip:?}: {e}"));
        [&network.ip].into_iter().chain(others).map(parse).collect()
    }

    /// Something to run programs in, which runs this one.
    fn start_container(&mut self, line: &str) {
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata { name: "main".to_owned() }),
            image: Some(Image { image: IMAGE.to_owned() }),
            command: line.split(' ').map(String::from).collect(),
            log_path: "main.log".to_owned(),
        };
        let Id { id } = self.kubelet.call(
            "CreateContainer",
            CreateContainer {
                sandbox: self.id.clone(),
                config: Some(config),
                sandbox_config: Some(self.config.clone()),
            },
        );
        let Nothing {} = self.kubelet.call("StartContainer", Id { id: id.clone() });
        self.container = Some(id);
    }

    /// # Panics
    /// If the program fails, or there is no container.
    fn exec(&self, line: &str) -> String {
        let request = Exec {
            container: self.container.clone().expect("a container"),
            command: line.split(' ').map(String::from).collect(),
            timeout: 30,
        };
        let ended: ExecEnded = self.kubelet.call("ExecSync", request);
        let [stdout, stderr] =
            [&ended.stdout, &ended.stderr].map(|said| String::from_utf8_lossy(said));
        assert_eq!(ended.exit_code, 0, "{line}: {stdout}{stderr}");
        stdout.into_owned()
    }

    /// Stopped, stopped again, as kubelets do, and removed.
    fn remove(self) {
        for method in ["StopPodSandbox", "StopPodSandbox", "RemovePodSandbox"] {
            let Nothing {} = self.kubelet.call(method, Id { id: self.id.clone() });
        }
    }
}

/// Nothing that needs rights this machine may not give: no AppArmor, no `oom_score_adj` below ours,
/// no overlay on what may be one.
fn configuration() -> String {
    format!(
        r#"[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{IMAGE}"
disable_apparmor = true
restrict_oom_score_adj = true
stream_server_address = "127.0.0.1"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
"#
    )
}

/// Makes an image of the root file system without any builder, and gives it to containerd.
///
/// Source: OCI image layout 1.0.0; containerd takes the name from the annotation.
fn import_image(scene: &Scene) {
    let script = format!(
        r#"mkdir -p /tmp/image/blobs/sha256
cd /tmp/image
tar -C {ROOT} -cf layer .
# Moves a file to its digest, and says what describes it.
blob() {{
    size=$(stat -c %s $1) sum=$(sha256sum $1 | cut -d ' ' -f 1)
    mv $1 blobs/sha256/$sum
    echo "\"mediaType\":\"application/vnd.oci.image.$2\",\"digest\":\"sha256:$sum\",\"size\":$size"
}}
type=$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/')
layer=$(blob layer layer.v1.tar)
sum=$(echo "$layer" | cut -d '"' -f 8)
echo '{{"architecture":"'$type'","os":"linux","config":{{"Entrypoint":["/bin/sleep","1000000"]}},
    "rootfs":{{"type":"layers","diff_ids":["'$sum'"]}}}}' >config
config=$(blob config config.v1+json)
echo '{{"schemaVersion":2,"config":{{'$config'}},"layers":[{{'$layer'}}]}}' >manifest
manifest=$(blob manifest manifest.v1+json)
echo '{{"schemaVersion":2,"manifests":[{{'$manifest',
    "annotations":{{"io.containerd.image.name":"{IMAGE}"}}}}]}}' >index.json
echo '{{"imageLayoutVersion":"1.0.0"}}' >oci-layout
tar -cf /tmp/image.tar *
ctr --address {SOCKET} --namespace k8s.io images import --snapshotter native /tmp/image.tar"#
    );
    scene.host().shell(&script).ok();
}
