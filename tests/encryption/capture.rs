//! What passes a host's uplink, counted by the kernel where nothing of humanz can change it any more.

use crate::support::node::{Place, command};
use crate::support::{Cluster, Node, kernel};

/// What is counted, each with the matches of its rules, both ways: pods of the hosts' own subnets and of [`crate::blocks`].
const COUNTED: [(&str, &[&str]); 4] = [
    (
        "from pods",
        &["ip saddr { 10.244.0.0/16, 10.32.0.0/16 }", "ip6 saddr { fd10:244::/48, fd00:32::/64 }"],
    ),
    (
        "to pods",
        &["ip daddr { 10.244.0.0/16, 10.32.0.0/16 }", "ip6 daddr { fd10:244::/48, fd00:32::/64 }"],
    ),
    ("of tunnels", &["udp dport { 8472, 10400 }"]),
    (ENCRYPTED, &["udp dport 10401"]),
];

const ENCRYPTED: &str = "encrypted";

/// Each side of the uplink with its hook. What a host sends is seen where it comes in, too; Linux before 5.16 has that
/// hook alone.
const SIDES: [(&str, &str); 2] = [("in", "ingress"), ("out", "egress")];

/// The table. A pod that asks the outside or another host does so by its host's address: addresses of pods are
/// nowhere on the wire.
fn table(sides: &[(&str, &str)]) -> String {
    let mut lines = vec!["add table netdev capture".to_owned()];
    lines.extend(sides.iter().map(|(chain, hook)| {
        let priority = if *chain == "in" { -500 } else { 500 };
        format!(
            "add chain netdev capture {chain} {{ type filter hook {hook} device eth0 priority {priority}; }}"
        )
    }));
    for (name, matches) in COUNTED {
        let name = counter(name);
        lines.push(format!("add counter netdev capture {name}"));
        for condition in matches {
            for (chain, _) in sides {
                lines.push(format!(
                    "add rule netdev capture {chain} {condition} counter name {name}"
                ));
            }
        }
    }
    lines.join("\n")
}

fn counter(name: &str) -> String {
    name.replace(' ', "_")
}

/// On every host.
pub struct Capture(Vec<Node>);

impl Capture {
    pub fn start(cluster: &Cluster) -> Capture {
        let sides = if kernel::has_egress_hook() { &SIDES[..] } else { &SIDES[..1] };
        for host in &cluster.hosts {
            host.run_command(&mut command("nft -f -"), &table(sides)).ok();
        }
        Capture(cluster.hosts.clone())
    }

    pub fn end(self) {
        self.0.iter().for_each(|host| drop(host.run("nft delete table netdev capture").ok()));
    }

    /// Packets in clear text, with one end or both in a pod, or of tunnels that do not encrypt, as text for each
    /// kind of which there are some; and how many encrypted ones.
    pub fn counted(&self) -> (Vec<String>, u64) {
        let of = |name: &str| -> u64 { self.0.iter().map(|host| packets(host, name)).sum() };
        let clear = COUNTED.map(|(name, _)| name).into_iter().filter(|name| *name != ENCRYPTED);
        let clear = clear.map(|name| (name, of(name))).filter(|(_, count)| *count > 0);
        (clear.map(|(name, count)| format!("{count} {name}")).collect(), of(ENCRYPTED))
    }

    /// No clear text passed so far, and something did.
    pub fn assert_encrypted(&self, when: &str) {
        let (clear, encrypted) = self.counted();
        println!("{when}: in clear text: {clear:?}; {encrypted} encrypted");
        assert!(clear.is_empty(), "{when}: packets in clear text: {clear:?}");
        assert!(encrypted > 0, "{when}: the capture sees nothing");
    }
}

fn packets(host: &Node, name: &str) -> u64 {
    let listed = host.run(&format!("nft list counter netdev capture {}", counter(name))).ok();
    let number = listed.split("packets ").nth(1).and_then(|rest| rest.split(' ').next());
    number.unwrap().parse().unwrap()
}
