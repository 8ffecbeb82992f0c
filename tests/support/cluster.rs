//! A switch, an outside, etcd, and hosts.
//!
//! ```text
//! h1 h2 h3 … etcd ─── switch, 192.0.2.1 fd99::1 ─── outside, 198.51.100.10 2001:db8:51::10
//! ```
//! Hosts have 192.0.2.11, .12, … and fd99::11, ::12, …; etcd has 192.0.2.2. The outside answers
//! those networks only: a pod's own address gets no reply from it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use super::agent::Agent;
use super::disk::{self, Disk};
use super::node::{Node, Place, command};
use super::store::Store;
use super::wait::{SOON, eventually};

/// The outside's addresses, IPv4 first.
pub const OUTSIDE: [IpAddr; 2] = [IpAddr::V4(OUTSIDE_V4), IpAddr::V6(OUTSIDE_V6)];
const OUTSIDE_V4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 10);
const OUTSIDE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x51, 0, 0, 0, 0, 0x10);
const SWITCH_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const SWITCH_V6: Ipv6Addr = Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 1);

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
        let (v4, v6) = (address_v4(1), address_v6(1));
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
        let disks = disk::folder();
        let names: String = (1..=count).map(|i| format!("{} h{i}\n", address_v4(i))).collect();
        let names = format!("{names}{} etcd\n", Store::ADDRESS_V4);
        let node = |name: &str, v4, v6| {
            let node = Node::new(name, v4, v6, Disk::new(&disks.path().join(name), name, &names));
            node.boot();
            node
        };
        let switch = node("switch", SWITCH_V4, SWITCH_V6);
        make_switch(&switch);
        let outside = node("outside", OUTSIDE_V4, OUTSIDE_V6);
        connect_outside(&switch, &outside);
        let etcd = node("etcd", Store::ADDRESS_V4, Store::ADDRESS_V6);
        plug(&switch, &etcd);
        let etcd = Store::new(etcd);
        etcd.start();
        let hosts = std::thread::scope(|scope| {
            let boots: Vec<_> = (1..=count)
                .map(|i| {
                    let (node, switch) = (&node, &switch);
                    scope.spawn(move || {
                        let host = node(&format!("h{i}"), address_v4(i), address_v6(i));
                        plug(switch, &host);
                        host
                    })
                })
                .collect();
            boots.into_iter().map(|boot| boot.join().unwrap()).collect()
        });
        etcd.wait_ready();
        Self { hosts, outside, etcd, switch, disks }
    }

    /// Starts an agent on every host, with these variables, and waits until all are ready.
    pub fn start_agents(&self, variables: &[(&str, &str)]) -> Vec<Agent> {
        let agents: Vec<_> = self.hosts.iter().map(|host| Agent::start(host, variables)).collect();
        for agent in &agents {
            agent.wait_ready();
        }
        agents
    }

    /// Where all that nodes write lies on this machine; it goes with the cluster.
    pub fn disks(&self) -> &Path {
        self.disks.path()
    }

    /// Power off and on: new namespaces, same disk.
    pub fn reboot(&self, host: &Node) {
        host.power_off();
        host.boot();
        plug(&self.switch, host);
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

/// The address of host number `index`, from 1.
fn address_v4(index: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, 10 + index)
}

fn address_v6(index: u8) -> Ipv6Addr {
    Ipv6Addr::from_bits(SWITCH_V6.to_bits() & !0xffff | u128::from(decimal(10 + index)))
}

/// 11 as 0x11: reads like the IPv4 address.
fn decimal(number: u8) -> u16 {
    u16::from_str_radix(&number.to_string(), 16).expect("decimal digits are hexadecimal ones")
}

fn make_switch(switch: &Node) {
    let lines = format!(
        "link add lan address 02:00:c0:00:02:01 type bridge forward_delay 0 mcast_snooping 0
         link set lan up
         address add {SWITCH_V4}/24 dev lan
         address add {SWITCH_V6}/64 dev lan nodad"
    );
    ip(switch, &lines);
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
             route add fd99::/64 via 2001:db8:51::1"
        ),
    );
}

/// Gives `node` an eth0 on the switch's segment.
fn plug(switch: &Node, node: &Node) {
    cable(switch, node);
    // A host that has been up for two seconds may use its link-local address.
    node.write("/proc/sys/net/ipv6/conf/eth0/accept_dad", "0");
    ip(switch, &format!("link set {} master lan up", node.name()));
    ip(
        node,
        &format!(
            "address add {}/24 dev eth0
             address add {}/64 dev eth0 nodad
             link set eth0 up
             route add default via {SWITCH_V4}
             route add default via {SWITCH_V6}",
            node.v4(),
            node.v6()
        ),
    );
    forwards(switch, node);
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
    let name = node.name();
    let [a, b, c, d] = node.v4().octets();
    let eth0 = format!("name eth0 address 02:00:{a:02x}:{b:02x}:{c:02x}:{d:02x} netns {first}");
    let line = format!("ip link add {name} type veth peer {eth0}");
    // The port of an earlier boot goes with its namespace, a moment after the last process.
    eventually(&line, Duration::from_secs(5), || {
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
