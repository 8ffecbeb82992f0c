//! An attachment of a pod: its owner, its JSON object, and closing its host ports.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use crate::agent::applier::Applier;
use crate::agent::reconcile;
use crate::agent::reconcile::Reconcile;
use crate::agent::trigger::Scope;
use crate::command::call::Call;
use crate::command::json::object;
use crate::inspect::Kernel;
use crate::inspect::pods::{Life, StoreNetwork, refused};
use crate::ipam::{StoreEntry, StoreError};
use crate::lease::Resolved;
use crate::net::gather::Gather;
use crate::net::{IfName, PerFamily};
use crate::policy::served::ServedNetworks;
use crate::settings::Settings;
use crate::settings::exit::{self, Exit};

/// How long a store is waited for, which plugins hold for a millisecond.
pub const WAIT: Duration = Duration::from_secs(5);

/// The settings: without any etcd, which has no part in this.
pub fn settings(call: &mut Call<'_>) -> Result<Settings, Exit> {
    call.origin.set_default("ETCD_HOST", "localhost");
    Ok(call.load()?.settings)
}

/// The attachments of a network, for `--json`.
pub fn objects(network: &StoreNetwork, links: &BTreeSet<IfName>) -> Vec<Value> {
    let entries = network.contents.entries.iter();
    entries
        .map(|entry| object(entry, &network.name, Life::of(entry, &network.name, links)))
        .collect()
}

/// The owner of an address, for people.
pub fn owner(entry: &StoreEntry) -> String {
    entry.pod.clone().unwrap_or_else(|| entry.owner_text())
}

/// A store that is locked for too long is one to try again.
pub fn busy(error: StoreError) -> Exit {
    match error {
        StoreError::LockTimeout { .. } => Exit { code: exit::TEMPORARY, ..refused(error) },
        _ => refused(error),
    }
}

/// Closes the ports of the host that lead to `ended`, and forgets their flows over UDP; to be called before their addresses
/// are free. `running`: the link of a pod that runs, which the agent would leave its ports as one whose store is lost.
pub fn close_ports(
    settings: &Settings,
    ended: &[StoreEntry],
    running: Option<&IfName>,
) -> Result<(), Exit> {
    if ended.iter().any(|entry| entry.ports.is_some()) {
        close_open(settings, ended, running)?;
    }
    reconcile::host_ports::forget_flows(ended);
    Ok(())
}

fn close_open(
    settings: &Settings,
    ended: &[StoreEntry],
    running: Option<&IfName>,
) -> Result<(), Exit> {
    let kernel = Kernel::open(settings)?;
    let mut applier = Applier::new(false);
    let pass = Reconcile {
        policies: None,
        networks: &ServedNetworks::default(),
        settings,
        kernel: &kernel,
        subnets: &PerFamily::default(),
        peers: None,
        in_sync: false,
        resolved: &Resolved::new(),
        previous: None,
        was_ready: false,
        scope: Scope::FIREWALL,
        own_writes: None,
    };
    if let Some(link) = running {
        reconcile::host_ports::close(&kernel, settings, link, &mut applier);
    }
    let closed = reconcile::host_ports::close_all(&kernel, settings, ended, WAIT, &mut applier);
    closed.map_err(busy)?;
    let own =
        kernel.rtnl.addresses(None).map_err(|error| Exit::new(exit::FAILURE, error.to_string()))?;
    let own = own.into_iter().map(|found| found.address.ip()).gather();
    reconcile::host_ports::reconcile(&pass, &own, &mut applier);
    match applier.failures() {
        [] => Ok(()),
        _ => Err(Exit::new(exit::FAILURE, applier.failure_lines())),
    }
}
