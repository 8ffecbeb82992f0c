//! Pods with two interfaces: policies, groups and guards hold on each of them.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use serde_json::{Value, json};

use crate::PORT;
use crate::etcd::{FROM_ETCD, apply, pings};
use crate::support::wait::SOON;
use crate::support::{Agent, Cluster, Node, Place, Pod, eventually, soon};
use crate::tenant_interfaces::addresses;
use crate::tenants::{namespace, network, try_add};
use crate::traffic::{Flood, Server};

/// The group `db` is reached by `web`, whichever way, and from the network `back`; the group `gate` reaches `web` alone.
/// Pods with the label `app=policed` are reached by those with `app=friend`.
fn objects() -> Vec<Value> {
    let of = |kind: &str, name: &str, spec: Value| {
        json!({"apiVersion": "humanz.io/v1", "kind": kind,
            "metadata": {"tenant": "blue", "name": name}, "spec": spec})
    };
    let rule = |direction: &str, peer: Value| json!({"direction": direction, "action": "allow", "peer": peer});
    let web = json!({"group": "web"});
    let friend = json!({"podSelector": {"matchLabels": {"app": "friend"}}});
    vec![
        network("blue/front", json!({"subnets": ["10.32.0.0/16", "fd00:32::/64"]})),
        network("blue/back", json!({"subnets": ["10.34.0.0/16", "fd00:34::/64"]})),
        of("GroupPolicy", "from-web", json!({"rules": [rule("in", web.clone())]})),
        of("GroupPolicy", "from-back", json!({"rules": [rule("in", json!({"network": "back"}))]})),
        of("GroupPolicy", "to-web", json!({"rules": [rule("out", web)]})),
        of("Group", "db", json!({"policies": ["from-web"], "default": {"in": "deny"}})),
        of("Group", "store", json!({"policies": ["from-back"], "default": {"in": "deny"}})),
        of("Group", "gate", json!({"policies": ["to-web"], "default": {"out": "deny"}})),
        of("Group", "web", json!({})),
        namespace("shop", json!({"tenant": "blue", "network": "front", "allow": ["*"]})),
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": "shop", "name": "policed"},
            "spec": {"podSelector": {"matchLabels": {"app": "policed"}}, "ingress": [{"from": [friend]}]}}),
    ]
}

/// A pod with an interface in each of the two networks.
struct Both {
    pod: Pod,
    /// Of `eth0` in `front`, and of `eth1` in `back`; IPv4 first.
    addresses: [Vec<IpAddr>; 2],
}

fn both(host: &Node, name: &str, group: &str) -> Both {
    let mut words = json!({"humanz.io/networks": "front,back@eth1"});
    if !group.is_empty() {
        words["humanz.io/group"] = json!(group);
    }
    let pod =
        try_add(host, &format!("shop/{name}"), words).unwrap_or_else(|e| panic!("{name}: {e}"));
    let addresses = ["eth0", "eth1"].map(|ifname| addresses(&pod, ifname));
    assert!(addresses.iter().all(|it| it.len() == 2), "{}", pod.result);
    Both { pod, addresses }
}

impl Both {
    /// Each of its four addresses, and the one that `from` has in the same network and family.
    fn ways<'a>(&'a self, from: &'a Both) -> impl Iterator<Item = (IpAddr, IpAddr)> + 'a {
        let own = self.addresses.iter().flatten().copied();
        own.zip(from.addresses.iter().flatten().copied())
    }
}

/// By each interface and family, within each network.
fn reach(from: &Both, to: &Both) {
    for (address, _) in to.ways(from) {
        let what = format!("{} reaches {address} of {}", from.pod.label(), to.pod.label());
        soon(&what, || pings(&from.pod, address));
    }
}

fn are_apart(from: &Both, to: &Both) {
    for (address, source) in to.ways(from) {
        let mut server = Server::open_at(&to.pod, address);
        let flood = Flood::start(&from.pod, address);
        flood.go_on();
        let (from, to) = (from.pod.label(), to.pod.label());
        assert_eq!(server.received(source), 0, "{from} reaches {to} at {address}");
        assert_eq!(server.total(), 0, "{from} reaches {to} at {address} with another address");
    }
}

#[test]
fn policies_and_groups_hold_on_each_interface_of_a_pod_in_both_directions() {
    let cluster = Cluster::new(2);
    let hosts = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(hosts[0], &objects());
    let agents = cluster.start_agents(FROM_ETCD);
    let everywhere = |name: &str, group: &str| hosts.map(|host| both(host, name, group));
    let (db, web, other) = (everywhere("db", "db"), everywhere("web", "web"), everywhere("x", ""));
    let (gate, store) = (everywhere("gate", "gate"), everywhere("store", "store"));
    let (policed, friend) = (everywhere("policed", ""), everywhere("friend", ""));
    // From the same host, and from the other one.
    for (one, another) in [(0, 0), (0, 1), (1, 0)] {
        reach(&web[one], &db[another]);
        reach(&friend[one], &policed[another]);
        reach(&gate[one], &web[another]);
        reach(&other[one], &web[another]);
    }
    for (one, another) in [(0, 0), (0, 1), (1, 0)] {
        are_apart(&other[one], &db[another]);
        are_apart(&web[one], &policed[another]);
        are_apart(&gate[one], &other[another]);
    }
    // A network as the peer: by the interface that is in it, and not by the other one.
    for (from, to) in [(&other[0], &store[0]), (&other[0], &store[1])] {
        let [front, back] = &to.addresses;
        for at in 0..2 {
            soon(&format!("{} from the network back", back[at]), || pings(&from.pod, back[at]));
            assert!(!pings(&from.pod, front[at]), "{} from the network front", front[at]);
        }
    }
    // What changes reaches every interface.
    let open = json!({"apiVersion": "humanz.io/v1", "kind": "Group",
        "metadata": {"tenant": "blue", "name": "db"}, "spec": {}});
    apply(hosts[0], &[open]);
    reach(&other[0], &db[1]);
    reach(&other[0], &db[0]);
    agents.iter().for_each(Agent::stop);
}

/// Packets by the interface, from an address that the pod has, to a pod in the interface's network; gives how many
/// arrive.
fn sent_by(from: &Both, ifname: &str, source: IpAddr, to: &Pod, at: IpAddr) -> usize {
    // A child that another test has just forked may hold the last one open until it executes its program.
    let server = eventually("a server", SOON, || {
        to.spot().inside(|| UdpSocket::bind((at, PORT))).map_err(|error| error.to_string())
    });
    server.set_read_timeout(Some(std::time::Duration::from_millis(500))).unwrap();
    from.pod.spot().inside(|| {
        let socket = UdpSocket::bind((source, 0)).unwrap();
        nix::sys::socket::setsockopt(
            &socket,
            nix::sys::socket::sockopt::BindToDevice,
            &ifname.to_owned().into(),
        )
        .unwrap();
        for _ in 0..10 {
            socket.send_to(b"forged", SocketAddr::new(at, PORT)).unwrap();
        }
    });
    std::iter::from_fn(|| server.recv_from(&mut [0; 16]).ok()).count()
}

#[test]
fn an_interface_sends_with_no_address_of_the_pods_other_one() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &objects());
    let agents = cluster.start_agents(FROM_ETCD);
    let from = both(h1, "two", "");
    let targets = [both(h1, "here", ""), both(h2, "far", "")];
    let ways =
        |place: usize| [(0, 1), (1, 0)].map(|(by, of)| (["eth0", "eth1"][by], by, of, place));
    for to in &targets {
        reach(&from, to);
        for (ifname, by, of, at) in (0..2).flat_map(ways) {
            let sent = |of: usize| {
                let source = from.addresses[of][at];
                sent_by(&from, ifname, source, &to.pod, to.addresses[by][at])
            };
            assert_eq!(sent(by), 10, "{ifname} with its own address to {}", to.pod.label());
            assert_eq!(sent(of), 0, "{ifname} with the other's address to {}", to.pod.label());
        }
    }
    // It is the guard of each port.
    agents.iter().for_each(Agent::stop);
    h1.run("nft delete table netdev humanz").ok();
    let to = &targets[0];
    assert_eq!(sent_by(&from, "eth1", from.addresses[0][0], &to.pod, to.addresses[1][0]), 10);
}
