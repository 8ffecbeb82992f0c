//! What the manifests and the image say of the executable is so.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use humanz::kube::yaml::documents;
use serde_json::Value;

use crate::{read, root};

const MANIFESTS: [&str; 2] = ["packaging/daemonset.yaml", "packaging/daemonset-kubernetes.yaml"];

/// A manifest's DaemonSet.
fn daemon_set(manifest: &str) -> Value {
    let all = documents(&read(manifest)).unwrap();
    let mut sets = all.into_iter().filter(|object| object["kind"] == "DaemonSet");
    let set = sets.next().unwrap_or_else(|| panic!("{manifest}: no DaemonSet"));
    assert!(sets.next().is_none(), "{manifest}");
    set
}

/// The container of the agent.
fn container(manifest: &str) -> Value {
    let set = daemon_set(manifest);
    set["spec"]["template"]["spec"]["containers"][0].clone()
}

/// The value of a word of the Containerfile, as in `title="humanz"`.
fn label(text: &str, name: &str) -> String {
    let start = format!("org.opencontainers.image.{name}=\"");
    let (_, rest) = text.split_once(&start).unwrap_or_else(|| panic!("no label {name}"));
    rest.split('"').next().unwrap().to_owned()
}

#[test]
fn the_image_has_the_labels_of_the_package() {
    let text = read("packaging/Containerfile");
    for (name, wanted) in [
        ("title", env!("CARGO_PKG_NAME")),
        // Given by packaging/image, which reads it in Cargo.toml.
        ("version", "$VERSION"),
        ("licenses", env!("CARGO_PKG_LICENSE")),
    ] {
        assert_eq!(label(&text, name), wanted, "{name}");
    }
    assert!(!label(&text, "description").is_empty());
    assert!(read("packaging/image").contains("--build-arg VERSION=\"$version\""));
    for manifest in MANIFESTS {
        let image = format!("humanz:{}", env!("CARGO_PKG_VERSION"));
        let found = container(manifest)["image"].as_str().unwrap().to_owned();
        assert!(found == image || found.ends_with(&format!("/{image}")), "{manifest}: {found}");
    }
}

/// The kubelet looks for the program of a probe in the PATH of the image.
#[test]
fn the_path_of_the_image_leads_to_the_executable() {
    let text = read("packaging/Containerfile");
    let word = |start: &str, end: &str| {
        let line = text.lines().find(|line| line.starts_with(start)).unwrap();
        line.rsplit(end).next().unwrap().trim_matches(['[', ']', '"']).to_owned()
    };
    let executable = word("COPY humanz-agent", " ");
    assert_eq!(word("ENTRYPOINT", " "), executable);
    let folder = Path::new(&executable).parent().unwrap().to_str().unwrap();
    assert_eq!(word("ENV PATH", "="), folder);
    assert!(executable.ends_with("/humanz-agent"), "{executable}");
}

#[test]
fn the_probes_of_both_manifests_are_commands_of_the_executable() {
    for manifest in MANIFESTS {
        let container = container(manifest);
        let command = |probe: &str| {
            let words = container[probe]["exec"]["command"].as_array();
            let words = words.unwrap_or_else(|| panic!("{manifest}: no {probe}"));
            words.iter().map(|word| word.as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        // What waits for etcd is alive, and not to be killed.
        let alive = ["humanz-agent", "ready", "--alive"];
        assert_eq!(command("startupProbe"), alive, "{manifest}");
        assert_eq!(command("livenessProbe"), alive, "{manifest}");
        assert_eq!(command("readinessProbe"), alive[..2], "{manifest}");
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            let mut asked = Command::new(env!("CARGO_BIN_EXE_humanz-agent"));
            let asked = asked.args(&command(probe)[1..]).env("SOCKET", "/nonexistent/agent.sock");
            let ended = asked.output().unwrap();
            // It is understood; no agent answers.
            assert_eq!(ended.status.code(), Some(1), "{manifest}: {probe}: {ended:?}");
        }
        let seconds = |probe: &str, key: &str| container[probe][key].as_u64().unwrap();
        let start = seconds("startupProbe", "periodSeconds");
        assert_eq!(start * seconds("startupProbe", "failureThreshold"), 60, "{manifest}");
        assert_eq!(daemon_set(manifest)["spec"]["minReadySeconds"], 10, "{manifest}");
    }
}

/// What an answer needs of a node is mounted, whoever has the list of hosts.
#[test]
fn both_manifests_mount_the_same_and_have_the_same_probes() {
    let [one, other] = MANIFESTS.map(|manifest| {
        let volumes = daemon_set(manifest)["spec"]["template"]["spec"]["volumes"].clone();
        let container = container(manifest);
        let keys =
            ["volumeMounts", "startupProbe", "livenessProbe", "readinessProbe", "securityContext"];
        (volumes, keys.map(|key| container[key].clone()))
    });
    assert!(one.0.is_array() && one.1.iter().all(|part| !part.is_null()), "{one:?}");
    let mounts = one.1[0].as_array().unwrap();
    for place in ["/run/netns", "/var/log", "/host/etc", "/var/lib/cni"] {
        assert!(mounts.iter().any(|mount| mount["mountPath"] == place), "{place}: {mounts:?}");
    }
    assert_eq!(one, other);
}

/// What `kubectl kustomize` makes of a folder, by kind and name.
fn kustomized(folder: &Path) -> BTreeMap<String, Value> {
    let made = Command::new("kubectl").arg("kustomize").arg(folder).output();
    let made = made.expect("kubectl is missing: packaging/deps test");
    let text = String::from_utf8(made.stdout).unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    by_name(documents(&text).unwrap())
}

fn by_name(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let name = |object: &Value| format!("{} {}", object["kind"], object["metadata"]["name"]);
    objects.into_iter().map(|object| (name(&object), object)).collect()
}

#[test]
fn kubectl_makes_the_kustomize_base_and_the_overlay_that_it_shows() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kustomize");
    let (base, overlay) = (folder.join("base"), folder.join("overlay"));
    for each in [&base, &overlay] {
        fs::create_dir_all(each).unwrap();
    }
    // Alone, so that it needs no other file.
    for name in ["kustomization.yaml", "daemonset-kubernetes.yaml"] {
        fs::copy(root().join("packaging").join(name), base.join(name)).unwrap();
    }
    let mut wanted = by_name(documents(&read("packaging/daemonset-kubernetes.yaml")).unwrap());
    assert_eq!(kustomized(&base), wanted);
    let text = read("packaging/kustomization.yaml");
    let shown = text.lines().filter_map(|line| line.strip_prefix("#   "));
    let shown: String = shown.map(|line| format!("{line}\n")).collect();
    assert_eq!(shown.lines().count(), 3, "{shown}");
    let shown = shown.replace("github.com/…/packaging", "../base");
    fs::write(overlay.join("kustomization.yaml"), shown).unwrap();
    let set = wanted.get_mut("\"DaemonSet\" \"humanz\"").unwrap();
    let image = &mut set["spec"]["template"]["spec"]["containers"][0]["image"];
    let tag = image.as_str().unwrap().strip_prefix("localhost/humanz").unwrap().to_owned();
    *image = format!("registry.example.org/humanz{tag}").into();
    wanted.get_mut("\"ConfigMap\" \"humanz\"").unwrap()["data"]["MTU"] = "1400".into();
    assert_eq!(kustomized(&overlay), wanted);
}
