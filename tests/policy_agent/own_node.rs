//! What a pod sends to its own node is judged, by whichever address of it; what the node sends to its pods,
//! and the names that they ask it for, is not.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::time::Instant;

use serde_json::{Value, json};

use crate::etcd::{FROM_ETCD, apply};
use crate::support::facts;
use crate::support::{Agent, Cluster, Node, Place, Pod, soon};
use crate::traffic::{Flood, Server};
use crate::{PORT, STANDALONE, add, alone, counters, serve, write_policies};

/// Leads to the node, as a service does whose pod is in the node's network.
const SERVICE: &str = "198.51.100.9";

/// Pods with the label `app` of `web` may connect to `to` and nothing else.
fn only_to(to: Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"],
            "egress": [{"to": [to]}],
        },
    })
}

fn nowhere() -> Value {
    only_to(json!({"podSelector": {"matchLabels": {"app": "nobody"}}}))
}

/// The node's own addresses that a pod may use, and the service.
fn ways(host: &Node) -> Vec<IpAddr> {
    let bridge = facts::addresses(host, "humanz0");
    let bridge = bridge.iter().filter_map(|text| text.split('/').next()?.parse::<IpAddr>().ok());
    let own = [host.v4().into(), host.v6().into(), SERVICE.parse().unwrap()];
    bridge.chain(own).collect()
}

#[test]
fn a_pod_reaches_its_own_node_as_its_policies_say() {
    let alone = alone();
    let host = &alone.host;
    host.shell(&format!(
        "nft add table ip services
         nft 'add chain ip services pre {{ type nat hook prerouting priority -100; }}'
         nft add rule ip services pre ip daddr {SERVICE} dnat to {}",
        host.v4()
    ))
    .ok();
    write_policies(host, &[]);
    let agent = serve(host, &[]);
    let (web, other) = (add(host, "web", "web"), add(host, "other", "other"));
    let mut node = Server::open(host);
    let of = |pod: &Pod, to: IpAddr| if to.is_ipv4() { pod.v4() } else { pod.v6() };
    let ways = ways(host);
    assert!(ways.len() >= 5, "{ways:?}");
    for to in &ways {
        let (web_flood, other_flood) = (Flood::start(&web, *to), Flood::start(&other, *to));
        write_policies(host, &[]);
        node.wait(of(&web, *to));
        // Running connections, too.
        let begun = Instant::now();
        write_policies(host, &[nowhere()]);
        node.wait_silence(of(&web, *to), begun);
        let before = node.received(of(&web, *to));
        let again = Flood::start(&web, *to);
        again.go_on();
        assert_eq!(node.received(of(&web, *to)), before, "{to}");
        node.wait(of(&other, *to));
        if to.is_ipv4() {
            let block = json!({"ipBlock": {"cidr": "0.0.0.0/0"}});
            write_policies(host, &[only_to(block)]);
            node.wait(of(&web, *to));
        }
        drop((web_flood, other_flood));
    }
    assert!(counters(host).contains("np/shop/web/out/deny"), "{}", counters(host));

    write_policies(host, &[nowhere()]);
    names_are_answered(host, &web, &ways);
    // A connection that the node began, from each of its addresses.
    let mut pod = Server::open(&web);
    for to in [web.v4(), web.v6()] {
        let own = Flood::start(host, to);
        soon("answers to the node", || {
            pod.received(to);
            own.answered() > 3
        });
    }
    by_link_local_address(host, &web);
    let problems = Agent::run(host, "status --json", STANDALONE).stdout;
    assert!(
        problems.contains("\"problems\":[]") || problems.contains("\"problems\": []"),
        "{problems}"
    );
    agent.stop();
}

/// Pods of `web` may, or may not, reach nodes, and reach nothing else by IPv4.
fn about_nodes(action: &str) -> Value {
    let rules = [(action, json!({"nodes": {}})), ("Deny", json!({"networks": ["0.0.0.0/0"]}))];
    let rules = rules.map(|(action, to)| json!({"action": action, "to": [to]}));
    let subject = json!({"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "web"}}});
    json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "nodes"}, "spec": {"tier": "Admin", "priority": 1,
        "subject": {"pods": subject}, "egress": rules}})
}

/// Rules about `nodes` were about the other ones alone where policies are in etcd: what no node was to get, the
/// own one got.
#[test]
fn a_rule_about_nodes_is_about_the_own_one_too_with_policies_in_etcd() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    let agents = cluster.start_agents(FROM_ETCD);
    let web = add(h1, "web", "web");
    let gateways = web.gateways();
    let ways = [h1.v4().into(), h1.v6().into(), h2.v4().into()];
    let ways: Vec<IpAddr> = gateways.into_iter().chain(ways).collect();
    let answers = |to: &IpAddr| {
        web.run(&format!("ping -n -c 1 -W 1 {to}")).stdout.contains(" 0% packet loss")
    };
    let [denied, accepted] = ["Deny", "Accept"].map(about_nodes);
    assert!(ways.iter().all(answers));
    apply(h1, &[denied]);
    soon("no node is reached", || !ways.iter().any(answers));
    agents[0].stop();
    cluster.etcd.kill();
    let again = Agent::start(h1, FROM_ETCD);
    soon("it serves", || Agent::run(h1, "policy show nodes", FROM_ETCD).succeeded());
    assert!(!ways.iter().any(answers));
    cluster.etcd.restart();
    again.wait_ready();
    apply(h1, &[accepted]);
    soon("every node is reached", || ways.iter().all(answers));
    let shown = Agent::run(h1, "policy show nodes", FROM_ETCD);
    assert!(shown.stdout.contains(&format!("nodes now: {}", h1.v4())), "{shown}");
    again.stop();
    agents[1].stop();
}

/// Without etcd nobody knew of a node, and the pods of a host reached it past a Deny.
#[test]
fn a_rule_about_nodes_is_about_the_own_one_with_policies_in_a_file() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[about_nodes("Deny")]);
    let agent = serve(host, &[]);
    let web = add(host, "web", "web");
    let gateways = web.gateways();
    let v4 = gateways[0];
    let ways: Vec<IpAddr> = gateways.into_iter().chain([host.v4().into()]).collect();
    let answers = |to: &IpAddr| {
        web.run(&format!("ping -n -c 1 -W 1 {to}")).stdout.contains(" 0% packet loss")
    };
    assert!(!ways.iter().any(answers));
    let tested = Agent::run(host, &format!("policy test --from shop/web --to {v4}"), STANDALONE);
    assert!(tested.status.code() == Some(1) && tested.stdout.contains("nodes"), "{tested}");
    write_policies(host, &[about_nodes("Accept")]);
    soon("the node is reached", || ways.iter().all(answers));
    agent.stop();
}

/// They were about the addresses alone that hosts publish: each pod reached its own node by the link-local address of
/// its gateway.
#[test]
fn a_rule_about_nodes_is_about_every_address_of_the_own_one() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let agents = cluster.start_agents(FROM_ETCD);
    let web = add(host, "web", "web");
    let shown = host.run("ip -6 -o address show dev humanz0 scope link").ok();
    let link_local = shown.split([' ', '/']).find(|word| word.starts_with("fe80:")).unwrap();
    let ways = [format!("-I {} {link_local}%eth0", web.v6()), "203.0.113.9".into()];
    let service = "203.0.113.10";
    host.run("ip link add kube-ipvs0 type bridge").ok();
    host.run(&format!("ip address add {service} dev kube-ipvs0")).ok();
    let answers =
        |to: &str| web.run(&format!("ping -n -c 1 -W 1 {to}")).stdout.contains(" 0% packet loss");
    soon("it is reached by its link-local address", || answers(&ways[0]));
    apply(host, &[about_nodes("Deny")]);
    soon("the rule holds", || !answers(&host.v6().to_string()));
    assert!(!answers(&ways[0]), "it is reached by its link-local address");
    host.run(&format!("ip address add {} dev lo", ways[1])).ok();
    let is_known = || host.run("nft list table inet humanz-policy").stdout.contains(&ways[1]);
    soon("the new address is known", is_known);
    assert!(!answers(&ways[1]));
    apply(host, &[about_nodes("Accept")]);
    soon("it is reached by both", || ways.iter().all(|to| answers(to)));
    assert!(!answers(service), "the address of a service is none of a node");
    agents[0].stop();
}

fn names_are_answered(host: &Node, pod: &Pod, ways: &[IpAddr]) {
    let resolver = host.spot().inside(|| UdpSocket::bind("[::]:53").unwrap());
    resolver.set_nonblocking(true).unwrap();
    for to in ways {
        let any: IpAddr = if to.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
        let question = pod.spot().inside(|| UdpSocket::bind((any, 0)).unwrap());
        soon(&format!("a question at {to}"), || {
            question.send_to(b"who", SocketAddr::new(*to, 53)).unwrap();
            resolver.recv_from(&mut [0; 16]).is_ok()
        });
    }
}

/// What has no address of the pod does not leave its port.
fn by_link_local_address(host: &Node, pod: &Pod) {
    let shown = host.run("ip -6 -o address show dev humanz0 scope link").ok();
    let node: Ipv6Addr = shown.split([' ', '/']).find_map(|word| word.parse().ok()).unwrap();
    let index = pod.run("ip -o link show dev eth0").ok();
    let index = index.split(':').next().unwrap().parse().unwrap();
    let server = host.spot().inside(|| UdpSocket::bind(("::", PORT + 1)).unwrap());
    server.set_nonblocking(true).unwrap();
    let socket = pod.spot().inside(|| UdpSocket::bind("[::]:0").unwrap());
    for _ in 0..50 {
        socket.send_to(b"x", SocketAddrV6::new(node, PORT + 1, 0, index)).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert!(server.recv_from(&mut [0; 16]).is_err(), "by {node}");
}
