//! `nodes ls`: one line for each host.

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::command::call::{Call, Outcome};
use crate::command::json;
use crate::command::nodes::node::{NodeState, names, object, subnets};
use crate::command::table::{Cell, Table, Tone};
use crate::inspect::cluster::{self, ClusterView};
use crate::lease::peers;
use crate::settings::Settings;
use crate::settings::exit::Exit;

/// list the hosts: alive (its agent runs), silent (it does not; its pods may work), python
/// (of the Python agent), reserved (a subnet is kept for it). From etcd; while that is away, from
/// what this host knew last
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "ls",
    example = "{command_name}",
    example = "{command_name} --json | jq -r '.nodes[] | select(.state == \"silent\").name'",
    error_code(0, "the list is that of etcd, and nothing is wrong with it"),
    error_code(1, "etcd does not answer, or holds something invalid: see the message"),
    error_code(69, "etcd does not answer and there is no saved state")
)]
pub struct ListNodes {
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

pub fn run(call: &mut Call<'_>, options: &ListNodes) -> Result<Outcome, Exit> {
    let loaded = call.load()?;
    let cluster = cluster::read(&loaded.settings)?;
    let faults = faults(&cluster, &loaded.settings);
    let found = &cluster.snapshot;
    let nodes: Vec<Value> = names(found).into_iter().map(|host| object(&cluster, host)).collect();
    let value = json!({ "nodes": nodes, "origin": json::origin(&cluster), "faults": faults });
    let mut text = table(&cluster).render(call.style);
    let stale = cluster.stale.as_ref().map(json::stale);
    for line in stale.iter().chain(&faults) {
        text.push_str(&call.style.remark(Tone::Bad, line));
    }
    call.answer(options.json, stale.is_none() && faults.is_empty(), value, &text)
}

fn table(cluster: &ClusterView) -> Table {
    let mut table = Table::new(&["NAME", "STATE", "SUBNETS", "ADDRESSES", "BACKEND", "VERSION"]);
    let found = &cluster.snapshot;
    for host in names(found) {
        let state = NodeState::of(cluster, host);
        let tone = match state {
            NodeState::Alive => Tone::Good,
            NodeState::Silent => Tone::Bad,
            NodeState::Python | NodeState::Unknown | NodeState::Reserved => Tone::Odd,
        };
        let node = found.nodes.get(host).map(|node| &node.value);
        let addresses = node.map(|node| node.addresses).unwrap_or_default();
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let name = if *host == cluster.own { format!("{host}*") } else { host.to_string() };
        table.row([
            Cell::new(name),
            Cell::new(state.word()).tone(tone),
            Cell::new(subnets(found, host).join(",")),
            Cell::new(addresses.join(",")),
            Cell::new(node.map(|node| node.backend.to_string()).unwrap_or_default()),
            Cell::new(node.map_or("", |node| &node.version)),
        ]);
    }
    table
}

/// Keys and values that are ignored, and why.
fn faults(cluster: &ClusterView, settings: &Settings) -> Vec<String> {
    let found = &cluster.snapshot;
    let pools = crate::lease::growth::followed(&settings.pools, &settings.limits, found);
    let others = peers(found, &cluster.own, &cluster.lease.subnets, &pools);
    let keys = found.faults.values().map(ToString::to_string);
    keys.chain(others.faults.iter().map(ToString::to_string)).collect()
}
