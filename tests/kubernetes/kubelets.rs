//! kubectl, the controllers and the kubelets, as far as manifests of the guides need them. A container of humanz has the
//! environment, the account and the probes that its manifest gives it, and the files of its node.

use std::collections::BTreeMap;

use humanz::kube::yaml::documents;
use serde_json::{Value, json};

use crate::Scene;
use crate::api::TOKEN;
use crate::policies;
use crate::rbac;
use crate::support::cni::{Attachment, Network};
use crate::support::disk::EXECUTABLE;
use crate::support::node::command;
use crate::support::pod::make_netns;
use crate::support::wait::SOON;
use crate::support::{Node, Place, Pod, Process};

/// Where a container finds the account of its pod.
const ACCOUNT: &str = "/run/secrets/kubernetes.io/serviceaccount";

/// A cluster with its kubelets.
pub struct Kubelets<'a> {
    scene: &'a Scene,
    /// By kind and `namespace/name`.
    objects: BTreeMap<(String, String), Value>,
    /// What runs for a DaemonSet, by its `namespace/name`.
    daemons: BTreeMap<String, Vec<Process>>,
    /// Pods without an address yet: host, name, and the label `app`.
    waiting: Vec<(Node, String, String)>,
    pub pods: BTreeMap<String, Pod>,
}

impl<'a> Kubelets<'a> {
    /// With the objects of a manifest, whose DaemonSet `name` runs as `processes`.
    pub fn new(scene: &'a Scene, manifest: &str, name: &str, processes: Vec<Process>) -> Self {
        // Only a container with the account of a manifest has a token that is taken.
        scene.api.set_token("of nobody");
        let objects = documents(manifest).unwrap().into_iter().map(|it| (key(&it), it)).collect();
        let daemons = BTreeMap::from([(name.to_owned(), processes)]);
        Self { scene, objects, daemons, waiting: Vec::new(), pods: BTreeMap::new() }
    }

    /// Does what `kubectl …` says; files are read where the guide's commands run, on h1.
    ///
    /// # Panics
    /// If kubectl would fail, or the guides had no such command.
    pub fn kubectl(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["kubectl", "-n", namespace, "delete", "daemonset", name] => {
                self.delete(&("DaemonSet".to_owned(), format!("{namespace}/{name}")));
            }
            ["kubectl", "delete", "-f", file] => {
                self.read(file).iter().for_each(|object| self.delete(&key(object)));
            }
            ["kubectl", "delete", "pods", "--all", "--all-namespaces"] => self.replace_pods(),
            ["kubectl", "apply", "-f", file] => self.apply(self.read(file)),
            _ => panic!("no such command: {line}"),
        }
    }

    fn read(&self, file: &str) -> Vec<Value> {
        let text = self.scene.host(1).read(&format!("/root/{file}"));
        documents(&text.unwrap_or_else(|| panic!("no {file}"))).unwrap()
    }

    fn delete(&mut self, key: &(String, String)) {
        assert!(self.objects.remove(key).is_some(), "{key:?} is not there");
        if key.0 == "DaemonSet" {
            for process in self.daemons.remove(&key.1).into_iter().flatten() {
                process.kill();
            }
        }
    }

    fn apply(&mut self, objects: Vec<Value>) {
        let sets: Vec<Value> =
            objects.iter().filter(|it| it["kind"] == "DaemonSet").cloned().collect();
        self.objects.extend(objects.into_iter().map(|object| (key(&object), object)));
        for set in sets {
            let hosts = self.scene.cluster.hosts.iter();
            let started = hosts.map(|host| self.start(&set, host)).collect();
            self.daemons.insert(key(&set).1, started);
        }
        for (host, name, app) in std::mem::take(&mut self.waiting) {
            self.connect(&host, &name, &app);
        }
    }

    fn object(&self, kind: &str, name: &str) -> &Value {
        let found = self.objects.get(&(kind.to_owned(), name.to_owned()));
        found.unwrap_or_else(|| panic!("no {kind} {name}"))
    }

    /// The only container of a DaemonSet on `host`, ready.
    fn start(&self, set: &Value, host: &Node) -> Process {
        let (namespace, pod) = (&set["metadata"]["namespace"], &set["spec"]["template"]["spec"]);
        let scoped = |name: &Value| format!("{}/{}", text(namespace), text(name));
        let [container] = &pod["containers"].as_array().unwrap()[..] else { panic!("{pod}") };
        self.give_account(host, &scoped(&pod["serviceAccountName"]));
        let mut agent = command(EXECUTABLE);
        // Every container has these.
        agent.env("KUBERNETES_SERVICE_HOST", "192.0.2.2").env("KUBERNETES_SERVICE_PORT", "6443");
        for from in container["envFrom"].as_array().unwrap() {
            let map = self.object("ConfigMap", &scoped(&from["configMapRef"]["name"]));
            for (name, value) in map["data"].as_object().unwrap() {
                agent.env(name, text(value));
            }
        }
        for one in container["env"].as_array().unwrap() {
            assert_eq!(one["valueFrom"], json!({"fieldRef": {"fieldPath": "spec.nodeName"}}));
            agent.env(text(&one["name"]), host.name());
        }
        let process = host.spawn(&mut agent);
        for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
            let words = container[probe]["exec"]["command"].as_array().unwrap();
            let words: Vec<&str> = words.iter().map(text).collect();
            assert_eq!(words[0], "humanz-agent");
            host.until_ok(&format!("{EXECUTABLE} {}", words[1..].join(" ")), 2 * SOON);
        }
        process
    }

    /// Files of the account, which may do what a role of the manifest permits that is bound to it.
    fn give_account(&self, host: &Node, account: &str) {
        let (namespace, name) = account.split_once('/').unwrap();
        self.object("ServiceAccount", account);
        let subject = json!({"kind": "ServiceAccount", "name": name, "namespace": namespace});
        let binding = self.objects.iter().find(|((kind, _), object)| {
            kind == "ClusterRoleBinding" && object["subjects"] == json!([subject])
        });
        let (_, binding) = binding.unwrap_or_else(|| panic!("no role is bound to {account}"));
        assert_eq!(binding["roleRef"]["kind"], "ClusterRole");
        let role = self.object("ClusterRole", text(&binding["roleRef"]["name"]));
        self.scene.api.enforce(rbac::rules(role));
        self.scene.api.set_token(TOKEN);
        host.run(&format!("mkdir -p {ACCOUNT}")).ok();
        host.write(&format!("{ACCOUNT}/ca.crt"), &self.scene.api.certificates.text("ca.pem"));
        host.write(&format!("{ACCOUNT}/token"), TOKEN);
    }

    /// A pod of the namespace shop, which waits while its host has no network.
    pub fn schedule(&mut self, host: &Node, name: &str, app: &str) {
        self.scene.api.put(policies::pod(name, app, host.name(), &[]));
        self.waiting.push((host.clone(), name.to_owned(), app.to_owned()));
    }

    /// All pods end, and their controllers make others. No host has a network for them meanwhile.
    fn replace_pods(&mut self) {
        for host in &self.scene.cluster.hosts {
            host.run("ip netns del old").ok();
            assert!(host.list("/etc/cni/net.d").is_empty(), "{:?}", host.list("/etc/cni/net.d"));
        }
        let [h1, h2] = &self.scene.cluster.hosts[..] else { panic!("two hosts") };
        for (host, name) in [(h1, "db"), (h1, "web"), (h2, "other"), (h2, "web-far")] {
            self.schedule(host, name, name.trim_end_matches("-far"));
        }
    }

    /// What the runtime does when the host has a network.
    fn connect(&mut self, host: &Node, name: &str, app: &str) {
        make_netns(host, name);
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name}");
        let attachment = Attachment { args, ..Attachment::new(name) };
        let pod = Pod::connect(host, &Network::of(host), attachment);
        let pod = pod.unwrap_or_else(|e| panic!("{name}: {e}"));
        let address = pod.v4().to_string();
        self.scene.api.put(policies::pod(name, app, host.name(), &[&address]));
        self.pods.insert(name.to_owned(), pod);
    }

    /// Containers end as the kubelet ends them.
    pub fn is_running(&self, daemon: &str) -> bool {
        let mut processes = self.daemons.get(daemon).into_iter().flatten().peekable();
        processes.peek().is_some() && processes.all(|process| process.ended().is_none())
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value}"))
}

/// Kind and `namespace/name`, or the name alone.
fn key(object: &Value) -> (String, String) {
    let (name, namespace) = (&object["metadata"]["name"], &object["metadata"]["namespace"]);
    let namespace = namespace.as_str().map(|it| format!("{it}/")).unwrap_or_default();
    (text(&object["kind"]).to_owned(), format!("{namespace}{}", text(name)))
}
