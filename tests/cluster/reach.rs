//! Pods reach pods, gateways, hosts and the outside.

use std::net::IpAddr;

use crate::DUAL_STACK;
use crate::support::cluster::{Cluster, OUTSIDE};
use crate::support::ping::{addresses, all_reach};
use crate::support::web::Web;
use crate::support::{Node, Place, Pod};

#[test]
fn pods_of_three_hosts_reach_each_other_over_ipv4() {
    check(&[], &[IpAddr::is_ipv4]);
}

#[test]
fn pods_of_three_hosts_reach_each_other_over_ipv6() {
    check(&[("IP_SUBNET", "none"), DUAL_STACK[0]], &[IpAddr::is_ipv6]);
}

#[test]
fn pods_of_three_hosts_reach_each_other_over_both_families() {
    check(DUAL_STACK, &[IpAddr::is_ipv4, IpAddr::is_ipv6]);
}

/// With agents that have the settings `variables`, pods have an address of each of `families`, and
/// by each they reach everything they should.
fn check(variables: &[(&str, &str)], families: &[fn(&IpAddr) -> bool]) {
    let cluster = Cluster::new(3);
    let _agents = cluster.start_agents(variables);
    let pods: Vec<Pod> = cluster.hosts.iter().flat_map(two_pods).collect();
    for pod in &pods {
        assert_eq!(pod.addresses().len(), families.len(), "{}: {}", pod.label(), pod.result);
        pod.check().unwrap_or_else(|e| panic!("{}: CHECK: {e}", pod.label()));
    }
    let sources: Vec<&dyn Place> = pods.iter().map(|pod| pod as &dyn Place).collect();
    let mut targets = addresses(&sources);
    targets.extend(pods.iter().flat_map(Pod::gateways));
    targets.sort();
    targets.dedup();
    all_reach(&sources, &targets);
    let hosts: Vec<&dyn Place> = cluster.hosts.iter().map(|host| host as &dyn Place).collect();
    all_reach(&hosts, &targets);
    for family in families {
        let of = |place: &dyn Place| place.addresses().into_iter().find(family).unwrap();
        all_reach(&sources, &hosts.iter().map(|host| of(*host)).collect::<Vec<_>>());
        downloads_show_the_source_address(&cluster, &pods, &of);
    }
    for pod in pods {
        pod.delete();
    }
}

fn two_pods(host: &Node) -> [Pod; 2] {
    ["a", "b"].map(|name| Pod::add(host, name))
}

/// A pod is seen as itself by pods and hosts, and as its host by the outside.
fn downloads_show_the_source_address(
    cluster: &Cluster,
    pods: &[Pod],
    of: &dyn Fn(&dyn Place) -> IpAddr,
) {
    let (near, far) = (&pods[0], &pods[2]);
    let in_pod = Web::serve(near, of(near));
    in_pod.fetch(&pods[1]);
    in_pod.fetch(far);
    assert_eq!(in_pod.seen(), [of(&pods[1]), of(far)], "pod to pod");

    let on_host = Web::serve(&cluster.hosts[1], of(&cluster.hosts[1]));
    on_host.fetch(near);
    assert_eq!(on_host.seen(), [of(near)], "pod to another host");

    let address = OUTSIDE.into_iter().find(|address| address.is_ipv4() == of(near).is_ipv4());
    let outside = Web::serve(&cluster.outside, address.unwrap());
    outside.fetch(near);
    outside.fetch(far);
    let hosts = [of(&cluster.hosts[0]), of(&cluster.hosts[1])];
    assert_eq!(outside.seen(), hosts, "pod to outside");
}
