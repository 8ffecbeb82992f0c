//! The uplink goes down, is renamed, moves into a bridge, gets other addresses or another MTU: the
//! host's network is repaired at once, and its pods are not disturbed.

use std::time::{Duration, Instant};

use crate::DUAL_STACK;
use crate::support::wait::SOON;
use crate::support::{Agent, Cluster, Node, Pinger, Place, Pod, eventually, soon};

#[test]
fn an_uplink_that_was_down_is_used_again() {
    let scene = Scene::start();
    scene.changes(
        "down and up",
        "ip link set eth0 down
         ip link set eth0 up
         ip address replace V6/64 dev eth0 nodad
         ip route replace default via 192.0.2.1
         ip route replace default via fd99::1",
    );
    scene.end();
}

#[test]
fn an_uplink_with_another_name_is_used() {
    let scene = Scene::start();
    scene.changes(
        "renamed",
        "ip link set eth0 down
         ip link set eth0 name up0
         ip link set up0 up
         ip address replace V6/64 dev up0 nodad
         ip route replace default via 192.0.2.1
         ip route replace default via fd99::1",
    );
    let host = scene.host();
    let accepts = || host.read("/proc/sys/net/ipv6/conf/up0/accept_ra").unwrap();
    soon("router advertisements are received on it", || accepts().trim() == "2");
    scene.end();
}

/// As into a bond: the address is on another link, with the uplink as a part of that.
#[test]
fn an_uplink_that_becomes_a_part_of_another_link_is_used() {
    let scene = Scene::start();
    scene.changes(
        "in a bridge",
        "ip link add lan0 type bridge forward_delay 0 mcast_snooping 0
         ip address flush dev eth0
         ip link set eth0 master lan0
         ip link set lan0 up
         ip address add V4/24 dev lan0
         ip address add V6/64 dev lan0 nodad
         ip route replace default via 192.0.2.1
         ip route replace default via fd99::1",
    );
    scene.changes(
        "out of the bridge",
        "ip link del lan0
         ip address add V4/24 dev eth0
         ip address add V6/64 dev eth0 nodad
         ip route replace default via 192.0.2.1
         ip route replace default via fd99::1",
    );
    scene.end();
}

#[test]
fn a_host_that_gets_another_address_is_followed_by_routes() {
    follows_another_address("direct", "ip route show proto 104");
}

#[test]
fn a_host_that_gets_another_address_is_followed_by_tunnels() {
    follows_another_address("vxlan", "bridge fdb show dev humanz-vx4");
}

/// `table`: the command that lists the other host's next hops to this one.
fn follows_another_address(backend: &str, table: &str) {
    let scene = Scene::with(backend);
    let (host, other) = (scene.host(), &scene.cluster.hosts[1]);
    // A second address makes the node address ambiguous.
    host.shell(
        "ip link add more0 type veth peer name more1
         ip link set more0 up
         ip link set more1 up
         ip address add 203.0.113.7/24 dev more0",
    )
    .ok();
    let set = || host.run("nft list table inet humanz").ok();
    soon("the firewall knows it", || set().contains("203.0.113.7"));
    // As a DHCP client: the default route is added last, some time after the address.
    host.run("ip address del 192.0.2.11/24 dev eth0").ok();
    host.run("ip address add 192.0.2.111/24 dev eth0").ok();
    soon("the firewall knows that too", || set().contains("192.0.2.111"));
    std::thread::sleep(Duration::from_millis(100));
    host.run("ip route replace default via 192.0.2.1").ok();
    let event = Instant::now();
    eventually("the other host routes to the new address", SOON, || {
        let found = other.run(table).ok();
        if found.contains("192.0.2.111 ") { Ok(()) } else { Err(found) }
    });
    println!("{backend}: another address → on the other host: {:?}", event.elapsed());
    let record = scene.cluster.etcd.get("/humanz/v1/nodes/h1").unwrap();
    assert!(record.contains("192.0.2.111") && !record.contains("203.0.113.7"), "{record}");
    scene.is_repaired("another address", event);
    scene.end();
}

#[test]
fn a_changed_mtu_applies_to_new_pods_and_other_hosts() {
    follows_another_mtu("direct", 1400);
}

#[test]
fn a_changed_mtu_leaves_room_for_tunnels() {
    follows_another_mtu("vxlan", 1400 - 70);
}

/// `pods`: MTU of new pods, in bytes, where the uplink has 1400.
fn follows_another_mtu(backend: &str, pods: u32) {
    let scene = Scene::with(backend);
    let before = mtu(&scene.pods[0], "eth0");
    let host = scene.host();
    for host in scene.cluster.hosts.iter().rev() {
        host.run("ip link set eth0 mtu 1400").ok();
    }
    let event = Instant::now();
    let conf = "/etc/cni/net.d/05-humanz.conflist";
    soon("the bridge has it", || mtu(host, "humanz0").contains(&format!("mtu {pods} ")));
    soon("the configuration has it", || {
        host.read(conf).unwrap().contains(&format!("\"mtu\": {pods},"))
    });
    println!("another MTU → configuration: {:?}", event.elapsed());
    eventually("the node record has it", SOON, || {
        let record = scene.cluster.etcd.get("/humanz/v1/nodes/h1").unwrap();
        if record.contains("\"mtu\":1400") { Ok(()) } else { Err(record) }
    });
    assert_eq!(mtu(&scene.pods[0], "eth0"), before, "a running pod keeps its own");
    let new = Pod::add(host, "new");
    assert!(mtu(&new, "eth0").contains(&format!("mtu {pods} ")));
    let far = scene.pods[2].v4();
    // Too large for the uplink: the pod gets ICMP fragmentation-needed and fragments.
    new.until_ok(&format!("ping -n -c 1 -W 2 -s 1472 {far}"), SOON);
    scene.pods[0].until_ok(&format!("ping -n -c 1 -W 2 -M dont -s 1472 {far}"), SOON);
    new.delete();
    scene.is_repaired("another MTU", event);
    scene.end();
}

fn mtu(place: &dyn Place, link: &str) -> String {
    place.run(&format!("ip -o link show dev {link}")).ok()
}

/// Two hosts; two pods on the first, one on the second; the two ping each other all the time.
struct Scene {
    local: Pinger,
    pods: [Pod; 3],
    _agents: Vec<Agent>,
    cluster: Cluster,
}

impl Scene {
    fn start() -> Self {
        Self::with("direct")
    }

    fn with(backend: &str) -> Self {
        let cluster = Cluster::new(2);
        let agents = cluster.start_agents(&[DUAL_STACK, &[("BACKEND", backend)]].concat());
        let [here, there] = &cluster.hosts[..] else { panic!("two hosts") };
        let pods = [Pod::add(here, "a"), Pod::add(here, "b"), Pod::add(there, "a")];
        let local = Pinger::start(&pods[0], pods[1].v4());
        let scene = Self { local, pods, _agents: agents, cluster };
        scene.is_repaired("start", Instant::now());
        scene
    }

    fn host(&self) -> &Node {
        &self.cluster.hosts[0]
    }

    /// Does this to the host, whose addresses are V4 and V6 in it.
    fn changes(&self, what: &str, script: &str) {
        let host = self.host();
        let script = script.replace("V4", &host.v4().to_string());
        host.shell(&script.replace("V6", &host.v6().to_string())).ok();
        self.is_repaired(what, Instant::now());
    }

    /// Waits until the pods of both hosts reach each other by both families. Before the hosts do, which
    /// is the kernel's affair (a bridge takes up to two seconds for its port), no pod can.
    fn is_repaired(&self, what: &str, event: Instant) {
        let [near, _, far] = &self.pods;
        let [here, there] = &self.cluster.hosts[..] else { panic!("two hosts") };
        for address in there.addresses() {
            here.until_ok(&format!("ping -n -c 1 -W 0.1 {address}"), SOON);
        }
        let hosts = event.elapsed();
        for (from, to) in [(near, far), (far, near)] {
            for address in to.addresses() {
                from.until_ok(&format!("ping -n -c 1 -W 0.1 {address}"), SOON);
            }
        }
        let pods = event.elapsed();
        println!("uplink: {what} → hosts reach each other {hosts:?}, pods {pods:?}");
    }

    fn end(self) {
        self.local.report().assert_nothing_lost();
        for pod in self.pods {
            pod.delete();
        }
    }
}
