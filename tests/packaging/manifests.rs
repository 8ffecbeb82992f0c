//! What the manifests and the image say of the executable is so.

use std::path::Path;
use std::process::Command;

use humanz::kube::yaml::documents;
use serde_json::Value;

use crate::read;

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
