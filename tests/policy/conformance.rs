//! The cases of `conformance/tests` of sigs.k8s.io/network-policy-api as data, by their names there: which
//! objects there are in its cluster of four namespaces with two pods each, and which of them must be reached from where.
//!
//! Left out are those about names of domains, labels of nodes and named ports, which upstream has as experimental, and about
//! a pod that reaches itself by a service (`CNPAdminTierHairpin`), for which see
//! `a_pod_reaches_itself_by_a_service_unless_the_tier_admin_denies_it` of the agent's tests.

use std::net::IpAddr;

use humanz::net::Protocol;
use humanz::policy::Transport;
use serde_json::{Value, json};

/// Names of namespaces without their prefix, and of their pods without their number.
pub const HOUSES: [(&str, &str); 4] = [
    ("gryffindor", "harry-potter"),
    ("slytherin", "draco-malfoy"),
    ("hufflepuff", "cedric-diggory"),
    ("ravenclaw", "luna-lovegood"),
];

/// What every pod serves.
pub const TCP_PORTS: [u16; 2] = [80, 8080];
pub const UDP_PORTS: [u16; 2] = [53, 5353];

/// The label of namespaces and pods that has the house.
pub const HOUSE: &str = "conformance-house";

/// The label of a pod that has its name.
pub const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";

/// One case.
pub struct ConformanceCase {
    pub name: String,
    /// One after another, in the same cluster.
    pub steps: Vec<ConformanceStep>,
}

/// What there is, and what must be so then.
pub struct ConformanceStep {
    pub name: &'static str,
    /// All policies.
    pub policies: Vec<Value>,
    pub pokes: Vec<Poke>,
}

/// One connection.
#[derive(Clone, Debug)]
pub struct Poke {
    /// `network-policy-conformance-gryffindor/harry-potter-0`.
    pub from: String,
    pub to: String,
    pub transport: Transport,
    pub allowed: bool,
}

pub fn namespace(house: &str) -> String {
    format!("network-policy-conformance-{house}")
}

/// The pod `gryffindor 0`.
pub fn pod(text: &str) -> String {
    let (house, number) = text.split_once(' ').unwrap();
    let (_, name) = HOUSES.iter().find(|(one, _)| *one == house).unwrap();
    format!("{}/{name}-{number}", namespace(house))
}

fn poke(from: &str, to: &str, protocol: Protocol, port: u16, allowed: bool) -> Poke {
    let transport = Transport::Port(protocol, port);
    Poke { from: pod(from), to: pod(to), transport, allowed }
}

fn tcp(from: &str, to: &str, port: u16, allowed: bool) -> Poke {
    poke(from, to, Protocol::Tcp, port, allowed)
}

fn step(name: &'static str, policies: &[&Value], pokes: Vec<Poke>) -> ConformanceStep {
    ConformanceStep { name, policies: policies.iter().map(|one| (*one).clone()).collect(), pokes }
}

fn case(name: &str, steps: Vec<ConformanceStep>) -> ConformanceCase {
    ConformanceCase { name: name.to_owned(), steps }
}

/// A policy whose subject is a house, or what `subject` says.
fn policy(name: &str, tier: &str, priority: u16, subject: Value) -> Value {
    json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": name}, "spec": {"tier": tier, "priority": priority, "subject": subject}})
}

fn by_name(house: &str) -> Value {
    json!({"namespaces": {"matchLabels": {"kubernetes.io/metadata.name": namespace(house)}}})
}

fn by_label(house: &str) -> Value {
    json!({"namespaces": {"matchLabels": {HOUSE: house}}})
}

/// The pods of a house by labels of both, namespace and pod.
fn by_pods(house: &str) -> Value {
    let labels = json!({"matchLabels": {HOUSE: house}});
    json!({"pods": {"namespaceSelector": labels, "podSelector": labels}})
}

fn rule(direction: &str, action: &str, peer: Value, protocols: Value) -> Value {
    let peers = if direction == "ingress" { "from" } else { "to" };
    let mut rule = json!({"name": "rule", "action": action, peers: [peer]});
    if !protocols.is_null() {
        rule["protocols"] = protocols;
    }
    rule
}

fn port(protocol: Protocol, number: u16) -> Value {
    json!([{protocol.to_string(): {"destinationPort": {"number": number}}}])
}

fn range(protocol: &str, start: u16, end: u16) -> Value {
    json!([{protocol: {"destinationPort": {"range": {"start": start, "end": end}}}}])
}

/// All of them; `address` is that of a pod.
pub fn cases(address: &dyn Fn(&str) -> IpAddr) -> Vec<ConformanceCase> {
    let mut cases = Vec::new();
    for tier in ["Admin", "Baseline"] {
        for direction in ["Ingress", "Egress"] {
            cases.extend([Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(|protocol| {
                let roles = Roles::of(protocol, direction);
                roles.case(tier, direction)
            }));
        }
        cases.push(gress(tier));
        cases.extend(isolation(tier));
        cases.push(pod_selectors(tier));
        cases.push(port_ranges(tier));
        cases.push(same_priority(tier));
        cases.push(networks(tier, address));
    }
    cases.extend([priorities(), integration()]);
    cases
}

/// Who is who in the cases of one protocol.
#[derive(Clone, Copy)]
struct Roles {
    protocol: Protocol,
    subject: &'static str,
    /// A peer with rules for everything.
    whole: &'static str,
    /// The port of slytherin that has rules, and one without.
    ports: [u16; 2],
    /// A peer of which one port is allowed and all others are denied: these two.
    other: (&'static str, [u16; 2]),
}

impl Roles {
    fn of(protocol: Protocol, direction: &str) -> Roles {
        let (subject, whole, ports, other) = match (protocol, direction) {
            (Protocol::Tcp, "Egress") => {
                ("gryffindor", "ravenclaw", [80, 8080], ("hufflepuff", [8080, 80]))
            }
            (Protocol::Tcp, _) => {
                ("gryffindor", "ravenclaw", [80, 8080], ("hufflepuff", [80, 8080]))
            }
            (Protocol::Udp, _) => {
                ("hufflepuff", "ravenclaw", [5353, 53], ("gryffindor", [53, 5353]))
            }
            (Protocol::Sctp, _) => {
                ("ravenclaw", "gryffindor", [9003, 9005], ("hufflepuff", [9003, 9005]))
            }
        };
        Roles { protocol, subject, whole, ports, other }
    }

    /// From pod `of` of a peer to the subject's pod, or the other way.
    fn poke(self, direction: &str, peer: &str, of: u8, port: u16, allowed: bool) -> Poke {
        let (peer, subject) = (format!("{peer} {of}"), format!("{} {}", self.subject, 1 - of));
        match direction {
            "Ingress" => poke(&peer, &subject, self.protocol, port, allowed),
            _ => poke(&subject, &peer, self.protocol, port, allowed),
        }
    }

    fn rules(self, direction: &str, passes: bool) -> Vec<Value> {
        let direction = direction.to_lowercase();
        let all = |action: &str, house: &str| rule(&direction, action, by_name(house), Value::Null);
        let one = |action: &str, house: &str, number| {
            rule(&direction, action, by_name(house), port(self.protocol, number))
        };
        let (other, [allowed, _]) = self.other;
        let mut rules = vec![all("Accept", self.whole), all("Deny", self.whole)];
        if passes {
            rules.push(all("Pass", self.whole));
        }
        rules.push(one("Deny", "slytherin", self.ports[0]));
        if passes {
            rules.push(one("Pass", "slytherin", self.ports[0]));
        }
        rules.extend([one("Accept", other, allowed), all("Deny", other)]);
        rules
    }

    fn case(self, tier: &str, direction: &str) -> ConformanceCase {
        let passes = tier == "Admin";
        let mut rules = self.rules(direction, passes);
        let with = |rules: &[Value]| {
            let mut policy = policy("default", tier, 7, by_name(self.subject));
            policy["spec"][direction.to_lowercase()] = json!(rules);
            policy
        };
        let whole = |allowed| {
            let [first, second] = self.served();
            vec![
                self.poke(direction, self.whole, 0, first, allowed),
                self.poke(direction, self.whole, 1, second, allowed),
            ]
        };
        let slytherin = |allowed| {
            vec![
                self.poke(direction, "slytherin", 0, self.ports[0], allowed),
                self.poke(direction, "slytherin", 1, self.ports[1], true),
            ]
        };
        let (other, [allowed, denied]) = self.other;
        let others = vec![
            self.poke(direction, other, 0, allowed, true),
            self.poke(direction, other, 1, denied, false),
        ];
        let away = if direction == "Ingress" { "Egress" } else { "Ingress" };
        let unaffected = vec![
            self.poke(away, self.whole, 0, self.served()[0], true),
            self.poke(away, "slytherin", 1, self.ports[0], true),
        ];
        let begun = with(&rules);
        rules.swap(0, 1);
        let denying = with(&rules);
        let mut steps = vec![
            step("allow; rule ordering is respected", &[&begun], whole(true)),
            step("allow at the specified port", &[&begun], others),
            step("the other direction is not affected", &[&begun], unaffected),
            step("deny; rule ordering is respected", &[&denying], whole(false)),
            step("deny at the specified port", &[&denying], slytherin(false)),
        ];
        if passes {
            rules.swap(0, 2);
            let passing = with(&rules);
            steps.push(step("pass; rule ordering is respected", &[&passing], whole(true)));
            rules.swap(3, 4);
            let passing = with(&rules);
            steps.push(step("pass at the specified port", &[&passing], slytherin(true)));
        }
        let protocol = self.protocol.to_string().to_uppercase();
        case(&format!("CNP{tier}Tier{direction}{protocol}"), steps)
    }

    /// Two ports that every pod serves.
    fn served(self) -> [u16; 2] {
        match self.protocol {
            Protocol::Tcp => TCP_PORTS,
            Protocol::Udp => UDP_PORTS,
            Protocol::Sctp => [9003, 9005],
        }
    }
}

/// Rules of both directions and all protocols in one policy.
fn gress(tier: &str) -> ConformanceCase {
    let protocols = |ports: [u16; 3]| {
        let names = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
        let all = names.into_iter().zip(ports).map(|(name, number)| port(name, number)[0].clone());
        Value::from(all.collect::<Vec<_>>())
    };
    let rules = |direction: &str, allowed: [u16; 3]| {
        let all = |action, house| rule(direction, action, by_name(house), Value::Null);
        let some = |action, house, ports| rule(direction, action, by_name(house), protocols(ports));
        vec![
            all("Accept", "ravenclaw"),
            all("Deny", "ravenclaw"),
            some("Deny", "slytherin", [80, 53, 9003]),
            some("Accept", "hufflepuff", allowed),
            all("Deny", "hufflepuff"),
        ]
    };
    let with = |mut ingress: Vec<Value>, mut egress: Vec<Value>, swapped: bool| {
        let mut policy = policy("gress-rules", tier, 15, by_name("gryffindor"));
        if swapped {
            ingress.swap(0, 1);
            egress.swap(0, 1);
        }
        policy["spec"]["ingress"] = json!(ingress);
        policy["spec"]["egress"] = json!(egress);
        policy
    };
    let (ingress, egress) =
        (rules("ingress", [80, 5353, 9003]), rules("egress", [8080, 5353, 9003]));
    let begun = with(ingress.clone(), egress.clone(), false);
    let denying = with(ingress, egress, true);
    let both = |peer: &str, ports: [(Protocol, u16, bool); 3]| {
        let there =
            ports.map(|(one, port, allowed)| poke("gryffindor 0", peer, one, port, allowed));
        let back = ports.map(|(one, port, allowed)| poke(peer, "gryffindor 1", one, port, allowed));
        there.into_iter().chain(back).collect::<Vec<_>>()
    };
    let ports = |[a, b, c]: [u16; 3], allowed| {
        [(Protocol::Tcp, a, allowed), (Protocol::Udp, b, allowed), (Protocol::Sctp, c, allowed)]
    };
    let hufflepuff = vec![
        tcp("gryffindor 0", "hufflepuff 1", 8080, true),
        tcp("gryffindor 1", "hufflepuff 1", 80, false),
        tcp("hufflepuff 0", "gryffindor 1", 80, true),
        tcp("hufflepuff 1", "gryffindor 1", 8080, false),
    ];
    case(
        &format!("CNP{tier}TierGress"),
        vec![
            step("allow", &[&begun], both("ravenclaw 0", ports([80, 53, 9003], true))),
            step("allow at the specified ports", &[&begun], hufflepuff),
            step("deny", &[&denying], both("ravenclaw 1", ports([80, 53, 9003], false))),
            step(
                "deny at the specified ports",
                &[&denying],
                [
                    both("slytherin 0", ports([80, 53, 9003], false)),
                    both("slytherin 1", ports([8080, 5353, 9005], true)),
                ]
                .concat(),
            ),
        ],
    )
}

fn isolation(tier: &str) -> [ConformanceCase; 2] {
    let with = |direction: &str| {
        let mut policy = policy("isolation", tier, 20, by_name("gryffindor"));
        let deny = rule(direction, "Deny", by_name("slytherin"), Value::Null);
        policy["spec"][direction] = json!([deny]);
        policy
    };
    let (ingress, egress) = (with("ingress"), with("egress"));
    let to = |house: &str, allowed| tcp("gryffindor 0", &format!("{house} 0"), 80, allowed);
    let from = |house: &str, allowed| tcp(&format!("{house} 0"), "gryffindor 0", 80, allowed);
    [
        case(
            &format!("CNP{tier}TierIngressRulesEgressUnaffected"),
            vec![
                step("the rule is enforced", &[&ingress], vec![from("slytherin", false)]),
                step(
                    "egress is not affected",
                    &[&ingress],
                    vec![to("ravenclaw", true), to("hufflepuff", true)],
                ),
            ],
        ),
        case(
            &format!("CNP{tier}TierEgressRulesIngressUnaffected"),
            vec![
                step("the rule is enforced", &[&egress], vec![to("slytherin", false)]),
                step(
                    "ingress is not affected",
                    &[&egress],
                    vec![from("ravenclaw", true), from("hufflepuff", true)],
                ),
            ],
        ),
    ]
}

fn pod_selectors(tier: &str) -> ConformanceCase {
    let alone = |house: &str| json!({"pods": {"podSelector": {"matchLabels": {HOUSE: house}}}});
    let named = |house: &str, name: &str| {
        json!({"pods": {"namespaceSelector": {"matchLabels": {HOUSE: house}},
            "podSelector": {"matchLabels": {POD_NAME: name}}}})
    };
    let deny = |direction, peer| rule(direction, "Deny", peer, Value::Null);
    let mut many = policy("pod-selector-rules", tier, 20, alone("gryffindor"));
    let cedric = || named("hufflepuff", "cedric-diggory-0");
    many["spec"]["egress"] = json!([deny("egress", alone("ravenclaw")), deny("egress", cedric())]);
    many["spec"]["ingress"] =
        json!([deny("ingress", alone("slytherin")), deny("ingress", cedric())]);
    let luna = named("ravenclaw", "luna-lovegood-0");
    let mut one = policy("pod-name-subject-rules", tier, 21, luna);
    one["spec"]["egress"] = json!([deny("egress", by_name("slytherin"))]);
    let to = |peer: &str, allowed| tcp("gryffindor 0", peer, 80, allowed);
    let from = |peer: &str, allowed| tcp(peer, "gryffindor 0", 80, allowed);
    let all = [&many, &one];
    case(
        &format!("CNP{tier}TierPodSelector"),
        vec![
            step(
                "in egress peers",
                &all,
                vec![to("ravenclaw 0", false), to("hufflepuff 0", false), to("hufflepuff 1", true)],
            ),
            step(
                "in ingress peers",
                &all,
                vec![
                    from("slytherin 0", false),
                    from("hufflepuff 0", false),
                    from("hufflepuff 1", true),
                ],
            ),
            step(
                "in the subject",
                &all,
                vec![
                    tcp("slytherin 0", "hufflepuff 0", 80, true),
                    tcp("ravenclaw 0", "slytherin 0", 80, false),
                    tcp("ravenclaw 1", "slytherin 0", 80, true),
                ],
            ),
        ],
    )
}

fn port_ranges(tier: &str) -> ConformanceCase {
    let mut ranges = policy("port-range-rules", tier, 9, by_name("gryffindor"));
    let every = json!({"namespaces": {"matchExpressions": [{"key": HOUSE, "operator": "Exists"}]}});
    for direction in ["ingress", "egress"] {
        let accept = |house, ports| rule(direction, "Accept", by_name(house), ports);
        ranges["spec"][direction] = json!([
            accept("ravenclaw", range("tcp", 80, 8080)),
            accept("hufflepuff", range("udp", 53, 5353)),
            accept("slytherin", range("sctp", 9003, 9005)),
            rule(direction, "Deny", every.clone(), Value::Null),
        ]);
    }
    let peers = [
        ("ravenclaw", Protocol::Tcp, [80, 8080], (Protocol::Udp, 53)),
        ("hufflepuff", Protocol::Udp, [53, 5353], (Protocol::Tcp, 80)),
        ("slytherin", Protocol::Sctp, [9003, 9005], (Protocol::Tcp, 80)),
    ];
    let pokes = |is_egress: bool| {
        let one = |peer: String, own: &str, protocol, port, allowed| match is_egress {
            true => poke(own, &peer, protocol, port, allowed),
            false => poke(&peer, own, protocol, port, allowed),
        };
        let of = |(house, protocol, ports, (other, port)): (_, _, [u16; 2], _)| {
            let inside =
                ports.map(|port| one(format!("{house} 0"), "gryffindor 0", protocol, port, true));
            let outside = one(format!("{house} 0"), "gryffindor 1", other, port, false);
            inside.into_iter().chain([outside]).collect::<Vec<_>>()
        };
        peers.into_iter().flat_map(of).collect::<Vec<_>>()
    };
    case(
        &format!("CNP{tier}TierPortRange"),
        vec![
            step("egress port ranges across protocols", &[&ranges], pokes(true)),
            step("ingress port ranges across protocols", &[&ranges], pokes(false)),
        ],
    )
}

fn same_priority(tier: &str) -> ConformanceCase {
    let deny = |subject: &str, peer: &str, number: u16| {
        let mut policy = policy(&format!("same-{subject}-{peer}"), tier, 15, by_name(subject));
        for direction in ["ingress", "egress"] {
            let ports = port(Protocol::Tcp, number);
            policy["spec"][direction] = json!([rule(direction, "Deny", by_name(peer), ports)]);
        }
        policy
    };
    let first = deny("gryffindor", "slytherin", 80);
    let second = deny("gryffindor", "hufflepuff", 80);
    let third = deny("hufflepuff", "slytherin", 8080);
    let all = [&first, &second, &third];
    let both = |a: &str, b: &str, port, allowed| {
        let (a, b) = (format!("{a} 0"), format!("{b} 0"));
        vec![tcp(&a, &b, port, allowed), tcp(&b, &a, port, allowed)]
    };
    case(
        &format!("CNP{tier}TierSamePriority"),
        vec![
            step(
                "each policy denies in both directions",
                &all,
                [
                    both("slytherin", "gryffindor", 80, false),
                    both("hufflepuff", "gryffindor", 80, false),
                    both("slytherin", "hufflepuff", 8080, false),
                ]
                .concat(),
            ),
            step(
                "no rule is applied to another policy's subject",
                &all,
                [
                    both("slytherin", "gryffindor", 8080, true),
                    both("slytherin", "hufflepuff", 80, true),
                ]
                .concat(),
            ),
            step("other traffic is not affected", &all, both("ravenclaw", "gryffindor", 80, true)),
        ],
    )
}

fn networks(tier: &str, address: &dyn Fn(&str) -> IpAddr) -> ConformanceCase {
    let mut rules = vec![
        rule("egress", "Accept", by_pods("slytherin"), Value::Null),
        rule("egress", "Deny", json!({"networks": ["0.0.0.0/0", "::/0"]}), Value::Null),
    ];
    let with = |rules: &[Value]| {
        let mut policy = policy("inline-cidr-as-peers", tier, 85, by_pods("gryffindor"));
        policy["spec"]["egress"] = json!(rules);
        policy
    };
    let to = |peer: &str, allowed| {
        [(Protocol::Tcp, 80), (Protocol::Udp, 53), (Protocol::Sctp, 9003)]
            .map(|(protocol, port)| poke("gryffindor 1", peer, protocol, port, allowed))
    };
    let begun = with(&rules);
    let single = |peer: &str| {
        let address = address(&pod(peer));
        format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 })
    };
    let some = json!({"networks": [single("ravenclaw 0"), single("hufflepuff 0")]});
    rules.insert(0, rule("egress", "Accept", some, Value::Null));
    let allowing = with(&rules);
    case(
        &format!("CNP{tier}TierEgressInlineCIDRPeers"),
        vec![
            step(
                "deny",
                &[&begun],
                [to("ravenclaw 0", false), to("hufflepuff 0", false), to("slytherin 0", true)]
                    .concat(),
            ),
            step(
                "allow",
                &[&allowing],
                [
                    to("ravenclaw 0", true),
                    to("hufflepuff 0", true),
                    to("ravenclaw 1", false),
                    to("hufflepuff 1", false),
                ]
                .concat(),
            ),
        ],
    )
}

/// Both directions between gryffindor and slytherin.
fn slytherin(allowed: bool) -> Vec<Poke> {
    vec![
        tcp("slytherin 0", "gryffindor 0", 80, allowed),
        tcp("slytherin 1", "gryffindor 0", 8080, allowed),
        tcp("gryffindor 0", "slytherin 0", 80, allowed),
        tcp("gryffindor 1", "slytherin 0", 8080, allowed),
    ]
}

fn priorities() -> ConformanceCase {
    let with = |name: &str, tier: &str, priority, action: &str| {
        let mut policy = policy(name, tier, priority, by_pods("gryffindor"));
        for direction in ["ingress", "egress"] {
            let rule = rule(direction, action, by_pods("slytherin"), Value::Null);
            policy["spec"][direction] = json!([rule]);
        }
        policy
    };
    let deny = with("priority-50-example", "Admin", 50, "Deny");
    let pass = |priority| with("old-priority-60-new-priority-40", "Admin", priority, "Pass");
    let (low, high) = (pass(60), pass(40));
    let allow = with("default", "Baseline", 10, "Accept");
    case(
        "CNPAdminTierPriorityField",
        vec![
            step("the deny of the higher priority holds", &[&deny, &low, &allow], slytherin(false)),
            step("the pass of the new priority holds", &[&deny, &high, &allow], slytherin(true)),
        ],
    )
}

fn integration() -> ConformanceCase {
    let with = |name: &str, tier: &str, [ingress, egress]: [&str; 2]| {
        let mut policy = policy(name, tier, 10, by_label("gryffindor"));
        let rule = |direction, action| rule(direction, action, by_label("slytherin"), Value::Null);
        policy["spec"]["ingress"] = json!([rule("ingress", ingress)]);
        policy["spec"]["egress"] = json!([rule("egress", egress)]);
        policy
    };
    let admin = |actions| with("pass-example", "Admin", actions);
    let (deny, pass_in, pass) =
        (admin(["Deny", "Deny"]), admin(["Pass", "Deny"]), admin(["Pass", "Pass"]));
    let baseline = with("default", "Baseline", ["Deny", "Deny"]);
    let peer = json!([{"namespaceSelector": {"matchLabels": {HOUSE: "slytherin"}}}]);
    let own = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "allow-gress", "namespace": namespace("gryffindor")},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": peer}], "egress": [{"to": peer}]}});
    let halves = |allowed| {
        let all = slytherin(allowed);
        (all[..2].to_vec(), all[2..].to_vec())
    };
    case(
        "CNPAdminTierIntegration",
        vec![
            step("the admin tier denies", &[&deny, &own, &baseline], slytherin(false)),
            step(
                "pass-ingress: NetworkPolicy decides",
                &[&pass_in, &own, &baseline],
                halves(true).0,
            ),
            step("pass-egress: NetworkPolicy decides", &[&pass, &own, &baseline], halves(true).1),
            step("pass: the baseline tier decides", &[&pass, &baseline], slytherin(false)),
        ],
    )
}
