//! Pure. Pods and services that rules do not tell apart: one of each kind is tried for all of them.

use std::collections::{BTreeMap, BTreeSet};

use crate::net::gather::Gather;
use crate::net::{Family, Protocol};
use crate::policy::endpoint::{Endpoint, NamedPort};
use crate::policy::rule::{PolicyPeer, Rule};
use crate::policy::selector::Selector;
use crate::policy::service::{ICMP, ICMPV6, Service};
use crate::policy::tuple::Transport;

/// Pods of one namespace that no selector, network or named port of `rules` tells apart.
#[derive(Clone, Debug)]
pub struct PodKind<'a> {
    pub first: &'a Endpoint,
    pub second: Option<&'a Endpoint>,
    pub count: usize,
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
        let kind: Vec<bool> = subject.chain(peers.iter().map(is_peer)).collect();
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

/// What to try, with its name: the ends of each range, the `ports` that rules name, and what no rule has.
pub fn services(rules: &[&Rule], ports: &[&NamedPort]) -> Vec<(String, Transport)> {
    let mut transports = BTreeSet::from([
        Transport::Icmp { kind: 8, code: 0 },
        Transport::Port(Protocol::Tcp, u16::MAX),
        Transport::Port(Protocol::Udp, u16::MAX),
    ]);
    let services = rules.iter().flat_map(|rule| rule.services.iter().flatten());
    for service in services.gather::<BTreeSet<&Service>>() {
        match service {
            Service::Ports(protocol, range) => {
                transports.insert(Transport::Port(*protocol, range.first()));
                transports.insert(Transport::Port(*protocol, range.last()));
            }
            Service::Named(_, name) => {
                let named = ports.iter().filter(|port| port.name == *name);
                transports.extend(named.map(|port| Transport::Port(port.protocol, port.port)));
            }
            Service::Protocol(number) => {
                transports.insert(match Protocol::of_number(*number) {
                    Some(protocol) => Transport::Port(protocol, u16::MAX),
                    None => Transport::Other(*number),
                });
            }
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
