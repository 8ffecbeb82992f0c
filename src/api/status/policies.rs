//! Pure. The part of the status about policies.

use crate::agent::reachability::is_made;
use crate::agent::snapshot::AgentSnapshot;
use crate::api::status::{PolicySourceStatus, PolicyStatus, QuarantineStatus};
use crate::lease::records::PolicyEnforcement;
use crate::net::Problem;
use crate::net::time::rfc3339;
use crate::policy::sources::SourceState;
use crate::policy::view::{Quarantined, View};

/// `problems`: everything that is wrong, with the time since when.
pub fn policies(snapshot: &AgentSnapshot, problems: &[Problem]) -> PolicyStatus {
    let settings = snapshot.settings.policy.as_ref();
    let (on, objects) = (settings.is_some(), settings.map(|it| it.objects.name().to_owned()));
    let Some(view) = snapshot.policies.as_deref().filter(|_| on) else {
        return PolicyStatus { on, objects, ..PolicyStatus::default() };
    };
    PolicyStatus {
        on,
        objects,
        known: view.known.is_some(),
        policies: view.sources.iter().map(|source| source.policies.len()).sum(),
        rules: view.known.iter().map(|known| known.rules.iter().len()).sum(),
        pods: view.pods.iter().count(),
        quarantine: quarantine(view, problems),
        unjudged: view.unjudged,
        sources: view.sources.iter().map(source).collect(),
    }
}

impl PolicyStatus {
    /// What the host has in force, with these `problems`.
    pub fn enforcement(&self, problems: &[Problem]) -> PolicyEnforcement {
        if !self.on {
            return PolicyEnforcement::Off;
        }
        let follows = is_made(problems) && self.sources.iter().all(|source| source.healthy);
        PolicyEnforcement::of(self.known, self.unjudged, follows)
    }
}

fn quarantine(view: &View, problems: &[Problem]) -> Vec<QuarantineStatus> {
    let since = |one: &Quarantined| {
        if let Some(since) = one.since {
            return Some(rfc3339(since));
        }
        let problem = problems.iter().find(|problem| problem.subject == one.subject())?;
        problem.since.map(rfc3339)
    };
    let status = |one: &Quarantined| QuarantineStatus {
        pod: one.pod.clone(),
        addresses: one.addresses.iter().map(ToString::to_string).collect(),
        why: one.reason.to_string(),
        since: since(one),
    };
    view.quarantined().iter().map(status).collect()
}

fn source(state: &SourceState) -> PolicySourceStatus {
    PolicySourceStatus {
        source: state.provider.name().to_owned(),
        healthy: state.healthy,
        read: state.read.map(rfc3339),
        policies: state.policies.len(),
        problems: state.problems,
    }
}
