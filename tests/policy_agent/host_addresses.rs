//! Networks of tenants with addresses that hosts have themselves.

use serde_json::json;

use crate::etcd::{FROM_ETCD, apply};
use crate::support::{Agent, Cluster, Place, eventually, local, soon, wait};
use crate::tenants::{blocks, is_in, namespace, network, try_add};

#[test]
fn a_network_over_addresses_of_hosts_is_refused_and_takes_no_block_if_somebody_wrote_it() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    let agents = cluster.start_agents(FROM_ETCD);
    let create = |name: &str, subnet: &str| {
        Agent::run(h1, &format!("net create blue/{name} --cidr {subnet}"), FROM_ETCD)
    };
    for subnet in ["192.0.2.0/24", "192.0.2.0/25"] {
        let refused = create("nodes", subnet);
        let why = format!("IPv4 pool {subnet} has 192.0.2.11, the address of host h1");
        assert!(!refused.succeeded() && refused.stderr.contains(&why), "{refused}");
    }
    create("front", "10.32.0.0/16").ok();
    // Nobody's command has checked it.
    let object = network("blue/nodes", json!({"subnets": ["192.0.2.0/24"]}));
    cluster.etcd.put("/humanz/v1-policies/Network/blue/nodes", object.to_string());
    apply(
        h2,
        &[namespace("blue", json!({"tenant": "blue", "network": "nodes", "allow": ["front"]}))],
    );
    let routes = || [h1, h2].map(|host| host.run("ip route").ok());
    let before = routes();
    for host in [h1, h2] {
        let problem = local::wait_problem(host, "address-conflict", "Network blue/nodes");
        assert!(problem["fix"].as_str().unwrap().contains("--cidr of net set"), "{problem}");
        let refused = eventually("the rule of the namespace", wait::SOON, || {
            host.run("ip netns del blue-a");
            match try_add(host, "blue/a", json!({})) {
                Err(refused) => Ok(refused),
                Ok(pod) => Err(pod.result.to_string()),
            }
        });
        let why = "its IPv4 pool 192.0.2.0/24 has";
        assert!(refused.code == 11 && refused.to_string().contains(why), "{refused}");
    }
    assert_eq!((blocks(&cluster), routes()), (Vec::new(), before));
    let front = try_add(h1, "blue/b", json!({"humanz.io/network": "front"})).unwrap();
    assert!(is_in(front.v4(), "10.32.0.0/16"));
    // What was wrong before stands in no way, and another subnet ends it.
    Agent::run(h1, "net set blue/nodes --shared no", FROM_ETCD).ok();
    Agent::run(h1, "net set blue/nodes --cidr 10.40.0.0/16", FROM_ETCD).ok();
    let pod = eventually("a pod of the network", wait::SOON, || {
        h1.run("ip netns del blue-c");
        try_add(h1, "blue/c", json!({})).map_err(|error| error.to_string())
    });
    assert!(is_in(pod.v4(), "10.40.0.0/16"));
    agents.iter().for_each(Agent::stop);
}

#[test]
fn a_network_where_an_interface_of_one_host_is_starts_no_pod_there() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    h1.run("ip link add storage type veth peer name cable").ok();
    h1.run("ip link set cable up").ok();
    h1.run("ip address add 10.50.7.1/24 dev storage").ok();
    h1.run("ip link set storage up").ok();
    let objects = [
        network("blue/front", json!({"subnets": ["10.50.0.0/16"]})),
        namespace("blue", json!({"tenant": "blue", "network": "front"})),
    ];
    let agents = cluster.start_agents(FROM_ETCD);
    apply(h1, &objects);
    local::wait_problem(h1, "address-conflict", "Network blue/front");
    assert_eq!(try_add(h1, "blue/a", json!({})).err().unwrap().code, 11);
    let other = eventually("a pod of the other host", wait::SOON, || {
        h2.run("ip netns del blue-a");
        try_add(h2, "blue/a", json!({})).map_err(|error| error.to_string())
    });
    assert!(is_in(other.v4(), "10.50.0.0/16"));
    h1.run("ip link del storage").ok();
    soon("the end of the problem", || !local::has_problem(&local::status(h1), "address-conflict"));
    h1.run("ip netns del blue-a");
    try_add(h1, "blue/a", json!({})).unwrap();
    agents.iter().for_each(Agent::stop);
}
