//! Clusters of a given size.

use std::sync::Arc;

use humanz::net::Protocol;
use humanz::policy::{
    Direction, Endpoint, Endpoints, LabelSelector, Namespace, Namespaces, Origin, PolicyKind,
    PolicyPeer, PolicyVerdict, PortRange, Requirement, Rule, Rules, Selector, Service, Tier,
};

use super::world::{HOSTS, World, name};

fn app(number: usize) -> Selector {
    let value = [format!("app{number}").try_into().unwrap()].into();
    let labels = Requirement::In("app".to_owned().try_into().unwrap(), value);
    let namespaces = Namespaces::Named(name("shop"));
    Selector::Pods { namespaces, labels: LabelSelector::new([labels]) }
}

/// So many pods on the first host; policies for ingress with so many rules each, whose peers are 10
/// pods of other hosts each.
pub fn world(pods: usize, policies: usize, rules: usize) -> World {
    let namespace = Arc::new(Namespace::new(name("shop"), Default::default()));
    let pod = |host: usize, number: usize, app: usize| Endpoint {
        namespace: namespace.clone(),
        name: name(&format!("pod-{host}-{number}")),
        uid: None,
        labels: [("app".into(), format!("app{app}").into())].into(),
        addresses: vec![
            format!("10.{}.{}.{}", 243 + host, number / 250 + 1, number % 250 + 2).parse().unwrap(),
            format!("fd00:10:{host}::{number:x}").parse().unwrap(),
        ],
        ports: Vec::new(),
        host: HOSTS[host - 1].parse().unwrap(),
        group: None,
        network: None,
        annotations: Default::default(),
    };
    let local = (0..pods).map(|number| pod(1, number, number % policies));
    let remote = (0..policies * 10).map(|number| pod(2, number, number % policies));
    let pods = local.chain(remote).collect();
    let rule = |policy: usize, place: Option<usize>| Rule {
        tier: Tier::NetworkPolicy,
        priority: u32::from(place.is_none()),
        origin: Origin {
            source: PolicyKind::NetworkPolicy,
            namespace: Some(name("shop")),
            name: name(&format!("policy{policy}")),
            index: place.map(|place| place as u16),
        },
        direction: Direction::Ingress,
        subject: app(policy % pods_with_rules(policies)),
        peers: place.map(|place| vec![PolicyPeer::Selected(app((policy + place + 1) % policies))]),
        services: place.map(|place| {
            vec![Service::Ports(Protocol::Tcp, PortRange::single(8000 + place as u16))]
        }),
        verdict: if place.is_some() { PolicyVerdict::Allow } else { PolicyVerdict::Deny },
        audit: false,
    };
    let rules = (0..policies).flat_map(|policy| {
        (0..rules).map(Some).chain([None]).map(move |place| rule(policy, place))
    });
    World::new(Endpoints { pods, nodes: Vec::new() }, Rules::new(rules.collect()))
}

/// All policies are about pods of the first host, which has a quarter of the apps.
fn pods_with_rules(policies: usize) -> usize {
    (policies / 4).max(1)
}
