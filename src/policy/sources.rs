//! Pure. The last valid snapshot of each source of policies.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::net::Problem;
use crate::policy::snapshot::{Provider, Snapshot, Update};

/// What every source said last.
#[derive(Debug, Default)]
pub struct Policies {
    snapshots: BTreeMap<Provider, Snapshot>,
    problems: BTreeMap<Provider, Vec<Problem>>,
    merged: Option<Arc<Snapshot>>,
}

impl Policies {
    /// What was kept from an earlier life, of the sources that there are still.
    pub fn kept(mut snapshots: BTreeMap<Provider, Snapshot>, of: &[Provider]) -> Policies {
        snapshots.retain(|provider, _| of.contains(provider));
        let mut policies = Policies { snapshots, ..Policies::default() };
        policies.merge();
        policies
    }

    /// Takes over what a source says; true if that changes what holds.
    pub fn take(&mut self, update: Update) -> bool {
        self.problems.insert(update.provider, update.problems);
        let Some(snapshot) = update.snapshot else { return false };
        if self.snapshots.get(&update.provider) == Some(&snapshot) {
            return false;
        }
        self.snapshots.insert(update.provider, snapshot);
        self.merge();
        true
    }

    fn merge(&mut self) {
        let all = || Arc::new(Snapshot::merged(self.snapshots.values()));
        self.merged = (!self.snapshots.is_empty()).then(all);
    }

    /// What all of them say; `None` before the first one has said anything.
    pub fn snapshot(&self) -> Option<&Arc<Snapshot>> {
        self.merged.as_ref()
    }

    pub fn has(&self, provider: Provider) -> bool {
        self.snapshots.contains_key(&provider)
    }

    pub fn snapshots(&self) -> &BTreeMap<Provider, Snapshot> {
        &self.snapshots
    }

    /// What is wrong with their objects.
    pub fn problems(&self) -> impl Iterator<Item = Problem> {
        self.problems.values().flatten().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::read::documents;

    fn update(policy: Option<&str>) -> Update {
        let snapshot = policy.map(|name| {
            let policy = format!(
                "{{\"apiVersion\": \"networking.k8s.io/v1\", \"kind\": \"NetworkPolicy\", \
                 \"metadata\": {{\"namespace\": \"shop\", \"name\": \"{name}\"}}, \"spec\": \
                 {{\"podSelector\": {{}}}}}}"
            );
            let rules = documents::read(&documents::objects(&policy).unwrap(), true).rules;
            Snapshot { rules, ..Snapshot::default() }
        });
        Update { provider: Provider::File, snapshot, problems: Vec::new() }
    }

    #[test]
    fn what_cannot_be_used_leaves_the_last_valid_snapshot() {
        let mut policies = Policies::default();
        assert!(!policies.take(update(None)) && policies.snapshot().is_none());
        assert!(policies.take(update(Some("a"))));
        assert!(!policies.take(update(Some("a"))), "nothing changed");
        assert!(!policies.take(update(None)) && policies.snapshot().is_some());
        assert!(policies.take(update(Some("b"))));
    }
}
