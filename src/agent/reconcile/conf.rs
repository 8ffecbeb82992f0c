//! Reconciles the CNI configuration: one file, at one place.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::agent::applier::Applier;
use crate::agent::cni_conf;
use crate::agent::reconcile::Reconcile;
use crate::inspect::host_state::HostState;
use crate::inspect::identity::as_root;
use crate::net::{Object, Problem, ProblemKind};
use crate::os::files;
use crate::plan::Line;

/// As the original agent's file: it may hold what not everybody should read.
const MODE: u32 = 0o600;

/// Where runtimes look for configurations by default.
const USUAL_FOLDER: &str = "/etc/cni/net.d";

/// Writes the configuration if it is missing or different; then removes those that an agent wrote under
/// other names, or runtimes would read both.
pub fn reconcile(run: &Reconcile<'_>, host_state: &HostState, applier: &mut Applier) {
    let path = &run.settings.cni.config;
    if applier.is_dry() && files::is_denied(path) {
        let subject = Object::Configuration(path.clone());
        let what = format!("only root may read {}", path.display());
        let denied = Problem::new(ProblemKind::ReadDenied, subject, what);
        return applier.failed(denied.with_fix(as_root()));
    }
    let (mtu, own) = (host_state.own.pod_mtu_bytes, &host_state.all_addresses);
    let text = cni_conf::text(run.settings, run.subnets, mtu, own);
    if !files::holds(path, text.as_bytes()) {
        let object = Object::Configuration(path.clone());
        let line = if path.exists() { Line::changed(object) } else { Line::added(object) };
        applier.apply(&line, || files::replace_watched(path, text.as_bytes(), MODE));
    }
    if applier.is_dry() || files::holds(path, text.as_bytes()) {
        remove_former(path, applier);
    }
}

/// Removes every configuration with the agent's key that is not `current`, from the folder of `current` and
/// from [`USUAL_FOLDER`].
pub fn remove_former(current: &Path, applier: &mut Applier) {
    for path in former(current) {
        let line = Line::removed(Object::Configuration(path.clone()));
        applier.apply(&line, || files::remove(&path));
    }
}

fn former(current: &Path) -> Vec<PathBuf> {
    let file = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    let own = file(current);
    let is_former = |path: &PathBuf| {
        let is_file = fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
        is_file
            && path != current
            && (own.is_none() || own != file(path))
            && fs::read_to_string(path).is_ok_and(|text| cni_conf::is_managed(&text))
    };
    let (folder, usual) = (current.parent().unwrap_or(Path::new("/")), Path::new(USUAL_FOLDER));
    let folders = [Some(folder), Some(usual).filter(|usual| file(usual) != file(folder))];
    let entries = folders.into_iter().flatten().filter_map(|folder| fs::read_dir(folder).ok());
    let paths = entries.flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let mut former: Vec<PathBuf> = paths.filter(is_former).collect();
    former.sort_unstable();
    former
}
