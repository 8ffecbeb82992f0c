//! `routes`: the routes to other hosts, as they should be and as they are.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use argh::{ArgsInfo, FromArgs};
use ipnetwork::IpNetwork;
use serde_json::{Value, json};

use crate::agent::applier::Applier;
use crate::agent::dry_run;
use crate::agent::reconcile::{self, run};
use crate::command::call::{Call, Outcome};
use crate::command::json;
use crate::command::table::{Cell, Table, Tone};
use crate::inspect::{Host, HostList};
use crate::net::gather::Gather;
use crate::plan::peer_routes::{self, PeerRoutes};
use crate::plan::routes::{FoundRoute, NextHop, Routes};
use crate::settings::Source;
use crate::settings::exit::Exit;

/// show the routes to the pods of other hosts
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "routes",
    example = "{command_name}",
    example = "{command_name} --wrong",
    example = "{command_name} --json | jq '.routes[] | select(.state != \"ok\")'",
    note = "Shows what is wanted, what the kernel has, and why.",
    error_code(0, "every route is as wanted"),
    error_code(1, "one is not, or the other hosts are known from saved state alone"),
    error_code(69, "the other hosts are not known")
)]
pub struct ShowRoutes {
    /// only those that are not as wanted
    #[argh(switch)]
    wrong: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// One destination.
struct Row {
    destination: IpNetwork,
    host: Option<String>,
    wanted: Option<NextHop>,
    found: Option<NextHop>,
    state: &'static str,
    why: String,
}

/// Answers.
///
/// # Errors
/// A setting is wrong, the kernel cannot be looked at, or the hosts are not known.
pub fn run(call: &mut Call<'_>, options: &ShowRoutes) -> Result<Outcome, Exit> {
    let loaded = call.load_to_look()?;
    if !matches!(loaded.settings.source, Source::Kubernetes(_)) {
        crate::inspect::cluster::etcd(&loaded.settings)?;
    }
    let host = Host::inspect(&loaded.settings, HostList::Live)?;
    if let Some(why) = &host.peers_unknown {
        return Err(Exit::new(crate::settings::exit::UNAVAILABLE, why));
    }
    let all = rows(&host)?;
    let count = all.len();
    let fine = all.iter().all(|row| row.state == "ok");
    let shown: Vec<Row> =
        all.into_iter().filter(|row| !options.wrong || row.state != "ok").collect();
    let devices = devices(&host)?;
    let cluster = host.cluster.as_ref();
    let origin = cluster.map_or(Value::Null, json::origin);
    let stale = cluster.and_then(|cluster| cluster.stale.as_ref()).map(json::stale);
    let value = json!({
        "routes": shown.iter().map(|row| object(row, &devices)).collect::<Vec<_>>(),
        "origin": origin,
    });
    let mut text = table(&shown, &devices).render(call.style);
    if shown.is_empty() {
        text = match count {
            0 => "no other host has pods here, and no route is wrong\n".to_owned(),
            count => format!("no route is wrong, of {count}\n"),
        };
    }
    if let Some(stale) = &stale {
        text.push_str(&call.style.remark(Tone::Bad, stale));
    }
    call.answer(options.json, fine && stale.is_none(), value, &text)
}

fn rows(host: &Host) -> Result<Vec<Row>, Exit> {
    let run = dry_run::reconcile_of(host);
    let host_state = host.state()?;
    let Some(peers) = run.peers else { return Ok(Vec::new()) };
    let peer_routes =
        peer_routes::peer_routes(&peers.by_name, run.resolved, &run::local_host(&run, &host_state));
    let tunnels =
        reconcile::tunnel::reconcile(&run, &host_state, &peer_routes, &mut Applier::new(true));
    let mut wanted = peer_routes.direct.clone();
    wanted.extend(tunnels.unwrap_or_default().routes(&run, &peer_routes));
    let encryption =
        reconcile::encryption::reconcile(&run, &host_state, &peer_routes, &mut Applier::new(true));
    wanted.extend(encryption.routes(&run, &peer_routes));
    let found = reconcile::routes::found(&host.kernel.rtnl).context("list routes")?;
    let owners = peers.by_name.iter();
    let owners =
        owners.flat_map(|(name, peer)| peer.pod_subnets().map(move |to| (to, name.to_string())));
    Ok(compare(&owners.gather(), &wanted, &found, &peer_routes))
}

/// Every destination that somebody owns or that has a route of ours, in order.
fn compare(
    owners: &BTreeMap<IpNetwork, String>,
    wanted: &Routes,
    found: &[FoundRoute],
    peer_routes: &PeerRoutes,
) -> Vec<Row> {
    let kernel: BTreeMap<IpNetwork, Option<NextHop>> =
        found.iter().map(|route| (route.destination, route.next_hop)).gather();
    let all: BTreeSet<IpNetwork> = owners.keys().chain(kernel.keys()).copied().gather();
    let row = |destination: IpNetwork| {
        let (wanted, found) = (wanted.get(&destination).copied(), kernel.get(&destination));
        let host = owners.get(&destination).cloned();
        let (state, why) = match (&wanted, found) {
            (None, _) if host.is_none() => {
                ("stale", "no host has this subnet: the agent removes the route".to_owned())
            }
            (None, _) => ("unreachable", unreachable(destination, peer_routes)),
            (Some(_), None) => ("missing", reason(destination, peer_routes)),
            (Some(wanted), Some(found)) if *found == Some(*wanted) => {
                ("ok", reason(destination, peer_routes))
            }
            (Some(_), Some(_)) => ("wrong", reason(destination, peer_routes)),
        };
        Row { destination, host, wanted, found: found.copied().flatten(), state, why }
    };
    all.into_iter().map(row).collect()
}

fn reason(destination: IpNetwork, peer_routes: &PeerRoutes) -> String {
    match peer_routes.remotes.iter().find(|remote| remote.subnet == destination) {
        Some(remote) => format!("tunnel to {}", remote.address),
        None => "same segment".to_owned(),
    }
}

fn unreachable(destination: IpNetwork, peer_routes: &PeerRoutes) -> String {
    let known = peer_routes.unreachable.iter().find(|known| known.subnet == destination);
    known.map_or_else(
        || "its tunnel's device is not there".to_owned(),
        |known| known.problem().to_string(),
    )
}

/// The names of the interfaces.
fn devices(host: &Host) -> Result<BTreeMap<u32, String>, Exit> {
    Ok(host.links()?.iter().map(|(index, link)| (*index, link.name.to_string())).gather())
}

fn table(rows: &[Row], devices: &BTreeMap<u32, String>) -> Table {
    let mut table = Table::new(&["DESTINATION", "HOST", "STATE", "WANTED", "FOUND", "WHY"]);
    for row in rows {
        let tone = match row.state {
            "ok" => Tone::Good,
            "stale" => Tone::Odd,
            _ => Tone::Bad,
        };
        let hop = |hop: Option<NextHop>| {
            let text = hop.map(|hop| format!("via {} dev {}", hop.via, device(hop, devices)));
            Cell::new(text.unwrap_or_default())
        };
        table.row([
            Cell::new(row.destination.to_string()),
            Cell::new(row.host.as_deref().unwrap_or_default()),
            Cell::new(row.state).tone(tone),
            hop(row.wanted),
            hop(row.found),
            Cell::new(&row.why),
        ]);
    }
    table
}

fn object(row: &Row, devices: &BTreeMap<u32, String>) -> Value {
    let hop = |hop: NextHop| json!({ "via": hop.via.to_string(), "device": device(hop, devices) });
    json!({
        "destination": row.destination.to_string(),
        "host": row.host,
        "state": row.state,
        "wanted": row.wanted.map(hop),
        "found": row.found.map(hop),
        "why": row.why,
    })
}

/// The interface's name; one that is not there yet has none.
fn device(hop: NextHop, devices: &BTreeMap<u32, String>) -> &str {
    devices.get(&hop.device).map_or("(to be made)", String::as_str)
}
