//! Announces the start to the service manager.

use std::time::Instant;

use crate::agent::notify;
use crate::agent::readiness::not_ready;
use crate::agent::serve::agent::Agent;
use crate::settings::Source;

impl Agent {
    /// Until the host is served: what it waits for.
    pub(super) fn announce(&mut self) {
        if self.state.ready {
            self.state.announcement.due = None;
            return;
        }
        let is_over = self.state.announcement.due.is_some_and(|due| due <= Instant::now());
        let status = format!("not ready: {}", self.waits_for());
        let said = &mut self.state.announcement;
        if is_over {
            said.due = None;
            let goes_on =
                if notify::is_supervised() { "the service manager goes on, " } else { "" };
            log::warn!("{status}; {goes_on}humanz-agent ready says when it is");
            notify::ready(&status);
        } else if said.said != status {
            notify::status(&status);
        }
        said.said = status;
    }

    fn waits_for(&self) -> String {
        let store = match self.settings.source {
            Source::Etcd { .. } => "etcd",
            Source::Kubernetes(_) => "the Kubernetes API",
            Source::Static(_) => "",
        };
        let etcd = &self.state.etcd;
        if self.state.subnets.is_none() && etcd.trouble.is_none() && !store.is_empty() {
            let down = etcd.down.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            return format!("waiting for {store}{down}");
        }
        let known = self.shared.snapshot();
        let why = known.and_then(|known| not_ready(&self.shared, &known));
        why.filter(|why| !why.is_empty()).unwrap_or_else(|| "the first reconcile".to_owned())
    }
}
