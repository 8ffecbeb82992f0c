//! What runtimes find: configuration, plugins, versions.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::Value;

use crate::checks::finding::{Finding, Severity};
use crate::command::doctor::DoctorContext;

/// Versions of CNI that there are.
const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

pub fn look(context: &DoctorContext<'_>) -> Vec<Finding> {
    let cni = &context.settings().cni;
    let mut findings = configuration(&cni.config, cni.plugin.parent());
    if let Some(folder) = cni.plugin.parent() {
        findings.extend(plugins(folder));
        let loopback = folder.join("loopback");
        if fs::metadata(&loopback).is_err() {
            let seen = format!("{} is missing: containerd starts no pod", loopback.display());
            let cure = "start the agent, which puts its own there; or: apt install \
                        containernetworking-plugins";
            let how = folder.display().to_string();
            findings.push(Finding::new(Severity::Wrong, "loopback", how, seen, cure));
        }
    }
    findings
}

/// Our file as it is on the disk, and that each plugin it names is there.
fn configuration(path: &Path, folder: Option<&Path>) -> Vec<Finding> {
    let how = path.display().to_string();
    let wrong = |name, seen: String, cure: &str| {
        vec![Finding::new(Severity::Wrong, name, how.clone(), seen, cure)]
    };
    let again = "the agent writes it: is humanz-agent running?";
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let seen = "only root may read the CNI configuration: it was not looked at";
            let cure = "run this as root";
            return vec![Finding::new(Severity::Warning, "cni-configuration", how, seen, cure)];
        }
        Err(error) => {
            let seen = format!("the CNI configuration cannot be read: {error}");
            return wrong("cni-configuration", seen, again);
        }
    };
    let Ok(value) = serde_json::from_slice::<Value>(&bytes) else {
        return wrong("cni-configuration", "the CNI configuration is no JSON".to_owned(), again);
    };
    let mut findings = Vec::new();
    let version = value["cniVersion"].as_str().unwrap_or("0.1.0");
    if !VERSIONS.contains(&version) {
        let seen = format!("cniVersion {version} is none that humanz knows");
        findings.extend(wrong("cni-version", seen, again));
    } else if version == "1.1.0" {
        let seen = "cniVersion is 1.1.0: containerd before 2.0, CRI-O before 1.31 and podman before \
                    5.0 refuse it";
        let cure = "set CNI_VERSION=1.0.0 unless all runtimes are newer: GC and STATUS then come by \
                    cniVersions";
        let note = Finding::new(Severity::Note, "cni-version", how.clone(), seen, cure);
        findings.push(note);
    }
    let list = value["plugins"].as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
    for name in list.iter().filter_map(|plugin| plugin["type"].as_str()) {
        let there = folder.is_some_and(|folder| fs::metadata(folder.join(name)).is_ok());
        if !there && !name.contains('/') {
            let folder = folder.map(|folder| folder.display().to_string()).unwrap_or_default();
            let seen = format!("plugin {name} is not in {folder}: every ADD fails");
            findings.extend(wrong("cni-plugin", seen, "install it, or take it out of the list"));
        }
    }
    findings
}

/// Links in the folder of plugins that lead nowhere.
fn plugins(folder: &Path) -> Vec<Finding> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let dangling = entries.map(|entry| entry.path()).filter(|path| {
        fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink())
            && fs::metadata(path).is_err()
    });
    let finding = |path: std::path::PathBuf| {
        let seen = format!("{} is a link to a file that is not there", path.display());
        let cure = format!("rm {} (or install what it leads to)", path.display());
        let how = folder.display().to_string();
        Finding::new(Severity::Warning, "stale-link", how, seen, cure)
    };
    dangling.map(finding).collect()
}
