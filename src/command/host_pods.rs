//! The pods of this host: addresses, host ports, and the bytes that passed each interface.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::command::json::{object, whats};
use crate::inspect::interface_counters::{InterfaceCounters, counters};
use crate::inspect::pods::{Life, PodAttachment, links, networks};
use crate::net::Problem;
use crate::settings::Settings;
use crate::settings::exit::Exit;

/// What the stores of this host have, and the kernel besides.
pub struct ListedPods {
    pub pods: Vec<ListedPod>,
    /// What is wrong with the stores.
    pub problems: Vec<Problem>,
}

/// One interface of a pod.
pub struct ListedPod {
    pub attachment: PodAttachment,
    pub life: Life,
    /// At the host's end; `None`: there is no such interface.
    passed: Option<InterfaceCounters>,
}

/// Looks.
///
/// # Errors
/// The stores or the counters cannot be read.
pub fn find(settings: &Settings) -> Result<ListedPods, Exit> {
    let networks = networks(settings, None)?;
    let (links, counters) = (links()?, counters()?);
    let (mut pods, mut problems) = (Vec::new(), Vec::new());
    for network in networks {
        problems.extend(network.faults(settings));
        pods.extend(network.contents.entries.into_iter().map(Arc::unwrap_or_clone).map(|entry| {
            let life = Life::of(&entry, &network.name, &links);
            let attachment = PodAttachment { network: network.name.clone(), entry };
            let passed = counters.get(&attachment.host_end()).copied();
            ListedPod { attachment, life, passed }
        }));
    }
    Ok(ListedPods { pods, problems })
}

impl ListedPods {
    /// `pods`: each as `ipam ls --json` has it, with `sent_bytes` and `received_bytes` (`null`: there is no such
    /// interface); `problems`, and their texts as `faults`.
    pub fn json(&self) -> Value {
        let pods: Vec<Value> = self.pods.iter().map(ListedPod::json).collect();
        json!({ "pods": pods, "faults": whats(&self.problems), "problems": self.problems })
    }
}

impl ListedPod {
    fn json(&self) -> Value {
        let PodAttachment { network, entry } = &self.attachment;
        let mut pod = object(entry, network, self.life);
        pod["sent_bytes"] = json!(self.passed.map(|it| it.received_bytes));
        pod["received_bytes"] = json!(self.passed.map(|it| it.sent_bytes));
        pod
    }
}
