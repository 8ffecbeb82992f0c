//! Policies: what their sources say.

use crate::agent::active_problems::ProblemSource;
use crate::agent::serve::agent::Agent;
use crate::agent::trigger::Scope;
use crate::policy::Update;

impl Agent {
    /// Where to look because of `update`.
    pub(super) fn take_policies(&mut self, update: Update) -> Scope {
        let changed = self.state.policies.take(update);
        self.shared.problems.set(ProblemSource::Policies, self.state.policies.problems());
        if changed { Scope::POLICY } else { Scope::default() }
    }
}
