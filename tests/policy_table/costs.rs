//! What the user of one namespace writes costs no more than the text is long: peers and services of a rule add
//! up.

use humanz::net::{Family, Protocol};
use humanz::policy::compile::compile;
use humanz::policy::{
    Direction, LabelSelector, NamedPort, Namespaces, Origin, PolicyKind, PolicyPeer, PolicyVerdict,
    PortRange, Requirement, Rule, Rules, Selector, Service, Tier, evaluate,
};

use super::agreement::expected;
use super::interpreter::Packet;
use super::random::Random;
use super::world::{PORTS, World, name};

/// Kinds of services of which a rule may have any number: protocols, ports of three of them, types of ICMP,
/// ports by name, and ports of the host.
const GROUPS: usize = 7;

/// Every pod of the first host listens at these.
fn port_name(number: usize) -> String {
    format!("port{number}")
}

/// So many of each kind.
fn services(count: usize) -> Vec<Service> {
    let mut services = vec![Service::HostPort];
    for number in 0..count {
        let range = PortRange::single(20_000 + 2 * number as u16);
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            services.push(Service::Ports(protocol, range));
            services.push(Service::Named(Some(protocol), name(&port_name(number))));
        }
        services.push(Service::Named(None, name(&port_name(number))));
        services.push(Service::Protocol(100 + (number % 100) as u8));
        for family in Family::BOTH {
            let (kind, code) = ((number % 100) as u8, (number % 2 == 0).then_some(0));
            services.push(Service::Icmp { family, kind, code });
        }
    }
    services
}

/// Networks of both families with an exception each, which do not touch; every second one twice.
fn networks(count: usize) -> Vec<PolicyPeer> {
    let network = |cidr: String, except: String| PolicyPeer::Network {
        cidr: cidr.parse().unwrap(),
        except: vec![except.parse().unwrap()],
    };
    let of = |number: usize| {
        [
            network(format!("10.244.2.{}/31", 4 * number), format!("10.244.2.{}/32", 4 * number)),
            network(format!("fd00:10:2:{number:x}::/64"), format!("fd00:10:2:{number:x}::/65")),
        ]
    };
    (0..count).chain((0..count).step_by(2)).flat_map(of).collect()
}

fn selectors(count: usize) -> Vec<PolicyPeer> {
    let selector = |number: usize| {
        let value = [format!("app{number}").try_into().unwrap()].into();
        let one = Requirement::In("app".to_owned().try_into().unwrap(), value);
        let namespaces = Namespaces::Named(name("a"));
        PolicyPeer::Selected(Selector::Pods { namespaces, labels: LabelSelector::new([one]) })
    };
    (0..count).chain(0..count).map(selector).collect()
}

/// The rules of one namespace with these lists, and its isolation, in both directions.
fn rules(peers: &[PolicyPeer], services: &[Service]) -> Rules {
    let rule = |direction, place: Option<u16>| Rule {
        tier: Tier::NetworkPolicy,
        priority: u32::from(place.is_none()),
        origin: Origin {
            source: PolicyKind::NetworkPolicy,
            namespace: Some(name("a")),
            name: name("many"),
            index: place,
        },
        direction,
        subject: Selector::every_pod(),
        peers: place.map(|_| peers.to_vec()),
        services: place.map(|_| services.to_vec()),
        verdict: if place.is_some() { PolicyVerdict::Allow } else { PolicyVerdict::Deny },
        audit: false,
    };
    let both = Direction::BOTH.into_iter();
    Rules::new(both.flat_map(|it| [rule(it, Some(0)), rule(it, None)]).collect())
}

/// Pods of both hosts that have ports of the names that rules ask for.
fn world(rules: Rules) -> World {
    let mut random = Random::new(1);
    let mut endpoints = World::random(&mut random).endpoints;
    for (number, pod) in endpoints.pods.iter_mut().enumerate() {
        pod.labels.insert("app".into(), format!("app{}", number % 4).into());
        pod.ports = (0..3)
            .map(|place| NamedPort {
                name: name(&port_name(place)),
                protocol: [Protocol::Tcp, Protocol::Udp, Protocol::Sctp][place],
                port: PORTS[(number + place) % PORTS.len()],
            })
            .collect();
    }
    World::new(endpoints, rules)
}

/// The nft rules of the longest program, and the elements of the largest set.
fn size(world: &World) -> (usize, usize) {
    world.on_host(0, |host| {
        let table = compile(host);
        let rules = table.chains().values().map(|chain| chain.rules.len());
        let elements = table.sets().values().map(|set| set.elements.len());
        (rules.max().unwrap(), elements.max().unwrap())
    })
}

#[test]
fn a_rule_of_many_networks_and_services_is_a_few_rules_of_the_table() {
    let sizes = [4, 40].map(|count| size(&world(rules(&networks(count), &services(count)))));
    let most = 2 * GROUPS + 8;
    assert!(sizes.iter().all(|(rules, _)| *rules <= most), "{sizes:?}");
    assert_eq!(sizes[0].0, sizes[1].0);
    // The largest set is that of ports, with those that the pod has itself.
    assert_eq!(sizes[1].1, 40 + 1, "an element for each network and port, duplicates once");
}

#[test]
fn selected_peers_of_a_rule_are_counted_once_for_each_group_of_services() {
    let sizes = [4, 40].map(|count| size(&world(rules(&selectors(count), &services(count)))).0);
    assert!(sizes[1] <= 2 * 40 * GROUPS + 8, "{sizes:?}");
    assert_eq!(sizes[1] - sizes[0], 36 * 2 * GROUPS);
}

#[test]
fn a_rule_of_many_peers_and_services_matches_what_each_of_them_would() {
    let mut verdicts = [0; 2];
    for count in [1, 3, 30] {
        let mut peers = networks(count);
        peers.extend(selectors(count.min(2)));
        let world = world(rules(&peers, &services(count)));
        let tables = [0, 1].map(|host| world.on_host(host, |host| compile(host).ruleset(1 << 16)));
        let mut random = Random::new(count as u64);
        for _ in 0..3_000 {
            let tuple = world.connection(&mut random);
            let judgement = evaluate(&world.rules, &world.endpoints, &tuple);
            for (host, table) in tables.iter().enumerate() {
                let wanted = expected(&world, host, &tuple, &judgement);
                let passes = Packet::first(tuple).at(host).passes(table);
                assert_eq!(passes, wanted, "{count} of each, host {host}, {tuple}");
                verdicts[usize::from(passes)] += 1;
            }
        }
    }
    assert!(verdicts.iter().all(|count| *count > 1_000), "{verdicts:?}");
}
