//! What humanz made on the disk.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::agent::applier::Applier;
use crate::agent::reconcile::plugin::{COPY, netavark_links};
use crate::agent::{cni_conf, reconcile};
use crate::agent::{encryption_key, history, sysctl_record};
use crate::inspect::former_stores::NETWORKS;
use crate::inspect::{last_policies, last_settings, port_profiles};
use crate::ipam::import::TAKEN_OVER;
use crate::ipam::{Store, calls};
use crate::net::Object;
use crate::os::{files, mount};
use crate::plan::Line;
use crate::policy::{ask, network_plan};
use crate::settings::{PLUGINS, Settings};
use crate::sources;

/// What the agent keeps in its state directory, and the settings that the removal of a package puts
/// there; other files are somebody else's.
const STATE: [&str; 14] = [
    "state.json",
    history::FILE,
    last_settings::FILE,
    encryption_key::FILE,
    encryption_key::REQUEST,
    "state.json.damaged",
    sysctl_record::FILE,
    last_policies::FILE,
    last_policies::OUTDATED,
    last_policies::NEXT,
    "configuration.json",
    "machine-id",
    "agent.env",
    "lock",
];

/// First, so that no new pod is attached.
pub fn configuration(settings: &Settings, applier: &mut Applier) {
    let path = &settings.cni.config;
    let text = fs::read_to_string(path).unwrap_or_default();
    if cni_conf::is_ours(&text, &settings.cni.plugin_type) {
        file("CNI configuration", path, applier);
    } else if path.exists() {
        log::warn!("{} stays: it is not humanz's", path.display());
    }
    reconcile::conf::remove_former(&settings.cni.config, applier);
}

/// The copies of the executable that runtimes call: the present one, and one from before another place was set.
pub fn plugins(settings: &Settings, applier: &mut Applier) {
    let present = settings.cni.plugin.parent().unwrap_or(Path::new("/"));
    for directory in BTreeSet::from([present, Path::new(PLUGINS)]) {
        plugin(directory, applier);
    }
}

/// A copy, and every name that leads to it.
fn plugin(directory: &Path, applier: &mut Applier) {
    let leads_to_copy =
        |path: &PathBuf| fs::read_link(path).is_ok_and(|target| target == Path::new(COPY));
    for path in files_in(directory, applier).iter().filter(|path| leads_to_copy(path)) {
        file("link", path, applier);
    }
    let copy = directory.join(COPY);
    let leads_there = |path: &&PathBuf| fs::read_link(path).is_ok_and(|target| target == copy);
    for path in netavark_links().iter().filter(leads_there) {
        file("link", path, applier);
        path.parent().into_iter().for_each(|folder| empty(folder, applier));
    }
    file("plugin", &copy, applier);
}

/// What says that the stores of older plugins were imported: what such a plugin gives out from now on is imported when
/// humanz comes back.
pub fn imports(settings: &Settings, applier: &mut Applier) {
    for path in files_in(&settings.cni.ipam_dir, applier) {
        if Store::is_at(&path).unwrap_or(false) {
            file("record of imports", &Store::boot_record(&path), applier);
        }
    }
}

/// The same beside the reservations of host-local: in another boot, what that gives out now would pass for what was
/// imported in this one.
pub fn imports_of_host_local(applier: &mut Applier) {
    for folder in files_in(Path::new(NETWORKS), applier) {
        file("record of imports", &folder.join(TAKEN_OVER), applier);
    }
}

/// The pods' addresses of every network.
pub fn store(settings: &Settings, applier: &mut Applier) {
    let directory = &settings.cni.ipam_dir;
    for path in &files_in(directory, applier) {
        match Store::is_at(path) {
            Ok(true) => applier.apply(&removed("store of addresses", path), || {
                fs::remove_dir_all(path).with_context(|| format!("remove {}", path.display()))
            }),
            Ok(false) => {}
            Err(error) => applier.inspect_failed(
                Object::File("directory", path.to_owned()),
                format!("{:#}", anyhow::Error::from(error)),
            ),
        }
    }
    let calls = calls::folder(directory);
    if calls.is_dir() {
        applier.apply(&removed("counted calls", &calls), || {
            calls::remove(directory).with_context(|| format!("remove {}", calls.display()))
        });
    }
    for (what, path) in [
        ("socket", ask::socket(directory)),
        ("index", ask::index(directory)),
        ("profiles", port_profiles::path(directory)),
        ("networks", network_plan::file(directory)),
    ] {
        if path.symlink_metadata().is_ok() {
            file(what, &path, applier);
        }
    }
    for directory in [Some(directory.as_path()), directory.parent()].into_iter().flatten() {
        empty(directory, applier);
    }
}

/// The socket of an agent that was killed.
pub fn socket(settings: &Settings, applier: &mut Applier) {
    let is_socket =
        |path: &&PathBuf| path.symlink_metadata().is_ok_and(|found| found.file_type().is_socket());
    if let Some(path) = settings.socket.as_ref().filter(is_socket) {
        file("socket", path, applier);
    }
}

/// The plugin's log, and what logrotate made of it.
pub fn log(settings: &Settings, applier: &mut Applier) {
    let Some(path) = &settings.cni.log_file else { return };
    let directory = path.parent().unwrap_or(Path::new("/"));
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for found in files_in(directory, applier) {
        let suffix = found.file_name().and_then(|found| found.to_str()?.strip_prefix(&name));
        if suffix.is_some_and(|suffix| suffix.is_empty() || is_rotated(suffix)) {
            file("log", &found, applier);
        }
    }
}

/// What the agent knew.
pub fn state(settings: &Settings, applier: &mut Applier) {
    for name in STATE.iter().chain(&sources::KEPT) {
        file("state", &settings.state_dir.join(name), applier);
    }
    empty(&settings.state_dir, applier);
}

/// `.1`, `.2.gz` …
fn is_rotated(suffix: &str) -> bool {
    let number = suffix.strip_prefix('.').map(|rest| rest.strip_suffix(".gz").unwrap_or(rest));
    number.is_some_and(|number| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// Removes a file, and what an interrupted writing of it left.
fn file(what: &'static str, path: &Path, applier: &mut Applier) {
    for path in [path, &files::unfinished(path)] {
        if path.symlink_metadata().is_ok_and(|found| !found.is_dir()) {
            applier.apply(&removed(what, path), || files::remove(path));
        }
    }
}

/// Removes a directory if nothing is in it. One on which something is mounted, as in a container, is
/// not ours to remove.
fn empty(directory: &Path, applier: &mut Applier) {
    let is_empty = |directory| fs::read_dir(directory).is_ok_and(|mut all| all.next().is_none());
    if !is_empty(directory) || mount::is_on(directory) {
        return;
    }
    applier.apply(&removed("directory", directory), || fs::remove_dir(directory));
}

/// What is in a directory, in the order of the names.
fn files_in(directory: &Path, applier: &mut Applier) -> Vec<PathBuf> {
    let list = || -> io::Result<Vec<PathBuf>> {
        fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path())).collect()
    };
    match list() {
        Ok(mut files) => {
            files.sort_unstable();
            files
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        Err(error) => {
            applier.inspect_failed(Object::File("directory", directory.to_owned()), error);
            Vec::new()
        }
    }
}

fn removed(what: &'static str, path: &Path) -> Line {
    Line::removed(Object::File(what, path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_logrotate_makes_of_the_log_goes_with_it() {
        for (suffix, rotated) in
            [(".1", true), (".12.gz", true), (".gz", false), (".old", false), ("-20260101", false)]
        {
            assert_eq!(is_rotated(suffix), rotated, "{suffix}");
        }
    }
}
