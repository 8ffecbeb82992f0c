//! Pure. What `status` shows.

use serde::Serialize;

use crate::api::status::Status;
use crate::command::json::SubnetUsage;

/// What is shown: the status, and what only a command looks at.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Shown {
    #[serde(flatten)]
    pub status: Status,
    pub agent: ShownAgent,
    /// Changes that an agent would make, if none answers.
    pub pending: Option<Vec<String>>,
    pub pods: PodCounts,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct ShownAgent {
    pub answers: bool,
    pub error: Option<String>,
    /// There is none, and none is missed: `init` set this machine up.
    pub single_machine: bool,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct PodCounts {
    pub attached: usize,
    /// Interfaces that an earlier plugin attached, whose addresses were imported.
    pub taken_over: usize,
    /// With a limited rate.
    pub limited: usize,
    pub networks: Vec<PodNetwork>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct PodNetwork {
    pub name: String,
    pub attachments: usize,
    pub host_ports: usize,
    pub free: Vec<SubnetUsage>,
}
