//! Source addresses of pods after masquerading.

use humanz::nft::Nft;
use humanz::plan::firewall::{FirewallSpec, ruleset};

use super::network::{HOST, NODE, OTHER_POD, OUTSIDE, PLAIN, POD, on_host, run, spec};

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
        super::repair::reconcile(
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
