//! Small random clusters: two hosts, their pods, rules of every tier, and connections.

use std::net::IpAddr;
use std::sync::Arc;

use humanz::net::{Family, PerFamily, Protocol};
use humanz::policy::compile::{HostPolicy, MarkBits};
use humanz::policy::network::NetworkPool;
use humanz::policy::{
    Direction, Endpoint, Endpoints, LabelSelector, Labels, Members, NamedPort, Namespace,
    Namespaces, Networks, Node, ObjectName, Origin, PolicyKind, PolicyPeer, PolicySnapshot,
    PolicyVerdict, PortRange, Requirement, Rule, Rules, Scoped, Selector, Service, TenantNetwork,
    Tier, Transport, Tuple, isolation, members,
};
use ipnetwork::IpNetwork;

use super::random::Random;

/// Ports that pods listen on in tests with packets.
pub const PORTS: [u16; 5] = [80, 443, 8080, 9000, 53];

/// Of container ports.
const PORT_NAMES: [&str; 3] = ["http", "admin", "metrics"];

pub const HOSTS: [&str; 2] = ["host1", "host2"];

/// Where the pods of each host have their addresses.
pub const SUBNETS: [[&str; 2]; 2] =
    [["10.244.1.0/24", "fd00:10:1::/64"], ["10.244.2.0/24", "fd00:10:2::/64"]];

/// Of each host.
pub const NODES: [[&str; 2]; 2] = [["192.0.2.1", "2001:db8::1"], ["192.0.2.2", "2001:db8::2"]];

/// Of the pods of each host: addresses of the host.
pub const GATEWAYS: [[&str; 2]; 2] =
    [["10.244.1.1", "fd00:10:1::1"], ["10.244.2.1", "fd00:10:2::1"]];

/// Neither pods nor hosts.
pub const OUTSIDE: [&str; 2] = ["198.51.100.7", "2001:db8:99::7"];

pub struct World {
    pub endpoints: Endpoints,
    pub rules: Rules,
    pub members: Members,
}

pub fn name(text: &str) -> ObjectName {
    text.parse().unwrap()
}

impl World {
    pub fn random(random: &mut Random) -> World {
        let namespaces = ["a", "b", "c"].map(|text| {
            let labels = random_labels(random);
            Arc::new(Namespace::new(name(text), labels))
        });
        let networks = match random.chance(40) {
            true => networks(random),
            false => Networks::default(),
        };
        let mut pods: Vec<_> = (0..8).map(|place| pod(random, &namespaces, place)).collect();
        pods.iter_mut().for_each(|pod| pod.place(&networks));
        let node = |(place, host): (usize, &str)| Node {
            name: host.parse().unwrap(),
            labels: [("zone".into(), host.into())].into(),
            addresses: own_addresses(place),
        };
        let nodes = HOSTS.into_iter().enumerate().map(node).collect();
        let rules = (0..random.below(14)).map(|place| rule(random, place));
        let rules = isolation::rules(&networks).into_iter().chain(rules).collect();
        World::new(Endpoints { pods, nodes }, Rules::new(rules))
    }

    pub fn new(endpoints: Endpoints, rules: Rules) -> World {
        let members = members::find(&members::peers(rules.iter()), &endpoints);
        World { endpoints, rules, members }
    }

    /// The pods of a host, by its place.
    pub fn local(&self, host: usize) -> Vec<Endpoint> {
        let is_local = |pod: &&Endpoint| pod.host.as_str() == HOSTS[host];
        self.endpoints.pods.iter().filter(is_local).cloned().collect()
    }

    /// What sources say of rules and members.
    pub fn known(&self) -> Arc<PolicySnapshot> {
        let (rules, members) = (self.rules.clone(), self.members.clone());
        Arc::new(PolicySnapshot { rules, members, ..PolicySnapshot::default() })
    }

    /// Calls `then` with what the table of a host is made of.
    pub fn on_host<T>(&self, host: usize, then: impl FnOnce(&HostPolicy<'_>) -> T) -> T {
        let pods: Vec<_> = self.local(host).into_iter().map(Arc::new).collect();
        let subnets = subnets(host);
        let addresses = pods.iter().flat_map(|pod| pod.addresses.clone()).collect();
        then(&HostPolicy {
            known: &self.known(),
            pods: &Vec::from_iter(&pods),
            addresses: &addresses,
            subnets: &subnets,
            own: &Default::default(),
            mark_bits: MarkBits::DEFAULT,
            log_group: 71,
        })
    }

    /// `address` is that of a pod of the host with this place.
    pub fn is_local(&self, host: usize, address: IpAddr) -> bool {
        self.endpoints.pod(address).is_some_and(|pod| pod.host.as_str() == HOSTS[host])
    }

    /// A connection from a pod, to a pod, or both; never from a host to its own pod, which passes no
    /// chain of policies.
    pub fn connection(&self, random: &mut Random) -> Tuple {
        loop {
            let family = random.one(&Family::BOTH);
            let source = self.address(random, family);
            let destination = self.address(random, family);
            let host = |address| self.endpoints.pod(address).map(|pod| pod.host.clone());
            let node = |address| self.endpoints.node(address).map(|node| node.name.clone());
            let (from, to) = (host(source), host(destination));
            let by_host = node(source).is_some() && node(source) == to;
            if from.is_none() && to.is_none() || by_host {
                continue;
            }
            return Tuple { source, destination, transport: transport(random) };
        }
    }

    fn address(&self, random: &mut Random, family: Family) -> IpAddr {
        let at = usize::from(family == Family::V6);
        if random.chance(80) {
            return self.endpoints.pods[random.below(self.endpoints.pods.len())].addresses[at];
        }
        let hosts = NODES.into_iter().chain(GATEWAYS).map(|addresses| addresses[at]);
        let others: Vec<&str> = hosts.chain([OUTSIDE[at]]).collect();
        random.one(&others).parse().unwrap()
    }
}

/// Node addresses and gateways of a host.
pub fn own_addresses(host: usize) -> Vec<IpAddr> {
    [NODES[host], GATEWAYS[host]].concat().iter().map(|text| text.parse().unwrap()).collect()
}

pub fn subnets(host: usize) -> Vec<IpNetwork> {
    SUBNETS[host].iter().map(|text| text.parse().unwrap()).collect()
}

fn pod(random: &mut Random, namespaces: &[Arc<Namespace>], place: usize) -> Endpoint {
    let host = place % 2;
    let number = 10 + place;
    let addresses =
        [format!("10.244.{}.{number}", host + 1), format!("fd00:10:{}::{number}", host + 1)];
    let ports = random.some(2, |random| NamedPort {
        name: name(random.one(&PORT_NAMES)),
        protocol: random.one(&[Protocol::Tcp, Protocol::Udp]),
        port: random.one(&PORTS),
    });
    let group = random.chance(60).then(|| group(random));
    Endpoint {
        namespace: namespaces[random.below(namespaces.len())].clone(),
        name: name(&format!("pod{place}")),
        uid: None,
        labels: random_labels(random),
        addresses: addresses.map(|text| text.parse().unwrap()).into(),
        ports,
        host: HOSTS[host].parse().unwrap(),
        group,
        network: None,
        annotations: Labels::new(),
    }
}

/// Of two tenants; some pods are in the network of the settings.
fn networks(random: &mut Random) -> Networks {
    let mut networks = Networks::default();
    let default = ["10.244.1.16/29", "10.244.2.16/29"].map(|pool| pool.parse().unwrap());
    for (tenant, v4, v6) in
        [("blue", "10.244.1.8/29", "fd00:10:1::/64"), ("red", "10.244.2.8/29", "fd00:10:2::/64")]
    {
        let pool = |text: &str, block| NetworkPool::new(text.parse().unwrap(), block).unwrap();
        let pools = PerFamily { v4: Some(pool(v4, 30)), v6: Some(pool(v6, 122)) };
        let shared = random.chance(20);
        let pins = PerFamily::default();
        let network = TenantNetwork { pools, pins, mtu: None, nat: true, shared, host_ports: true };
        networks.insert(Scoped { tenant: name(tenant), name: name("front") }, network);
    }
    networks.beside(default.into())
}

fn group(random: &mut Random) -> Scoped {
    Scoped { tenant: name("blue"), name: name(random.one(&["web", "db"])) }
}

fn random_labels(random: &mut Random) -> Labels {
    let mut labels = Labels::new();
    for key in ["app", "tier"] {
        if random.chance(70) {
            labels.insert(key.into(), random.one(&["x", "y"]).into());
        }
    }
    labels
}

fn label_selector(random: &mut Random) -> LabelSelector {
    let requirement = |random: &mut Random| {
        let key = random.one(&["app", "tier"]).to_owned().try_into().unwrap();
        let values = [random.one(&["x", "y"]).to_owned().try_into().unwrap()].into();
        match random.below(4) {
            0 => Requirement::In(key, values),
            1 => Requirement::NotIn(key, values),
            2 => Requirement::Exists(key),
            _ => Requirement::DoesNotExist(key),
        }
    };
    LabelSelector::new(random.some(2, requirement))
}

fn selector(random: &mut Random) -> Selector {
    if random.chance(15) {
        return Selector::Group(group(random));
    }
    let namespaces = match random.chance(50) {
        true => Namespaces::Named(name(random.one(&["a", "b", "c"]))),
        false => Namespaces::Labelled(label_selector(random)),
    };
    Selector::Pods { namespaces, labels: label_selector(random) }
}

fn peer(random: &mut Random) -> PolicyPeer {
    match random.below(10) {
        0..6 => PolicyPeer::Selected(selector(random)),
        6 => PolicyPeer::Selected(Selector::Nodes(LabelSelector::default())),
        _ => {
            let (cidr, except): (&str, &[&str]) = random.one(&[
                ("0.0.0.0/0", &["10.244.1.0/24"][..]),
                ("10.244.0.0/16", &["10.244.1.12/31", "10.244.2.0/28"]),
                ("10.244.2.0/24", &[]),
                ("10.244.1.8/29", &["10.244.1.8/30"]),
                ("10.244.2.16/28", &["10.244.2.0/24"]),
                ("fd00:10:1::/64", &["fd00:10:1::c/126"]),
                ("::/0", &["fd00:10:2::/64"]),
                ("fd00:10::/32", &[]),
                ("198.51.100.0/24", &[]),
            ]);
            let except = except.iter().map(|text| text.parse().unwrap()).collect();
            PolicyPeer::Network { cidr: cidr.parse().unwrap(), except }
        }
    }
}

fn service(random: &mut Random) -> Service {
    let protocol = random.one(&[Protocol::Tcp, Protocol::Udp, Protocol::Sctp]);
    match random.below(10) {
        0 => Service::Protocol(random.one(&[1, 6, 17, 47, 58])),
        1..5 => Service::Ports(protocol, PortRange::single(random.one(&PORTS))),
        5 => Service::Ports(protocol, PortRange::new(81, 8999).unwrap()),
        6..8 => {
            let protocol = random.chance(50).then_some(protocol);
            Service::Named(protocol, name(random.one(&PORT_NAMES)))
        }
        _ => Service::Icmp {
            family: random.one(&Family::BOTH),
            kind: random.one(&[8, 9, 128]),
            code: random.chance(50).then(|| random.one(&[0, 1, 3])),
        },
    }
}

/// Few, or so many that some of a kind and some twice are among them.
fn listed<T>(random: &mut Random, make: impl FnMut(&mut Random) -> T) -> Vec<T> {
    let most = random.one(&[3, 3, 3, 10]);
    random.some(most, make)
}

fn rule(random: &mut Random, place: usize) -> Rule {
    let (tier, source) = random.one(&[
        (Tier::Admin, PolicyKind::ClusterNetworkPolicy),
        (Tier::Group, PolicyKind::GroupPolicy),
        (Tier::NetworkPolicy, PolicyKind::NetworkPolicy),
        (Tier::NetworkPolicy, PolicyKind::NetworkPolicy),
        (Tier::Baseline, PolicyKind::ClusterNetworkPolicy),
    ]);
    let is_last = random.chance(25);
    let origin = Origin {
        source,
        namespace: random.chance(50).then(|| name("a")),
        name: name(&format!("policy{place}")),
        index: (!is_last).then_some(place as u16),
    };
    let verdict = match is_last {
        true => PolicyVerdict::Deny,
        false => random.one(&[
            PolicyVerdict::Allow,
            PolicyVerdict::Allow,
            PolicyVerdict::Deny,
            PolicyVerdict::Pass,
        ]),
    };
    Rule {
        tier,
        priority: if is_last { 9 } else { random.below(4) as u32 },
        origin,
        direction: random.one(&Direction::BOTH),
        subject: selector(random),
        peers: (!is_last && random.chance(80)).then(|| listed(random, peer)),
        services: (!is_last && random.chance(60)).then(|| listed(random, service)),
        verdict,
        audit: random.chance(5),
    }
}

fn transport(random: &mut Random) -> Transport {
    match random.below(10) {
        0 => Transport::Other(47),
        1 => Transport::Icmp { kind: random.one(&[8, 128]), code: random.one(&[0, 0, 3]) },
        _ => {
            let protocol = random.one(&[Protocol::Tcp, Protocol::Udp, Protocol::Sctp]);
            Transport::Port(protocol, random.one(&PORTS))
        }
    }
}
