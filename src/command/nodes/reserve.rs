//! `nodes reserve`: keeps a subnet for a host that is not there yet.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use argh::{ArgsInfo, FromArgs};
use ipnetwork::IpNetwork;
use serde_json::json;

use crate::command::call::{Call, Outcome};
use crate::command::nodes::network;
use crate::command::nodes::node::{name, subnets};
use crate::etcd;
use crate::inspect::cluster;
use crate::lease::claim::{self, Step, leave, python};
use crate::lease::records::{Alive, Key, NodeName};
use crate::lease::snapshot::Stored;
use crate::lease::transaction::Transaction;
use crate::lease::{Claimant, Identity, Lease, LeaseError, Network, Snapshot, growth};
use crate::net::PerFamily;
use crate::net::subnet::{self, Pool};
use crate::settings::Settings;
use crate::settings::exit::{self, Exit};
use crate::settings::values;

/// How often others may take what was chosen.
const TRIES: u32 = 20;

/// How many numbers may be drawn: beside hosts of the Python agent a subnet belongs to its number.
const DRAWS: u32 = 1000;

/// keep a subnet for a host that is not there yet: its agent takes it when it starts under that
/// name. No other host gets it meanwhile; nodes rm gives it back
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "reserve",
    example = "{command_name} h9",
    example = "{command_name} h9 10.244.9.0/24",
    example = "{command_name} --new-network h1 10.244.1.0/24",
    error_code(1, "the host has a subnet already, or the requested subnet is not free"),
    error_code(69, "etcd cannot be reached"),
    error_code(75, "no subnet is free, or etcd keeps changing")
)]
pub struct Reserve {
    /// NODE_NAME or host name of the host to come
    #[argh(positional)]
    host: String,
    /// the subnet it shall have, IPv4 and/or IPv6 with a comma (default: a free one)
    #[argh(positional)]
    wanted: Option<String>,
    /// if etcd is empty: write the network settings of this host there first. The agents of a new
    /// network then serve at once; otherwise they wait two seconds for hosts that put back what
    /// etcd lost
    #[argh(switch)]
    new_network: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

pub fn run(call: &mut Call<'_>, options: &Reserve) -> Result<Outcome, Exit> {
    let host = name(&options.host)?;
    let wanted = options.wanted.as_deref().map_or(Ok(PerFamily::default()), wanted)?;
    let loaded = call.load()?;
    if options.new_network {
        let (server, roots) = cluster::etcd(&loaded.settings)?;
        network::write_first(&loaded.settings, server, roots)?;
    }
    let lease = reserve(&loaded.settings, &host, &wanted)?;
    let subnets: Vec<String> = lease.subnets.iter().map(ToString::to_string).collect();
    let text = format!(
        "{} is kept for host {host}; its agent takes it when it starts there",
        subnets.join(" and ")
    );
    call.answer(options.json, true, json!({ "host": host.as_str(), "subnets": subnets }), &text)
}

fn wanted(text: &str) -> Result<PerFamily<IpNetwork>, Exit> {
    values::subnet_per_family(text)
        .map_err(|why| Exit::new(exit::SETTINGS, format!("{text}: {why}")))
}

/// Reserves a free subnet, or the `wanted` one, for `host`, which has none.
pub fn reserve(
    settings: &Settings,
    host: &NodeName,
    wanted: &PerFamily<IpNetwork>,
) -> Result<Lease, Exit> {
    let (server, roots) = cluster::etcd(settings)?;
    let unreachable =
        |error| Exit::new(exit::UNAVAILABLE, format!("reserve a subnet for {host}: {error}"));
    let mut own = claimant(settings.network(roots), host, wanted);
    let (mut tries, mut draws) = (0, 0);
    while tries < TRIES && draws < DRAWS {
        let found = etcd::read(server, roots).map_err(unreachable)?;
        refuse(&found, &own, wanted)?;
        own.network.pools = growth::followed(&settings.pools, &settings.limits, &found);
        match claim::next(&shown(&found, &own), &own) {
            Step::AllocateTicket => {
                draws += 1;
                own.ticket = Some(etcd::allocate_ticket(server, roots).map_err(unreachable)?);
            }
            Step::Write { lease, .. } => {
                tries += 1;
                own.ticket = None;
                got(&lease, wanted, &own.network.pools)?;
                let transaction = transaction(&found, &own, &lease);
                let done = etcd::commit(server, roots, "reserve a subnet", &transaction);
                if done.map_err(unreachable)? {
                    return Ok(lease);
                }
            }
            step => return Err(refused(&step)),
        }
    }
    Err(Exit::new(exit::TEMPORARY, "the hosts in etcd keep changing: try again"))
}

/// Asks for a subnet, or for the `wanted` one, as an agent of `host` would.
fn claimant(network: Network, host: &NodeName, wanted: &PerFamily<IpNetwork>) -> Claimant {
    Claimant {
        identity: unknown_machine(host),
        attributes: Default::default(),
        network,
        keep: PerFamily::default(),
        remembered: *wanted,
        vacated: *wanted,
        without_record: BTreeSet::new(),
        leaves_claims: false,
        leaves_key_unclaimed: false,
        ticket: None,
        has_raced: false,
        instance: String::new(),
        alive: true,
    }
}

/// A step that only an agent can take.
fn refused(step: &Step) -> Exit {
    match step {
        Step::Refused(why) => {
            let full = matches!(why, LeaseError::Exhausted { .. });
            Exit::new(if full { exit::TEMPORARY } else { exit::FAILURE }, why.with_fix())
        }
        _ => Exit::new(
            exit::FAILURE,
            "the pool of this host's settings is wider than the network's: restart or reload an \
             agent with it first",
        ),
    }
}

/// A machine that is none that there is.
fn unknown_machine(host: &NodeName) -> Identity {
    Identity {
        name: host.clone(),
        machine_id: String::new(),
        boot_id: String::new(),
        version: String::new(),
    }
}

/// What makes a reservation impossible, whichever subnet it is of.
fn refuse(found: &Snapshot, own: &Claimant, wanted: &PerFamily<IpNetwork>) -> Result<(), Exit> {
    let host = &own.identity.name;
    if !leave::all(found, host).is_empty() {
        let has = subnets(found, host).join(" and ");
        return Err(Exit::new(exit::FAILURE, format!("host {host} has {has} already")));
    }
    if found.config.is_none() {
        let key = own.network.key(&Key::Config);
        let why = format!(
            "etcd holds no network of humanz (there is no key {key}): start an agent first, or add \
             --new-network if this is one, or look at ETCD_HOST and HUMANZ_PREFIX"
        );
        return Err(Exit::new(exit::FAILURE, why));
    }
    if !wanted.is_empty() && python::any(found, &own.network.roots) {
        let why = "a host of the Python agent may take any subnet whose number it draws: let a free \
                   one be chosen";
        return Err(Exit::new(exit::FAILURE, why));
    }
    Ok(())
}

/// `found`, as if the host gave a sign of life.
fn shown(found: &Snapshot, own: &Claimant) -> Snapshot {
    let mut found = found.clone();
    let alive = Alive::new(&own.identity.machine_id, UNIX_EPOCH);
    let stored = Stored { value: alive.into(), created: 0, modified: 0 };
    Arc::make_mut(&mut found.alive).insert(own.identity.name.clone(), stored);
    found
}

/// Refuses if another subnet was chosen than the one asked for.
fn got(lease: &Lease, wanted: &PerFamily<IpNetwork>, pools: &PerFamily<Pool>) -> Result<(), Exit> {
    for (family, wanted) in wanted.entries() {
        if lease.subnets.get(family) != Some(wanted) {
            let why = match pools.get(family).map(Pool::network) {
                None => format!("the network has no pool of {family}"),
                Some(pool) if subnet::contains(pool, *wanted) => {
                    "another host has it or a part of it (humanz-agent nodes ls lists all)"
                        .to_owned()
                }
                Some(pool) => format!("it is no part of the pool {pool}"),
            };
            return Err(Exit::new(exit::FAILURE, format!("{wanted} is not available: {why}")));
        }
    }
    Ok(())
}

/// Claims the subnets, if nothing has changed since: no node record is written, so that no host
/// makes routes to a host that is not there.
fn transaction(found: &Snapshot, own: &Claimant, lease: &Lease) -> Transaction {
    let (host, network) = (&own.identity.name, &own.network);
    let mut transaction = Transaction::default();
    let named = [Key::Host(host.clone()), Key::Node(host.clone()), Key::Alive(host.clone())];
    let claims = lease.subnets.iter().map(|subnet| Key::Claim(*subnet));
    let claims: Vec<Key> = claims.collect();
    for key in named.iter().chain([&Key::Config]).chain(&claims) {
        transaction.unchanged(network.key(key), found.modified(&network.roots, key));
    }
    for key in &claims {
        transaction.put(network.key(key), host.to_string());
    }
    transaction.range_unchanged(network.roots.hosts_range(), found.revision);
    transaction.range_unchanged(network.roots.claims_range(), found.revision);
    transaction
}
