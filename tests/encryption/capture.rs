//! What passes a host's uplink, counted by the kernel where nothing of humanz can change it any more.

use crate::support::node::{Place, command};
use crate::support::{Cluster, Node};

const TABLE: &str = "
    add table netdev capture
    add chain netdev capture in { type filter hook ingress device eth0 priority -500; }
    add chain netdev capture out { type filter hook egress device eth0 priority 500; }
    add counter netdev capture clear
    add counter netdev capture encrypted
    add rule netdev capture in ip saddr 10.244.0.0/16 ip daddr 10.244.0.0/16 counter name clear
    add rule netdev capture in ip6 saddr fd10:244::/48 ip6 daddr fd10:244::/48 counter name clear
    add rule netdev capture in udp dport { 8472, 10400 } counter name clear
    add rule netdev capture in udp dport 10401 counter name encrypted
    add rule netdev capture out ip saddr 10.244.0.0/16 ip daddr 10.244.0.0/16 counter name clear
    add rule netdev capture out ip6 saddr fd10:244::/48 ip6 daddr fd10:244::/48 counter name clear
    add rule netdev capture out udp dport { 8472, 10400 } counter name clear
    add rule netdev capture out udp dport 10401 counter name encrypted";

/// On every host.
pub struct Capture(Vec<Node>);

impl Capture {
    pub fn start(cluster: &Cluster) -> Capture {
        for host in &cluster.hosts {
            host.run_command(&mut command("nft -f -"), TABLE).ok();
        }
        Capture(cluster.hosts.clone())
    }

    /// Packets from pod to pod, or of tunnels that do not encrypt; and encrypted ones.
    pub fn counted(&self) -> (u64, u64) {
        let of = |name: &str| self.0.iter().map(|host| packets(host, name)).sum();
        (of("clear"), of("encrypted"))
    }

    /// No clear text passed so far, and something did.
    pub fn assert_encrypted(&self, when: &str) {
        let (clear, encrypted) = self.counted();
        println!("{when}: {clear} packets in clear text, {encrypted} encrypted");
        assert_eq!(clear, 0, "{when}: packets in clear text");
        assert!(encrypted > 0, "{when}: the capture sees nothing");
    }
}

fn packets(host: &Node, name: &str) -> u64 {
    let listed = host.run(&format!("nft list counter netdev capture {name}")).ok();
    let number = listed.split("packets ").nth(1).and_then(|rest| rest.split(' ').next());
    number.unwrap().parse().unwrap()
}
