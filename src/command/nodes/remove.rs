//! `nodes rm`: takes a permanently removed host out of etcd.

use argh::{ArgsInfo, FromArgs};
use serde_json::json;

use crate::command::call::{Call, Outcome};
use crate::command::nodes::node::{name, unknown};
use crate::etcd::{self, EtcdSettings};
use crate::inspect::cluster;
use crate::lease::Snapshot;
use crate::lease::claim::leave;
use crate::lease::claim::python;
use crate::lease::records::{Key, NodeName, Roots};
use crate::settings::exit::{self, Exit};

/// How often the keys may change while they are removed.
const TRIES: u32 = 5;

/// take a permanently removed host, or a reservation, out of etcd: other hosts drop their routes
/// to it, and its subnet is free. A host that comes back takes its subnet again if it is still free
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "rm",
    example = "{command_name} h3 --dry-run",
    example = "{command_name} h3",
    error_code(
        1,
        "there is no such host, or it is alive or may be; nothing was (or would be) removed"
    ),
    error_code(69, "etcd cannot be reached"),
    error_code(75, "the host's keys keep changing")
)]
pub struct RemoveNode {
    /// name of the host, as in nodes ls
    #[argh(positional)]
    host: String,
    /// remove it although its agent runs or may run: its pods are cut off from the others
    #[argh(switch)]
    force: bool,
    /// print the keys that would go, and why it would be refused; change nothing
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

pub fn run(call: &mut Call<'_>, options: &RemoveNode) -> Result<Outcome, Exit> {
    let host = name(&options.host)?;
    let loaded = call.load()?;
    let (server, roots) = cluster::etcd(&loaded.settings)?;
    let unreachable = |error| Exit::new(exit::UNAVAILABLE, format!("remove host {host}: {error}"));
    for _ in 0..TRIES {
        let found = etcd::read(server, roots).map_err(unreachable)?;
        let keys = leave::all(&found, &host);
        // A role made for earlier versions may not read them, and no host writes them then.
        let members = etcd::members_of(server, roots, &host);
        let members = members.inspect_err(|error| log::warn!("{error}")).unwrap_or_default();
        if keys.is_empty() && members.is_empty() {
            return Err(unknown(&found, &host));
        }
        let in_the_way =
            || in_the_way(&found, roots, &host).or_else(|| hidden(server, roots, &host));
        let in_the_way = (!options.force).then(in_the_way).flatten();
        let keys_named = || {
            let of_members = members.iter().map(|(key, _)| key.clone());
            keys.iter().map(|key| roots.key(key)).chain(of_members).collect()
        };
        match in_the_way {
            Some(_) if options.dry_run => return answer(call, options, keys_named(), in_the_way),
            Some(why) => return Err(refused(&why)),
            None => {}
        }
        let mut transactions = leave::transactions(&found, &host, &keys, &members, roots);
        // What is not there now must not appear: a host that comes back is none that is gone.
        for key in [Key::Host(host.clone()), Key::Node(host.clone()), Key::Alive(host.clone())] {
            transactions[0].unchanged(roots.key(&key), found.modified(roots, &key));
        }
        let mut done = true;
        for transaction in transactions.iter().filter(|_| !options.dry_run) {
            let commit = || etcd::commit(server, roots, "remove a host", transaction);
            done = done && commit().map_err(unreachable)?;
        }
        if done {
            return answer(call, options, keys_named(), None);
        }
    }
    Err(Exit::new(exit::TEMPORARY, format!("the keys of host {host} keep changing: try again")))
}

/// Why the host may be alive.
fn in_the_way(found: &Snapshot, roots: &Roots, host: &NodeName) -> Option<String> {
    if let Some(alive) = found.alive.get(host) {
        let since = &alive.value.since;
        return Some(format!(
            "host {host} is alive (its agent runs since {since}): stop it there, or better take humanz \
             off it with humanz-agent uninstall --release"
        ));
    }
    let is_python = found.hosts.contains_key(host) && python::is_python(found, roots, host);
    is_python.then(|| {
        format!(
            "host {host} runs the Python agent: whether it is alive cannot be determined from here"
        )
    })
}

/// Why the host may be alive although etcd has no sign of it.
fn hidden(server: &EtcdSettings, roots: &Roots, host: &NodeName) -> Option<String> {
    let why = etcd::grants(server, roots).err()?;
    Some(format!("host {host} may be alive, as hosts cannot show it in etcd: {why}"))
}

fn refused(why: &str) -> Exit {
    let why = format!("{why}; nothing was removed (--force removes it anyway)");
    Exit::new(exit::FAILURE, why)
}

/// Prints the removed keys, or in a dry run those to remove if nothing is `in_the_way`.
fn answer(
    call: &mut Call<'_>,
    options: &RemoveNode,
    keys: Vec<String>,
    in_the_way: Option<String>,
) -> Result<Outcome, Exit> {
    let lines: Vec<String> = keys.iter().map(|key| format!("- etcd key {key}")).collect();
    let host = &options.host;
    let done = match (&in_the_way, options.dry_run) {
        (Some(why), _) => format!("! {why} (--force removes it anyway)"),
        (None, true) => format!("host {host} would be removed from etcd"),
        (None, false) => format!("host {host} is removed from etcd; its subnet is free"),
    };
    let fine = in_the_way.is_none();
    let in_the_way: Vec<String> = in_the_way.into_iter().collect();
    let value = json!({
        "host": host, "keys": keys, "removed": !options.dry_run, "in_the_way": in_the_way,
    });
    call.answer(options.json, fine, value, &format!("{}\n{done}", lines.join("\n")))
}
