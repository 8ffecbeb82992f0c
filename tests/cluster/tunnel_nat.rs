//! NAT before a tunnel, as kube-proxy does.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use crate::DUAL_STACK;
use crate::support::cluster::{Cluster, OUTSIDE};
use crate::support::node::command;
use crate::support::wait::SOON;
use crate::support::web::Web;
use crate::support::{Node, Place, Pod, eventually};

/// What kube-proxy writes for a service whose only endpoint is on another host: what comes in for
/// the node port goes to the pod, marked, and what is marked is masqueraded. The mark stays on the
/// packet, and with it the outer packet is masqueraded too, as with an old kube-proxy: that is what
/// gave wrong checksums (flannel issues 1279, 1282).
fn service(host: &Node, pod: IpAddr) {
    let (family, to) = match pod {
        IpAddr::V4(v4) => ("ip", v4.to_string()),
        IpAddr::V6(v6) => ("ip6", format!("[{v6}]")),
    };
    let rules = format!(
        "add table {family} kube
         add chain {family} kube pre {{ type nat hook prerouting priority -100; }}
         add chain {family} kube out {{ type nat hook output priority -100; }}
         add chain {family} kube post {{ type nat hook postrouting priority 90; }}
         add rule {family} kube pre meta l4proto {{ tcp, udp }} th dport 30080 meta mark set 0x4000 dnat to {to}:8000
         add rule {family} kube out meta l4proto {{ tcp, udp }} th dport 30080 meta mark set 0x4000 dnat to {to}:8000
         add rule {family} kube post meta mark 0x4000 masquerade fully-random"
    );
    host.run_command(&mut command("nft -f -"), &rules).ok();
}

#[test]
fn replies_to_masqueraded_tunnel_traffic_arrive() {
    let cluster = Cluster::routed(1, 1);
    let _agents = cluster.start_agents(DUAL_STACK);
    let [near, far] = &cluster.hosts[..] else { panic!("two hosts") };
    let client = Pod::add(near, "client");
    let server = Pod::add(far, "server");
    for (index, address) in server.addresses().into_iter().enumerate() {
        client.until_ok(&format!("ping -n -c 1 -W 1 {address}"), Duration::from_secs(30));
        service(near, address);
        let node: IpAddr = if index == 0 { near.v4().into() } else { near.v6().into() };
        let port = SocketAddr::new(node, 30080);
        let web = Web::serve(&server, address);
        for place in [&client as &dyn Place, &cluster.outside, near] {
            let body = place.run(&format!(
                "curl -sS --noproxy * -m 20 -o /dev/null -w %{{size_download}} http://{port}/"
            ));
            assert_eq!(body.stdout, "1000000", "{} to {port}: {body}", place.label());
        }
        let gateways = client.gateways();
        let seen = web.seen();
        assert!(seen.iter().all(|from| gateways.contains(from)), "{seen:?}");
        let answers = echo(&server, address);
        for place in [&client as &dyn Place, &cluster.outside, near] {
            asks(place, port);
        }
        drop(answers);
    }
    no_bad_checksums(far, &server);
}

/// As its answer to a pod that it sees unmasqueraded (IP_MASQ=false).
#[test]
fn what_a_node_sends_from_its_own_address_comes_out_of_the_tunnel() {
    let cluster = Cluster::routed(1, 1);
    let _agents = cluster.start_agents(&[DUAL_STACK, &[("IP_MASQ", "false")]].concat());
    let [near, far] = &cluster.hosts[..] else { panic!("two hosts") };
    let (pod, other) = (Pod::add(near, "a"), Pod::add(far, "b"));
    let nodes: [IpAddr; 2] = [far.v4().into(), far.v6().into()];
    let counters = ["IcmpInEchos", "Icmp6InEchos"];
    for (index, address) in pod.addresses().into_iter().enumerate() {
        other.until_ok(&format!("ping -n -c 1 -W 1 {address}"), Duration::from_secs(30));
        let arrived = || {
            let line = pod.run(&format!("nstat -asz {}", counters[index])).ok();
            let words: Vec<&str> = line.split_whitespace().collect();
            let at = words.iter().position(|word| *word == counters[index]).unwrap();
            words[at + 1].parse::<u64>().unwrap()
        };
        let before = arrived();
        // The answers need a route through the router, which knows no pods.
        far.run(&format!("ping -n -c 3 -i 0.2 -W 1 -I {} {address}", nodes[index]));
        assert_eq!(arrived() - before, 3);
    }
}

/// A process in the host's network asks a service: its source is the node's address, chosen before the
/// service's is translated, and a kube-proxy without cluster CIDR masquerades nothing.
#[test]
fn a_host_asks_services_behind_a_tunnel_from_any_of_its_addresses() {
    let cluster = Cluster::routed(1, 1);
    let _agents = cluster.start_agents(DUAL_STACK);
    let [near, far] = &cluster.hosts[..] else { panic!("two hosts") };
    let (client, server) = (Pod::add(near, "a"), Pod::add(far, "b"));
    near.run("ip address add 198.51.100.77/32 dev lo").ok();
    near.run("ip address add 2001:db8:51::77/128 dev lo").ok();
    let services = ["10.96.0.10", "fd96::10"];
    for (index, address) in server.addresses().into_iter().enumerate() {
        client.until_ok(&format!("ping -n -c 1 -W 1 {address}"), SOON);
        let family = ["ip", "ip6"][index];
        let rules = format!(
            "add table {family} service
             add chain {family} service out {{ type nat hook output priority -100; }}
             add rule {family} service out {family} daddr {} dnat to {address}",
            services[index]
        );
        near.run_command(&mut command("nft -f -"), &rules).ok();
        let node: IpAddr = if index == 0 { near.v4().into() } else { near.v6().into() };
        let web = Web::serve(&server, address);
        let further = ["198.51.100.77", "2001:db8:51::77"][index];
        for (from, to) in [
            (node.to_string(), SocketAddr::new(services[index].parse().unwrap(), 8000)),
            (node.to_string(), SocketAddr::new(address, 8000)),
            (further.to_owned(), SocketAddr::new(address, 8000)),
        ] {
            let curl =
                format!("curl -sS --noproxy * --interface {from} -m 5 -o /dev/null http://{to}/");
            near.until_ok(&curl, SOON);
        }
        let gateways = client.gateways();
        let seen = web.seen();
        assert!(seen.iter().all(|from| gateways.contains(from)), "{seen:?}");
    }
}

/// Large and small datagrams of a pod to the outside, through masquerade, from behind a tunnel.
#[test]
fn large_datagrams_of_a_pod_reach_the_outside_and_other_pods() {
    let cluster = Cluster::routed(1, 1);
    let _agents = cluster.start_agents(DUAL_STACK);
    let client = Pod::add(&cluster.hosts[0], "client");
    let server = Pod::add(&cluster.hosts[1], "server");
    for (there, address) in [
        (&cluster.outside as &dyn Place, OUTSIDE[0]),
        (&cluster.outside, OUTSIDE[1]),
        (&server, server.v4()),
        (&server, server.v6()),
    ] {
        client.until_ok(&format!("ping -n -c 1 -W 1 {address}"), Duration::from_secs(30));
        let _answers = echo(there, address);
        asks(&client, SocketAddr::new(address, 8000));
    }
    no_bad_checksums(&cluster.hosts[1], &server);
}

/// Echoes datagrams to port 8000 of that address, until dropped.
fn echo(place: &dyn Place, address: IpAddr) -> Echo {
    let socket = place.spot().inside(|| UdpSocket::bind(SocketAddr::new(address, 8000)));
    let socket = socket.unwrap_or_else(|e| panic!("{} {address}: {e}", place.label()));
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let alive = std::sync::Arc::new(());
    let weak = std::sync::Arc::downgrade(&alive);
    std::thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        while weak.upgrade().is_some() {
            if let Ok((length, from)) = socket.recv_from(&mut bytes) {
                socket.send_to(&bytes[..length], from).ok();
            }
        }
    });
    Echo(alive)
}

struct Echo(#[allow(dead_code, reason = "its end is what counts")] std::sync::Arc<()>);

/// Datagrams of one byte, of a full packet, and of several fragments are echoed completely.
fn asks(place: &dyn Place, to: SocketAddr) {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = place.spot().inside(|| UdpSocket::bind(any)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    for size in [1, 1300, 1400, 1472, 5000] {
        let sent = vec![size as u8; size];
        eventually(&format!("{} to {to}: {size} bytes come back", place.label()), SOON, || {
            let mut bytes = vec![0; 1 << 16];
            // A packet above the path MTU gets one ICMP error; later ones fit.
            socket.send_to(&sent, to).map_err(|error| error.to_string())?;
            let (length, _) = socket.recv_from(&mut bytes).map_err(|error| error.to_string())?;
            if bytes[..length] == sent { Ok(()) } else { Err(format!("{length} bytes")) }
        });
    }
}

/// Neither of the outer nor of the inner packets had a wrong checksum.
fn no_bad_checksums(host: &Node, pod: &Pod) {
    for place in [host as &dyn Place, pod] {
        let counters = place.run("nstat -asz *InCsumErrors").stdout;
        let wrong: Vec<&str> = counters
            .lines()
            .filter(|line| {
                let mut words = line.split_whitespace();
                words.next().is_some_and(|name| name.ends_with("InCsumErrors"))
                    && words.next() != Some("0")
            })
            .collect();
        assert!(
            counters.contains("UdpInCsumErrors") && wrong.is_empty(),
            "{}: {counters}",
            place.label()
        );
    }
}
