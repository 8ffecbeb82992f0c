//! What there is of policies and tenants, for the page: networks with their use on this host, groups with their
//! members, who may reach what.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ipnetwork::IpNetwork;
use serde_json::{Value, json};

use crate::command::policy::here::HostPolicies;
use crate::command::ui::groups::groups;
use crate::inspect::pods::{self, room};
use crate::inspect::{agent_socket, policies};
use crate::net::gather::Gather;
use crate::net::subnet::gateway;
use crate::policy::change::Surroundings;
use crate::policy::pairs::{self as reach, PairVerdicts};
use crate::policy::{Endpoint, Networks, PolicySnapshot, Scoped, TenantNetwork};
use crate::settings::Settings;
use crate::settings::exit::Exit;

/// Every user of this host can ask, and an answer costs a look at all policies.
const EVERY: Duration = Duration::from_secs(5);

/// What was found last, by one look after the other.
#[derive(Default)]
pub struct KnownTenants(Mutex<Option<(Instant, Result<Value, String>)>>);

impl KnownTenants {
    /// What [`find`] found, seconds ago at most.
    ///
    /// # Errors
    /// Those of [`find`].
    pub fn get(&self, settings: &Settings) -> Result<Value, String> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((at, found)) if at.elapsed() < EVERY => found.clone(),
            _ => {
                let found = find(settings);
                *last = Some((Instant::now(), found.clone()));
                found
            }
        }
    }
}

/// `networks`, `groups`, `pairs`: empty where policies are off, or nothing is known of them; `pairs` is null where
/// there are too many.
///
/// # Errors
/// Why the agent does not say what it knows, or the store of addresses cannot be read.
fn find(settings: &Settings) -> Result<Value, String> {
    let view = policies::asked(settings)?;
    let Some(view) = view.filter(|view| view.known.is_some()) else {
        return Ok(json!({"networks": [], "groups": [], "pairs": []}));
    };
    let here = HostPolicies::of(settings, view).map_err(|exit| exit.why)?;
    let (known, pods) = (&here.known, here.view.endpoints());
    let networks = match known.networks.is_empty() {
        true => Vec::new(),
        false => networks(settings, known)?,
    };
    let groups = groups(known, &pods);
    let groups: Vec<Value> = groups.iter().map(|(name, group)| group.json(name)).collect();
    Ok(json!({"networks": networks, "groups": groups, "pairs": pairs(&here, &pods)}))
}

fn pairs(here: &HostPolicies, pods: &[Endpoint]) -> Value {
    let known = &here.known;
    if known.rules.is_empty() {
        return json!([]);
    }
    // From a loopback address nobody reaches a pod.
    let own = here.own.iter().copied().filter(|address| !address.is_loopback()).gather();
    let around = Surroundings {
        members: &known.members,
        subnets: &here.view.subnets,
        own: &own,
        pools: &here.pools(),
    };
    let found = reach::pairs(&here.knowledge(&known.rules, &known.members, pods), &around);
    json!(found.map(|found| found.iter().map(shown_pair).collect::<Vec<_>>()))
}

fn shown_pair(pair: &PairVerdicts) -> Value {
    json!({
        "from": pair.source,
        "to": pair.destination,
        "allowed": pair.allowed,
        "denied": pair.denied,
        "unknown": pair.unknown,
        "elsewhere": pair.judged_elsewhere,
    })
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
