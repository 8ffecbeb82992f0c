//! Whether pods can be plugged in now: one truth for all who ask.

use std::path::Path;

use crate::agent::active_problems::ProblemSource;
use crate::agent::shared_state::SharedState;
use crate::agent::snapshot::AgentSnapshot;
use crate::lease::LeaseError;
use crate::net::{Object, Problem, ProblemKind};

/// Why no pod can be plugged in: something was never made since the agent started, or a file is gone
/// that runtimes look for. `None` if nothing keeps one from it.
pub fn not_ready(shared: &SharedState, known: &AgentSnapshot) -> Option<String> {
    if let (None, Some(error)) = (&known.subnets, &known.etcd.trouble) {
        return Some(error.with_fix());
    }
    let policies = known.policies.as_deref().filter(|_| known.subnets.is_some());
    if let Some(view) = policies.filter(|view| view.unjudged) {
        let problems = shared.problems.of(ProblemSource::Policies);
        let why: String = problems.iter().map(|problem| format!("; {problem}")).collect();
        return Some(format!(
            "no pod can start: no policies could be read yet, and {} has no table of earlier ones{why}",
            view.host
        ));
    }
    if !known.ready {
        return Some(match (&known.subnets, &known.etcd.down) {
            (Some(_), _) => failures(shared),
            (None, Some(down)) => format!("this host has no subnet yet: {down}"),
            (None, None) => "this host has no subnet yet".to_owned(),
        });
    }
    let disputed =
        |error: &&LeaseError| known.subnets.is_some_and(|own| !error.disputed(&own).is_empty());
    if let Some(error) = known.etcd.trouble.as_ref().filter(disputed) {
        return Some(error.with_fix());
    }
    if let Some(problem) = shared.problems.of(ProblemSource::Disputed).first() {
        return Some(problem.to_string());
    }
    let cni = &known.settings.cni;
    if let Some(path) = [&cni.config, &cni.plugin].into_iter().find(|path| !is_file(path)) {
        let failures = failures(shared);
        let why = if failures.is_empty() { failures } else { format!(": {failures}") };
        return Some(format!("{} is no file{why}", path.display()));
    }
    None
}

/// The configuration that runtimes had is gone.
pub fn gone(known: &AgentSnapshot) -> Option<Problem> {
    let path = &known.settings.cni.config;
    let subject = Object::Configuration(path.clone());
    let what = || format!("{subject} is gone, and no pod can start");
    (known.ready && !is_file(path)).then(|| {
        Problem::new(ProblemKind::CniConfiguration, subject.clone(), what()).with_fix(
            "humanz-agent status # the agent writes it again by itself: see the other problems for what keeps it from that",
        )
    })
}

/// What the agent could not do.
fn failures(shared: &SharedState) -> String {
    let failures = shared.problems.of(ProblemSource::Reconcile);
    failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// A file, or a link that leads to one.
fn is_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file())
}
