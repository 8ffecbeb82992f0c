//! Pure. Pods as `endpoint` shows them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;

use crate::cni::pod_keys;
use crate::net::gather::Gather;
use crate::net::node_name::NodeName;
use crate::policy::ask::LocalPod;
use crate::policy::view::{Quarantined, View};
use crate::policy::{Endpoint, NetProfile, PolicySnapshot, Scoped, Selector};

/// A pod, and what is known of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShownEndpoint {
    /// `namespace/name`, or the container's ID; `None`: it is another host's.
    pub pod: Option<String>,
    pub addresses: Vec<IpAddr>,
    host: Option<NodeName>,
    #[serde(serialize_with = "as_text")]
    network: Option<Scoped>,
    #[serde(serialize_with = "as_text")]
    group: Option<Scoped>,
    #[serde(serialize_with = "as_text")]
    profile: Option<Scoped>,
    dscp: Option<u8>,
    /// Bits a second that it sends at most.
    egress_rate: Option<u64>,
    /// Bits a second that it receives at most.
    ingress_rate: Option<u64>,
    /// Why only its own node reaches it.
    pub quarantine: Option<String>,
    /// What says in which group it is: kubernetes, etcd or file; `None` for pods of other hosts.
    pub source: Option<&'static str>,
    /// Annotations and labels of it that look like humanz's, and have no effect.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown_keys: Vec<String>,
}

/// A pod of another host, as far as the selectors in use find it.
#[derive(Default)]
struct FoundElsewhere {
    group: Option<Scoped>,
    network: Option<Scoped>,
}

/// The pods of this host, and those of others that are members of groups or networks in use. `host_of`: the other
/// host with this address. `source`: what says in which groups pods are.
pub fn endpoints(
    view: &View,
    source: &'static str,
    host_of: impl Fn(IpAddr) -> Option<NodeName>,
) -> Vec<ShownEndpoint> {
    let nothing = Arc::default();
    let known = view.known.as_ref().unwrap_or(&nothing);
    let described = view.endpoints();
    let described: BTreeMap<&[IpAddr], &Endpoint> =
        described.iter().map(|endpoint| (&endpoint.addresses[..], endpoint)).gather();
    let quarantined = view.quarantined();
    let quarantined: BTreeMap<&[IpAddr], &Quarantined> =
        quarantined.iter().map(|one| (&one.addresses[..], one)).gather();
    let own = view.pods.iter().map(|pod| {
        let endpoint = described.get(&pod.addresses[..]);
        let group = endpoint.and_then(|endpoint| endpoint.group.clone());
        let network = endpoint.and_then(|endpoint| endpoint.network.clone());
        ShownEndpoint {
            pod: Some(pod.pod.clone().unwrap_or_else(|| pod.container_id.clone())),
            addresses: pod.addresses.clone(),
            host: Some(view.host.clone()),
            quarantine: quarantined.get(&pod.addresses[..]).map(|one| one.reason.to_string()),
            source: Some(source),
            unknown_keys: unknown_keys(pod),
            ..described_as(known, group, network)
        }
    });
    let mut all: Vec<ShownEndpoint> = own.collect();
    all.sort_unstable_by(|a, b| (&a.pod, &a.addresses).cmp(&(&b.pod, &b.addresses)));
    all.extend(others(view, known).into_iter().map(|(addresses, found)| {
        let host = addresses.iter().find_map(|address| host_of(*address));
        let network = found.network;
        let network = network.or_else(|| addresses.iter().find_map(|it| known.networks.of(*it)));
        ShownEndpoint { host, addresses, ..described_as(known, found.group, network) }
    }));
    all
}

fn unknown_keys(pod: &LocalPod) -> Vec<String> {
    let (annotations, labels) = (pod.annotations.keys(), pod.labels.keys());
    let found = pod_keys::unknown(annotations.map(String::as_str), labels.map(String::as_str));
    found.map(|key| format!("{key}: {}", key.hint())).collect()
}

fn described_as(
    known: &PolicySnapshot,
    group: Option<Scoped>,
    network: Option<Scoped>,
) -> ShownEndpoint {
    let profile = known.profiles.of_pod(group.as_ref(), network.as_ref());
    let (profile, NetProfile { dscp, egress, ingress }) =
        profile.map(|(name, profile)| (Some(name.clone()), profile)).unwrap_or_default();
    ShownEndpoint {
        pod: None,
        addresses: Vec::new(),
        host: None,
        network,
        group,
        profile,
        dscp: dscp.map(u8::from),
        egress_rate: egress.map(|limit| limit.rate_bits),
        ingress_rate: ingress.map(|limit| limit.rate_bits),
        quarantine: None,
        source: None,
        unknown_keys: Vec::new(),
    }
}

fn others(view: &View, known: &PolicySnapshot) -> BTreeMap<Vec<IpAddr>, FoundElsewhere> {
    let is_own = |address: &IpAddr| view.subnets.iter().any(|subnet| subnet.contains(*address));
    let mut others: BTreeMap<Vec<IpAddr>, FoundElsewhere> = BTreeMap::new();
    for (selector, found) in &known.members {
        let of_others = found.iter().filter(|member| !member.addresses.iter().any(is_own));
        for member in of_others {
            let (group, network) = match selector {
                Selector::Group(name) => (Some(name), None),
                Selector::Network(name) => (None, Some(name)),
                _ => continue,
            };
            let other = others.entry(member.addresses.clone()).or_default();
            other.group = group.cloned().or(other.group.take());
            other.network = network.cloned().or(other.network.take());
        }
    }
    others
}

impl ShownEndpoint {
    /// `what` is its name, with or without its namespace, or one of its addresses.
    pub fn is(&self, what: &str) -> bool {
        let is_name =
            |pod: &String| pod == what || pod.split_once('/').is_some_and(|(_, name)| name == what);
        let address = what.parse::<IpAddr>();
        address.is_ok_and(|it| self.addresses.contains(&it)) || self.pod.iter().any(is_name)
    }

    pub fn is_quarantined(&self) -> bool {
        self.quarantine.is_some()
    }

    pub fn addresses(&self, between: &str) -> String {
        self.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(between)
    }

    pub fn host(&self) -> String {
        text(self.host.as_ref())
    }

    pub fn network(&self) -> String {
        text(self.network.as_ref())
    }

    pub fn group(&self) -> String {
        text(self.group.as_ref())
    }

    pub fn profile(&self) -> String {
        text(self.profile.as_ref())
    }

    pub fn egress_rate(&self) -> String {
        self.egress_rate.map(rate).unwrap_or_default()
    }

    pub fn ingress_rate(&self) -> String {
        self.ingress_rate.map(rate).unwrap_or_default()
    }

    pub fn dscp(&self) -> String {
        text(self.dscp.as_ref())
    }
}

/// `100 Mbit/s`, never rounded.
fn rate(bits: u64) -> String {
    let thousands = |by: u32| 1000_u64.pow(by);
    let is_whole = |by: &u32| bits >= thousands(*by) && bits.is_multiple_of(thousands(*by));
    let by = (1..=4).rev().find(is_whole).unwrap_or(0);
    let unit = ["", "k", "M", "G", "T"][by as usize];
    format!("{} {unit}bit/s", bits / thousands(by))
}

fn text(value: Option<&impl ToString>) -> String {
    value.map(ToString::to_string).unwrap_or_default()
}

/// `tenant/name`
fn as_text<S: serde::Serializer>(name: &Option<Scoped>, to: S) -> Result<S::Ok, S::Error> {
    name.as_ref().map(ToString::to_string).serialize(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_has_its_unit_and_is_not_rounded() {
        for (bits, text) in [
            (8, "8 bit/s"),
            (1_000, "1 kbit/s"),
            (100_000_000, "100 Mbit/s"),
            (1_500_000_000, "1500 Mbit/s"),
            (1_000_000_001, "1000000001 bit/s"),
            (5_000_000_000_000, "5 Tbit/s"),
        ] {
            assert_eq!(rate(bits), text);
        }
    }
}
