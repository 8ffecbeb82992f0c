//! The agent while it runs, as a value.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use crate::agent::names::Names;
use crate::agent::own_writes::OwnWrites;
use crate::agent::registry::Registry;
use crate::agent::serve::files::RuntimeFiles;
use crate::agent::serve::state::AgentState;
use crate::agent::shared_state::{SharedState, StatusServer};
use crate::agent::trigger::Trigger;
use crate::inspect::Kernel;
use crate::lease::records::NodeName;
use crate::os::heartbeat::Heartbeat;
use crate::settings::loader::SettingsLoader;
use crate::settings::{Settings, Texts};
use crate::sources::Following;

/// The agent while it runs. Its methods are in the files beside this one.
pub struct Agent {
    pub loader: SettingsLoader,
    /// Texts of `settings`, for a reload to compare with.
    pub texts: Texts,
    pub settings: Settings,
    pub name: NodeName,
    /// From all other threads.
    pub inbox: Receiver<Trigger>,
    /// This host's subnets and the other hosts.
    pub registry: Registry,
    pub names: Names,
    pub kernel: Kernel,
    /// What status, metrics and probes read.
    pub shared: Arc<SharedState>,
    pub server: Option<Box<dyn StatusServer>>,
    /// Of the loop.
    pub beat: Arc<Heartbeat>,
    /// The plugin and the CNI configuration.
    pub files: RuntimeFiles,
    pub state: AgentState,
    /// What the filter of the kernel's events knows to be ours.
    pub own_writes: Arc<OwnWrites>,
    /// For threads that the loop starts.
    pub to_loop: Sender<Trigger>,
    /// Policies of the Kubernetes API or etcd, and members of groups.
    pub policies: Following,
}
