//! Whether pods can be plugged in now: one truth for all who ask.

use std::path::Path;

use crate::agent::snapshot::AgentSnapshot;

/// Why no pod can be plugged in: something was never made since the agent started, or a file is gone
/// that runtimes look for. `None` if nothing keeps one from it.
pub fn not_ready(known: &AgentSnapshot) -> Option<String> {
    if !known.ready {
        return Some(match (&known.subnets, &known.etcd.down) {
            (Some(_), _) => failures(known),
            (None, Some(down)) => format!("this host has no subnet yet; etcd: {down}"),
            (None, None) => "this host has no subnet yet".to_owned(),
        });
    }
    let cni = &known.settings.cni;
    if let Some(path) = [&cni.config, &cni.plugin].into_iter().find(|path| !is_file(path)) {
        let failures = failures(known);
        let why = if failures.is_empty() { failures } else { format!(": {failures}") };
        return Some(format!("{} is no file{why}", path.display()));
    }
    None
}

/// The configuration that runtimes had is gone, and what to do.
pub fn gone(known: &AgentSnapshot) -> Option<String> {
    let path = &known.settings.cni.config;
    (known.ready && !is_file(path)).then(|| {
        format!(
            "CNI configuration {} is gone, and no pod can start; the agent puts it back at once, \
             unless one of the other faults keeps it from that",
            path.display()
        )
    })
}

/// What the agent could not do.
fn failures(known: &AgentSnapshot) -> String {
    known.wrong.failures.iter().cloned().collect::<Vec<_>>().join("; ")
}

/// A file, or a link that leads to one.
fn is_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file())
}
