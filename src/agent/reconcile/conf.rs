//! Keeps the CNI configuration, in one place.

use std::path::Path;

use crate::agent::applier::Applier;
use crate::agent::cni_conf;
use crate::agent::conf_record::{self, Written};
use crate::agent::reconcile::Reconcile;
use crate::inspect::host_state::HostState;
use crate::net::{Object, Problem, ProblemKind};
use crate::os::files;
use crate::plan::{Describe, Line};

struct Write<'a>(&'a Path);

impl Describe for Write<'_> {
    fn line(&self) -> Line {
        let what = Object::Configuration(self.0.to_owned());
        if self.0.exists() { Line::changed(what) } else { Line::added(what) }
    }
}

struct Remove<'a>(&'a Path);

impl Describe for Remove<'_> {
    fn line(&self) -> Line {
        Line::removed(Object::Configuration(self.0.to_owned()))
    }
}

/// Writes the configuration if it is missing or different; then removes the one that an agent of
/// this host wrote elsewhere before, or runtimes would read both. Gives what is wrong with the record
/// of where that was.
pub fn reconcile(run: &Reconcile<'_>, facts: &HostState, applier: &mut Applier) -> Vec<Problem> {
    let state_dir = &run.settings.state_dir;
    let path = &run.settings.cni.config;
    if applier.is_dry() && files::is_denied(path) {
        let subject = Object::Configuration(path.clone());
        let what = format!("only root may read {}", path.display());
        let denied = Problem::new(ProblemKind::ReadDenied, subject, what);
        applier.failed(denied.with_fix("run this as root"));
        return Vec::new();
    }
    let text = cni_conf::text(run.settings, run.subnets, facts.own.pod_mtu_bytes);
    let mut problems = Vec::new();
    let mut known = conf_record::all(state_dir).unwrap_or_else(|error| {
        problems.push(of_record(
            state_dir,
            format!("{error:#}: a CNI configuration that was written elsewhere before stays"),
        ));
        Vec::new()
    });
    let wanted = Written::new(path, &text);
    if !applier.is_dry() && !known.contains(&wanted) {
        // Before it is there: whoever is killed in between knows of it.
        known.push(wanted.clone());
        problems.extend(remember(state_dir, known.clone()));
    }
    if !files::holds(path, text.as_bytes()) {
        applier.apply(&Write(path), || files::replace_watched(path, text.as_bytes(), MODE));
    }
    if !applier.is_dry() && !files::holds(path, text.as_bytes()) {
        return problems;
    }
    remove_former(&known, path, applier);
    let left: Vec<Written> = known
        .iter()
        .filter(|one| **one == wanted || one.is_elsewhere(path) && one.is_there())
        .cloned()
        .collect();
    if !applier.is_dry() && left != known {
        tell_changed(&known, &left, path);
        problems.extend(remember(state_dir, left));
    }
    problems
}

/// Removes every configuration in `known` that is not at `now` and that nobody changed.
pub fn remove_former(known: &[Written], now: &Path, applier: &mut Applier) {
    for former in known.iter().filter(|one| one.is_elsewhere(now) && one.is_there()) {
        applier.apply(&Remove(&former.path), || files::remove(&former.path));
    }
}

/// One that was changed since is somebody else's now; that is told once.
fn tell_changed(known: &[Written], left: &[Written], now: &Path) {
    let is_left = |one: &Written| left.iter().any(|left| left.path == one.path);
    let stays = |one: &&Written| !is_left(one) && one.path.exists() && one.is_elsewhere(now);
    for one in known.iter().filter(stays) {
        log::warn!(
            "CNI configuration {} stays: humanz wrote it, but somebody changed it since; remove it if \
             nobody needs it",
            one.path.display()
        );
    }
}

/// Without the record the next agent does not know of this place.
fn remember(state_dir: &Path, written: Vec<Written>) -> Option<Problem> {
    let error = conf_record::keep(state_dir, written).err()?;
    let effect = "when CNI_CONFIG_LOCATION changes, the CNI configuration will stay behind";
    Some(of_record(state_dir, format!("{error:#}: {effect}")))
}

fn of_record(state_dir: &Path, what: String) -> Problem {
    let path = state_dir.join(conf_record::FILE);
    let fix = format!("make STATE_DIR writable, or remove {} if it is damaged", path.display());
    Problem::new(ProblemKind::ConfRecord, Object::File("record", path), what).with_fix(fix)
}

/// As the original agent's file: it may hold what not everybody should read.
const MODE: u32 = 0o600;
