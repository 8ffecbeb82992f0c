//! `pin release`: the addresses of a pod are no longer those of a host that is gone.

use argh::{ArgsInfo, FromArgs};
use ipnetwork::IpNetwork;
use serde_json::json;

use crate::command::call::{Call, Outcome};
use crate::command::objects::found_pins::{FoundPins, KIND};
use crate::command::objects::stored;
use crate::etcd;
use crate::inspect::cluster;
use crate::lease::records::{Key, NodeName, Roots};
use crate::lease::snapshot::Snapshot;
use crate::lease::transaction::Transaction;
use crate::policy::PodName;
use crate::settings::exit::{self, Exit};

/// take a pod's fixed addresses from a host whose agent does not run, so that the pod can start on another one. A
/// host that runs gives them back itself, as soon as the pod has ended there
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "release",
    example = "{command_name} shop/db-0 --force",
    error_code(1, "the host may still run the pod: nothing was changed"),
    error_code(69, "etcd cannot be reached, or refuses"),
    error_code(75, "the host's keys keep changing")
)]
pub struct PinRelease {
    /// namespace/name of the pod
    #[argh(positional)]
    name: String,
    /// do it although that host does not confirm that the pod has ended
    #[argh(switch)]
    force: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

pub fn run(call: &mut Call<'_>, options: &PinRelease) -> Result<Outcome, Exit> {
    let failed = |why: String| Exit::new(exit::FAILURE, why);
    let name = KIND.name(&options.name)?;
    let (there, _) = stored::read_for(call, KIND.stored_kind()?)?;
    let found = FoundPins::read(call, &there)?;
    let namespace = name.scope.ok_or_else(|| failed(options.name.clone()))?;
    let pod = PodName { namespace, name: name.name };
    let placed = found.networks.placed_pins().remove(&pod);
    let placed = placed.ok_or_else(|| failed(format!("Pin {pod} is not there")))?;
    let placed = placed.map_err(|fault| failed(format!("Pin {pod}: {fault}")))?;
    let loaded = call.load()?;
    let (server, roots) = cluster::etcd(&loaded.settings)?;
    let held = found.holders(&placed);
    let unreachable = |why| Exit::new(exit::UNAVAILABLE, format!("release pin {pod}: {why}"));
    let hosts = etcd::read(server, roots).map_err(unreachable)?;
    refuse_in_use(&held, &hosts, options.force)?;
    if !held.is_empty() {
        let revision = |host: &NodeName| hosts.modified(roots, &Key::Alive(host.clone()));
        let transaction = release(roots, &held, revision);
        if !etcd::commit(server, roots, "release a pin", &transaction).map_err(unreachable)? {
            return Err(Exit::new(
                exit::TEMPORARY,
                format!("hosts of pin {pod} keep changing: try again"),
            ));
        }
    }
    let lines: Vec<String> =
        held.iter().map(|(host, block)| format!("- {block} of host {host}\n")).collect();
    let text = if held.is_empty() { "no host has them\n".to_owned() } else { lines.concat() };
    let value = json!({"pod": pod.to_string(), "released": held.iter()
        .map(|(host, block)| json!({"host": host.as_str(), "block": block.to_string()})).collect::<Vec<_>>()});
    call.answer(options.json, true, value, &text)
}

/// A host whose agent runs gives them back itself; one without may have the pod all the same.
fn refuse_in_use(
    held: &[(NodeName, IpNetwork)],
    hosts: &Snapshot,
    force: bool,
) -> Result<(), Exit> {
    for (host, block) in held {
        if hosts.alive.contains_key(host) {
            return Err(Exit::new(
                exit::FAILURE,
                format!(
                    "nothing was changed: the agent of host {host}, which has {block}, runs: it gives the address back \
                 as soon as the pod has ended there"
                ),
            ));
        }
        if !force {
            return Err(Exit::new(
                exit::FAILURE,
                format!(
                    "nothing was changed: the agent of host {host}, which has {block}, does not run, but the pod may: \
                 --force if that host is off, or the pod has ended"
                ),
            ));
        }
    }
    Ok(())
}

/// Deletes the keys, if no agent of these hosts has come back.
fn release(
    roots: &Roots,
    held: &[(NodeName, IpNetwork)],
    alive: impl Fn(&NodeName) -> i64,
) -> Transaction {
    let mut transaction = Transaction::default();
    for (host, block) in held {
        let key = roots.block(host, *block);
        transaction.unchanged(roots.key(&Key::Alive(host.clone())), alive(host));
        transaction.exists(&key);
        transaction.delete(key);
    }
    transaction
}
