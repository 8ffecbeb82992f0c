//! The pods of this host: addresses, host ports, and the bytes that passed each interface.

use serde_json::{Value, json};

use crate::command::json::object;
use crate::command::top::{counters, host_end};
use crate::inspect::pods::{Life, entries, links, networks};
use crate::settings::Settings;
use crate::settings::exit::Exit;

/// `pods`: each as `ipam ls --json` has it, with `sent_bytes` and `received_bytes` (`null`: there is no such interface);
/// `faults`: what is wrong with the stores.
///
/// # Errors
/// The stores or the counters cannot be read.
pub fn find(settings: &Settings) -> Result<Value, Exit> {
    let networks = networks(settings, None)?;
    let (links, counters) = (links()?, counters()?);
    let pods = entries(&networks).map(|(network, entry)| {
        let mut pod = object(entry, &network.name, Life::of(entry, &network.name, &links));
        let passed = counters.get(&host_end(&network.name, entry));
        pod["sent_bytes"] = json!(passed.map(|it| it.received_bytes));
        pod["received_bytes"] = json!(passed.map(|it| it.sent_bytes));
        pod
    });
    let pods: Vec<Value> = pods.collect();
    let faults = networks.iter().flat_map(|network| &network.contents.faults);
    Ok(json!({ "pods": pods, "faults": faults.collect::<Vec<_>>() }))
}
