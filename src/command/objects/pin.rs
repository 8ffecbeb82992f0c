//! `pin`: pods with fixed addresses, and the hosts that have these now.

use std::net::IpAddr;

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::command::call::{Call, Outcome};
use crate::command::objects::edit::{self, StoredObjects, TypedOption};
use crate::command::objects::files;
use crate::command::objects::found_pins::{FoundPins, KIND, networks};
use crate::command::objects::pin_release::{self, PinRelease};
use crate::command::objects::stored;
use crate::command::objects::verbs::{ListObjects, RemoveObject, ShowObject};
use crate::command::table::{Cell, Table};
use crate::policy::pin::{PinFault, PinnedAddress};
use crate::policy::{Networks, PodName, Scoped};
use crate::settings::exit::{self, Exit};
use crate::sources::{Change, Kind, StoredName};

/// give pods of a namespace and name fixed addresses, which they have on whichever host they run
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "pin",
    example = "{command_name} create shop/db-0 --network blue/front",
    example = "{command_name} create shop/db-0 --address 10.32.255.2",
    example = "{command_name} ls",
    example = "{command_name} rm shop/db-0",
    example = "{command_name} release shop/db-0 --force",
    note = "The addresses are of a part of a network that is kept for that (--pins of net create and net set). The \
        objects are in etcd, for all hosts.",
    error_code(1, "it is invalid or does not exist: nothing was changed"),
    error_code(69, "etcd cannot be reached, or refuses")
)]
pub struct PinCommand {
    #[argh(subcommand)]
    verb: PinVerb,
}

#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand)]
enum PinVerb {
    Create(PinCreate),
    Set(PinSet),
    Remove(RemoveObject),
    Release(PinRelease),
    List(ListObjects),
    Show(ShowObject),
}

/// give a pod fixed addresses
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "create",
    example = "{command_name} shop/db-0 --network blue/front",
    error_code(1, "it is invalid: nothing was changed"),
    error_code(69, "etcd cannot be reached, or refuses")
)]
pub struct PinCreate {
    /// namespace/name of the pod
    #[argh(positional)]
    name: String,
    /// a network that keeps addresses for pins, tenant/name: the first free ones are taken
    #[argh(option)]
    network: Option<String>,
    /// an address, IPv4 or IPv6, again for more: the third of four in a row, which are the pod's alone
    #[argh(option)]
    address: Vec<String>,
    /// only show what would change
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// give a pod other addresses; it has them when it starts again
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "set",
    example = "{command_name} shop/db-0 --address 10.32.255.6",
    error_code(1, "it is invalid: nothing was changed"),
    error_code(69, "etcd cannot be reached, or refuses")
)]
pub struct PinSet {
    /// namespace/name of the pod
    #[argh(positional)]
    name: String,
    /// an address, IPv4 or IPv6, again for more: all of them
    #[argh(option)]
    address: Vec<String>,
    /// only show what would change
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

pub fn run(call: &mut Call<'_>, options: &PinCommand) -> Result<Outcome, Exit> {
    match &options.verb {
        PinVerb::Create(options) => create(call, options),
        PinVerb::Set(options) => set(call, options),
        PinVerb::Remove(options) => KIND.remove(call, options),
        PinVerb::Release(options) => pin_release::run(call, options),
        PinVerb::List(options) => list(call, options),
        PinVerb::Show(options) => KIND.show(call, options),
    }
}

fn create(call: &mut Call<'_>, options: &PinCreate) -> Result<Outcome, Exit> {
    let wrong = |why: String| Exit::new(exit::SETTINGS, why);
    let name = KIND.name(&options.name)?;
    let network = match (&options.network, &options.address[..]) {
        (Some(_), [_, ..]) | (None, []) => {
            return Err(wrong("either --network or --address says which addresses".to_owned()));
        }
        (Some(network), []) => Some(network_name(network).map_err(wrong)?),
        (None, _) => None,
    };
    let created = |there: &StoredObjects| -> Result<Change, String> {
        let addresses = match &network {
            Some(network) => free(there, network)?,
            None => options.address.clone(),
        };
        let change = edit::created(there, &name, &addresses.spec("addresses"))?;
        refuse_taken(there, &name, &addresses)?;
        Ok(change)
    };
    stored::make(call, created, (options.dry_run, options.json))
}

fn set(call: &mut Call<'_>, options: &PinSet) -> Result<Outcome, Exit> {
    let name = KIND.name(&options.name)?;
    let changed = |there: &StoredObjects| {
        let change = edit::changed(there, &name, &options.address.spec("addresses"))?;
        refuse_taken(there, &name, &options.address)?;
        Ok(change)
    };
    stored::make(call, changed, (options.dry_run, options.json))
}

/// An address that another pod has is that one's: nothing is wrong with its pin.
fn refuse_taken(
    there: &StoredObjects,
    name: &StoredName,
    addresses: &[String],
) -> Result<(), String> {
    let networks = networks(there);
    let is_own =
        |pod: &PodName| name.scope.as_ref() == Some(&pod.namespace) && name.name == pod.name;
    for address in addresses.iter().filter_map(|text| text.parse::<IpAddr>().ok()) {
        let mut others = networks.pins().filter(|(pod, _)| !is_own(pod));
        if let Some((pod, _)) = others.find(|(_, all)| all.contains(&address)) {
            return Err(format!(
                "{address} is pinned to pod {pod} already: take another one (--network of pin create takes the first \
                 free one), or remove that pin: humanz-agent pin rm {pod}"
            ));
        }
    }
    Ok(())
}

/// The first free addresses of that network.
fn free(there: &StoredObjects, network: &StoredName) -> Result<Vec<String>, String> {
    let tenant = network.scope.clone().unwrap_or_else(|| Networks::default_name().tenant);
    let scoped = Scoped { tenant, name: network.name.clone() };
    if scoped != Networks::default_name() {
        edit::found(there, network)?;
    }
    Ok(networks(there).free_pins(&scoped)?.iter().map(IpAddr::to_string).collect())
}

fn network_name(text: &str) -> Result<StoredName, String> {
    StoredName::parse(Kind::find("Network").ok_or("Network")?, text)
}

fn list(call: &mut Call<'_>, options: &ListObjects) -> Result<Outcome, Exit> {
    let (there, problems) = stored::read_for(call, KIND.stored_kind()?)?;
    let found = FoundPins::read(call, &there)?;
    let mut table = Table::new(&["POD", "ADDRESSES", "NETWORK", "HOST", "STATE"]);
    let mut all = Vec::new();
    let pins = found.networks.placed_pins();
    for (pod, addresses) in found.networks.pins() {
        let placed = pins.get(pod);
        let (networks, hosts, fault) = match placed {
            Some(Ok(placed)) => (networks_of(placed), found.hosts(placed), None),
            Some(Err(fault)) => (String::new(), String::new(), Some(fault)),
            None => continue,
        };
        let state = match fault {
            Some(fault) => fault.to_string(),
            None if hosts.is_empty() => "free".to_owned(),
            None => "in use".to_owned(),
        };
        let texts: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
        let cells = [pod.to_string(), texts.join(","), networks.clone(), hosts.clone(), state];
        table.row(cells.map(Cell::new));
        all.push(object(pod, &texts, (&networks, &hosts), fault));
    }
    let mut text = files::faults(&problems, call.style);
    text += &match all.is_empty() {
        true => "there is no Pin\n".to_owned(),
        false => table.render(call.style),
    };
    let value = json!({"pins": all, "problems": problems});
    call.answer(options.json, problems.is_empty(), value, &text)
}

fn networks_of(placed: &[PinnedAddress]) -> String {
    let mut names: Vec<String> = placed.iter().map(|it| it.network.to_string()).collect();
    names.dedup();
    names.join(",")
}

fn object(
    pod: &PodName,
    addresses: &[String],
    (networks, hosts): (&str, &str),
    fault: Option<&PinFault>,
) -> Value {
    json!({"pod": pod.to_string(), "addresses": addresses, "network": networks, "host": hosts,
        "fault": fault.map(ToString::to_string)})
}
