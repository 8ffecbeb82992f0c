//! Pure. Pods and services that rules do not tell apart: one of each kind is tried for all of them.

use std::collections::{BTreeMap, BTreeSet};

use crate::net::gather::Gather;
use crate::net::{Family, Protocol};
use crate::policy::change::costs::{LOOKS, TooMany};
use crate::policy::endpoint::{Endpoint, NamedPort};
use crate::policy::members::Members;
use crate::policy::name::ObjectName;
use crate::policy::rule::{PolicyPeer, Rule, Rules};
use crate::policy::selector::Selector;
use crate::policy::selector_index::SelectorIndex;
use crate::policy::service::{ICMP, ICMPV6, Service};
use crate::policy::tuple::Transport;

/// Pods of one namespace and with addresses of the same families that no selector, network or named port of `rules`
/// tells apart.
#[derive(Clone, Debug)]
pub struct PodKind<'a> {
    pub first: &'a Endpoint,
    pub second: Option<&'a Endpoint>,
    pub count: usize,
}

/// The rules whose subject is one of `pods`: no other rule decides anything at their ends.
///
/// # Errors
/// [`TooMany`].
pub fn concerning<'a>(rules: &'a Rules, pods: &[Endpoint]) -> Result<Vec<&'a Rule>, TooMany> {
    let index = SelectorIndex::new(rules.iter().map(|rule| &rule.subject));
    let (mut places, mut looks) = (BTreeSet::new(), 0);
    for pod in pods {
        let found = index.matching(pod);
        looks += found.len();
        if looks > LOOKS {
            return Err(TooMany(format!("{} rules for {} pods", places.len(), pods.len())));
        }
        places.extend(found);
    }
    Ok(places.into_iter().map(|place| rules.get(place)).collect())
}

/// The kinds among `pods`.
pub fn alike<'a>(pods: &'a [Endpoint], rules: &[&Rule]) -> Vec<PodKind<'a>> {
    let subjects: BTreeSet<&Selector> = rules.iter().map(|rule| &rule.subject).gather();
    let peers: BTreeSet<&PolicyPeer> =
        rules.iter().flat_map(|rule| rule.peers.iter().flatten()).gather();
    let mut kinds: BTreeMap<_, PodKind<'a>> = BTreeMap::new();
    for pod in pods {
        let is_peer = |peer: &&PolicyPeer| match peer {
            PolicyPeer::Selected(selector) => selector.matches_pod(pod),
            PolicyPeer::Network { .. } => {
                pod.addresses.iter().any(|address| peer.contains(*address))
            }
        };
        let subject = subjects.iter().map(|selector| selector.matches_pod(pod));
        let families =
            Family::BOTH.map(|family| pod.addresses.iter().any(|it| Family::of(*it) == family));
        let kind: Vec<bool> =
            families.into_iter().chain(subject).chain(peers.iter().map(is_peer)).collect();
        let new = PodKind { first: pod, second: None, count: 0 };
        let kind = kinds.entry((pod.namespace.name(), &pod.ports, kind)).or_insert(new);
        if kind.count == 1 {
            kind.second = Some(pod);
        }
        kind.count += 1;
    }
    kinds.into_values().collect()
}

impl PodKind<'_> {
    /// `shop/web (and 2 like it)`
    pub fn name(&self) -> String {
        match self.count {
            ..=1 => self.first.to_string(),
            count => format!("{} (and {} like it)", self.first, count - 1),
        }
    }
}

/// The ports with names of `pods` and `members`, each once.
pub fn named_ports<'a>(pods: &'a [Endpoint], members: &'a Members) -> Vec<&'a NamedPort> {
    let own = pods.iter().flat_map(|pod| &pod.ports);
    let found = members.values().flat_map(|found| &**found).flat_map(|member| &member.ports);
    own.chain(found).gather::<BTreeSet<_>>().into_iter().collect()
}

/// What to try, with its name: the ends of each range, the `ports` that rules name, and what no rule has.
pub fn services(rules: &[&Rule], ports: &[&NamedPort]) -> Vec<(String, Transport)> {
    let mut transports = BTreeSet::from([
        Transport::Icmp { kind: 8, code: 0 },
        Transport::Port(Protocol::Tcp, u16::MAX),
        Transport::Port(Protocol::Udp, u16::MAX),
    ]);
    let mut named: BTreeMap<&ObjectName, Vec<&NamedPort>> = BTreeMap::new();
    for port in ports {
        named.entry(&port.name).or_default().push(port);
    }
    let services = rules.iter().flat_map(|rule| rule.services.iter().flatten());
    for service in services.gather::<BTreeSet<&Service>>() {
        match service {
            Service::Ports(protocol, range) => {
                transports.insert(Transport::Port(*protocol, range.first()));
                transports.insert(Transport::Port(*protocol, range.last()));
            }
            Service::Named(_, name) => {
                let named = named.get(name).into_iter().flatten();
                transports.extend(named.map(|port| Transport::Port(port.protocol, port.port)));
            }
            Service::Protocol(number) => {
                transports.insert(match Protocol::of_number(*number) {
                    Some(protocol) => Transport::Port(protocol, u16::MAX),
                    None => Transport::Other(*number),
                });
            }
            Service::HostPort => {}
            Service::Icmp { kind, code, .. } => {
                let code = code.unwrap_or_default();
                transports.insert(Transport::Icmp { kind: *kind, code });
            }
        }
    }
    transports.into_iter().map(|transport| (name(transport), transport)).collect()
}

fn name(transport: Transport) -> String {
    match transport {
        Transport::Port(protocol, u16::MAX) => format!("{protocol} on other ports"),
        Transport::Port(protocol, port) => format!("{protocol}/{port}"),
        Transport::Icmp { kind, .. } => format!("icmp type {kind}"),
        Transport::Other(ICMP) => "icmp of other types".to_owned(),
        Transport::Other(ICMPV6) => "icmpv6 of other types".to_owned(),
        Transport::Other(number) => format!("protocol {number}"),
    }
}

/// What is said of `service`, once if every family has the same answer, else by family: `tcp/5432 (IPv6)`.
pub fn by_family<T: PartialEq>(service: &str, mut said: Vec<(Family, T)>) -> Vec<(String, T)> {
    if said.iter().all(|(_, answer)| *answer == said[0].1) {
        said.truncate(1);
        return said.into_iter().map(|(_, answer)| (service.to_owned(), answer)).collect();
    }
    let named = |(family, answer)| (format!("{service} ({family})"), answer);
    said.into_iter().map(named).collect()
}

/// As it is called in this family, where an echo request has another type; `None`: the family has no such packets.
pub fn in_family(transport: Transport, family: Family) -> Option<Transport> {
    match (transport, family) {
        (Transport::Icmp { kind: 8, code }, Family::V6) => {
            Some(Transport::Icmp { kind: 128, code })
        }
        (Transport::Other(ICMP), Family::V6) | (Transport::Other(ICMPV6), Family::V4) => None,
        _ => Some(transport),
    }
}
