//! Two segments and a router between them without routes to pods.

use std::net::IpAddr;

use crate::DUAL_STACK;
use crate::support::cluster::{Cluster, OUTSIDE};
use crate::support::ping::{addresses, all_reach};
use crate::support::wait::SOON;
use crate::support::web::Web;
use crate::support::{Agent, Node, Place, Pod, eventually, facts};

const VXLAN: (&str, &str) = ("BACKEND", "vxlan");
const ONLY_V6: (&str, &str) = ("IP_SUBNET", "none");

#[test]
fn pods_of_two_segments_reach_each_other_over_both_families() {
    let cluster = Cluster::routed(2, 1);
    check(&cluster, DUAL_STACK, &[IpAddr::is_ipv4, IpAddr::is_ipv6]);
    let [near, neighbour, far] = &cluster.hosts[..] else { panic!("three hosts") };
    assert_eq!(devices_of_routes(near), ["eth0", "eth0", "humanz-vx4", "humanz-vx6"]);
    assert_eq!(devices_of_routes(neighbour), devices_of_routes(near));
    assert_eq!(devices_of_routes(far), ["humanz-vx4", "humanz-vx4", "humanz-vx6", "humanz-vx6"]);
    assert_eq!((mtu(near, "humanz-vx4"), mtu(near, "humanz-vx6")), (1450, 1430));
}

#[test]
fn pods_with_ipv6_alone_reach_each_other_across_the_router() {
    check(&Cluster::routed(1, 1), &[ONLY_V6, DUAL_STACK[0]], &[IpAddr::is_ipv6]);
}

#[test]
fn pods_with_ipv4_alone_reach_each_other_across_the_router() {
    let cluster = Cluster::routed(1, 1);
    check(&cluster, &[], &[IpAddr::is_ipv4]);
    assert_eq!(devices_of_routes(&cluster.hosts[0]), ["humanz-vx4"]);
    assert_eq!(mtu(&cluster.hosts[0], "humanz0"), 1450, "nothing goes over IPv6");
}

/// Hosts that share a segment and shall have tunnels all the same.
#[test]
fn tunnels_can_be_enabled_on_one_segment() {
    let cluster = Cluster::new(2);
    check(&cluster, &[VXLAN, DUAL_STACK[0]], &[IpAddr::is_ipv4, IpAddr::is_ipv6]);
    assert_eq!(devices_of_routes(&cluster.hosts[0]), ["humanz-vx4", "humanz-vx6"]);
}

#[test]
fn pods_of_both_families_reach_each_other_where_hosts_have_ipv6_alone() {
    let cluster = Cluster::routed(1, 1);
    for host in &cluster.hosts {
        host.run("ip -4 address flush dev eth0").ok();
    }
    let etcd = format!("http://[{}]:2379", cluster.etcd.node.v6());
    let variables = [DUAL_STACK[0], ("ETCD_HOST", &etcd)];
    let _agents = cluster.start_agents(&variables);
    let pods: Vec<Pod> = cluster.hosts.iter().map(|host| Pod::add(host, "a")).collect();
    let places: Vec<&dyn Place> = pods.iter().map(|pod| pod as &dyn Place).collect();
    all_reach(&places, &addresses(&places));
    for address in pods[1].addresses() {
        Web::serve(&pods[1], address).fetch(&pods[0]);
    }
    assert_eq!(devices_of_routes(&cluster.hosts[0]), ["humanz-vx6", "humanz-vx6"]);
}

#[test]
fn a_firewall_that_drops_tunnels_is_reported_with_the_fix() {
    let cluster = Cluster::routed(1, 1);
    let agents = cluster.start_agents(&[]);
    let far = &cluster.hosts[1];
    wait_for_routes(far, 1);
    far.shell(
        "iptables-nft -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
         iptables-nft -A INPUT -p icmp -j ACCEPT
         iptables-nft -P INPUT DROP",
    )
    .ok();
    let words = ["ERROR", "chain INPUT", "drops the tunnels of other hosts (UDP port 10400)"];
    let line = agents[1].wait_log(&words);
    let pods: Vec<Pod> = cluster.hosts.iter().map(|host| Pod::add(host, "a")).collect();
    let ping = format!("ping -c 1 -W 1 {}", pods[1].v4());
    assert!(!pods[0].run(&ping).succeeded(), "tunnels are dropped");
    let fix = line.rsplit_once("; ").unwrap().1.replace("iptables", "iptables-nft");
    far.run(&fix).ok();
    pods[0].until_ok(&ping, crate::support::wait::SOON);
    agents[1].wait_log(&[&["no longer"], &words[1..]].concat());
}

/// With agents that have the settings `variables`, pods of all hosts reach each other, the hosts
/// and the outside by each of `families`.
fn check(cluster: &Cluster, variables: &[(&str, &str)], families: &[fn(&IpAddr) -> bool]) {
    let _agents: Vec<Agent> = cluster.start_agents(variables);
    for host in &cluster.hosts {
        wait_for_routes(host, families.len() * (cluster.hosts.len() - 1));
    }
    let pods: Vec<Pod> = cluster.hosts.iter().map(|host| Pod::add(host, "a")).collect();
    let sources: Vec<&dyn Place> = pods.iter().map(|pod| pod as &dyn Place).collect();
    let mut targets = addresses(&sources);
    targets.extend(pods.iter().flat_map(Pod::gateways));
    let hosts: Vec<&dyn Place> = cluster.hosts.iter().map(|host| host as &dyn Place).collect();
    all_reach(&sources, &targets);
    all_reach(&hosts, &targets);
    for family in families {
        let of = |place: &dyn Place| place.addresses().into_iter().find(family).unwrap();
        all_reach(&sources, &hosts.iter().map(|host| of(*host)).collect::<Vec<_>>());
        downloads_show_the_source_address(cluster, &pods, &of);
    }
}

/// A pod is seen as itself by pods, as its host by a host that is behind a tunnel and by the
/// outside.
fn downloads_show_the_source_address(
    cluster: &Cluster,
    pods: &[Pod],
    of: &dyn Fn(&dyn Place) -> IpAddr,
) {
    let (near, far) = (&pods[0], &pods[pods.len() - 1]);
    let (near_host, far_host) = (&cluster.hosts[0], &cluster.hosts[pods.len() - 1]);
    let in_pod = Web::serve(near, of(near));
    in_pod.fetch(far);
    in_pod.fetch(far_host);
    assert_eq!(in_pod.seen()[0], of(far), "pod to pod");
    let gateways = far.gateways();
    assert!(gateways.contains(&in_pod.seen()[1]), "host to pod: {:?}", in_pod.seen());
    Web::serve(far, of(far)).fetch(near);

    let on_host = Web::serve(far_host, of(far_host));
    on_host.fetch(near);
    assert_eq!(on_host.seen(), [of(near_host)], "pod to another host");

    let address = OUTSIDE.into_iter().find(|address| address.is_ipv4() == of(near).is_ipv4());
    let outside = Web::serve(&cluster.outside, address.unwrap());
    outside.fetch(near);
    outside.fetch(far);
    assert_eq!(outside.seen(), [of(near_host), of(far_host)], "pod to outside");
}

/// The devices of the routes to other hosts' pods, sorted.
fn devices_of_routes(host: &Node) -> Vec<String> {
    let mut devices: Vec<String> = facts::devices(host).into_values().collect();
    devices.sort();
    devices
}

fn wait_for_routes(host: &Node, count: usize) {
    crate::support::eventually(
        &format!("{} has {count} routes", host.name()),
        crate::support::wait::SOON,
        || {
            let routes = facts::devices(host);
            if routes.len() == count { Ok(()) } else { Err(format!("{routes:?}")) }
        },
    );
}

fn mtu(host: &Node, link: &str) -> u32 {
    let text = host.read(&format!("/sys/class/net/{link}/mtu"));
    text.unwrap_or_else(|| panic!("{}: no {link}", host.name())).trim().parse().unwrap()
}

/// The device stays: another host may still be sending.
#[test]
fn a_tunnel_that_leads_to_no_host_any_more_raises_no_alarm() {
    let cluster = Cluster::routed(1, 1);
    let agents = cluster.start_agents(&[]);
    let host = &cluster.hosts[0];
    let bridge = |wanted: &str| {
        eventually(&format!("pods get MTU {wanted}"), SOON, || {
            let shown = host.run("ip -o link show humanz0").ok();
            if shown.contains(&format!("mtu {wanted} ")) { Ok(()) } else { Err(shown) }
        });
    };
    bridge("1450");
    agents[1].stop();
    Agent::run(host, "nodes rm h2 --force", &[]).ok();
    bridge("1500");
    host.run("ip link show humanz-vx4").ok();
    let doctor = Agent::run(host, "doctor", &[]);
    assert!(!doctor.stdout.contains("through a tunnel"), "{doctor}");
}
