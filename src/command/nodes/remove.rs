//! `nodes rm`: takes a host that is gone for good out of etcd.

use argh::{ArgsInfo, FromArgs};
use serde_json::json;

use super::{name, unknown};
use crate::agent::exit::{self, Exit};
use crate::command::call::{Call, Outcome};
use crate::command::cluster;
use crate::lease::Snapshot;
use crate::lease::claim::leave;
use crate::lease::claim::python;
use crate::lease::records::{Key, NodeName};
use crate::lease::registry;

/// How often the keys may change while they are removed.
const TRIES: u32 = 5;

/// take a host that is gone for good, or a reservation, out of etcd: other hosts drop their routes
/// to it, and its subnet is free. A host that comes back takes its subnet again if it is still free
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "rm",
    example = "{command_name} h3 --dry-run",
    example = "{command_name} h3",
    error_code(1, "there is no such host, or it is alive; nothing was removed"),
    error_code(69, "etcd cannot be reached"),
    error_code(75, "the host's keys keep changing")
)]
pub struct Remove {
    /// name of the host, as in nodes ls
    #[argh(positional)]
    host: String,
    /// do it although its agent runs, or nobody can tell: its pods are cut off from the others
    #[argh(switch)]
    force: bool,
    /// print the keys that would go; change nothing
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

pub fn run(call: &mut Call<'_>, options: &Remove) -> Result<Outcome, Exit> {
    let host = name(&options.host)?;
    let told = call.told()?;
    let (server, roots) = cluster::etcd(&told.settings)?;
    let unreachable = |error| Exit::new(exit::UNAVAILABLE, format!("remove host {host}: {error}"));
    for _ in 0..TRIES {
        let found = registry::read(server, roots).map_err(unreachable)?;
        let keys = leave::all(&found, &host);
        if keys.is_empty() {
            return Err(unknown(&found, &host));
        }
        refuse(&found, &host, options)?;
        let mut transaction = leave::transaction(&found, &keys, roots);
        // What is not there now must not appear: a host that comes back is none that is gone.
        for key in [Key::Host(host.clone()), Key::Node(host.clone()), Key::Alive(host.clone())] {
            transaction.unchanged(roots.key(&key), found.modified(roots, &key));
        }
        let commit = || registry::commit(server, roots, "remove a host", &transaction);
        if options.dry_run || commit().map_err(unreachable)? {
            return answer(call, options, keys.iter().map(|key| roots.key(key)).collect());
        }
    }
    Err(Exit::new(exit::TEMPORARY, format!("the keys of host {host} keep changing: try again")))
}

/// A host that may be alive.
fn refuse(found: &Snapshot, host: &NodeName, options: &Remove) -> Result<(), Exit> {
    if options.force || options.dry_run {
        return Ok(());
    }
    let why = if let Some(alive) = found.alive.get(host) {
        let since = &alive.value.since;
        format!(
            "host {host} is alive (its agent runs since {since}): stop it there, or better take humanz \
             off it with humanz-agent uninstall --release"
        )
    } else if found.hosts.contains_key(host) && python::is_python(found, host) {
        format!("host {host} runs the Python agent: nobody can tell from here whether it is alive")
    } else {
        return Ok(());
    };
    let why = format!("{why}; nothing was removed (--force does it all the same)");
    Err(Exit::new(exit::FAILURE, why))
}

fn answer(call: &mut Call<'_>, options: &Remove, keys: Vec<String>) -> Result<Outcome, Exit> {
    let lines: Vec<String> = keys.iter().map(|key| format!("- etcd key {key}")).collect();
    let host = &options.host;
    let done = match options.dry_run {
        true => format!("host {host} would be out of etcd"),
        false => format!("host {host} is out of etcd; its subnet is free for another"),
    };
    let value = json!({ "host": host, "keys": keys, "removed": !options.dry_run });
    call.answer(options.json, value, &format!("{}\n{done}", lines.join("\n")))?;
    Ok(Outcome::Fine)
}
