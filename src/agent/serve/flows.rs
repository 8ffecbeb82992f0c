//! Flows: who connects to what is counted while the settings want it.

use std::sync::Arc;

use crate::agent::serve::agent::Agent;
use crate::flows::FlowRecorder;

impl Agent {
    /// Starts or ends the threads that count.
    pub(super) fn record_flows(&mut self) {
        let wanted = self.settings.policy.as_ref().is_some_and(|policy| policy.flows);
        if wanted == self.state.flows.is_some() {
            return;
        }
        self.state.flows = None;
        if wanted {
            let shared = Arc::clone(&self.shared);
            let views = Arc::new(move || shared.snapshot()?.policies.clone());
            let started = FlowRecorder::start(&self.shared.flows, views);
            let failed = |error: &_| log::error!("flows are not counted: {error}");
            self.state.flows = started.inspect_err(failed).ok();
        }
    }
}
