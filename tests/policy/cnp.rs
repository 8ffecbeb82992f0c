//! `evaluate` decides the cases of ClusterNetworkPolicy's conformance suite as that does.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use humanz::policy::{Endpoint, Endpoints, Namespace, Tuple, evaluate};

use crate::conformance::{HOUSE, HOUSES, POD_NAME, cases, namespace};
use crate::reachability::{labels, understood};

fn cluster() -> Endpoints {
    let mut pods = Vec::new();
    for (at, (house, name)) in HOUSES.into_iter().enumerate() {
        let own = Namespace::new(namespace(house).parse().unwrap(), labels(&[(HOUSE, house)]));
        let own = Arc::new(own);
        for number in 0..2 {
            let name = format!("{name}-{number}");
            pods.push(Endpoint {
                namespace: own.clone(),
                name: name.parse().unwrap(),
                uid: None,
                labels: labels(&[(HOUSE, house), (POD_NAME, &name)]),
                addresses: vec![
                    format!("10.244.1.{}", 2 * at + number + 2).parse().unwrap(),
                    format!("fd00:1::{}", 2 * at + number + 2).parse().unwrap(),
                ],
                ports: Vec::new(),
                host: "h1".parse().unwrap(),
                group: None,
                network: None,
                annotations: Default::default(),
            });
        }
    }
    Endpoints { pods, nodes: Vec::new() }
}

#[test]
fn the_cases_of_the_conformance_suite_hold_in_both_families() {
    let cluster = cluster();
    let (mut names, mut pokes) = (BTreeSet::new(), 0);
    for v6 in [false, true] {
        let address = |name: &str| -> IpAddr {
            let pod = cluster.pods.iter().find(|pod| pod.to_string() == name).unwrap();
            *pod.addresses.iter().find(|address| address.is_ipv6() == v6).unwrap()
        };
        for case in cases(&address) {
            for step in &case.steps {
                let rules = understood(&step.policies);
                for poke in &step.pokes {
                    let (source, destination) = (address(&poke.from), address(&poke.to));
                    let tuple = Tuple { source, destination, transport: poke.transport };
                    let found = evaluate(&rules, &cluster, &tuple).allowed();
                    assert_eq!(found, poke.allowed, "{}: {}: {poke:?}", case.name, step.name);
                    pokes += 1;
                }
            }
            names.insert(case.name);
        }
    }
    println!("{} cases, {pokes} connections", names.len());
    assert!(names.len() == 28 && pokes > 500, "{} {pokes}", names.len());
}
