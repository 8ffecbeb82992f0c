//! Source addresses of pods after masquerading.

use std::net::UdpSocket;

use humanz::nft::Nft;
use humanz::plan::firewall::{FirewallSpec, ruleset};

use humanz_test_support::netns::ip;

use super::network::{ARRIVES, HOST, NODE, OTHER_POD, OUTSIDE, PLAIN, POD, on_host, run, spec};
use super::repair::reconcile;

#[test]
fn without_a_table_the_outside_sees_the_pod() {
    on_host(|network| {
        for family in 0..2 {
            assert_eq!(network.seen_by(OUTSIDE[family]), POD[family]);
        }
    });
}

#[test]
fn the_outside_sees_the_host_and_the_cluster_sees_the_pod() {
    on_host(|network| {
        Nft::open().unwrap().replace(&ruleset(&spec()).unwrap()).unwrap();
        for family in 0..2 {
            assert_eq!(network.seen_by(OUTSIDE[family]), HOST[family], "outside");
            assert_eq!(network.seen_by(OTHER_POD[family]), POD[family], "pod of another host");
            assert_eq!(network.seen_by(NODE[family]), POD[family], "another host");
            assert_eq!(network.seen_by(PLAIN[family]), POD[family], "network not to masquerade");
        }
        // Both rules of the chain counted, so the cluster's packets did not pass by chance.
        let listed = run("nft list chain inet humanz postrouting");
        assert!(!listed.contains("counter packets 0 "), "{listed}");
    });
}

#[test]
fn a_host_that_joined_sees_the_pod_at_once() {
    on_host(|network| {
        let nft = Nft::open().unwrap();
        let alone = FirewallSpec { node_addresses: [HOST[0].parse().unwrap()].into(), ..spec() };
        nft.replace(&ruleset(&alone).unwrap()).unwrap();
        assert_eq!(network.seen_by(NODE[0]), HOST[0]);
        reconcile(
            &nft,
            &FirewallSpec {
                node_addresses: [HOST[0], NODE[0]].map(|text| text.parse().unwrap()).into(),
                ..spec()
            },
        );
        assert_eq!(network.seen_by(NODE[0]), POD[0]);
    });
}

#[test]
fn traffic_that_leaves_by_the_bridge_keeps_its_address() {
    on_host(|network| {
        let uplink = FirewallSpec { bridge: "uplink".parse().unwrap(), ..spec() };
        Nft::open().unwrap().replace(&ruleset(&uplink).unwrap()).unwrap();
        for family in 0..2 {
            assert_eq!(network.seen_by(OUTSIDE[family]), POD[family]);
        }
    });
}

/// What a program of the host, bound to an address of its own, sends to pods behind a device.
#[test]
fn a_connection_of_the_host_goes_on_when_its_way_changes_to_the_other_device() {
    on_host(|network| {
        let path = network.remote.path();
        // As devices of WireGuard they ask for no neighbour: both ends have one MAC.
        let mac = "address 02:00:00:00:00:01";
        for (device, end) in [("humanz-wg", "one"), ("humanz-wg2", "two")] {
            ip(&format!(
                "link add {device} {mac} type veth peer name {end} {mac} netns {path}
                 link set {device} arp off up"
            ));
            network.remote.inside(|| ip(&format!("link set {end} arp off up")));
        }
        let among_pods = ["10.244.3.1", "fd00:10:0:3::1"];
        let take = |device: &str, end: &str| {
            for address in OTHER_POD {
                ip(&format!("route replace {address} dev {device}"));
            }
            network.remote.inside(|| {
                among_pods.iter().for_each(|it| ip(&format!("route replace {it} dev {end}")));
            });
        };
        let addresses = |texts: [&str; 2]| texts.map(|text| text.parse().unwrap());
        let spec = FirewallSpec {
            encrypts: true,
            own_addresses: addresses(HOST).into(),
            tunnel_addresses: addresses(among_pods).into(),
            ..spec()
        };
        reconcile(&Nft::open().unwrap(), &spec);
        for (family, pod) in OTHER_POD.iter().enumerate() {
            let server = network.remote.inside(|| UdpSocket::bind((*pod, 0))).unwrap();
            let client = UdpSocket::bind((HOST[family], 0)).unwrap();
            for socket in [&server, &client] {
                socket.set_read_timeout(Some(ARRIVES)).unwrap();
            }
            let echo = || {
                client.send_to(b"hello", server.local_addr().unwrap()).unwrap();
                let (_, from) = server.recv_from(&mut [0; 8]).expect("it reaches the pod");
                server.send_to(b"hello", from).unwrap();
                client.recv(&mut [0; 8]).expect("the answer reaches the host");
                from
            };
            take("humanz-wg", "one");
            let before = echo();
            assert_eq!(before.ip().to_string(), among_pods[family]);
            take("humanz-wg2", "two");
            assert_eq!(echo(), before);
        }
    });
}
