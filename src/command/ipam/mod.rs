//! `ipam`: which pod has which address of this host.

mod clear;
mod free;
mod import;
mod list;

use std::collections::BTreeSet;
use std::time::Duration;

use argh::{ArgsInfo, FromArgs};
use serde_json::Value;

use crate::agent::applier::Applier;
use crate::agent::reconcile;
use crate::agent::reconcile::Reconcile;
use crate::agent::trigger::Scope;
use crate::command::call::{Call, Outcome};
use crate::command::json::object;
use crate::inspect::Kernel;
use crate::inspect::pods::{Life, Network};
use crate::ipam::StoreEntry;
use crate::lease::Resolved;
use crate::net::{IfName, PerFamily};
use crate::settings::Settings;
use crate::settings::exit::Exit;

/// How long a store is waited for, which plugins hold for a millisecond.
const WAIT: Duration = Duration::from_secs(5);

/// show which pod has which address of this host, free addresses, take over those of earlier plugins
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "ipam",
    example = "{command_name} ls",
    example = "{command_name} show default/web",
    example = "{command_name} free 10.244.1.7",
    example = "{command_name} gc --yes",
    error_code(0, "it was done or shown, and nothing is wrong"),
    error_code(
        1,
        "there is no such address, it was refused, or something in a store is wrong: see the message"
    ),
    error_code(69, "this user may not read the stores"),
    error_code(75, "a store is busy: try again")
)]
pub struct Ipam {
    #[argh(subcommand)]
    verb: Verb,
}

#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand)]
enum Verb {
    List(list::List),
    Show(list::Show),
    Free(free::Free),
    Clear(clear::Clear),
    Import(import::Import),
}

/// Answers.
///
/// # Errors
/// What is wrong with the settings, a store, the kernel, or what was asked for.
pub fn run(call: &mut Call<'_>, options: &Ipam) -> Result<Outcome, Exit> {
    match &options.verb {
        Verb::List(options) => list::run(call, options),
        Verb::Show(options) => list::show(call, options),
        Verb::Free(options) => free::run(call, options),
        Verb::Clear(options) => clear::run(call, options),
        Verb::Import(options) => import::run(call, options),
    }
}

/// The settings: without any etcd, which has no part in this.
fn settings(call: &mut Call<'_>) -> Result<Settings, Exit> {
    call.origin.set_default("ETCD_HOST", "localhost");
    Ok(call.load()?.settings)
}

/// The attachments of a network, for `--json`.
fn objects(network: &Network, links: &BTreeSet<IfName>) -> Vec<Value> {
    let entries = network.looked.entries.iter();
    entries
        .map(|entry| object(entry, &network.name, Life::of(entry, &network.name, links)))
        .collect()
}

/// Who has an address, for people.
fn owner(entry: &StoreEntry) -> String {
    entry.pod.clone().unwrap_or_else(|| entry.owner_text())
}

/// Closes the ports of the host that lead to what is freed: the claims are gone, the kernel's part
/// of them is done as the agent does it.
fn close_ports(settings: &Settings, freed: &[StoreEntry]) -> Result<(), Exit> {
    if freed.iter().all(|entry| entry.ports.is_none()) {
        return Ok(());
    }
    let kernel = Kernel::open(settings)?;
    let mut applier = Applier::new(false);
    let pass = Reconcile {
        settings,
        kernel: &kernel,
        subnets: &PerFamily::default(),
        peers: None,
        in_sync: false,
        resolved: &Resolved::new(),
        previous: None,
        was_ready: false,
        scope: Scope::FIREWALL,
    };
    reconcile::host_ports::reconcile(&pass, &mut applier);
    match applier.failures() {
        [] => Ok(()),
        _ => Err(Exit::new(crate::settings::exit::FAILURE, applier.failure_lines())),
    }
}
