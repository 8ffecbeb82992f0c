//! The cluster of Kubernetes' network policy tests, and which pods reach which in it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use humanz::net::{Problem, Protocol};
use humanz::policy::{
    Endpoint, Endpoints, Labels, NamedPort, Namespace, Node, Rules, Transport, Tuple, evaluate,
    read,
};
use serde_json::Value;

/// Namespaces x, y, z with pods a, b, c each, on two hosts; both families.
pub const NAMESPACES: [&str; 3] = ["x", "y", "z"];
pub const PODS: [&str; 3] = ["a", "b", "c"];

/// The ports on which every pod serves, with TCP, UDP and SCTP.
pub const PORTS: [u16; 2] = [80, 81];

pub fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
}

/// Labels `ns: x` and `pod: a`; ports `serve-80-tcp` and so on.
pub fn cluster() -> Endpoints {
    let mut pods = Vec::new();
    for (i, namespace) in NAMESPACES.into_iter().enumerate() {
        let own = Namespace::new(namespace.parse().unwrap(), labels(&[("ns", namespace)]));
        let own = Arc::new(own);
        for (j, pod) in PODS.into_iter().enumerate() {
            let host = 1 + j % 2;
            let number = 2 + 3 * i + j;
            pods.push(Endpoint {
                namespace: own.clone(),
                name: pod.parse().unwrap(),
                uid: None,
                labels: labels(&[("pod", pod)]),
                addresses: vec![
                    format!("10.244.{host}.{number}").parse().unwrap(),
                    format!("fd00:{host}::{number}").parse().unwrap(),
                ],
                ports: served(),
                host: format!("h{host}").parse().unwrap(),
                group: None,
                network: None,
                annotations: Labels::new(),
            });
        }
    }
    let node = |host| Node {
        name: format!("h{host}").parse().unwrap(),
        labels: labels(&[("kubernetes.io/hostname", &format!("h{host}"))]),
        addresses: vec![
            format!("192.0.2.{host}").parse().unwrap(),
            format!("10.244.{host}.1").parse().unwrap(),
            format!("2001:db8::{host}").parse().unwrap(),
        ],
    };
    Endpoints { pods, nodes: vec![node(1), node(2)] }
}

fn served() -> Vec<NamedPort> {
    let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let all = PORTS.into_iter().flat_map(|port| protocols.map(|protocol| (port, protocol)));
    let named = |(port, protocol)| NamedPort {
        name: format!("serve-{port}-{protocol}").parse().unwrap(),
        protocol,
        port,
    };
    all.map(named).collect()
}

/// The rules of objects that must be understood whole.
pub fn understood(objects: &[Value]) -> Rules {
    let (rules, problems) = parsed(objects);
    assert_eq!(problems, [], "{objects:?}");
    rules
}

pub fn parsed(objects: &[Value]) -> (Rules, Vec<Problem>) {
    let mut all = read::Parsed::default();
    for object in objects {
        all.append(read::policy(object).expect("a policy"));
    }
    (Rules::new(all.rules), all.problems)
}

/// `x/a`, or an address.
pub fn address(endpoints: &Endpoints, what: &str, v6: bool) -> IpAddr {
    if let Ok(address) = what.parse() {
        return address;
    }
    let pod = endpoints.pods.iter().find(|pod| pod.to_string() == what).expect("a pod");
    *pod.addresses.iter().find(|address| address.is_ipv6() == v6).expect("of that family")
}

/// Whether `source` reaches `destination`; the same in both families if they are pods.
pub fn reaches(
    rules: &Rules,
    endpoints: &Endpoints,
    source: &str,
    destination: &str,
    transport: Transport,
) -> bool {
    let families: Vec<bool> = [source, destination]
        .iter()
        .find_map(|what| what.parse::<IpAddr>().ok())
        .map_or(vec![false, true], |address| vec![address.is_ipv6()]);
    let verdict = |v6: &bool| {
        let source = address(endpoints, source, *v6);
        let destination = address(endpoints, destination, *v6);
        evaluate(rules, endpoints, &Tuple { source, destination, transport }).allowed()
    };
    let verdicts: BTreeSet<bool> = families.iter().map(verdict).collect();
    assert_eq!(verdicts.len(), 1, "{source} to {destination}: the families differ");
    verdicts.contains(&true)
}

/// A table of which pods reach which, as Kubernetes' tests have it: all, then exceptions.
#[derive(Clone)]
pub struct Table(BTreeSet<(String, String)>);

impl Table {
    pub fn all() -> Table {
        let names: Vec<String> = names().collect();
        let pairs = names.iter().flat_map(|a| names.iter().map(move |b| (a.clone(), b.clone())));
        Table(pairs.collect())
    }

    pub fn allows(&self, source: &str, destination: &str) -> bool {
        self.0.contains(&(source.to_owned(), destination.to_owned()))
    }

    /// Nobody reaches `to`, except it itself.
    pub fn no_ingress(self, to: &str) -> Table {
        self.without(|a, b| matches(to, b) && a != b)
    }

    /// `from` reaches nobody, except itself.
    pub fn no_egress(self, from: &str) -> Table {
        self.without(|a, b| matches(from, a) && a != b)
    }

    /// Only `from` reaches `to`.
    pub fn ingress_only(self, from: &[&str], to: &str) -> Table {
        self.without(|a, b| matches(to, b) && a != b && !from.iter().any(|of| matches(of, a)))
    }

    /// `from` reaches only `to`.
    pub fn egress_only(self, from: &str, to: &[&str]) -> Table {
        self.without(|a, b| matches(from, a) && a != b && !to.iter().any(|of| matches(of, b)))
    }

    fn without(mut self, gone: impl Fn(&str, &str) -> bool) -> Table {
        self.0.retain(|(a, b)| !gone(a, b));
        self
    }

    /// It is what `rules` decide for `transport`.
    pub fn check(&self, case: &str, rules: &Rules, transport: Transport) {
        self.check_in(case, rules, &cluster(), transport);
    }

    pub fn check_in(&self, case: &str, rules: &Rules, endpoints: &Endpoints, transport: Transport) {
        // Pairs that reach each other, or do not, though they must be otherwise.
        let wrong = |reached: bool| {
            let pairs = Table::all().0.into_iter();
            let pairs = pairs.filter(|(a, b)| self.allows(a, b) != reached);
            let pairs =
                pairs.filter(|(a, b)| reaches(rules, endpoints, a, b, transport) == reached);
            pairs.map(|(a, b)| format!("{a} -> {b}")).collect::<Vec<_>>().join(", ")
        };
        let (open, closed) = (wrong(true), wrong(false));
        assert!(
            open.is_empty() && closed.is_empty(),
            "{case}, {transport:?}: must be denied: [{open}], must be allowed: [{closed}]"
        );
    }
}

fn names() -> impl Iterator<Item = String> {
    NAMESPACES.into_iter().flat_map(|ns| PODS.map(|pod| format!("{ns}/{pod}")))
}

/// `x/a`, `x/*`, `*/a`, `*/*`.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.split_once('/').unwrap(), name.split_once('/').unwrap());
    let part = |pattern: &str, name: &str| pattern == "*" || pattern == name;
    part(pattern.0, name.0) && part(pattern.1, name.1)
}

pub fn tcp(port: u16) -> Transport {
    Transport::Port(Protocol::Tcp, port)
}

pub fn udp(port: u16) -> Transport {
    Transport::Port(Protocol::Udp, port)
}

pub fn sctp(port: u16) -> Transport {
    Transport::Port(Protocol::Sctp, port)
}

/// Echo request of either family.
pub const PING: Transport = Transport::Icmp { kind: 8, code: 0 };
