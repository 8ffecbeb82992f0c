//! Blocks and fixed addresses of tenants' networks on hosts that have a role of their own in etcd, one of them stolen.

use std::net::IpAddr;

use etcd_client::PutOptions;

use crate::roles::{Login, Scene};
use crate::support::wait::SOON;
use crate::support::{Agent, Node, Place, Pod, eventually, facts, soon};

const VARIABLES: &[(&str, &str)] = &[("POLICY", "on"), ("BLOCK_RELEASE_AFTER", "1s")];

const OBJECTS: &str = r#"[
    {"apiVersion": "humanz.io/v1", "kind": "Network", "metadata": {"tenant": "blue", "name": "front"},
        "spec": {"subnets": ["10.32.0.0/16"], "pins": ["10.32.255.0/24"]}},
    {"apiVersion": "humanz.io/v1", "kind": "NamespaceRule", "metadata": {"name": "default"},
        "spec": {"tenant": "blue", "network": "front"}},
    {"apiVersion": "humanz.io/v1", "kind": "Pin", "metadata": {"namespace": "default", "name": "db-0"},
        "spec": {"addresses": ["10.32.255.2"]}},
    {"apiVersion": "humanz.io/v1", "kind": "Pin", "metadata": {"namespace": "default", "name": "db-1"},
        "spec": {"addresses": ["10.32.255.6"]}}
]"#;

fn add(host: &Node, name: &str) -> Pod {
    let network = crate::support::cni::Network::of(host);
    eventually(&format!("{name} to start on {}", host.name()), SOON, || {
        host.run(&format!("ip netns del {name}"));
        Pod::try_add(host, name, &network).map_err(|error| error.to_string())
    })
}

#[test]
fn hosts_with_roles_have_blocks_and_fixed_addresses_and_a_stolen_one_takes_none_that_is_in_use() {
    let scene = Scene::new(Login::Password, VARIABLES);
    let [h1, h2, h3] = &scene.cluster.hosts[..] else { panic!("three hosts") };
    h1.write("/etc/root", "secret");
    h1.write("/etc/objects.json", OBJECTS);
    let root = [("ETCD_USER", "root"), ("ETCD_PASSWORD_FILE", "/etc/root"), ("POLICY", "on")];
    Agent::run(h1, "policy apply -f /etc/objects.json", &root).ok();
    let known = |host: &Node| {
        host.read("/run/humanz/ipam/.networks.json").is_some_and(|text| text.contains("db-1"))
    };
    soon("the pins on all hosts", || [h1, h2, h3].into_iter().all(known));
    let web = add(h2, "web");
    assert!(web.v4().to_string().starts_with("10.32."), "{}", web.result);
    let pinned: IpAddr = "10.32.255.2".parse().unwrap();
    let first = add(h1, "db-0");
    assert_eq!(first.v4(), pinned, "{}", first.result);
    let reaches = |pod: &Pod| {
        web.run(&format!("ping -n -c 1 -W 1 {}", pod.v4())).stdout.contains(" 0% packet loss")
    };
    soon("the pinned pod", || reaches(&first));

    // Its agent would give back what it does not know.
    scene.agents[2].kill();
    // The stolen host writes below its own name what others have, wider and narrower, and pretends to be another.
    let put = |key: &str| {
        let key = format!("/humanz/v1-blocks/{key}");
        let put = async |client: &mut etcd_client::Client| {
            client.put(key.as_str(), "blue/front", None::<PutOptions>).await.map(drop)
        };
        scene.stolen(put)
    };
    for own in ["h3/10.32.255.0-30", "h3/10.32.255.0-29", "h3/10.32.0.0-17"] {
        put(own).unwrap();
    }
    assert!(put("h1/10.32.254.0-26").is_err() && put("h33/10.32.254.0-26").is_err());
    let stolen =
        [("ETCD_USER", "h3"), ("ETCD_PASSWORD_FILE", "/etc/humanz/password"), ("POLICY", "on")];
    for line in [
        "pin release default/db-0 --force",
        "pin rm default/db-0",
        "net set blue/front --pins 10.32.9.0/24",
    ] {
        let refused = Agent::run(h3, line, &stolen);
        assert!(!refused.succeeded(), "{line}: {refused}");
    }
    crate::support::local::wait_problem(h2, "other-host", "host h3");
    assert!(reaches(&first));
    let routes = facts::routes(h2);
    assert!(routes.keys().any(|to| to.starts_with("10.32.255.0")), "{routes:?}");
    first.check().unwrap();
    // A pod with another fixed address starts, and the first again on the same host.
    let second = add(h2, "db-1");
    assert_eq!(second.v4().to_string(), "10.32.255.6", "{}", second.result);
    soon("the other pinned pod", || reaches(&second));
    scene.agents[..2].iter().for_each(Agent::stop);
}
