//! 0.1.0 reads what this release writes.

use serde_json::json;

use crate::released::{self, Alive, Config, Node, StoreEntry};
use crate::support::cni::{Attachment, Network};
use crate::support::pod::make_netns;
use crate::support::{Cluster, Pod, facts, soon};

/// With everything that a record may say.
const EVERYTHING: &[(&str, &str)] = &[("IPV6_SUBNET", "fd10::/48"), ("BACKEND", "vxlan")];

#[test]
fn the_replica_reads_what_the_release_wrote() {
    let entry: StoreEntry = released::read(include_str!("0.1.0/entry.json"));
    assert_eq!(entry.addresses.len(), 2, "{entry:?}");
    let state = released::state(include_str!("0.1.0/state.json"));
    assert_eq!((state.hosts.len(), state.claims.len()), (2, 4), "{state:?}");
}

#[test]
fn the_older_agent_can_read_keys_and_state() {
    let cluster = Cluster::new(2);
    let agents = cluster.start_agents(EVERYTHING);
    let key = |key: &str| cluster.etcd.get(&format!("/humanz/v1/{key}")).unwrap();
    let node: Node = released::read(&key("nodes/h1"));
    assert_eq!((node.subnets.len(), node.addresses.len()), (2, 2), "{node:?}");
    let config: Config = released::read(&key("config"));
    assert_eq!(config.ip_subnet_margin, Some(8), "{config:?}");
    let alive: Alive = released::read(&key("alive/h2"));
    assert!(alive.since.ends_with('Z'), "{alive:?}");
    let host: ipnetwork::IpNetwork = cluster.etcd.get("/humanz/hosts/h1").unwrap().parse().unwrap();
    assert!(node.subnets.contains(&host));
    let claim = key(&format!("subnets/4/{}", host.to_string().replace('/', "-")));
    assert_eq!(claim, "h1");
    soon("both subnets of the other host", || facts::routes(&cluster.hosts[0]).len() == 2);
    agents[0].stop();
    let state = released::state(&cluster.hosts[0].read("/var/lib/humanz/state.json").unwrap());
    assert_eq!((state.host.as_str(), state.lease.subnets["v4"]), ("h1", host));
    assert_eq!((state.nodes.len(), state.claims.len()), (2, 4));
}

#[test]
fn the_older_plugin_can_read_reservations() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let _agents = cluster.start_agents(EVERYTHING);
    make_netns(host, "a");
    let mut attachment = Attachment::new("a");
    // A part that the configuration does not offer is not passed on.
    attachment.runtime = json!({
        "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}],
        "bandwidth": {"ingressRate": 8_000_000, "ingressBurst": 8_000_000},
    });
    let pod = Pod::connect(host, &Network::of(host), attachment).unwrap();
    let store = "/run/humanz/ipam/humanz";
    for file in [pod.v4().to_string(), pod.v6().to_string(), "owners/a:eth0".to_owned()] {
        let entry: StoreEntry = released::read(&host.read(&format!("{store}/{file}")).unwrap());
        assert_eq!(entry.addresses, [pod.v4(), pod.v6()], "{entry:?}");
        assert_eq!((entry.container_id.as_str(), entry.ifname.as_str()), ("a", "eth0"));
    }
    pod.delete();
}

#[test]
fn the_older_plugin_identifies_the_link_of_its_pod() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let _agents = cluster.start_agents(EVERYTHING);
    let mut network = Network::of(host);
    for key in ["macspoofchk", "portIsolation"] {
        network.plugins[0][key] = json!(true);
    }
    let pod = Pod::try_add(host, "a", &network).unwrap_or_else(|error| panic!("{error}"));
    let link = pod.result["interfaces"][1]["name"].as_str().unwrap();
    let alias = host.read(&format!("/sys/class/net/{link}/ifalias")).unwrap();
    assert!(released::owns(alias.trim(), "humanz", "a", "eth0"), "{alias}");
    assert!(alias.contains(" port=hairpin,isolated,mac="), "{alias}");
    assert!(alias.trim().ends_with(" default/a"), "{alias}");
    pod.delete();
}
