//! Pure. What several subcommands answer with `--json`.

use ipnetwork::IpNetwork;
use serde::Serialize;
use serde_json::{Value, json};

use crate::command::table::span;
use crate::inspect::cluster::{ClusterView, Stale};
use crate::inspect::pods::{Life, StoreNetwork, room};
use crate::ipam::StoreEntry;
use crate::net::{Problem, subnet};

/// One attachment for `--json`.
pub fn object(entry: &StoreEntry, network: &str, life: Life) -> Value {
    let forwards = entry.forwards();
    let ports = forwards.iter().map(|forward| {
        let text = format!("{}:{}", forward.from.address, forward.from.port);
        json!({ "protocol": forward.from.protocol.to_string(), "host": text })
    });
    json!({
        "network": network,
        "addresses": entry.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "pod": entry.pod,
        "container": if entry.is_unowned() { None } else { Some(&entry.container_id) },
        "interface": if entry.ifname.is_empty() { None } else { Some(&entry.ifname) },
        "netns": entry.netns,
        "since": if entry.time_secs == 0 { None } else { Some(entry.time_secs) },
        "host_ports": ports.collect::<Vec<_>>(),
        "state": life.word(),
    })
}

/// What is wrong, without what helps, as `faults` have it.
pub fn whats(problems: &[Problem]) -> Vec<&str> {
    problems.iter().map(|problem| problem.what.as_str()).collect()
}

/// The number of pod addresses of a subnet; `None` above 32 bits.
#[derive(Clone, Debug, Serialize)]
pub struct SubnetUsage {
    pub subnet: String,
    pub family: String,
    pub usable: Option<u32>,
    pub free: Option<u32>,
}

/// The room in each of the `subnets` of a network.
pub fn rooms(network: &StoreNetwork, subnets: impl Iterator<Item = IpNetwork>) -> Vec<SubnetUsage> {
    let room = |subnet: IpNetwork| {
        let (usable, free) = room(subnet, &network.contents.taken)?;
        let (usable, free) = (u32::try_from(usable).ok(), u32::try_from(free).ok());
        let family = subnet::family(subnet).to_string();
        Some(SubnetUsage { subnet: subnet.to_string(), family, usable, free })
    };
    subnets.filter_map(room).collect()
}

/// For people, one line.
pub fn stale(stale: &Stale) -> String {
    let age = stale.age.map(|age| format!(" of {} ago", span(age))).unwrap_or_default();
    let Stale { asked, why, .. } = stale;
    format!("{asked} does not answer: {why}; showing the last known good state{age}")
}

/// `from` is `etcd`, `kubernetes` or `state`; then `age_seconds` and `error` say more.
pub fn origin(cluster: &ClusterView) -> Value {
    match &cluster.stale {
        None => json!({ "from": cluster.store, "age_seconds": 0, "error": null }),
        Some(Stale { why, age, .. }) => {
            let age = age.map(|age| age.as_secs());
            json!({ "from": "state", "age_seconds": age, "error": why })
        }
    }
}
