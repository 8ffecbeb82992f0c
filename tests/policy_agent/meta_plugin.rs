//! Pods whose further interfaces a meta plugin adds, with calls of their own, as Multus does.

use serde_json::{Value, json};

use crate::etcd::{FROM_ETCD, apply};
use crate::support::cni::{Attachment, Failure, Network};
use crate::support::ping::round_trip;
use crate::support::{Agent, Cluster, Node, Place, Pod, facts, soon};
use crate::tenants::{add, is_in, namespace, network, try_add, with_two_networks};

const STORE: &str = "/run/humanz/ipam/humanz";
const PLANS: &str = "/run/humanz/ipam/.networks.json";

/// A second call for the container of `pod`, with the configuration of an attachment that says the network.
fn try_further(host: &Node, pod: &Pod, network: &str) -> Result<Pod, Box<Failure>> {
    let mut further = Network::of(host);
    further.plugins[0]["args"] = json!({"cni": {"labels": {"humanz.io/network": network}}});
    let net1 = "net1".to_owned();
    let attachment = Attachment { ifname: net1, runtime: Value::Null, ..pod.attachment.clone() };
    Pod::connect(host, &further, attachment)
}

pub fn further(host: &Node, pod: &Pod, network: &str) -> Pod {
    try_further(host, pod, network).unwrap_or_else(|error| panic!("{}: {error}", pod.label()))
}

/// DEL of this interface, and the container stays.
fn del(host: &Node, interface: &Pod) {
    interface.network.del(host, &interface.attachment, &interface.result).unwrap();
}

fn both_ways(one: &Pod, other: &Pod) -> bool {
    let reaches =
        |from, to: &Pod| [to.v4(), to.v6()].iter().all(|it| round_trip(from, *it).is_ok());
    reaches(one, other) && reaches(other, one)
}

fn stored(host: &Node, interface: &Pod) -> usize {
    let store = host.list(STORE);
    interface.addresses().iter().filter(|it| store.contains(&it.to_string())).count()
}

#[test]
fn a_meta_plugin_adds_and_removes_interfaces_in_networks_of_tenants() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &with_two_networks());
    let agents = cluster.start_agents(FROM_ETCD);
    let front = add(h2, "shop/front");
    let back = try_add(h2, "shop/back", json!({"humanz.io/network": "back"})).unwrap();
    let red = add(h1, "red/a");

    let eth0 = add(h1, "shop/both");
    for refused in ["red/front", "nothing", "../../x"] {
        let failure = try_further(h1, &eth0, refused).err().unwrap();
        assert_eq!(failure.code, 7, "{refused}: {failure}");
    }
    assert_eq!(facts::veths(h1).len(), 2, "nothing is left of what was refused");
    let twice = try_further(h1, &eth0, "front").err().unwrap();
    assert!(
        twice.code == 7 && twice.to_string().contains("in network 10.32.0.0/16 already"),
        "{twice}"
    );
    assert_eq!(facts::veths(h1).len(), 2, "nor of the same network twice");
    let net1 = further(h1, &eth0, "back");
    assert!(is_in(net1.v4(), "10.34.0.0/16") && is_in(net1.v6(), "fd00:34::/64"));
    for family in ["-4", "-6"] {
        let defaults = eth0.run(&format!("ip {family} route show default")).ok();
        assert!(defaults.contains("dev eth0") && !defaults.contains("dev net1"), "{defaults}");
    }
    soon("the first network", || both_ways(&eth0, &front));
    soon("the second network, on another host", || both_ways(&net1, &back));
    for to in eth0.addresses().into_iter().chain(net1.addresses()) {
        let ping = red.run(&format!("ping -n -c 1 -W 1 {to}")).stdout;
        assert!(ping.contains(" 100% packet loss"), "another tenant reaches {to}");
    }
    let seen = Agent::run(h1, "endpoint ls", FROM_ETCD).ok();
    assert!(net1.addresses().iter().all(|it| seen.contains(&it.to_string())), "{seen}");
    for interface in [&eth0, &net1] {
        interface.check().unwrap_or_else(|error| panic!("CHECK: {error}"));
    }
    let again = try_further(h1, &eth0, "back").err().unwrap();
    assert_eq!(again.code, 102, "{again}");

    // Each of the two goes alone, by DEL and by GC.
    del(h1, &net1);
    assert!(stored(h1, &net1) == 0 && stored(h1, &eth0) == 2);
    eth0.check().unwrap_or_else(|error| panic!("CHECK after DEL of net1: {error}"));
    let net1 = further(h1, &eth0, "back");
    let latest = Network::of(h1).with_version("1.1.0");
    latest.gc(h1, &[&eth0.attachment, &net1.attachment, &red.attachment]).unwrap();
    assert!(stored(h1, &net1) == 2 && both_ways(&net1, &back));
    latest.gc(h1, &[&eth0.attachment, &red.attachment]).unwrap();
    assert!(stored(h1, &net1) == 0 && both_ways(&eth0, &front));
    eth0.check().unwrap_or_else(|error| panic!("CHECK after GC of net1: {error}"));
    let net1 = further(h1, &eth0, "back");
    del(h1, &eth0);
    assert!(stored(h1, &net1) == 2 && stored(h1, &eth0) == 0);
    net1.check().unwrap_or_else(|error| panic!("CHECK after DEL of eth0: {error}"));
    soon("the second network alone", || both_ways(&net1, &back));
    latest.gc(h1, &[&red.attachment]).unwrap();
    assert_eq!((facts::veths(h1).len(), stored(h1, &net1)), (1, 0));
    agents.iter().for_each(Agent::stop);
}

/// The address of its name is that of its first interface, and the others have what is free.
#[test]
fn a_pinned_pod_gets_a_further_interface_of_a_meta_plugin() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let pinned = json!({"subnets": ["10.36.0.0/16"], "pins": ["10.36.255.0/24"]});
    let more = [
        network("blue/data", pinned),
        network("blue/back", json!({"subnets": ["10.34.0.0/16"]})),
        namespace("shop", json!({"tenant": "blue", "network": "data", "allow": ["back"]})),
    ];
    apply(host, &more);
    let agents = cluster.start_agents(FROM_ETCD);
    Agent::run(host, "pin create shop/db-0 --network blue/data", FROM_ETCD).ok();
    soon("the pin to be known", || host.read(PLANS).is_some_and(|text| text.contains("db-0")));
    let eth0 = add(host, "shop/db-0");
    assert_eq!(eth0.v4().to_string(), "10.36.255.2");
    let net1 = further(host, &eth0, "back");
    assert!(is_in(net1.v4(), "10.34.0.0/16"), "{}", net1.result);
    for interface in [&eth0, &net1] {
        interface.check().unwrap_or_else(|error| panic!("CHECK: {error}"));
    }
    // Another container of that name has not its address.
    del(host, &net1);
    del(host, &eth0);
    let refused = try_further(host, &eth0, "back").err().unwrap();
    assert!(refused.code == 7 && refused.to_string().contains("10.36.255.2"), "{refused}");
    agents.iter().for_each(Agent::stop);
}
