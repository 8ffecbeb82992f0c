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
use crate::inspect::pods::{self, Life, StoreNetwork};
use crate::ipam::{StoreEntry, StoreError};
use crate::lease::Resolved;
use crate::net::gather::Gather;
use crate::net::{FailureReason, IfName, PerFamily};
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

/// The stores of all networks, by name; `of` alone if that is given.
///
/// # Errors
/// A store cannot be read, or there is none of that name.
pub fn networks(settings: &Settings, of: Option<&str>) -> Result<Vec<StoreNetwork>, Exit> {
    let networks = pods::networks(settings, of)?;
    if let Some(of) = of.filter(|_| networks.is_empty()) {
        let known = pods::names(settings)?.join(", ");
        let known = if known.is_empty() { "none".to_owned() } else { known };
        let dir = settings.cni.ipam_dir.display();
        let why = format!("there is no store of network {of} in {dir} (there is: {known})");
        return Err(Exit::new(exit::FAILURE, why));
    }
    Ok(networks)
}

/// What is looked for is in no entry of `networks`: `why`. A file that is none may have been its entry.
pub fn absent(networks: &[StoreNetwork], settings: &Settings, why: &str) -> Exit {
    let fault = networks.iter().flat_map(|network| network.faults(settings)).next();
    let why = match fault {
        Some(fault) => FailureReason::from(fault).at(why),
        None => format!("{why} (humanz-agent ipam ls lists all)").into(),
    };
    Exit::new(exit::FAILURE, why)
}

/// Why a store refused. One that is locked for too long is one to try again.
pub fn refused(settings: &Settings) -> impl Fn(StoreError) -> Exit {
    |error| match error {
        StoreError::LockTimeout { .. } => Exit::new(exit::TEMPORARY, error),
        _ => pods::store_problem(&settings.cni.ipam_dir, &error.into()).into(),
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
    closed.map_err(refused(settings))?;
    let own =
        kernel.rtnl.addresses(None).map_err(|error| Exit::new(exit::FAILURE, error.to_string()))?;
    let own = own.into_iter().map(|found| found.address.ip()).gather();
    reconcile::host_ports::reconcile(&pass, &own, &mut applier);
    match applier.failures() {
        [] => Ok(()),
        _ => Err(Exit::new(exit::FAILURE, applier.failure_lines())),
    }
}
