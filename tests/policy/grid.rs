//! Cases over the features of all sources, from a seed: objects, pods and nodes, connections.
//!
//! For every comparison of what the rules say with what something else does. Print the seed: a case is
//! the same for the same seed, on every machine.

use std::net::IpAddr;

use humanz::net::Protocol;
use humanz::policy::read::groups::{self, Objects};
use humanz::policy::{Endpoints, Rules, Scoped, Transport, Tuple, read};
use serde_json::{Value, json};

use crate::reachability::{NAMESPACES, PODS, PORTS, cluster};

/// What policies there are, between which endpoints, and the connections to try.
#[derive(Clone, Debug)]
pub struct Case {
    pub seed: u64,
    /// Objects of the Kubernetes API.
    pub objects: Vec<Value>,
    pub groups: Objects,
    pub policies: Objects,
    /// Namespaces x, y, z with pods a, b, c on hosts h1 and h2; some in groups.
    pub endpoints: Endpoints,
    pub tuples: Vec<Tuple>,
}

/// Connections of a case.
const TUPLES: usize = 60;

/// Addresses outside the cluster, in and out of the networks that rules have.
const OUTSIDE: [&str; 4] = ["203.0.113.7", "203.0.113.200", "2001:db8:9::7", "2001:db8:9:8000::7"];
const NETWORKS: [&str; 6] =
    ["203.0.113.0/24", "0.0.0.0/0", "10.244.1.0/24", "2001:db8:9::/48", "::/0", "fd00:1::/64"];

impl Case {
    pub fn new(seed: u64) -> Case {
        let mut random = Random(seed);
        let mut endpoints = cluster();
        for pod in &mut endpoints.pods {
            pod.group = random.one_in(3).then(|| group_name(&mut random));
            pod.network = Some(scoped("pods"));
            if random.one_in(4) {
                pod.ports.iter_mut().for_each(|port| port.port += 8000);
            }
            if random.one_in(5) {
                pod.labels.insert("role".into(), "front".into());
            }
        }
        let mut objects: Vec<Value> =
            (0..random.below(4)).map(|at| network_policy(&mut random, at)).collect();
        objects.extend((0..random.below(3)).map(|at| cluster_policy(&mut random, at)));
        if random.one_in(4) {
            objects.push(admin_policy(&mut random));
        }
        let (groups, policies) =
            if random.one_in(2) { group_policies(&mut random) } else { Default::default() };
        let tuples = (0..TUPLES).map(|_| tuple(&mut random, &endpoints)).collect();
        Case { seed, objects, groups, policies, endpoints, tuples }
    }

    /// Every object must be understood.
    pub fn rules(&self) -> Rules {
        let mut parsed = groups::read(&self.groups, &self.policies);
        for object in &self.objects {
            parsed.append(read::policy(object).expect("a policy"));
        }
        assert_eq!(parsed.problems, [], "seed {}: {:?}", self.seed, self.objects);
        Rules::new(parsed.rules)
    }
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    pub fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        let at = self.below(of.len() as u64) as usize;
        of[at].clone()
    }

    /// One to `limit` of what `make` gives.
    fn some(&mut self, limit: u64, make: impl Fn(&mut Random) -> Value) -> Value {
        (0..=self.below(limit)).map(|_| make(self)).collect()
    }
}

fn scoped(name: &str) -> Scoped {
    Scoped { tenant: "default".parse().unwrap(), name: name.parse().unwrap() }
}

fn group_name(random: &mut Random) -> Scoped {
    scoped(random.pick(&["web", "db"]))
}

fn tuple(random: &mut Random, endpoints: &Endpoints) -> Tuple {
    let v6 = random.one_in(2);
    let mut end = || -> IpAddr {
        let all: Vec<IpAddr> = match random.below(10) {
            0 => OUTSIDE.iter().map(|address| address.parse().unwrap()).collect(),
            1 => endpoints.nodes.iter().flat_map(|node| node.addresses.clone()).collect(),
            _ => endpoints.pods.iter().flat_map(|pod| pod.addresses.clone()).collect(),
        };
        let of: Vec<IpAddr> = all.into_iter().filter(|one| one.is_ipv6() == v6).collect();
        random.pick(&of)
    };
    let (source, destination) = (end(), end());
    let protocol = random.pick(&[Protocol::Tcp, Protocol::Udp, Protocol::Sctp]);
    let port = random.pick(&[PORTS[0], PORTS[1], 82, 8080, 8081]);
    let transport = match random.below(8) {
        0 => Transport::Icmp { kind: if v6 { 128 } else { 8 }, code: 0 },
        1 => Transport::Other(random.pick(&[47, 50])),
        _ => Transport::Port(protocol, port),
    };
    Tuple { source, destination, transport }
}

fn label_selector(random: &mut Random, key: &str, values: &[&str]) -> Value {
    let one = random.pick(values);
    match random.below(7) {
        0 => json!({}),
        1 | 2 => json!({"matchLabels": {key: one}}),
        3 => json!({"matchExpressions": [{"key": key, "operator": "In",
            "values": [one, random.pick(values)]}]}),
        4 => json!({"matchExpressions": [{"key": key, "operator": "NotIn", "values": [one]}]}),
        5 => json!({"matchExpressions": [{"key": "role", "operator": "Exists"}]}),
        _ => json!({"matchLabels": {key: one},
            "matchExpressions": [{"key": "role", "operator": "DoesNotExist"}]}),
    }
}

fn pods(random: &mut Random) -> Value {
    label_selector(random, "pod", &PODS)
}

fn namespaces(random: &mut Random) -> Value {
    if random.one_in(4) {
        return json!({"matchLabels": {"kubernetes.io/metadata.name": random.pick(&NAMESPACES)}});
    }
    label_selector(random, "ns", &NAMESPACES)
}

fn ip_block(random: &mut Random) -> Value {
    match random.below(4) {
        0 => json!({"cidr": "203.0.113.0/24", "except": ["203.0.113.128/25", "203.0.113.0/30"]}),
        1 => json!({"cidr": "2001:db8:9::/48", "except": ["2001:db8:9:8000::/49"]}),
        _ => json!({"cidr": random.pick(&NETWORKS)}),
    }
}

fn port_name(random: &mut Random) -> (String, &'static str) {
    let protocol = random.pick(&["TCP", "UDP", "SCTP"]);
    (format!("serve-{}-{}", random.pick(&PORTS), protocol.to_lowercase()), protocol)
}

fn network_policy(random: &mut Random, at: u64) -> Value {
    let peer = |random: &mut Random| match random.below(4) {
        0 => json!({"podSelector": pods(random)}),
        1 => json!({"namespaceSelector": namespaces(random)}),
        2 => json!({"podSelector": pods(random), "namespaceSelector": namespaces(random)}),
        _ => json!({"ipBlock": ip_block(random)}),
    };
    let port = |random: &mut Random| {
        let (name, protocol) = port_name(random);
        match random.below(5) {
            0 => json!({"protocol": protocol}),
            1 => json!({"protocol": protocol, "port": name}),
            2 => json!({"protocol": protocol, "port": 80, "endPort": random.pick(&[80, 81, 8080])}),
            3 => json!({"port": random.pick(&PORTS)}),
            _ => json!({"protocol": protocol, "port": random.pick(&PORTS)}),
        }
    };
    let rules = |random: &mut Random, peers: &str| -> Value {
        let rule = |random: &mut Random| {
            let mut rule = json!({});
            if !random.one_in(4) {
                rule[peers] = random.some(3, peer);
            }
            if random.one_in(2) {
                rule["ports"] = random.some(3, port);
            }
            rule
        };
        if random.one_in(4) { json!([]) } else { random.some(2, rule) }
    };
    let mut spec = json!({"podSelector": pods(random)});
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        if random.one_in(2) {
            spec[direction] = rules(random, peers);
        }
    }
    let types: [Value; 4] =
        [Value::Null, json!(["Ingress"]), json!(["Egress"]), json!(["Ingress", "Egress"])];
    spec["policyTypes"] = random.pick(&types);
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": format!("np{at}"), "namespace": random.pick(&NAMESPACES)},
        "spec": spec})
}

/// Peers that ClusterNetworkPolicy and AdminNetworkPolicy share.
fn cluster_peer(random: &mut Random, egress: bool) -> Value {
    match random.below(if egress { 4 } else { 2 }) {
        0 => json!({"namespaces": namespaces(random)}),
        1 => {
            json!({"pods": {"namespaceSelector": namespaces(random), "podSelector": pods(random)}})
        }
        2 => json!({"networks": [random.pick(&NETWORKS), random.pick(&NETWORKS)]}),
        _ => json!({"nodes": label_selector(random, "kubernetes.io/hostname", &["h1", "h2"])}),
    }
}

fn subject(random: &mut Random) -> Value {
    cluster_peer(random, false)
}

fn cluster_policy(random: &mut Random, at: u64) -> Value {
    let protocol = |random: &mut Random| {
        let port = match random.one_in(2) {
            true => json!({"number": random.pick(&PORTS)}),
            false => json!({"range": {"start": 80, "end": random.pick(&[81, 8080])}}),
        };
        match random.below(4) {
            0 => json!({"destinationNamedPort": port_name(random).0}),
            1 => json!({"udp": {"destinationPort": port}}),
            2 => json!({"sctp": {"destinationPort": port}}),
            _ => json!({"tcp": {"destinationPort": port}}),
        }
    };
    let rules = |random: &mut Random, peers: &str| {
        let rule = |random: &mut Random| {
            let mut rule = json!({"action": random.pick(&["Accept", "Deny", "Pass"])});
            rule[peers] = random.some(2, |random| cluster_peer(random, peers == "to"));
            if random.one_in(2) {
                rule["protocols"] = random.some(2, protocol);
            }
            rule
        };
        random.some(3, rule)
    };
    json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": format!("cnp{at}")}, "spec": {
        "tier": random.pick(&["Admin", "Baseline"]), "priority": 10 * at + random.below(10),
        "subject": subject(random), "ingress": rules(random, "from"),
        "egress": rules(random, "to")}})
}

fn admin_policy(random: &mut Random) -> Value {
    let port = |random: &mut Random| {
        let (name, protocol) = port_name(random);
        match random.below(3) {
            0 => json!({"portNumber": {"protocol": protocol, "port": random.pick(&PORTS)}}),
            1 => json!({"portRange": {"protocol": protocol, "start": 80, "end": 81}}),
            _ => json!({"namedPort": name}),
        }
    };
    let baseline = random.one_in(2);
    let rules = |random: &mut Random, peers: &str| {
        let rule = |random: &mut Random| {
            let actions: &[&str] =
                if baseline { &["Allow", "Deny"] } else { &["Allow", "Deny", "Pass"] };
            let mut rule = json!({"action": random.pick(actions)});
            rule[peers] = random.some(2, |random| cluster_peer(random, peers == "to"));
            if random.one_in(2) {
                rule["ports"] = random.some(2, port);
            }
            rule
        };
        random.some(2, rule)
    };
    let mut spec = json!({"subject": subject(random), "ingress": rules(random, "from"),
        "egress": rules(random, "to")});
    let kind = if baseline { "BaselineAdminNetworkPolicy" } else { "AdminNetworkPolicy" };
    if !baseline {
        spec["priority"] = random.below(30).into();
    }
    json!({"apiVersion": "policy.networking.k8s.io/v1alpha1", "kind": kind,
        "metadata": {"name": "default"}, "spec": spec})
}

fn group_policies(random: &mut Random) -> (Objects, Objects) {
    let peer = |random: &mut Random| match random.below(4) {
        0 => json!({"group": random.pick(&["web", "db", "gone"])}),
        1 => json!({"network": random.pick(&["pods", "gone"])}),
        _ => ip_block(random),
    };
    let rule = |random: &mut Random| {
        let mut rule = json!({"direction": random.pick(&["in", "out"]),
            "action": random.pick(&["allow", "deny", "pass"]),
            "priority": 1 + random.below(100)});
        if !random.one_in(3) {
            rule["peer"] = peer(random);
        }
        match random.below(6) {
            0 => {
                rule["protocol"] = json!("tcp");
                rule["ports"] = json!([80, "8000-8100", "serve-81-tcp"]);
            }
            1 => rule["protocol"] = random.pick(&[json!("udp"), json!(47), json!("icmp")]),
            2 => {
                rule["protocol"] = random.pick(&[json!("icmp"), json!("icmpv6")]);
                rule["icmpType"] = random.pick(&[json!(8), json!(128)]);
            }
            _ => {}
        }
        rule
    };
    let mut policies = Objects::new();
    for name in ["p", "q"] {
        policies.insert(scoped(name), json!({"rules": random.some(4, rule)}));
    }
    let mut groups = Objects::new();
    for name in ["web", "db"] {
        let listed = random.pick(&[json!([]), json!(["p"]), json!(["p", "q"])]);
        let default =
            random.pick(&[json!("allow"), json!("deny"), json!({"in": "deny"}), Value::Null]);
        groups.insert(scoped(name), json!({"policies": listed, "default": default}));
    }
    (groups, policies)
}
