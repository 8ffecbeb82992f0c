//! A switch, an outside, etcd, and hosts.
//!
//! ```text
//! h1 h2 h3 … etcd ─── switch, 192.0.2.1 fd99::1 ─── outside, 198.51.100.10 2001:db8:51::10
//! ```
//! Hosts have 192.0.2.11, .12, … and fd99::11, ::12, …; etcd has 192.0.2.2. The outside answers
//! those networks only: a pod's own address gets no reply from it.
//!
//! A second segment hangs on the switch, which routes between the two and passes nothing else: its
//! hosts have 203.0.113.13, … and fd98::13, …, and go on counting where the first ones ended.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use serde_json::Value;

use super::agent::Agent;
use super::disk::{self, Disk};
use super::local;
use super::node::{Node, Place, command};
use super::store::Store;
use super::wait::{SOON, eventually};

/// The outside's addresses, IPv4 first.
pub const OUTSIDE: [IpAddr; 2] = [IpAddr::V4(OUTSIDE_V4), IpAddr::V6(OUTSIDE_V6)];
const OUTSIDE_V4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 10);
const OUTSIDE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x51, 0, 0, 0, 0, 0x10);
const SWITCH_V4: Ipv4Addr = NEAR.v4;
const SWITCH_V6: Ipv6Addr = NEAR.v6;

/// A network segment of the switch.
#[derive(Debug, PartialEq, Eq)]
pub struct Segment {
    bridge: &'static str,
    /// The switch's addresses there: default route of its hosts; /24 and /64.
    v4: Ipv4Addr,
    v6: Ipv6Addr,
}

/// Where etcd is.
pub const NEAR: Segment = Segment {
    bridge: "lan",
    v4: Ipv4Addr::new(192, 0, 2, 1),
    v6: Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 1),
};
/// Behind the router.
pub const FAR: Segment = Segment {
    bridge: "far",
    v4: Ipv4Addr::new(203, 0, 113, 1),
    v6: Ipv6Addr::new(0xfd98, 0, 0, 0, 0, 0, 0, 1),
};

pub struct Cluster {
    pub hosts: Vec<Node>,
    pub outside: Node,
    pub etcd: Store,
    switch: Node,
    disks: tempfile::TempDir,
}

/// One host with no network around it.
pub struct Alone {
    pub host: Node,
    _disk: tempfile::TempDir,
}

impl Alone {
    pub fn new() -> Self {
        let disk = disk::folder();
        let (v4, v6) = (NEAR.host_v4(1), NEAR.host_v6(1));
        let host = Node::new("h1", v4, v6, Disk::new(disk.path(), "h1", ""));
        host.boot();
        give_uplink(&host);
        Self { host, _disk: disk }
    }
}

/// An eth0 whose cable leads nowhere, and the routes of a host of a [`Cluster`].
pub fn give_uplink(host: &Node) {
    ip(
        host,
        &format!(
            "link add eth0 type veth peer name eth0-cable
             link set eth0-cable up
             address add {}/24 dev eth0
             address add {}/64 dev eth0 nodad
             link set eth0 up
             route add default via {SWITCH_V4}
             route add default via {SWITCH_V6}",
            host.v4(),
            host.v6()
        ),
    );
}

impl Cluster {
    /// `count` hosts that are up, and an etcd that answers.
    pub fn new(count: u8) -> Self {
        Self::routed(count, 0)
    }

    /// Hosts on two segments with a router between them that lets nothing pass but what comes from
    /// addresses on them: no pod's packets.
    pub fn routed(near: u8, far: u8) -> Self {
        let count = near + far;
        let segment = |index: u8| if index <= near { &NEAR } else { &FAR };
        let disks = disk::folder();
        let names: String =
            (1..=count).map(|i| format!("{} h{i}\n", segment(i).host_v4(i))).collect();
        let names = format!("{names}{} etcd\n", Store::ADDRESS_V4);
        let node = |name: &str, v4, v6| {
            let node = Node::new(name, v4, v6, Disk::new(&disks.path().join(name), name, &names));
            node.boot();
            node
        };
        let switch = node("switch", SWITCH_V4, SWITCH_V6);
        make_switch(&switch, if far > 0 { &[&NEAR, &FAR] } else { &[&NEAR] });
        let outside = node("outside", OUTSIDE_V4, OUTSIDE_V6);
        connect_outside(&switch, &outside);
        let etcd = node("etcd", Store::ADDRESS_V4, Store::ADDRESS_V6);
        plug(&switch, &NEAR, &etcd);
        let etcd = Store::new(etcd);
        etcd.start();
        let hosts = std::thread::scope(|scope| {
            let boots: Vec<_> = (1..=count)
                .map(|i| {
                    let (node, switch) = (&node, &switch);
                    scope.spawn(move || {
                        let segment = segment(i);
                        let (v4, v6) = (segment.host_v4(i), segment.host_v6(i));
                        let host = node(&format!("h{i}"), v4, v6);
                        plug(switch, segment, &host);
                        host
                    })
                })
                .collect();
            boots.into_iter().map(|boot| boot.join().unwrap()).collect()
        });
        etcd.wait_ready();
        Self { hosts, outside, etcd, switch, disks }
    }

    /// Starts an agent on every host, with these variables, and waits until all are ready and know a
    /// way to each other, or why there is none.
    pub fn start_agents(&self, variables: &[(&str, &str)]) -> Vec<Agent> {
        let agents: Vec<_> = self.hosts.iter().map(|host| Agent::start(host, variables)).collect();
        for agent in &agents {
            agent.wait_ready();
        }
        let others = self.hosts.len() - 1;
        for host in &self.hosts {
            local::status_when(host, "all others are known", |status| {
                let peers = status["peers"].as_array().map(Vec::as_slice).unwrap_or_default();
                peers.iter().filter(|peer| is_settled(peer)).count() == others
            });
        }
        agents
    }

    /// The directory of all disks of the nodes on this machine; removed with the cluster.
    pub fn disks(&self) -> &Path {
        self.disks.path()
    }

    /// Power off and on: new namespaces, same disk.
    pub fn reboot(&self, host: &Node) {
        host.power_off();
        host.boot();
        let near = host.v4().octets()[..3] == NEAR.v4.octets()[..3];
        plug(&self.switch, if near { &NEAR } else { &FAR }, host);
    }

    /// Plugs host number `index` (from 1) into a segment, with the addresses that it has there, as
    /// if it had been carried over: its link stays up, its addresses change at once.
    pub fn move_host(&self, index: u8, segment: &Segment) {
        let host = &self.hosts[usize::from(index) - 1];
        ip(&self.switch, &format!("link set {} master {}", host.name(), segment.bridge));
        ip(host, &format!("address flush dev eth0 scope global\n{}", segment.lines(index)));
        forwards(&self.switch, host);
    }

    /// Every link between hosts takes packets of that many bytes.
    pub fn set_mtu(&self, bytes: u32) {
        let names: Vec<&str> = self.hosts.iter().map(Node::name).collect();
        for link in names.iter().chain([&NEAR.bridge, &FAR.bridge]) {
            self.switch.run(&format!("ip link set {link} mtu {bytes}")).ok();
        }
        for host in &self.hosts {
            host.run(&format!("ip link set eth0 mtu {bytes}")).ok();
        }
    }

    /// No frame passes between `a` and `b`; neither notices its link.
    pub fn part(&self, a: &Node, b: &Node) {
        let (a, b) = (a.name(), b.name());
        let rules = format!(
            "add rule bridge faults forward iifname {a} oifname {b} drop comment \"{a}-{b}\"
             add rule bridge faults forward iifname {b} oifname {a} drop comment \"{a}-{b}\""
        );
        self.switch.run_command(&mut command("nft -f -"), &rules).ok();
    }

    /// Undoes every [`Cluster::part`].
    pub fn join(&self) {
        self.switch.run("nft flush chain bridge faults forward").ok();
    }

    /// Pulls the host's cable, or plugs it in again.
    pub fn set_cable(&self, host: &Node, plugged: bool) {
        let state = if plugged { "up" } else { "down" };
        self.switch.run(&format!("ip link set {} {state}", host.name())).ok();
        if plugged {
            forwards(&self.switch, host);
        }
    }
}

impl Drop for Cluster {
    /// All at once: the kernel takes its time for each.
    fn drop(&mut self) {
        let nodes = self.hosts.iter().chain([&self.outside, &self.etcd.node, &self.switch]);
        std::thread::scope(|scope| nodes.for_each(|node| drop(scope.spawn(|| node.power_off()))));
    }
}

impl Segment {
    /// The address of host number `index`, from 1.
    pub fn host_v4(&self, index: u8) -> Ipv4Addr {
        let [a, b, c, _] = self.v4.octets();
        Ipv4Addr::new(a, b, c, 10 + index)
    }

    pub fn host_v6(&self, index: u8) -> Ipv6Addr {
        Ipv6Addr::from_bits(self.v6.to_bits() & !0xffff | u128::from(decimal(10 + index)))
    }

    /// The ip(8) commands for that host.
    fn lines(&self, index: u8) -> String {
        let (v4, v6) = (self.host_v4(index), self.host_v6(index));
        network(v4, v6, self)
    }
}

/// 11 as 0x11: reads like the IPv4 address.
fn decimal(number: u8) -> u16 {
    u16::from_str_radix(&number.to_string(), 16).expect("decimal digits are hexadecimal ones")
}

fn make_switch(switch: &Node, segments: &[&Segment]) {
    for Segment { bridge, v4, v6 } in segments {
        let [a, b, c, d] = v4.octets();
        let lines = format!(
            "link add {bridge} address 02:00:{a:02x}:{b:02x}:{c:02x}:{d:02x} type bridge forward_delay 0 mcast_snooping 0
             link set {bridge} up
             address add {v4}/24 dev {bridge}
             address add {v6}/64 dev {bridge} nodad"
        );
        ip(switch, &lines);
    }
    if let [_, far] = segments {
        // With br_netfilter bridged packets pass this chain too.
        let routed = [&NEAR, far].map(|Segment { bridge, .. }| {
            format!(
                "add rule inet router forward iifname {bridge} oifname != {bridge} ip saddr != {{ 192.0.2.0/24, 203.0.113.0/24 }} drop
                 add rule inet router forward iifname {bridge} oifname != {bridge} ip6 saddr != {{ fd99::/64, fd98::/64 }} drop"
            )
        });
        let known = format!(
            "add table inet router
             add chain inet router forward {{ type filter hook forward priority 0; }}
             {}",
            routed.join("\n")
        );
        switch.run_command(&mut command("nft -f -"), &known).ok();
    }
    switch.write("/proc/sys/net/ipv4/ip_forward", "1");
    switch.write("/proc/sys/net/ipv6/conf/all/forwarding", "1");
    let faults = "add table bridge faults
        add chain bridge faults forward { type filter hook forward priority 0; }";
    switch.run_command(&mut command("nft -f -"), faults).ok();
}

fn connect_outside(switch: &Node, outside: &Node) {
    cable(switch, outside);
    ip(
        switch,
        "address add 198.51.100.1/24 dev outside
         address add 2001:db8:51::1/64 dev outside nodad
         link set outside up",
    );
    ip(
        outside,
        &format!(
            "address add {OUTSIDE_V4}/24 dev eth0
             address add {OUTSIDE_V6}/64 dev eth0 nodad
             link set eth0 up
             route add 192.0.2.0/24 via 198.51.100.1
             route add 203.0.113.0/24 via 198.51.100.1
             route add fd99::/64 via 2001:db8:51::1
             route add fd98::/64 via 2001:db8:51::1"
        ),
    );
}

/// Gives `node` an eth0 on a segment of the switch.
fn plug(switch: &Node, segment: &Segment, node: &Node) {
    cable(switch, node);
    // A host that has been up for two seconds may use its link-local address.
    node.write("/proc/sys/net/ipv6/conf/eth0/accept_dad", "0");
    ip(switch, &format!("link set {} master {} up", node.name(), segment.bridge));
    ip(node, &network(node.v4(), node.v6(), segment));
    forwards(switch, node);
}

/// The ip(8) commands for a node with these addresses.
fn network(v4: Ipv4Addr, v6: Ipv6Addr, segment: &Segment) -> String {
    let (via_v4, via_v6) = (segment.v4, segment.v6);
    format!(
        "address add {v4}/24 dev eth0
         address add {v6}/64 dev eth0 nodad
         link set eth0 up
         route replace default via {via_v4}
         route replace default via {via_v6}"
    )
}

/// Waits until the switch forwards what comes from and goes to `node`: the kernel notices the
/// carrier of a new port when it has time for that.
fn forwards(switch: &Node, node: &Node) {
    let state = format!("/sys/class/net/{}/brport/state", node.name());
    eventually(&format!("{state} is forwarding"), SOON, || {
        let found = switch.read(&state).unwrap_or_default();
        if found.trim() == "3" { Ok(()) } else { Err(found) }
    });
}

/// A veth pair: eth0 in `node`, with the same MAC at every boot; the node's name in the switch.
fn cable(switch: &Node, node: &Node) {
    let first = node.with_namespace(|namespace| namespace.first_process());
    let (name, mac) = (node.name(), node.mac());
    let eth0 = format!("name eth0 address {mac} netns {first}");
    let line = format!("ip link add {name} type veth peer {eth0}");
    // The port of an earlier boot is removed with its namespace, shortly after the last process.
    eventually(&line, SOON, || {
        let output = switch.with_namespace(|namespace| {
            namespace.on_its_network(|| command(&line).output().expect("run ip"))
        });
        if output.status.success() {
            return Ok(());
        }
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    });
}

fn ip(node: &Node, lines: &str) {
    node.run_command(&mut command("ip -batch -"), &(lines.to_owned() + "\n")).ok();
}

/// The agent has a route to each of its subnets, or gives the reason.
fn is_settled(peer: &Value) -> bool {
    let via = peer["via"].as_array().is_some_and(|via| via.iter().all(|way| !way.is_null()));
    via || !peer["fault"].is_null()
}
