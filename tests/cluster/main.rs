//! Several hosts, a real etcd, agents and pods.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first failure and prints its measurements"
)]

use humanz_test_support as support;

mod clones;
mod connectivity;
mod disputed;
mod etcd_users;
mod firewall;
mod guides;
mod hostile;
mod leases;
mod live;
mod members;
mod migration;
mod outage;
mod peers;
mod reach;
mod repair;
mod restart;
mod role_networks;
mod roles;
mod tunnel;
mod tunnel_kept;
mod tunnel_nat;
mod uplink;

use support::cluster::OUTSIDE;
use support::ping::{addresses, all_reach};
use support::{Cluster, Place};

/// Both families.
const DUAL_STACK: &[(&str, &str)] = &[("IPV6_SUBNET", "fd10:244::/48")];

/// The same with tunnels between hosts that would not need any.
const TUNNELS: &[(&str, &str)] = &[DUAL_STACK[0], ("BACKEND", "vxlan")];

/// If this fails, the others say nothing about humanz.
#[test]
fn the_hosts_reach_each_other_without_an_agent() {
    let cluster = Cluster::new(2);
    let hosts: Vec<&dyn Place> = cluster.hosts.iter().map(|host| host as &dyn Place).collect();
    let mut to = addresses(&hosts);
    to.extend(OUTSIDE);
    all_reach(&hosts, &to);
    cluster.reboot(&cluster.hosts[1]);
    all_reach(&hosts, &to);
    cluster.etcd.put("/key", "value");
    assert_eq!(cluster.etcd.get("/key").as_deref(), Some("value"));
}
