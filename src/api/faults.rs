//! What is wrong on this host and what helps, as the state tells it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::agent::shared_state::Probes;
use crate::checks::probe::Seen;
use crate::lease::records::NodeName;
use crate::os::heartbeat::Heartbeat;
use crate::settings::Source;

use crate::agent::pool_use::{Use, scarce};
use crate::agent::readiness;
use crate::agent::shared_state::SharedState;
use crate::agent::snapshot::AgentSnapshot;
use crate::api::status::gateways;

/// So many hosts that do not answer are told one by one.
const HOSTS: usize = 3;

/// `what` is wrong, and the `cure` if there is one: the worst first, and causes before what comes
/// of them. Empty when all is well.
///
/// `uses`: how much of the pod subnets is in use now.
pub fn faults(shared: &SharedState, known: &AgentSnapshot, uses: &[Use]) -> Value {
    let wrong = &known.wrong;
    let told = |kinds: &[&BTreeSet<String>]| -> Vec<Value> {
        kinds.iter().flat_map(|kind| kind.iter()).map(|line| fault(line)).collect()
    };
    let mut all: Vec<Value> = hanging(shared).iter().map(|line| fault(line)).collect();
    all.extend(down(known).iter().map(|line| fault(line)));
    all.extend(store(known));
    all.extend(known.etcd.trouble.as_deref().map(fault));
    all.extend(told(&[&wrong.failures]));
    all.extend(readiness::gone(known).as_deref().map(fault));
    all.extend(told(&[&wrong.files, &wrong.obstacles, &wrong.unreachable]));
    all.extend(silent(known, &shared.probes));
    all.extend(scarce(uses).iter().map(|line| fault(line)));
    all.extend(told(&[&wrong.records, &wrong.pools, &wrong.surroundings]));
    all.into()
}

fn fault(line: &str) -> Value {
    let (what, cure) = what_and_cure(line);
    json!({ "what": what, "cure": cure })
}

/// What is wrong and, behind the last semicolon, what to do.
fn what_and_cure(text: &str) -> (&str, Option<&str>) {
    text.rsplit_once("; ").map_or((text, None), |(what, cure)| (what, Some(cure)))
}

/// Loops that hang: what is told of the rest may be old.
fn hanging(shared: &SharedState) -> Vec<String> {
    let heartbeats = shared.heartbeats();
    let since = heartbeats.iter().filter_map(|beat| Some((beat, beat.since()?)));
    let hanging = since.filter(|(beat, since)| *since > beat.limit);
    let line = |(beat, since): (&Arc<Heartbeat>, Duration)| {
        format!(
            "the loop {} has not moved for {} s; systemctl restart humanz-agent (pods do not notice), \
             and report a bug",
            beat.name,
            since.as_secs()
        )
    };
    hanging.map(line).collect()
}

/// Interfaces that lead to the other hosts and are down: etcd may be away just because of them.
fn down(known: &AgentSnapshot) -> Vec<String> {
    let links = known.facts.iter().flat_map(|facts| &facts.down);
    let line = |link| {
        format!("interface {link}, which has this host's address, is down; ip link set {link} up")
    };
    links.map(line).collect()
}

/// Whoever knows the hosts does not answer.
fn store(known: &AgentSnapshot) -> Option<Value> {
    let down = known.etcd.down.as_ref()?;
    let (store, asked) = match known.settings.source {
        Source::Kubernetes(_) => ("the Kubernetes API", "is the API server up"),
        _ => ("etcd", "is a member up"),
    };
    Some(json!({
        "what": format!("{store} does not answer: {down}"),
        "cure": format!("{asked}, is the port open, are user and certificates right? Pods keep their \
                         network, and no new host is seen until then"),
    }))
}

/// Hosts that there is a way to, and that do not answer the echoes sent along it.
fn silent(known: &AgentSnapshot, probes: &Probes) -> Vec<Value> {
    let Some(peers) = &known.peers else { return Vec::new() };
    let unreachable = known.ways.iter().flat_map(|ways| &ways.unreachable);
    let told: BTreeSet<&NodeName> = unreachable.map(|unreachable| &unreachable.host).collect();
    let probed = probes.all();
    let mut hosts =
        peers.by_name.iter().filter(|(name, _)| !told.contains(name)).filter_map(|(name, peer)| {
            let mut seen = gateways(peer).filter_map(|at| Some((at, *probed.get(&at)?)));
            let (at, seen) = seen.find(|(at, seen)| seen.fault(*at).is_some())?;
            Some(lost(name, at, &seen))
        });
    let mut all: Vec<Value> = hosts.by_ref().take(HOSTS).collect();
    let more = hosts.count();
    if more > 0 {
        let what = format!("{more} more hosts do not answer echoes, or not large ones");
        all.push(json!({ "what": what, "cure": "humanz-agent probe asks all of them now" }));
    }
    all
}

fn lost(name: &NodeName, at: IpAddr, seen: &Seen) -> Value {
    let cure = match seen.black_hole() {
        Some(_) => "set MTU lower, or let ICMP through between hosts".to_owned(),
        None => {
            format!("humanz-agent explain POD {at} tells where they are lost (a POD of this host)")
        }
    };
    json!({ "what": format!("host {name}: {}", seen.fault(at).unwrap_or_default()), "cure": cure })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_do_stands_apart_from_what_is_wrong() {
        for (text, what, cure) in [
            ("link a is down", "link a is down", None),
            (
                "no way to h2: no address; set NODE_IP",
                "no way to h2: no address",
                Some("set NODE_IP"),
            ),
            ("a; b; do c", "a; b", Some("do c")),
        ] {
            assert_eq!(what_and_cure(text), (what, cure));
        }
    }
}
