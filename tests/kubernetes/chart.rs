//! The Helm chart in packaging/: the real Helm makes of it the objects of the manifests, with the values in their places.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use humanz::kube::yaml::documents;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support;
use support::cluster::Alone;
use support::guide::Guide;
use support::{Agent, Node, Place};

/// Labels that Helm's users expect, and what no manifest has.
const LABELS: [&str; 3] =
    ["app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "helm.sh/chart"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn program() -> PathBuf {
    let path = root().join("target/helm/helm");
    assert!(path.exists(), "{} is missing: packaging/deps test", path.display());
    path
}

/// Helm without what its user has on this machine.
fn helm(arguments: &[&str]) -> Output {
    let home = tempfile::tempdir().unwrap();
    let mut helm = Command::new(program());
    helm.args(arguments).current_dir(root().join("packaging"));
    helm.env_clear().env("HOME", home.path()).output().unwrap()
}

/// A file of values.
struct Values(TempDir);

impl Values {
    fn new(values: &Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("values.yaml"), values.to_string()).unwrap();
        Self(folder)
    }

    fn path(&self) -> String {
        self.0.path().join("values.yaml").to_str().unwrap().to_owned()
    }
}

/// What `helm template` makes of these values; its error, if it refuses them.
fn rendered(namespace: &str, values: &Value) -> Result<Vec<Value>, String> {
    let file = Values::new(values);
    let made =
        helm(&["template", "humanz", ".", "--namespace", namespace, "--values", &file.path()]);
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match made.status.success() {
        true => Ok(documents(&said(&made.stdout)).unwrap()),
        false => Err(said(&made.stderr)),
    }
}

fn made(values: &Value) -> Vec<Value> {
    rendered("kube-system", values).unwrap_or_else(|why| panic!("{values}: {why}"))
}

/// The objects of a manifest in packaging/.
fn manifest(name: &str) -> Vec<Value> {
    documents(&std::fs::read_to_string(root().join("packaging").join(name)).unwrap()).unwrap()
}

/// In one order, and without the marks of Helm, each of which must be there.
fn bare(mut objects: Vec<Value>, by_helm: bool) -> Vec<Value> {
    for object in &mut objects {
        let is_definition = object["kind"] == "CustomResourceDefinition";
        let metadata = object["metadata"].as_object_mut().unwrap();
        if by_helm {
            let labels = metadata["labels"].as_object_mut().unwrap();
            assert!(LABELS.iter().all(|label| labels.remove(*label).is_some()), "{labels:?}");
            if labels.is_empty() {
                metadata.remove("labels");
            }
            // Or an uninstalled release would take the objects of all users with it.
            let kept = metadata.remove("annotations");
            let wanted = is_definition.then(|| json!({"helm.sh/resource-policy": "keep"}));
            assert_eq!(kept, wanted);
        }
        if by_helm && (object["kind"] == "DaemonSet" || object["kind"] == "Deployment") {
            let template = object["spec"]["template"]["metadata"].as_object_mut().unwrap();
            assert!(template.remove("annotations").unwrap()["checksum/settings"].is_string());
        }
    }
    objects.sort_by_key(|object| {
        format!("{} {}", object["kind"].as_str().unwrap(), object["metadata"]["name"])
    });
    objects
}

fn same(found: Vec<Value>, wanted: Vec<Value>) {
    let (found, wanted) = (bare(found, true), bare(wanted, false));
    assert_eq!(found.len(), wanted.len());
    for (found, wanted) in found.iter().zip(&wanted) {
        assert_eq!(found, wanted, "\nfound  {found:#}\nwanted {wanted:#}");
    }
}

/// The object of a kind that is called humanz.
fn one<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let is_it = |it: &&Value| it["kind"] == kind && it["metadata"]["name"] == "humanz";
    objects.iter().find(is_it).unwrap_or_else(|| panic!("no {kind}"))
}

fn pod(objects: &[Value]) -> &Value {
    &one(objects, "DaemonSet")["spec"]["template"]["spec"]
}

/// As `kubectl patch` does it: items of lists go by their names.
fn patch(object: &mut Value, with: &Value) {
    match (object, with) {
        (Value::Object(fields), Value::Object(with)) => {
            for (name, value) in with {
                patch(fields.entry(name).or_insert(Value::Null), value);
            }
        }
        (Value::Array(items), Value::Array(with)) => {
            for new in with {
                match items.iter_mut().find(|item| item["name"] == new["name"]) {
                    Some(item) => patch(item, new),
                    None => items.push(new.clone()),
                }
            }
        }
        (object, with) => *object = with.clone(),
    }
}

/// The ETCD_HOST of the manifest is an example, which nobody gets without writing it.
const EXAMPLE: &str = "192.0.2.1,192.0.2.2,192.0.2.3";

#[test]
fn helm_makes_the_objects_of_the_manifests() {
    same(made(&json!({})), manifest("daemonset-kubernetes.yaml"));
    let etcd = json!({"SUBNET_SOURCE": "etcd", "ETCD_HOST": EXAMPLE});
    let mut wanted = manifest("daemonset.yaml");
    let set = |objects: &mut [Value], name: &str, value: &str| {
        let map = objects.iter_mut().find(|object| object["kind"] == "ConfigMap").unwrap();
        map["data"][name] = json!(value);
    };
    set(&mut wanted, "SUBNET_SOURCE", "etcd");
    same(made(&json!({"settings": etcd})), wanted.clone());

    // As policy-role.yaml says: an account in place of none.
    let mut with_policies = etcd;
    with_policies["POLICY"] = json!("kubernetes");
    set(&mut wanted, "POLICY", "kubernetes");
    let daemon = wanted.iter_mut().find(|object| object["kind"] == "DaemonSet").unwrap();
    let pod = daemon["spec"]["template"]["spec"].as_object_mut().unwrap();
    assert_eq!(pod.remove("automountServiceAccountToken"), Some(json!(false)));
    pod.insert("serviceAccountName".into(), json!("humanz"));
    wanted.extend(manifest("policy-role.yaml"));
    same(made(&json!({"settings": with_policies})), wanted.clone());

    let mut with_objects = with_policies;
    with_objects["POLICY_OBJECTS"] = json!("kubernetes");
    set(&mut wanted, "POLICY_OBJECTS", "kubernetes");
    wanted.extend(["crds.yaml", "controller.yaml"].into_iter().flat_map(manifest));
    let mut values =
        json!({"settings": with_objects, "crds": true, "controller": {"enabled": true}});
    same(made(&values), wanted);
    values["controller"]["etcdUser"] = json!("of-policies");
    values["controller"]["etcdSecret"] = json!("own");
    let objects = made(&values);
    let is_it = |object: &&Value| object["kind"] == "Deployment";
    let pod = &objects.iter().find(is_it).unwrap()["spec"]["template"]["spec"];
    let user = json!({"name": "ETCD_USER", "value": "of-policies"});
    assert!(pod["containers"][0]["env"].as_array().unwrap().contains(&user), "{pod:#}");
    assert_eq!(pod["volumes"][1]["secret"]["secretName"], "own");

    let more = json!({"crds": true, "monitoring": {"podMonitor": true, "prometheusRule": true}});
    let files = ["daemonset-kubernetes.yaml", "crds.yaml", "monitoring/podmonitor.yaml"];
    let files = files.iter().chain(&["monitoring/prometheusrule.yaml"]);
    let mut wanted: Vec<Value> = files.flat_map(|name| manifest(name)).collect();
    let daemon = wanted.iter_mut().find(|object| object["kind"] == "DaemonSet").unwrap();
    patch(daemon, &manifest("monitoring/proxy.yaml")[0]);
    let text = std::fs::read_to_string(root().join("packaging/monitoring/haproxy.cfg")).unwrap();
    wanted.push(json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"haproxy.cfg": text},
        "metadata": {"name": "humanz-metrics", "namespace": "kube-system"}}));
    same(made(&more), wanted);
}

#[test]
fn values_end_where_they_belong() {
    let values = json!({
        "settings": {
            "SUBNET_SOURCE": "etcd",
            "ETCD_HOST": "https://192.0.2.7,https://192.0.2.8",
            "ETCD_CACERT": "/etc/humanz/etcd/ca.crt",
            "HUMANZ_PREFIX": "/other/v1",
            "IP_SUBNET": "10.64.0.0/12",
            "POLICY": "on",
            "ENCRYPTION": "wireguard",
            "MTU": 1400,
            "VXLAN_VNI": 16_000_000,
            "MANAGE_SYSCTL": false,
        },
        "image": {
            "repository": "registry.example.org:5000/humanz",
            "tag": "0.2.0",
            "pullSecrets": [{"name": "registry"}],
        },
        "etcdSecret": "etcd-of-humanz",
        "env": [{"name": "RUST_LOG", "value": "debug"}],
        "resources": {"limits": {"memory": "128Mi"}},
        "nodeSelector": {"pool": "a"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "monitoring": {
            "podMonitor": true,
            "prometheusRule": true,
            "proxyImage": "registry.example.org/haproxy:3.0",
            "labels": {"release": "prometheus"},
        },
    });
    let objects = rendered("net", &values).unwrap();
    let settings = &one(&objects, "ConfigMap")["data"];
    for (name, value) in values["settings"].as_object().unwrap() {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        assert_eq!(settings[name], text);
    }
    take(settings);
    let pod = pod(&objects);
    let agent = &pod["containers"][0];
    assert_eq!(agent["image"], "registry.example.org:5000/humanz:0.2.0");
    assert_eq!(pod["imagePullSecrets"], json!([{"name": "registry"}]));
    let names = |index: usize| agent["env"][index]["name"].as_str().unwrap();
    assert_eq!([0, 1, 2].map(names), ["NODE_NAME", "RUST_LOG", "METRICS_ADDR"]);
    assert_eq!(agent["env"][1], values["env"][0]);
    assert_eq!(pod["containers"][1]["image"], "registry.example.org/haproxy:3.0");
    assert_eq!(agent["resources"]["limits"]["memory"], "128Mi");
    assert_eq!(agent["resources"]["requests"]["memory"], "32Mi", "the other ones stay");
    assert_eq!(pod["nodeSelector"], json!({"kubernetes.io/os": "linux", "pool": "a"}));
    assert_eq!(pod["tolerations"], values["tolerations"]);
    let of_etcd = |list: &Value| -> Vec<Value> {
        let all = list.as_array().unwrap().iter();
        all.filter(|item| item["name"] == "etcd").cloned().collect()
    };
    let mount = json!({"name": "etcd", "mountPath": "/etc/humanz/etcd", "readOnly": true});
    assert_eq!(of_etcd(&agent["volumeMounts"]), [mount]);
    let secret = json!({"secretName": "etcd-of-humanz", "defaultMode": 0o400});
    assert_eq!(of_etcd(&pod["volumes"]), [json!({"name": "etcd", "secret": secret})]);
    assert_eq!(one(&objects, "PrometheusRule")["metadata"]["labels"]["release"], "prometheus");
    assert_eq!(one(&objects, "DaemonSet")["metadata"]["labels"]["release"], Value::Null);
    for object in &objects {
        assert_eq!(object["metadata"]["namespace"], "net", "{object:#}");
    }
    let of_api = rendered("net", &json!({})).unwrap();
    assert_eq!(one(&of_api, "ClusterRoleBinding")["subjects"][0]["namespace"], "net");
    // Agents start again with other settings, and only then.
    let sum = |objects: &[Value]| {
        let template = &one(objects, "DaemonSet")["spec"]["template"]["metadata"];
        template["annotations"]["checksum/settings"].as_str().unwrap().to_owned()
    };
    assert_ne!(sum(&objects), sum(&of_api));
    assert_eq!(sum(&of_api), sum(&made(&json!({"resources": {"limits": {"cpu": 1}}}))));
}

/// The agent itself takes the ConfigMap.
fn take(settings: &Value) {
    let alone = Alone::new();
    let host = &alone.host;
    host.run("mkdir -p /etc/humanz/etcd").ok();
    host.write("/etc/humanz/etcd/ca.crt", "");
    let variables = settings.as_object().unwrap().iter();
    let variables: Vec<(&str, &str)> =
        variables.map(|(name, value)| (name.as_str(), value.as_str().unwrap())).collect();
    let said = Agent::run(host, "config --json", &variables).ok();
    assert!(said.contains("/other/v1") && said.contains("10.64.0.0/12"), "{said}");
}

#[test]
fn a_mistyped_value_is_refused() {
    let etcd = |more: Value| {
        let mut settings = json!({"SUBNET_SOURCE": "etcd", "ETCD_HOST": EXAMPLE});
        settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"settings": settings})
    };
    for (values, why) in [
        (etcd(json!({"ETCD_HOSTS": "192.0.2.1"})), "ETCD_HOSTS"),
        (etcd(json!({"ETCD_HOST": ["192.0.2.1"]})), "settings.ETCD_HOST"),
        (etcd(json!({"POLICY": "kubernets"})), "settings.POLICY"),
        // on without quotes
        (etcd(json!({"POLICY": true})), "settings.POLICY"),
        (etcd(json!({"ENCRYPTION": "wiregaurd"})), "settings.ENCRYPTION"),
        (etcd(json!({"VXLAN_PORT": "high"})), "settings.VXLAN_PORT"),
        (etcd(json!({"MTU": "1400b"})), "settings.MTU"),
        (etcd(json!({"FLOWTABLE": "yes"})), "settings.FLOWTABLE"),
        (etcd(json!({"POLICY_MARK": 4_294_901_760_u32})), "settings.POLICY_MARK"),
        // Those of one host.
        (etcd(json!({"NODE_NAME": "h1"})), "NODE_NAME"),
        (json!({"settings": {"SUBNET_SOURCE": "static"}}), "settings.SUBNET_SOURCE"),
        (json!({"settings": {"SUBNET_SOURCE": "etcd"}}), "settings.ETCD_HOST is missing"),
        (json!({"settings": {"SUBNET_SOURCE": "etcd", "ETCD_HOST": ""}}), "settings.ETCD_HOST is"),
        (json!({"etcdSecret": "humanz-etcd"}), "SUBNET_SOURCE is not etcd"),
        (json!({"setting": {}}), "setting"),
        (json!({"image": "registry.example.org/humanz"}), "image"),
        (json!({"image": {"repository": "registry.example.org/humanz:0.2.0"}}), "image.repository"),
        (json!({"image": {"tag": 0.1}}), "image.tag"),
        (json!({"env": {"RUST_LOG": "debug"}}), "env"),
        (json!({"env": [{"name": "RUST_LOG", "valeu": "debug"}]}), "valeu"),
        (json!({"resources": {"memory": "128Mi"}}), "memory"),
        (json!({"tolerations": [{"operator": "Exist"}]}), "tolerations.0.operator"),
        (json!({"monitoring": {"podmonitor": true}}), "podmonitor"),
        (json!({"monitoring": {"podMonitor": "true"}}), "monitoring.podMonitor"),
        (json!({"crds": "yes"}), "crds"),
        (json!({"controller": {"enabled": true}}), "controller.enabled needs"),
        (json!({"controller": {"etcdUser": "x\"}, {\"name\": \"y"}}), "controller.etcdUser"),
        (json!({"controller": {"etcdSecret": "x}"}}), "controller.etcdSecret"),
    ] {
        let refused = rendered("kube-system", &values).expect_err(&values.to_string());
        assert!(refused.contains(why), "{values}: {refused}");
    }
    // Into the text of the manifest.
    let mut values = etcd(json!({}));
    for secret in ["x, optional: true}}\n        - {name: y", "X", "x}", "../x"] {
        values["etcdSecret"] = json!(secret);
        let refused = rendered("kube-system", &values).expect_err(secret);
        assert!(refused.contains("etcdSecret"), "{secret}: {refused}");
    }
    // A chart of charts gives this to each of them.
    made(&json!({"global": {"region": "a"}}));
}

/// A package has what the templates need and nothing else; lint has no word on it.
#[test]
fn the_chart_has_its_files_alone_and_passes_lint() {
    let lint = helm(&["lint", "--strict", "."]);
    let said = String::from_utf8_lossy(&lint.stdout).into_owned();
    assert!(lint.status.success() && !said.contains("[WARNING]"), "{said}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let packed = helm(&["package", ".", "--destination", path]);
    assert!(packed.status.success(), "{}", String::from_utf8_lossy(&packed.stderr));
    let archive = format!("{path}/humanz-{}.tgz", env!("CARGO_PKG_VERSION"));
    let listed = Command::new("tar").args(["-tzf", &archive]).output().unwrap();
    let mut files: Vec<&str> = std::str::from_utf8(&listed.stdout).unwrap().lines().collect();
    files.sort_unstable();
    let wanted = [
        ".helmignore",
        "Chart.yaml",
        "controller.yaml",
        "crds.yaml",
        "daemonset-kubernetes.yaml",
        "daemonset.yaml",
        "monitoring/haproxy.cfg",
        "monitoring/podmonitor.yaml",
        "monitoring/prometheusrule.yaml",
        "monitoring/proxy.yaml",
        "policy-role.yaml",
        "templates/NOTES.txt",
        "templates/humanz.yaml",
        "values.schema.json",
        "values.yaml",
    ];
    assert_eq!(files, wanted.map(|name| format!("humanz/{name}")), "see .helmignore");
}

/// An API as far as Helm asks for it when it is to change nothing: its version, and what it serves.
fn serve_api(host: &Node) -> u16 {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = host.inside(|| TcpListener::bind(address)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            answer(stream).unwrap();
        }
    });
    port
}

/// The name of a resource in paths, and its kind.
type Resource = (&'static str, &'static str);

/// The groups and resources of the chart without monitoring.
const RESOURCES: [(&str, &str, &[Resource]); 3] = [
    ("/api/", "v1", &[("serviceaccounts", "ServiceAccount"), ("configmaps", "ConfigMap")]),
    ("/apis/", "apps/v1", &[("daemonsets", "DaemonSet")]),
    (
        "/apis/",
        "rbac.authorization.k8s.io/v1",
        &[("clusterroles", "ClusterRole"), ("clusterrolebindings", "ClusterRoleBinding")],
    ),
];

/// What is at a path; nothing has been made there yet.
fn served(path: &str) -> Value {
    let groups = RESOURCES.iter().filter_map(|(_, group, _)| {
        let version = json!({"groupVersion": group, "version": "v1"});
        let (name, _) = group.split_once('/')?;
        Some(json!({"name": name, "versions": [version], "preferredVersion": version}))
    });
    match path {
        "/version" => json!({"major": "1", "minor": "31", "gitVersion": "v1.31.0"}),
        "/api" => json!({"kind": "APIVersions", "versions": ["v1"]}),
        "/apis" => json!({"kind": "APIGroupList", "groups": groups.collect::<Vec<_>>()}),
        _ => {
            let is_it = |(root, group, _): &&_| path == format!("{root}{group}");
            let Some((_, group, resources)) = RESOURCES.iter().find(is_it) else {
                return Value::Null;
            };
            let resources = resources.iter().map(|(name, kind)| {
                let namespaced = !kind.starts_with("Cluster");
                json!({"name": name, "kind": kind, "namespaced": namespaced, "verbs": ["get"]})
            });
            let resources: Vec<Value> = resources.collect();
            json!({"kind": "APIResourceList", "groupVersion": group, "resources": resources})
        }
    }
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let lines = BufReader::new(stream.try_clone()?).lines();
    let head: Vec<String> = lines.map_while(Result::ok).take_while(|it| !it.is_empty()).collect();
    let asked = head.first().map_or("", |line| line.trim_start_matches("GET "));
    let path = asked.split(['?', ' ']).next().unwrap();
    let found = served(path);
    let (code, body) = if found.is_null() { (404, json!({})) } else { (200, found) };
    let (body, kind) = (body.to_string(), "Content-Type: application/json\r\nConnection: close");
    let length = body.len();
    write!(stream, "HTTP/1.1 {code} .\r\n{kind}\r\nContent-Length: {length}\r\n\r\n{body}")
}

#[test]
fn the_guide_to_helm_does_what_it_shows() {
    let alone = Alone::new();
    let host = &alone.host;
    let port = serve_api(host);
    copy(&program(), &host.place("/opt/humanz/helm-itself"));
    copy(&root().join("packaging"), &host.place("/root"));
    let wrapper = format!(
        "#!/bin/sh\nexec /opt/humanz/helm-itself \"$@\" --disable-openapi-validation \
         --kube-apiserver http://127.0.0.1:{port}\n"
    );
    host.write("/opt/humanz/helm", &wrapper);
    host.run("chmod +x /opt/humanz/helm").ok();
    let mut guide = Guide::read("operations.md");
    guide.follow("With Helm", host, |_| false);
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-r").args([from, to]).status().unwrap();
    assert!(copied.success(), "{}", from.display());
}
