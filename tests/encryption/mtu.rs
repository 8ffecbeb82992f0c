//! The size of packets: what WireGuard's header takes from it, and pods that are older than the encryption, with and
//! without a tunnel before it.

use std::net::IpAddr;

use crate::capture::Capture;
use crate::hosts::{wait_for_routes, wait_for_sessions};
use crate::refused::shows_the_reason;
use crate::support::node::Place;
use crate::support::ping::{addresses, all_reach};
use crate::support::store::Store;
use crate::support::wait::SOON;
use crate::support::{Cluster, Pod, kernel};
use crate::{DUAL_STACK, ENCRYPTED};

/// An echo request that is `bytes` long with its headers, and is not to be fragmented.
fn whole(bytes: u32, to: IpAddr) -> String {
    let headers = if to.is_ipv4() { 20 + 8 } else { 40 + 8 };
    format!("ping -n -c 1 -W 3 -M do -s {} {to}", bytes - headers)
}

fn wait_for_the_other_host(cluster: &Cluster) {
    for host in &cluster.hosts {
        wait_for_routes(host, 2);
        wait_for_sessions(host, 1);
    }
}

#[test]
fn hosts_with_ipv6_alone_between_them_encrypt_both_families_in_packets_of_1420() {
    if !kernel::has_wireguard() {
        return shows_the_reason();
    }
    let cluster = Cluster::new(2);
    cluster.hosts.iter().for_each(|host| drop(host.run("ip -4 address flush dev eth0").ok()));
    let etcd = format!("http://[{}]:2379", Store::ADDRESS_V6);
    let _agents = cluster.start_agents(&[ENCRYPTED, &[("ETCD_HOST", &etcd)]].concat());
    wait_for_the_other_host(&cluster);
    let pods: Vec<Pod> = cluster.hosts.iter().map(|host| Pod::add(host, "a")).collect();
    let capture = Capture::start(&cluster);
    let places: Vec<&dyn Place> = pods.iter().map(|pod| pod as &dyn Place).collect();
    all_reach(&places, &addresses(&places));
    for to in [pods[1].v4(), pods[1].v6()] {
        pods[0].until_ok(&whole(1420, to), SOON);
        assert!(!pods[0].run(&whole(1421, to)).succeeded(), "the pod's MTU is larger");
    }
    capture.assert_encrypted("by IPv6 alone");
}

#[test]
fn pods_of_before_hear_by_icmp_of_the_smaller_packets() {
    if !kernel::has_wireguard() {
        return shows_the_reason();
    }
    let cluster = Cluster::new(2);
    let agents = cluster.start_agents(DUAL_STACK);
    let pods: Vec<Pod> = cluster.hosts.iter().map(|host| Pod::add(host, "a")).collect();
    let far = [pods[1].v4(), pods[1].v6()];
    far.iter().for_each(|to| drop(pods[0].until_ok(&whole(1500, *to), SOON)));
    drop(agents);
    let _agents = cluster.start_agents(ENCRYPTED);
    wait_for_the_other_host(&cluster);
    let capture = Capture::start(&cluster);
    for to in far {
        pods[0].until_ok(&whole(1440, to), SOON);
        let refused = pods[0].run(&whole(1500, to));
        let said = format!("{}{}", refused.stdout, refused.stderr);
        assert!(said.contains("mtu = 1440") || said.contains("mtu=1440"), "{refused}");
        // What may be fragmented arrives.
        pods[0].until_ok(&format!("ping -n -c 1 -W 3 -s 1452 {to}"), SOON);
    }
    capture.assert_encrypted("pods of before");
}

#[test]
fn tunnels_give_way_to_encryption_under_running_pods() {
    if !kernel::has_wireguard() {
        return shows_the_reason();
    }
    let cluster = Cluster::routed(1, 1);
    let tunnels = [("BACKEND", "vxlan")];
    let agents = cluster.start_agents(&[DUAL_STACK, &tunnels].concat());
    let pods: Vec<Pod> = cluster.hosts.iter().map(|host| Pod::add(host, "a")).collect();
    let places: Vec<&dyn Place> = pods.iter().map(|pod| pod as &dyn Place).collect();
    let tunnelled = Capture::start(&cluster);
    all_reach(&places, &addresses(&places));
    let (clear, encrypted) = tunnelled.counted();
    assert!(clear.iter().any(|line| line.ends_with("of tunnels")) && encrypted == 0, "{clear:?}");
    tunnelled.end();
    drop(agents);
    let _agents = cluster.start_agents(&[ENCRYPTED, &tunnels].concat());
    wait_for_the_other_host(&cluster);
    let capture = Capture::start(&cluster);
    all_reach(&places, &addresses(&places));
    let new: Vec<Pod> = cluster.hosts.iter().map(|host| Pod::add(host, "b")).collect();
    for to in [new[1].v4(), new[1].v6()] {
        new[0].until_ok(&whole(1440, to), SOON);
        assert!(!new[0].run(&whole(1441, to)).succeeded(), "the pod's MTU is larger");
    }
    capture.assert_encrypted("with BACKEND=vxlan");
}
