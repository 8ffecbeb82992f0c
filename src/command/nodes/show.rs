//! `nodes show`: all that is known of one host.

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::command::call::{Call, Outcome};
use crate::command::json;
use crate::command::nodes::node::{NodeState, name, names, object, subnets, unknown};
use crate::command::table::{Style, Tone, facts};
use crate::inspect::cluster::{self, ClusterView};
use crate::lease::claim::leave;
use crate::lease::key_owners;
use crate::lease::records::{NodeName, Roots, Tunnel, WireguardEnd};
use crate::settings::Source;
use crate::settings::exit::Exit;

/// show all that etcd has of one host
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "show",
    example = "{command_name} h3",
    error_code(1, "there is no such host, or etcd does not answer"),
    error_code(69, "etcd does not answer and there is no saved state")
)]
pub struct ShowNode {
    /// name of the host, as in nodes ls
    #[argh(positional)]
    host: String,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

pub fn run(call: &mut Call<'_>, options: &ShowNode) -> Result<Outcome, Exit> {
    let host = name(&options.host)?;
    let loaded = call.load()?;
    let roots = match &loaded.settings.source {
        Source::Kubernetes(_) => None,
        _ => Some(cluster::etcd(&loaded.settings)?.1),
    };
    let cluster = cluster::read(&loaded.settings)?;
    if !names(&cluster.snapshot).contains(&host) {
        return Err(unknown(&cluster.snapshot, &host));
    }
    let keys = roots.map(|roots| keys(&cluster, &host, roots)).unwrap_or_default();
    let mut node = object(&cluster, &host);
    let found = cluster.snapshot.nodes.get(&host).map(|node| &node.value);
    node["boot_id"] = found.map(|node| &*node.boot_id).into();
    node["tunnel"] = found.and_then(|node| node.tunnel).map(tunnel).into();
    let end = found.and_then(|node| node.wireguard);
    node["wireguard"] = end.map(|end| wireguard(end, is_claimed(&cluster, &host, end))).into();
    node["keys"] =
        keys.iter().map(|(key, revision)| json!({ "key": key, "revision": revision })).collect();
    let value = json!({ "node": node, "origin": json::origin(&cluster) });
    let mut text = text(&cluster, &host, &keys, call.style);
    if let Some(stale) = &cluster.stale {
        text.push_str(&call.style.remark(Tone::Bad, &json::stale(stale)));
    }
    call.answer(options.json, cluster.stale.is_none(), value, &text)
}

fn tunnel(Tunnel { mac, vni, port }: Tunnel) -> Value {
    json!({ "mac": mac.to_string(), "vni": vni, "port": port })
}

fn wireguard(end: WireguardEnd, is_claimed: bool) -> Value {
    json!({
        "public_key": end.public_key.to_string(),
        "port": end.port,
        "claimed": is_claimed,
        "rotation_port": end.rotation_port,
        "next_key": end.next.map(|key| key.to_string()),
    })
}

/// The host has claimed the key that it publishes, and no other host had it before.
fn is_claimed(cluster: &ClusterView, host: &NodeName, end: WireguardEnd) -> bool {
    let found = &cluster.snapshot;
    found.wireguard_keys.get(host).is_some_and(|claim| claim.value.covers(end))
        && key_owners::owners(found).get(&end.public_key) == Some(&host)
}

/// The host's keys, and the revisions at which they were written.
fn keys(cluster: &ClusterView, host: &NodeName, roots: &Roots) -> Vec<(String, i64)> {
    let found = &cluster.snapshot;
    let keys = leave::all(found, host);
    keys.iter().map(|key| (roots.key(key), found.modified(roots, key))).collect()
}

fn text(cluster: &ClusterView, host: &NodeName, keys: &[(String, i64)], style: Style) -> String {
    let found = &cluster.snapshot;
    let node = found.nodes.get(host).map(|node| &node.value);
    let addresses = node.map(|node| node.addresses).unwrap_or_default();
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let since = found.alive.get(host).map(|alive| format!(" since {}", alive.value.since));
    let state = match NodeState::of(cluster, host) {
        NodeState::Alive => format!("alive{}", since.unwrap_or_default()),
        NodeState::Silent => "silent: its agent does not run, or cannot reach etcd".to_owned(),
        NodeState::Python => "runs the Python agent, which publishes no liveness".to_owned(),
        NodeState::Unknown => "unknown".to_owned(),
        NodeState::Reserved => "reserved: a subnet is kept for a host of this name".to_owned(),
    };
    let of_node = |part: &dyn Fn(&crate::lease::records::NodeRecord) -> String| {
        node.map(|node| part(node)).unwrap_or_default()
    };
    let keys = keys.iter().map(|(key, revision)| format!("{key} (revision {revision})\n"));
    facts(
        &[
            ("host", host.to_string()),
            ("state", state),
            ("subnets", subnets(found, host).join("\n")),
            ("addresses", addresses.join("\n")),
            ("backend", of_node(&|node| node.backend.to_string())),
            ("tunnel", of_node(&|node| node.tunnel.map(tunnel_text).unwrap_or_default())),
            (
                "encryption",
                of_node(&|node| {
                    let text = |end| wireguard_text(end, is_claimed(cluster, host, end));
                    node.wireguard.map(text).unwrap_or_default()
                }),
            ),
            (
                "mtu",
                of_node(&|node| node.known_mtu().map(|mtu| mtu.to_string()).unwrap_or_default()),
            ),
            ("version", of_node(&|node| node.version.to_string())),
            ("machine id", of_node(&|node| node.machine_id.to_string())),
            ("boot id", of_node(&|node| node.boot_id.to_string())),
            ("keys", keys.collect()),
        ],
        style,
    )
}

fn wireguard_text(end: WireguardEnd, is_claimed: bool) -> String {
    let claim = if is_claimed { "" } else { ", a key that is not claimed" };
    let next = end.next.map(|key| format!(", changes to {key}")).unwrap_or_default();
    format!("WireGuard {}, UDP port {}{claim}{next}", end.public_key, end.port)
}

fn tunnel_text(Tunnel { mac, vni, port }: Tunnel) -> String {
    format!("VXLAN {vni}, UDP port {port}, MAC {mac}")
}
