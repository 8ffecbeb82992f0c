//! `ipam free`: gives one pod's addresses back.

use std::net::IpAddr;

use argh::{ArgsInfo, FromArgs};
use serde_json::json;

use crate::command::call::{Call, Outcome};
use crate::command::ipam::attachment::{
    WAIT, absent, close_ports, networks, owner, refused, settings,
};
use crate::inspect::pods::{Life, entries, links};
use crate::ipam::StoreEntry;
use crate::plan::pod::LinkIdentity;
use crate::settings::exit::{self, Exit};

/// free an address that is no longer used, with all others of the same interface and its host
/// ports. Refused while its pod exists or may exist
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "free",
    example = "{command_name} 10.244.1.7",
    error_code(1, "it is not allocated, or its pod exists; nothing was freed"),
    error_code(69, "this user may not read the stores"),
    error_code(75, "the store is busy")
)]
pub struct Free {
    /// the address
    #[argh(positional)]
    address: IpAddr,
    /// the network, if several have it
    #[argh(option)]
    network: Option<String>,
    /// free it although its pod exists or may exist: another pod gets its address
    #[argh(switch)]
    force: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

pub fn run(call: &mut Call<'_>, options: &Free) -> Result<Outcome, Exit> {
    let settings = settings(call)?;
    let networks = networks(&settings, options.network.as_deref())?;
    let address = options.address;
    let mut found = entries(&networks).filter(|(_, entry)| entry.addresses.contains(&address));
    let Some((network, entry)) = found.next() else {
        return Err(absent(&networks, &settings, &format!("{address} is not allocated")));
    };
    if let Some((other, _)) = found.next() {
        let why = format!(
            "networks {} and {} both have {address}: choose one with --network",
            network.name, other.name
        );
        return Err(Exit::new(exit::SETTINGS, why));
    }
    let life = Life::of(entry, &network.name, &links()?);
    if let Some(why) = refusal(life, entry).filter(|_| !options.force) {
        let why = format!("{address} stays: {why}; nothing was freed (--force frees it anyway)");
        return Err(Exit::new(exit::FAILURE, why));
    }
    let (container_id, ifname) = (entry.container_id.as_str(), entry.ifname.as_str());
    let link = LinkIdentity { network: &network.name, container_id, ifname }.host_ifname();
    close_ports(&settings, std::slice::from_ref(entry), Some(&link))?;
    let locked = network.store.lock(WAIT).map_err(refused(&settings))?;
    let now = locked.entry(container_id, ifname).map_err(refused(&settings))?;
    let freed = if entry.is_unowned() {
        locked.release_unowned(&[address])
    } else if now.as_ref().is_some_and(|now| now.is_same(entry)) {
        locked.release(container_id, ifname)
    } else {
        return Err(Exit::new(
            exit::TEMPORARY,
            format!("{address} is being assigned to another pod: try again"),
        ));
    };
    let freed = freed.map_err(refused(&settings))?;
    let freed: Vec<String> = freed.iter().map(ToString::to_string).collect();
    let value = json!({ "freed": freed, "network": network.name, "pod": entry.pod });
    let text = format!("{} of {} is free", freed.join(" and "), owner(entry));
    call.answer(options.json, true, value, &text)
}

/// Why its addresses are not to be freed.
fn refusal(life: Life, entry: &StoreEntry) -> Option<String> {
    let owner = owner(entry);
    match life {
        Life::Attached => Some(format!("{owner} is attached and has it")),
        Life::Present => Some(format!("the network namespace of {owner} still exists")),
        Life::Unknown => Some(format!("it belongs to {owner}, and whether that runs is unknown")),
        Life::Unseen => Some(format!("the network namespace of {owner} cannot be seen from here")),
        Life::Gone => None,
    }
}
