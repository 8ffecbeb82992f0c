//! Networks of one family alone, on hosts whose pods have both.

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::etcd::{FROM_ETCD, apply, pings};
use crate::meta_plugin::further;
use crate::support::ping::round_trip;
use crate::support::{Agent, Cluster, Node, Place, Pod, soon};
use crate::tenant_interfaces::addresses;
use crate::tenants::{add, blocks, is_in, namespace, network, try_add};
use crate::traffic::{Flood, Server};

/// A network of IPv6 alone for `shop`, which may have the one of IPv4, too; the group `db` takes connections of `web`
/// alone. `bank` has one of each family in another tenant.
fn objects() -> Vec<Value> {
    let of = |kind: &str, name: &str, spec: Value| {
        json!({"apiVersion": "humanz.io/v1", "kind": kind,
            "metadata": {"tenant": "blue", "name": name}, "spec": spec})
    };
    let from_web =
        json!({"rules": [{"direction": "in", "action": "allow", "peer": {"group": "web"}}]});
    let allow = json!(["four", "db", "web"]);
    vec![
        network("blue/six", json!({"subnets": ["fd00:36::/64"]})),
        network("blue/four", json!({"subnets": ["10.36.0.0/16"]})),
        network("red/six", json!({"subnets": ["fd00:37::/64"]})),
        network("red/four", json!({"subnets": ["10.37.0.0/16"]})),
        of("GroupPolicy", "from-web", from_web),
        of("Group", "db", json!({"policies": ["from-web"], "default": {"in": "deny"}})),
        of("Group", "web", json!({})),
        namespace("shop", json!({"tenant": "blue", "network": "six", "allow": allow})),
        namespace("bank", json!({"tenant": "red", "network": "six", "allow": ["four"]})),
    ]
}

fn pod(host: &Node, name: &str, is_v6: bool, group: Option<&str>) -> Pod {
    let name = format!("{name}{}", if is_v6 { 6 } else { 4 });
    let mut words = json!({"humanz.io/network": if is_v6 { "six" } else { "four" }});
    if let Some(group) = group {
        words["humanz.io/group"] = json!(group);
    }
    try_add(host, &name, words).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The one address of a pod.
fn only(pod: &Pod) -> IpAddr {
    let all = pod.addresses();
    assert_eq!(all.len(), 1, "{}", pod.result);
    all[0]
}

const FAMILIES: [&str; 2] = ["-4", "-6"];

/// Addresses and default routes by `ip FAMILY`.
fn has(pod: &Pod, family: &str) -> (usize, String) {
    let found = pod.run(&format!("ip {family} -o address show scope global")).ok();
    (found.lines().count(), pod.run(&format!("ip {family} route show default")).ok())
}

fn has_one_family(pod: &Pod, is_v6: bool) {
    let subnet = if is_v6 { "fd00:36::/64" } else { "10.36.0.0/16" };
    assert!(is_in(only(pod), subnet), "{}", pod.result);
    let (count, default) = has(pod, FAMILIES[usize::from(is_v6)]);
    assert!(count == 1 && default.contains("via") && default.contains("dev eth0"), "{default}");
    assert_eq!(has(pod, FAMILIES[usize::from(!is_v6)]), (0, String::new()), "{}", pod.label());
    pod.check().unwrap_or_else(|error| panic!("{}: CHECK: {error}", pod.label()));
}

/// Whether packets arrive that the pod `from` sends to one of the other family, by the host, with an address that it gives
/// itself.
fn arrives_with(own: IpAddr, from: &Pod, to: &Pod) -> bool {
    let bits = if own.is_ipv4() { 32 } else { 128 };
    let mac = from.node().read("/sys/class/net/humanz0/address").unwrap();
    let to_address = only(to);
    from.shell(&format!(
        "ip address replace {own}/{bits} dev eth0 {}
         ip route replace {to_address} dev eth0 src {own}
         ip neighbour replace {to_address} lladdr {} dev eth0",
        if own.is_ipv4() { "" } else { "nodad" },
        mac.trim(),
    ))
    .ok();
    let mut server = Server::open_at(to, to_address);
    let flood = Flood::start(from, to_address);
    (0..5).for_each(|_| flood.go_on());
    server.total() > 0
}

#[test]
fn networks_of_ipv6_alone_and_of_ipv4_alone_work_on_hosts_with_both() {
    let cluster = Cluster::new(2);
    let hosts @ [h1, _] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &objects());
    let agents = cluster.start_agents(FROM_ETCD);
    let mut last = Vec::new();
    for is_v6 in [true, false] {
        let [near, far] = hosts.map(|host| pod(host, "shop/a", is_v6, None));
        let here = pod(h1, "shop/b", is_v6, None);
        let db = hosts.map(|host| pod(host, "shop/db", is_v6, Some("db")));
        let web = pod(h1, "shop/web", is_v6, Some("web"));
        let red = hosts.map(|host| pod(host, "bank/r", is_v6, None));
        for pod in [&near, &far, &here, &db[0], &web] {
            has_one_family(pod, is_v6);
        }
        for (from, to) in [(&near, &far), (&far, &near), (&near, &here), (&here, &near)] {
            let what = format!("{} reaches {}", from.label(), to.label());
            soon(&what, || round_trip(from, only(to)).is_ok());
        }
        assert!(round_trip(&near, cluster.outside.addresses()[usize::from(is_v6)]).is_ok());
        for db in &db {
            soon(&format!("the group of {}", db.label()), || pings(&web, only(db)));
            assert!(!pings(&near, only(db)) && !pings(&far, only(db)), "{}", db.label());
        }
        for red in &red {
            assert!(!pings(red, only(&near)) && !pings(&near, only(red)), "{}", red.label());
        }
        last.push([near, far, here]);
    }
    let held = blocks(&cluster);
    assert_eq!(held.len(), 8, "{held:?}");
    // A pod takes the address of another one, of the family that it has not: the guard lets nothing of it out.
    let [six, four] = &last[..] else { panic!("two families") };
    for (one, other) in [(six, four), (four, six)] {
        for to in &other[..2] {
            assert!(!arrives_with(only(&other[2]), &one[0], to), "to {}", to.label());
        }
        soon("its own address all the while", || pings(&one[1], only(&one[0])));
    }
    // It is the guard: without it they arrive.
    agents.iter().for_each(Agent::stop);
    h1.run("nft delete table netdev humanz").ok();
    for (one, other) in [(six, four), (four, six)] {
        assert!(arrives_with(only(&other[2]), &one[0], &other[1]), "{}", one[0].label());
    }
}

/// The first interface has the default route of its family; that of the other one is none of a further interface
/// which the pod lists, and that of a meta plugin's, whose call is one of its own.
#[test]
fn a_pod_has_interfaces_in_networks_of_different_families() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &objects());
    let agents = cluster.start_agents(FROM_ETCD);
    let (six, four) = (pod(h2, "shop/a", true, None), pod(h2, "shop/a", false, None));
    let both = try_add(h1, "shop/both", json!({"humanz.io/networks": "six,four@net1"})).unwrap();
    let (eth0, net1) = (addresses(&both, "eth0"), addresses(&both, "net1"));
    assert!(eth0.len() == 1 && is_in(eth0[0], "fd00:36::/64"), "{}", both.result);
    assert!(net1.len() == 1 && is_in(net1[0], "10.36.0.0/16"), "{}", both.result);
    assert!(has(&both, "-6").1.contains("dev eth0"), "{:?}", has(&both, "-6"));
    assert_eq!(has(&both, "-4").1, "", "a further interface has no default route");
    let ways = |pod: &Pod, eth0: IpAddr, net1: IpAddr| {
        for (from, to) in [(&six, eth0), (pod, only(&six)), (&four, net1), (pod, only(&four))] {
            soon(&format!("{} reaches {to}", from.label()), || round_trip(from, to).is_ok());
        }
        pod.check().unwrap_or_else(|error| panic!("{}: CHECK: {error}", pod.label()));
    };
    ways(&both, eth0[0], net1[0]);
    assert!(round_trip(&both, cluster.outside.v6().into()).is_ok());
    assert!(round_trip(&both, cluster.outside.v4().into()).is_err());
    both.delete();

    let first = add(h1, "shop/first");
    let second = further(h1, &first, "four");
    assert!(has(&first, "-6").1.contains("dev eth0"), "{:?}", has(&first, "-6"));
    assert!(has(&first, "-4").1.contains("dev net1"), "{:?}", has(&first, "-4"));
    ways(&first, only(&first), only(&second));
    second.check().unwrap_or_else(|error| panic!("net1: CHECK: {error}"));
    for outside in cluster.outside.addresses() {
        assert!(round_trip(&first, outside).is_ok(), "{outside}");
    }
    agents.iter().for_each(Agent::stop);
}
