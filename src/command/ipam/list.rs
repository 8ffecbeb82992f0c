//! `ipam ls` and `ipam show`.

use std::net::IpAddr;
use std::time::{Duration, UNIX_EPOCH};

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::command::call::{Call, Outcome};
use crate::command::ipam::attachment::{absent, networks, objects, settings};
use crate::command::json::{object, whats};
use crate::command::table::{Cell, Style, Table, Tone, facts, span};
use crate::inspect::networks::plans;
use crate::inspect::pods::{Life, StoreNetwork, entries, links};
use crate::ipam::StoreEntry;
use crate::net::{Object, Problem, ProblemKind};
use crate::policy::network_plan::{self, NetworkPlans};
use crate::settings::Settings;
use crate::settings::exit::Exit;

/// list the addresses of this host's pods, in every network: attached (the interface is there),
/// present (only its namespace is), gone (neither is: ipam gc frees it), unknown (of an earlier plugin), unseen (namespaces of the host
/// cannot be seen from here)
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "ls",
    example = "{command_name}",
    example = "{command_name} --json | jq -r '.addresses[] | select(.pod == \"default/web\").addresses[]'",
    error_code(1, "something in a store is wrong, and is shown"),
    error_code(69, "this user may not read the stores")
)]
pub struct ListAddresses {
    /// only this network
    #[argh(option)]
    network: Option<String>,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// show one attachment: by address, pod (namespace/name or name), or the start of its container id
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "show",
    example = "{command_name} 10.244.1.7",
    example = "{command_name} default/web",
    error_code(1, "there is no such attachment"),
    error_code(69, "this user may not read the stores")
)]
pub struct ShowAddress {
    /// address, pod or container
    #[argh(positional)]
    what: String,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

pub fn run(call: &mut Call<'_>, options: &ListAddresses) -> Result<Outcome, Exit> {
    let settings = settings(call)?;
    let networks = networks(&settings, options.network.as_deref())?;
    let links = links()?;
    let mut table = Table::new(&[
        "ADDRESS",
        "POD",
        "NETWORK",
        "CONTAINER",
        "INTERFACE",
        "AGE",
        "STATE",
        "PORTS",
    ])
    .without_if_narrow(&["CONTAINER", "PORTS", "INTERFACE", "AGE"]);
    let mut all = Vec::new();
    let (plans, fault) = known_plans(&settings);
    let mut faults: Vec<Problem> = fault.into_iter().collect();
    for (network, entry) in entries(&networks) {
        let name = named(plans.as_ref(), &network.name, &entry.addresses);
        table.row(row(&name, entry, Life::of(entry, &network.name, &links)));
    }
    for network in &networks {
        all.extend(objects(network, &links));
        faults.extend(network.faults(&settings));
    }
    let mut text = if table.is_empty() {
        format!("no pod of humanz has an address here ({})\n", settings.cni.ipam_dir.display())
    } else {
        table.render(call.style)
    };
    for fault in &faults {
        text.push_str(&call.style.fault(Tone::Bad, fault));
    }
    let value = json!({ "addresses": all, "faults": whats(&faults), "problems": faults });
    call.answer(options.json, faults.is_empty(), value, &text)
}

/// The networks of tenants, or why they are not known.
pub fn known_plans(settings: &Settings) -> (Option<NetworkPlans>, Option<Problem>) {
    plans(settings)
        .map_or_else(|error| (None, Some(unread_plans(settings, &error))), |it| (it, None))
}

fn unread_plans(settings: &Settings, error: &anyhow::Error) -> Problem {
    let file = network_plan::file(&settings.cni.ipam_dir);
    let fix = format!("ls -la {} # a running agent writes it again", file.display());
    let what = format!("networks of tenants are not known: {error:#}");
    let subject = Object::File("plan of networks", file);
    Problem::new(ProblemKind::InspectFailed, subject, what).with_fix(fix)
}

/// The network of a tenant that has the addresses, or else `network`, that of the CNI configuration.
pub fn named(plans: Option<&NetworkPlans>, network: &str, addresses: &[IpAddr]) -> String {
    let plans = plans.filter(|plans| plans.cni_network == network);
    let of_tenant = plans.and_then(|plans| plans.network_of(*addresses.first()?));
    of_tenant.map_or_else(|| network.to_owned(), ToString::to_string)
}

fn row(network: &str, entry: &StoreEntry, life: Life) -> [Cell; 8] {
    let addresses: Vec<String> = entry.addresses.iter().map(ToString::to_string).collect();
    let tone = match life {
        Life::Attached => Tone::Good,
        Life::Present | Life::Unknown | Life::Unseen => Tone::Odd,
        Life::Gone => Tone::Bad,
    };
    let container: String = entry.container_id.chars().take(13).collect();
    let ports = entry.forwards().len();
    [
        Cell::new(addresses.join(",")),
        Cell::new(entry.pod.as_deref().unwrap_or_default()),
        Cell::new(network),
        Cell::new(container),
        Cell::new(&entry.ifname),
        Cell::new(age(entry).unwrap_or_default()),
        Cell::new(life.word()).tone(tone),
        Cell::new(if ports == 0 { String::new() } else { ports.to_string() }),
    ]
}

fn age(entry: &StoreEntry) -> Option<String> {
    let since = UNIX_EPOCH + Duration::from_secs(entry.time_secs);
    (entry.time_secs > 0).then(|| span(since.elapsed().unwrap_or_default()))
}

pub fn show(call: &mut Call<'_>, options: &ShowAddress) -> Result<Outcome, Exit> {
    let settings = settings(call)?;
    let networks = networks(&settings, None)?;
    let links = links()?;
    let found: Vec<(&StoreNetwork, &StoreEntry)> =
        entries(&networks).filter(|(_, entry)| is_meant(entry, &options.what)).collect();
    if found.is_empty() {
        let what = &options.what;
        let why = format!("no pod of this host has the address, name or container id {what:?}");
        return Err(absent(&networks, &settings, &why));
    }
    let life = |network: &StoreNetwork, entry: &StoreEntry| Life::of(entry, &network.name, &links);
    let style = call.style;
    let (plans, fault) = known_plans(&settings);
    let texts = found.iter().map(|(network, entry)| {
        let name = named(plans.as_ref(), &network.name, &entry.addresses);
        text(&name, entry, life(network, entry), style)
    });
    let texts: Vec<String> = texts.chain(fault.map(|fault| fault.to_string())).collect();
    let values =
        found.iter().map(|(network, entry)| object(entry, &network.name, life(network, entry)));
    let value = json!({ "addresses": values.collect::<Vec<Value>>() });
    call.answer(options.json, true, value, &texts.join("\n"))
}

fn is_meant(entry: &StoreEntry, what: &str) -> bool {
    if let Ok(address) = what.parse() {
        return entry.addresses.contains(&address);
    }
    let pod = entry.pod.as_deref().unwrap_or_default();
    let name = pod.rsplit('/').next().unwrap_or_default();
    let container = what.len() >= 4 || entry.container_id == what;
    !what.is_empty()
        && (pod == what || name == what || (container && entry.container_id.starts_with(what)))
}

fn text(network: &str, entry: &StoreEntry, life: Life, style: Style) -> String {
    let addresses: Vec<String> = entry.addresses.iter().map(ToString::to_string).collect();
    let ports = entry.forwards().into_iter().map(|port| format!("{} -> {}", port.from, port.to));
    let state = match life {
        Life::Attached => "attached",
        Life::Present => "its namespace exists, its interface does not",
        Life::Gone => "gone: humanz-agent ipam gc frees it",
        Life::Unknown => "unknown: an earlier plugin made it",
        Life::Unseen => "unseen: the directory of its namespace is not the host's here",
    };
    facts(
        &[
            ("addresses", addresses.join("\n")),
            ("pod", entry.pod.clone().unwrap_or_default()),
            ("network", network.to_owned()),
            ("container", entry.container_id.clone()),
            ("interface", entry.ifname.clone()),
            ("namespace", entry.netns.clone().unwrap_or_default()),
            ("age", age(entry).unwrap_or_default()),
            ("state", state.to_owned()),
            ("ports", ports.collect::<Vec<_>>().join("\n")),
        ],
        style,
    )
}
