//! What runtimes find: configuration, plugins, versions.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::Value;

use crate::command::doctor::context::DoctorContext;
use crate::command::single_machine;
use crate::inspect::identity::as_root;
use crate::inspect::service_manager::service_manager;
use crate::net::shell::word;
use crate::net::{Object, Problem, ProblemKind};

/// Versions of CNI that there are.
const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

pub fn problems(context: &DoctorContext<'_>) -> Vec<Problem> {
    let settings = context.settings();
    let cni = &settings.cni;
    let init = settings.agentless.then(|| single_machine::again(settings));
    let writer = init.as_deref();
    let again = writer.unwrap_or(match context.host.agent() {
        Ok(_) => "humanz-agent status # the agent runs, and writes it when this host is ready: see its problems",
        Err(_) => service_manager().start(),
    });
    let mut problems = configuration(&cni.config, cni.plugin.parent(), again);
    if let Some(folder) = cni.plugin.parent() {
        problems.extend(plugins(folder));
        let loopback = folder.join("loopback");
        if fs::metadata(&loopback).is_err() {
            let what = format!("{} is missing: containerd starts no pod", loopback.display());
            let fix = writer.unwrap_or(
                "apt install containernetworking-plugins # or start the agent, which puts its own there",
            );
            let subject = Object::PluginLink(loopback);
            let problem = Problem::new(ProblemKind::LoopbackPlugin, subject, what);
            problems.push(problem.with_fix(fix));
        }
    }
    problems
}

/// Our file as it is on the disk, and that each plugin it names is there. `again`: what writes it.
fn configuration(path: &Path, folder: Option<&Path>, again: &str) -> Vec<Problem> {
    let problem = |kind, what: &str, fix: &str| {
        Problem::new(kind, Object::Configuration(path.to_owned()), what).with_fix(fix)
    };
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let what = "only root may read the CNI configuration: it was not checked";
            return vec![problem(ProblemKind::CniConfigurationUnread, what, as_root())];
        }
        Err(error) => {
            let what = format!("the CNI configuration cannot be read: {error}");
            return vec![problem(ProblemKind::CniConfiguration, &what, again)];
        }
    };
    let Ok(value) = serde_json::from_slice::<Value>(&bytes) else {
        let what = "the CNI configuration is no JSON";
        return vec![problem(ProblemKind::CniConfiguration, what, again)];
    };
    let mut problems = Vec::new();
    let version = value["cniVersion"].as_str().unwrap_or("0.1.0");
    if !VERSIONS.contains(&version) {
        let what = format!("cniVersion {version} is not supported");
        problems.push(problem(ProblemKind::CniVersion, &what, again));
    } else if version == "1.1.0" {
        let what = "cniVersion is 1.1.0: containerd before 2.0, CRI-O before 1.31 and podman before \
                    5.0 refuse it";
        let fix = "humanz-agent config # set CNI_VERSION=1.0.0 unless all runtimes are newer: GC and STATUS then come by \
                    cniVersions";
        problems.push(problem(ProblemKind::CniVersionNew, what, fix));
    }
    let list = value["plugins"].as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
    for name in list.iter().filter_map(|plugin| plugin["type"].as_str()) {
        let there = folder.is_some_and(|folder| fs::metadata(folder.join(name)).is_ok());
        if !there && !name.contains('/') {
            let folder = folder.map(|folder| folder.display().to_string()).unwrap_or_default();
            let what = format!("plugin {name} is not in {folder}: every ADD fails");
            let fix = format!("ls {folder} # install it there, or take it out of the list");
            let subject = Object::Plugin(Path::new(&folder).join(name));
            let problem = Problem::new(ProblemKind::CniPlugin, subject, what);
            problems.push(problem.with_fix(fix));
        }
    }
    problems
}

/// Links in the folder of plugins that lead nowhere.
fn plugins(folder: &Path) -> Vec<Problem> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let dangling = entries.map(|entry| entry.path()).filter(|path| {
        fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink())
            && fs::metadata(path).is_err()
    });
    let problem = |path: std::path::PathBuf| {
        let what = format!("{} is a link to a file that is not there", path.display());
        let fix = format!("rm {} # or install what it leads to", word(path.display()));
        Problem::new(ProblemKind::StaleLink, Object::PluginLink(path), what).with_fix(fix)
    };
    dangling.map(problem).collect()
}
