//! `ipam gc`: frees what no pod can need any more.

use std::sync::Arc;

use argh::{ArgsInfo, FromArgs};
use serde_json::json;

use crate::command::call::{Call, Outcome};
use crate::command::ipam::attachment::{WAIT, close_ports, networks, owner, refused, settings};
use crate::command::json::object;
use crate::inspect::pods::{Life, StoreNetwork, links};
use crate::ipam::StoreEntry;
use crate::settings::Settings;
use crate::settings::exit::Exit;

/// free the addresses and host ports of pods whose interface and namespace are both gone. Without
/// --yes only prints what would be freed
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "gc",
    example = "{command_name}",
    example = "{command_name} --yes",
    error_code(69, "this user may not read the stores"),
    error_code(75, "a store is busy")
)]
pub struct Clear {
    /// do it
    #[argh(switch)]
    yes: bool,
    /// only this network
    #[argh(option)]
    network: Option<String>,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

pub fn run(call: &mut Call<'_>, options: &Clear) -> Result<Outcome, Exit> {
    let settings = settings(call)?;
    let networks = networks(&settings, options.network.as_deref())?;
    let links = links()?;
    let mut lines = Vec::new();
    let mut objects = Vec::new();
    let mut freed = Vec::new();
    let mut unseen = 0;
    for network in &networks {
        let gone = |entry: &StoreEntry| Life::of(entry, &network.name, &links) == Life::Gone;
        let entries = network.contents.entries.iter();
        let mut dead: Vec<StoreEntry> =
            entries.filter(|entry| gone(entry)).map(|entry| StoreEntry::clone(entry)).collect();
        if options.yes && !dead.is_empty() {
            close_ports(&settings, &dead, None)?;
            // Asked again with the lock: an interface may come meanwhile, but not without its namespace.
            release(&settings, network, &mut dead, gone)?;
        }
        let is_unseen =
            |entry: &&Arc<StoreEntry>| Life::of(entry, &network.name, &links) == Life::Unseen;
        unseen += network.contents.entries.iter().filter(is_unseen).count();
        for entry in &dead {
            let addresses: Vec<String> = entry.addresses.iter().map(ToString::to_string).collect();
            let (name, owner) = (&network.name, owner(entry));
            lines.push(format!("- {} of {owner}, network {name}", addresses.join(" and ")));
            objects.push(object(entry, name, Life::Gone));
        }
        freed.extend(dead);
    }
    lines.push(match (freed.is_empty(), options.yes) {
        (true, _) => "every address is that of a pod that may be there".to_owned(),
        (false, true) => format!("{} freed", freed.len()),
        (false, false) => format!("{} would be freed: --yes does it", freed.len()),
    });
    if unseen > 0 {
        lines.push(format!(
            "{unseen} stay: their network namespaces cannot be seen from here; run this on the host \
             itself, or mount the host's /run/netns into this container"
        ));
    }
    let value = json!({ "gone": objects, "freed": options.yes, "unseen": unseen });
    call.answer(options.json, true, value, &lines.join("\n"))
}

/// Leaves in `dead` what was released.
fn release(
    settings: &Settings,
    network: &StoreNetwork,
    dead: &mut Vec<StoreEntry>,
    gone: impl Fn(&StoreEntry) -> bool,
) -> Result<(), Exit> {
    let locked = network.store.lock(WAIT).map_err(refused(settings))?;
    let entries = locked.entries().map_err(refused(settings))?;
    dead.retain(|dead| entries.iter().any(|entry| entry.is_same(dead) && gone(entry)));
    for entry in dead {
        locked.release(&entry.container_id, &entry.ifname).map_err(refused(settings))?;
    }
    Ok(())
}
