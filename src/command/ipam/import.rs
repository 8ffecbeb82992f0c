//! `ipam import`: takes over what an earlier plugin left.

use std::path::PathBuf;

use argh::{ArgsInfo, FromArgs};
use serde_json::json;

use crate::command::call::{Call, Outcome};
use crate::command::ipam::attachment::{self, WAIT, settings};
use crate::command::json::object;
use crate::inspect::pods::{Life, store};
use crate::ipam::import::Sources;
use crate::settings::exit::{self, Exit};
use crate::settings::values;

/// take over the addresses that an earlier plugin gave to pods that still run: a directory of
/// host-local, or the file of the Go plugin humanz-cni. No other pod gets them then. The plugin does
/// this by itself, once in a boot, for the usual places
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "import",
    example = "{command_name} /var/lib/cni/networks/cbr0",
    example = "{command_name} /run/humanz-cni.json --network pods",
    error_code(1, "there is nothing to import"),
    error_code(69, "this user may not read the store"),
    error_code(75, "the store is busy")
)]
pub struct Import {
    /// directory or file
    #[argh(positional)]
    from: PathBuf,
    /// the network that gets them (default: CNI_NAME)
    #[argh(option)]
    network: Option<String>,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

pub fn run(call: &mut Call<'_>, options: &Import) -> Result<Outcome, Exit> {
    let settings = settings(call)?;
    let from = options.from.display();
    let refused = |why: String| Exit::new(exit::FAILURE, format!("{from}: {why}"));
    let about = std::fs::metadata(&options.from).map_err(|error| refused(error.to_string()))?;
    let sources = match about.is_dir() {
        true => Sources { host_local: Some(options.from.clone()), go_seed: None },
        false => Sources { go_seed: Some(options.from.clone()), host_local: None },
    };
    let network = options.network.as_deref().unwrap_or(&settings.cni.name);
    let wrong = |why| Exit::new(exit::SETTINGS, format!("--network {network}: {why}"));
    values::cni_name(network).map_err(wrong)?;
    let store = store(&settings, network)?;
    let broken = attachment::refused(&settings);
    let locked = store.lock(WAIT).map_err(&broken)?;
    let before = store.contents().map_err(&broken)?.taken;
    let found = locked.import(&sources).map_err(&broken)?;
    let after = store.contents().map_err(&broken)?;
    drop(locked);
    let fresh = after
        .entries
        .iter()
        .filter(|entry| entry.addresses.iter().any(|address| !before.contains(address)));
    let fresh: Vec<_> = fresh.collect();
    let known = found.saturating_sub(fresh.iter().map(|entry| entry.addresses.len()).sum());
    if found == 0 {
        return Err(refused("holds no reservation of host-local or humanz-cni".to_owned()));
    }
    let mut lines: Vec<String> = fresh
        .iter()
        .flat_map(|entry| {
            entry.addresses.iter().map(|address| format!("+ {address} of {}", entry.owner_text()))
        })
        .collect();
    let count = lines.len();
    lines.push(format!(
        "{count} imported into network {network}, {known} skipped (known already, or another pod's)"
    ));
    let objects = fresh.iter().map(|entry| object(entry, network, Life::Unknown));
    let value =
        json!({ "network": network, "imported": objects.collect::<Vec<_>>(), "found": found });
    call.answer(options.json, true, value, &lines.join("\n"))
}
