//! `nodes`: the hosts of the network.

mod list;
mod remove;
mod reserve;
mod show;

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::command::call::{Call, Outcome};
use crate::inspect::cluster::Cluster;
use crate::lease::Snapshot;
use crate::lease::records::NodeName;
use crate::settings::exit::{self, Exit};

/// list the hosts of the network, look at one, take one out of etcd, keep a subnet for one
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "nodes",
    example = "{command_name} ls",
    example = "{command_name} show h3 --json",
    example = "{command_name} rm h3",
    example = "{command_name} reserve h9",
    error_code(0, "it was done or shown, and nothing is wrong"),
    error_code(1, "there is no such host, it was refused, or something is wrong: it was said"),
    error_code(69, "etcd cannot be reached"),
    error_code(75, "no subnet is free, or etcd keeps changing: try again")
)]
pub struct Nodes {
    #[argh(subcommand)]
    verb: Verb,
}

#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand)]
enum Verb {
    List(list::List),
    Show(show::Show),
    Remove(remove::Remove),
    Reserve(reserve::Reserve),
}

/// Answers.
///
/// # Errors
/// What is wrong with the settings, etcd, or what was asked for.
pub fn run(call: &mut Call<'_>, options: &Nodes) -> Result<Outcome, Exit> {
    match &options.verb {
        Verb::List(options) => list::run(call, options),
        Verb::Show(options) => show::run(call, options),
        Verb::Remove(options) => remove::run(call, options),
        Verb::Reserve(options) => reserve::run(call, options),
    }
}

/// What is known of the life of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its agent runs.
    Alive,
    /// Its agent does not.
    Silent,
    /// It runs the Python agent, which shows no sign of life.
    Python,
    /// etcd does not answer.
    Unknown,
    /// A subnet is kept for it.
    Reserved,
}

impl State {
    fn of(cluster: &Cluster, host: &NodeName) -> State {
        let found = &cluster.snapshot;
        match (found.hosts.contains_key(host), found.nodes.contains_key(host)) {
            _ if found.alive.contains_key(host) => State::Alive,
            (false, false) => State::Reserved,
            (true, false) => State::Python,
            _ if cluster.stale.is_some() => State::Unknown,
            _ => State::Silent,
        }
    }

    fn word(self) -> &'static str {
        match self {
            State::Alive => "alive",
            State::Silent => "silent",
            State::Python => "python",
            State::Unknown => "unknown",
            State::Reserved => "reserved",
        }
    }
}

/// Every name that has a key.
fn names(found: &Snapshot) -> std::collections::BTreeSet<&NodeName> {
    let claims = found.claims.values().map(|claim| &claim.value);
    found.hosts.keys().chain(found.nodes.keys()).chain(found.alive.keys()).chain(claims).collect()
}

/// The subnets that etcd has for a host, IPv4 first: those of its keys, else those it claims.
fn subnets(found: &Snapshot, host: &NodeName) -> Vec<String> {
    let key = found.hosts.get(host).map(|stored| stored.value);
    let published = found.nodes.get(host).map(|node| node.value.subnets).unwrap_or_default();
    let mut subnets: Vec<_> = key.into_iter().chain(published.iter().copied()).collect();
    if subnets.is_empty() {
        let claims = found.claims.iter().filter(|(_, claim)| claim.value == *host);
        subnets.extend(claims.map(|(subnet, _)| *subnet));
    }
    subnets.sort();
    subnets.dedup();
    subnets.iter().map(ToString::to_string).collect()
}

/// A host for `--json`.
fn object(cluster: &Cluster, host: &NodeName) -> Value {
    let found = &cluster.snapshot;
    let node = found.nodes.get(host).map(|node| &node.value);
    let addresses = node.map(|node| node.addresses).unwrap_or_default();
    json!({
        "name": host.as_str(),
        "this_host": *host == cluster.own,
        "state": State::of(cluster, host).word(),
        "since": found.alive.get(host).map(|alive| &*alive.value.since),
        "subnets": subnets(found, host),
        "addresses": addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "backend": node.map(|node| node.backend.to_string()),
        "mtu": node.map(|node| node.mtu),
        "version": node.map(|node| &*node.version),
        "machine_id": node.map(|node| &*node.machine_id),
    })
}

/// A host's name as somebody typed it.
fn name(text: &str) -> Result<NodeName, Exit> {
    text.parse().map_err(|error| Exit::new(exit::SETTINGS, format!("{text:?}: {error}")))
}

/// There is no such host.
fn unknown(found: &Snapshot, host: &NodeName) -> Exit {
    let known: Vec<String> = names(found).into_iter().map(ToString::to_string).collect();
    let near = crate::command::arguments::nearest(host.as_str(), &known);
    let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
    let why = format!("no host {host} is known{near} (humanz-agent nodes ls lists all)");
    Exit::new(exit::FAILURE, why)
}
