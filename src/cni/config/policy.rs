//! Pure. What the configuration says of policies.

use crate::cni::json::JsonField;

/// What becomes of a new pod if the agent does not answer. Until it does, nothing is known of the
/// pod's policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentDown {
    /// It starts, and nothing but its own node reaches it until the agent is back.
    Quarantine,
    /// ADD fails; the runtime tries again.
    Fail,
    /// It starts without policies.
    Open,
}

impl AgentDown {
    pub const ALL: [AgentDown; 3] = [AgentDown::Quarantine, AgentDown::Fail, AgentDown::Open];

    pub const fn name(self) -> &'static str {
        match self {
            AgentDown::Quarantine => "quarantine",
            AgentDown::Fail => "fail",
            AgentDown::Open => "open",
        }
    }
}

/// `policy`: the network has policies; the value is for pods that start while the agent is away.
pub(super) fn read(conf: &JsonField) -> Option<AgentDown> {
    let field = conf.get("policy")?;
    let named = |text| AgentDown::ALL.into_iter().find(|one| one.name() == text);
    field.text().and_then(named).or_else(|| field.refuse("\"quarantine\", \"fail\" or \"open\""))
}
