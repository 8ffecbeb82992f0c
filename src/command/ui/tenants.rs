//! What there is of tenants, for the page: networks with their use on this host, groups with their members.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde_json::{Value, json};

use crate::command::ui::groups::groups;
use crate::inspect::pods::{self, room};
use crate::inspect::{agent_socket, policies};
use crate::net::subnet::gateway;
use crate::policy::{Networks, PolicySnapshot, Scoped, TenantNetwork};
use crate::settings::Settings;
use crate::settings::exit::Exit;

/// `networks` and `groups`; both empty where policies are off, or no object of a tenant is known.
///
/// # Errors
/// Why the agent does not say what it knows, or the store of addresses cannot be read.
pub fn find(settings: &Settings) -> Result<Value, String> {
    let view = policies::asked(settings)?;
    let Some((view, known)) = view.as_ref().and_then(|view| Some((view, view.known.as_deref()?)))
    else {
        return Ok(json!({"networks": [], "groups": []}));
    };
    let networks = match known.networks.is_empty() {
        true => Vec::new(),
        false => networks(settings, known)?,
    };
    let groups = groups(known, &view.endpoints());
    let groups: Vec<Value> = groups.iter().map(|(name, group)| group.json(name)).collect();
    Ok(json!({"networks": networks, "groups": groups}))
}

fn networks(settings: &Settings, known: &PolicySnapshot) -> Result<Vec<Value>, String> {
    let status = agent_socket::get(agent_socket::of(settings)?, "/v1/status")?;
    let taken = pods::store(settings, &settings.cni.name)
        .and_then(|store| store.taken().map_err(pods::refused))
        .map_err(|exit: Exit| exit.why)?;
    let shown = known.networks.iter();
    Ok(shown.map(|(name, network)| shown_network(known, name, network, &status, &taken)).collect())
}

fn shown_network(
    known: &PolicySnapshot,
    name: &Scoped,
    network: &TenantNetwork,
    status: &Value,
    taken: &[IpAddr],
) -> Value {
    let pools = known.networks.pools().filter(|(_, of)| of == name);
    let blocks = own_blocks(name, status).into_iter().filter_map(|block| {
        let (usable, free) = room(block, taken)?;
        let used = usable.saturating_sub(free);
        // JSON has no larger number.
        let free = u64::try_from(free).unwrap_or(u64::MAX);
        Some(json!({"block": block, "gateway": gateway(block), "used": used, "free": free}))
    });
    json!({
        "name": name.to_string(),
        "subnets": pools.map(|(pool, _)| pool).collect::<Vec<_>>(),
        "blocks": blocks.collect::<Vec<_>>(),
        "nat": network.nat,
        "shared": network.shared,
        "host_ports": network.host_ports,
    })
}

/// Where this host's pods of the network have their addresses, as its agent says.
fn own_blocks(name: &Scoped, status: &Value) -> Vec<IpNetwork> {
    let lease = &status["lease"];
    let list = |field: &str| lease[field].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().and_then(|text| text.parse().ok());
    if *name == Networks::default_name() {
        return list("subnets").filter_map(text).collect();
    }
    let name = name.to_string();
    let of = list("blocks").filter(|block| block["network"].as_str() == Some(&name));
    of.filter_map(|block| text(&block["block"])).collect()
}
