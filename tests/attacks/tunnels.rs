//! Packets of tunnels that no other host sent: from pods, from strangers, and from a host that lies.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::packet_socket::PacketSocket;
use crate::packets::{
    ARP, FRAGMENT, IPV4, IPV6, Mac, UDP, arp, ethernet, fragment, ipv4, ipv6, tagged, udp, udp6,
};
use crate::support::cluster::Cluster;
use crate::support::cni::{Attachment, Network};
use crate::support::ping::{addresses, all_reach};
use crate::support::pod::make_netns;
use crate::support::wait::SOON;
use crate::support::{Agent, Node, Place, Pod, soon};

const DUAL_STACK: &[(&str, &str)] = &[("IPV6_SUBNET", "fd10::/48"), ("RESYNC_INTERVAL", "3600s")];
pub const PORT: u16 = 10400;
pub const TABLE: &str = "humanz-tunnels";

/// Two hosts with a router between them, and pods.
pub struct Scene {
    pub agents: Vec<Agent>,
    /// Of the other host, and of the one attacked.
    pub near: Pod,
    pub far: Pod,
    pub cluster: Cluster,
    macs: [Mac; 2],
}

/// Somebody who sends a packet of a tunnel to the far host.
pub struct Attack<'a> {
    pub name: String,
    pub from: &'a dyn Place,
    /// The outer destination.
    pub to: IpAddr,
    /// What the tunnel's device gives out, with a mark in it.
    pub frame: Vec<u8>,
    pub mark: [u8; 8],
}

impl Scene {
    pub fn new() -> Scene {
        let cluster = Cluster::routed(1, 1);
        let agents = cluster.start_agents(DUAL_STACK);
        let [near, far] = &cluster.hosts[..] else { panic!("two hosts") };
        let pods = [Pod::add(near, "a"), Pod::add(far, "b")];
        for address in pods[1].addresses() {
            pods[0].until_ok(&format!("ping -n -c 1 -W 1 {address}"), SOON);
        }
        let macs = [mac(near), mac(far)];
        let [near, far] = pods;
        Scene { agents, near, far, cluster, macs }
    }

    pub fn hosts(&self) -> [&Node; 2] {
        let [near, far] = &self.cluster.hosts[..] else { panic!("two hosts") };
        [near, far]
    }

    /// A frame of the near host's tunnel.
    pub fn inner(&self, (from, to): (IpAddr, IpAddr), mark: &[u8]) -> Vec<u8> {
        let (kind, packet) = match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                (IPV4, ipv4((from, to), UDP, &udp((4000, 4001), mark)))
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let pair = (from, to);
                (IPV6, ipv6(pair, UDP, 64, &udp6(pair, (4000, 4001), mark)))
            }
            _ => panic!("two families"),
        };
        ethernet(self.macs[1], self.macs[0], kind, &packet)
    }

    fn attacks(&self) -> Vec<Attack<'_>> {
        let mut attacks: Vec<Attack<'_>> = Vec::new();
        let [near, far] = self.hosts();
        let outside: IpAddr = "198.51.100.7".parse().unwrap();
        let outside6: IpAddr = "2001:db8:51::7".parse().unwrap();
        let mut add = |name: &str, from, to, frame: &dyn Fn(&[u8]) -> Vec<u8>| {
            let mark = [b't', b'u', b'n', b'n', b'e', b'l', 0xc5, attacks.len() as u8];
            attacks.push(Attack {
                name: format!("{name} by {to}"),
                from,
                to,
                frame: frame(&mark),
                mark,
            });
        };
        for to in far.addresses() {
            for inner in 0..2 {
                let near_pod = self.near.addresses()[inner];
                let far_pod = self.far.addresses()[inner];
                let far_gateway = self.far.gateways()[inner];
                let stranger = [outside, outside6][inner];
                let plain = |pair: (IpAddr, IpAddr)| move |mark: &[u8]| self.inner(pair, mark);
                add("a pod of the host", &self.far, to, &plain((near_pod, far_pod)));
                add("a pod of the other host", &self.near, to, &plain((near_pod, far_pod)));
                add("the outside", &self.cluster.outside, to, &plain((near_pod, far_pod)));
                add("a host with a pod of another", near, to, &plain((far_pod, far_pod)));
                add("a host with another's gateway", near, to, &plain((far_gateway, far_pod)));
                add("a host with the Internet", near, to, &plain((stranger, far_pod)));
                let node = far.addresses()[inner];
                add("a host to the other host itself", near, to, &plain((near_pod, node)));
                add("a host to the outside", near, to, &plain((near_pod, stranger)));
            }
            add("a host with ARP", near, to, &|mark: &[u8]| {
                let from = [&mark[..4], &mark[6..]].concat();
                let mac: Mac = from.try_into().unwrap();
                let address = "10.244.1.1".parse().unwrap();
                let mut frame = ethernet(
                    self.macs[1],
                    self.macs[0],
                    ARP,
                    &arp(1, mac, address, (mac, address)),
                );
                frame.extend(mark);
                frame
            });
            add("a host with a VLAN", near, to, &|mark: &[u8]| {
                let packet = self.inner((self.near.v4(), self.far.v4()), mark);
                tagged(self.macs[1], self.macs[0], &[(0x8100, 5)], IPV4, &packet[14..])
            });
        }
        attacks
    }

    /// Names of the attacks whose packet comes out of the far host's tunnel.
    fn succeed(&self) -> Vec<String> {
        self.arriving(&self.attacks())
    }

    /// The same of these.
    pub fn arriving(&self, attacks: &[Attack<'_>]) -> Vec<String> {
        let [_, far] = self.hosts();
        let arrives = |attack: &&Attack<'_>| {
            let device = if attack.to.is_ipv4() { "humanz-vx4" } else { "humanz-vx6" };
            let watcher = PacketSocket::open(far, device);
            let packet = [&[8, 0, 0, 0, 0, 0, 104, 0], &attack.frame[..]].concat();
            send(attack.from, SocketAddr::new(attack.to, PORT), &packet);
            // What the kernel sends by itself comes behind it.
            thread::sleep(Duration::from_millis(30));
            let fence = b"the fence".to_vec();
            let pair = if attack.to.is_ipv4() {
                (self.near.v4(), self.far.v4())
            } else {
                (self.near.v6(), self.far.v6())
            };
            send(&self.near, SocketAddr::new(pair.1, 4001), &fence);
            watcher.sees(&[attack.mark.to_vec()], &fence)
        };
        attacks.iter().filter(arrives).map(|attack| attack.name.clone()).collect()
    }
}

/// The attacks work as soon as nobody keeps the rules.
#[test]
fn only_the_other_hosts_pods_come_out_of_a_tunnel() {
    let mut scene = Scene::new();
    assert_eq!(scene.succeed(), Vec::<String>::new());
    let places: [&dyn Place; 2] = [&scene.near, &scene.far];
    all_reach(&places, &addresses(&places));
    let [near, far] = scene.hosts();
    all_reach(&[near as &dyn Place, far as &dyn Place], &addresses(&places));
    scene.agents.iter().for_each(Agent::kill);
    assert_eq!(scene.succeed(), Vec::<String>::new(), "without agents");
    for host in scene.hosts() {
        host.run(&format!("nft delete table inet {TABLE}")).ok();
    }
    let all: Vec<String> = scene.attacks().into_iter().map(|attack| attack.name).collect();
    assert_eq!(scene.succeed(), all, "without rules");
    scene.agents.clear();
}

/// A first fragment that ends before what the rules compare.
#[test]
fn fragments_do_not_get_past_the_rules() {
    let scene = Scene::new();
    let [near, far] = scene.hosts();
    let mark = b"tunnel fragments";
    let (from, to) = (near.v6(), far.v6());
    let frame = scene.inner((scene.far.v4(), scene.far.v4()), mark);
    let packet =
        udp6((from, to), (5000, PORT), &[&[8, 0, 0, 0, 0, 0, 104, 0], &frame[..]].concat());
    let router =
        near.shell("ip -6 neigh show to fd99::1 dev eth0 | grep -o '..:..:..:..:..:..'").ok();
    let router: humanz::net::Mac = router.trim().parse().unwrap();
    let own: humanz::net::Mac =
        near.read("/sys/class/net/eth0/address").unwrap().trim().parse().unwrap();
    let mut sent = 0;
    let mut sends = |at: usize| {
        sent += 1;
        let uplink = PacketSocket::open(near, "eth0");
        let watcher = PacketSocket::open(far, "humanz-vx6");
        for (offset, more, part) in [(0, true, &packet[..at]), (at, false, &packet[at..])] {
            let mut part = fragment(UDP, offset as u16, more, part);
            // Its identification: no other datagram's fragments lie around with it.
            part[7] = sent;
            let part = ipv6((from, to), FRAGMENT, 64, &part);
            uplink.send(&ethernet(router.0, own.0, IPV6, &part));
        }
        thread::sleep(Duration::from_millis(50));
        let fence = b"the fence".to_vec();
        send(&scene.near, SocketAddr::new(scene.far.v6(), 4001), &fence);
        watcher.sees(&[mark.to_vec()], &fence)
    };
    let sizes = [8, 16, 24, 48, 64];
    assert_eq!(sizes.map(&mut sends), [false; 5]);
    // Without connection tracking nobody puts fragments together before the rules.
    scene.agents.iter().for_each(Agent::kill);
    far.shell("nft list tables | grep -v humanz-tunnels | sed 's/^/delete /' | nft -f -").ok();
    assert_eq!(sizes.map(&mut sends), [false; 5], "without connection tracking");
    far.run("nft flush ruleset").ok();
    assert_eq!(sizes.map(&mut sends), [true; 5], "without rules");
}

/// Whoever saves the rules for the next boot must be able to load them.
#[test]
fn nft_reads_what_it_lists() {
    let scene = Scene::new();
    let [near, _] = scene.hosts();
    println!("{}", near.run(&format!("nft list table inet {TABLE}")).ok());
    near.shell("nft list ruleset | nft -c -f -").ok();
}

/// Who had the tunnel's port got all packets of the tunnel, before the tunnel did.
#[test]
fn no_pod_gets_the_port_of_a_tunnel() {
    let scene = Scene::new();
    let [_, far] = scene.hosts();
    let mut network = Network::of(far);
    let request = |name: &str, ip: &str| {
        make_netns(far, name);
        let port =
            json!({ "hostPort": PORT, "containerPort": 53, "protocol": "udp", "hostIP": ip });
        Attachment { runtime: json!({ "portMappings": [port] }), ..Attachment::new(name) }
    };
    for ip in ["", "0.0.0.0", "203.0.113.12", "::"] {
        let name = format!("thief{}", ip.len());
        let refused = Pod::connect(far, &network, request(&name, ip)).err().unwrap();
        assert_eq!(refused.code, 104, "{refused}");
        assert!(refused.to_string().contains("tunnels (VXLAN_PORT)"), "{refused}");
    }
    // An older plugin, or a configuration of somebody else.
    network.plugins[0].as_object_mut().unwrap().remove("reservedPorts");
    let leads = || {
        let listed = far.run("nft list table inet humanz-hostports").stdout;
        listed.contains(&format!("udp . {PORT} "))
    };
    let older = Pod::connect(far, &network, request("older", "")).unwrap();
    soon("the port leads to no pod", || !leads());
    scene.near.until_ok(&format!("ping -n -c 1 -W 1 {}", scene.far.v4()), SOON);
    older.delete();
    scene.agents.iter().for_each(Agent::kill);
    let thief = Pod::connect(far, &network, request("control", "")).unwrap();
    assert!(leads(), "without an agent");
    // The connection of before is forgotten after half a minute of silence; a new one is not.
    let watcher = PacketSocket::open(&thief, "eth0");
    let mark = b"not for the thief".to_vec();
    send(&scene.cluster.outside, SocketAddr::new(far.v4().into(), PORT), &mark);
    let pod = thief.v4();
    send(far, SocketAddr::new(pod, 9), b"the fence");
    assert!(watcher.sees(&[mark], b"the fence"), "the attack works");
}

pub fn send(from: &dyn Place, to: SocketAddr, data: &[u8]) {
    from.spot().inside(|| {
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).unwrap();
        // What OUTPUT drops is an error of the call.
        if let Err(error) = socket.send_to(data, to) {
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        }
    });
}

pub fn mac(host: &Node) -> Mac {
    let text = host.read("/sys/class/net/humanz-vx4/address").unwrap();
    text.trim().parse::<humanz::net::Mac>().unwrap().0
}

/// A container of another network, whose packets leave with the address of its host.
#[test]
fn what_is_behind_a_host_on_another_bridge_sends_nothing_through_tunnels() {
    let mut scene = Scene::new();
    let [near, far] = scene.hosts();
    let network = json!({"cniVersion": "1.0.0", "name": "other", "plugins": [{
        "type": "humanz", "bridge": "hz9", "subnet": "172.20.0.0/24", "ipMasq": true, "dataDir": "/run/other",
    }]});
    let guest = Pod::try_add(near, "guest", &Network::parse(&network.to_string())).unwrap();
    for address in far.addresses().into_iter().filter(IpAddr::is_ipv4) {
        guest.until_ok(&format!("ping -n -c 1 -W 1 {address}"), SOON);
    }
    let forged = |sender: IpAddr| {
        let mark = [b't', b'u', b'n', b'n', b'e', b'l', 0xc6, 0];
        Attack {
            name: format!("as {sender}"),
            from: &guest,
            to: far.addresses()[0],
            frame: scene.inner((sender, scene.far.v4()), &mark),
            mark,
        }
    };
    let attacks = [scene.near.v4(), near.addresses()[0]].map(forged);
    assert_eq!(scene.arriving(&attacks), Vec::<String>::new());
    // What the guest sends to other ports of hosts is nobody's business.
    assert!(near.run(&format!("nft list table inet {TABLE}")).stdout.contains("hosts4"));
    all_reach(&[&scene.near as &dyn Place], &addresses(&[&scene.far as &dyn Place]));
    scene.agents.iter().for_each(Agent::kill);
    assert_eq!(scene.arriving(&attacks), Vec::<String>::new(), "without agents");
    near.run(&format!("nft delete table inet {TABLE}")).ok();
    assert_eq!(scene.arriving(&attacks).len(), attacks.len(), "without rules");
    drop(attacks);
    drop(guest);
    scene.agents.clear();
}

/// A program of a host, of any user: the host it sends from is the right one.
#[test]
fn a_program_of_a_host_sends_nothing_through_a_tunnel_but_as_the_host() {
    let mut scene = Scene::new();
    let [near, far] = scene.hosts();
    let mut attacks: Vec<Attack<'_>> = Vec::new();
    for to in far.addresses() {
        for inner in 0..2 {
            let (own, pod) = (scene.near.gateways()[inner], scene.far.addresses()[inner]);
            for (name, from) in [("itself", own), ("a pod", scene.near.addresses()[inner])] {
                let mark = [b'p', b'r', b'o', b'g', b'r', b'a', b'm', attacks.len() as u8];
                let frame = scene.inner((from, pod), &mark);
                let name = format!("as {name} by {to}");
                attacks.push(Attack { name, from: near, to, frame, mark });
            }
        }
    }
    let arrived = scene.arriving(&attacks);
    assert_eq!(arrived.len(), attacks.len() / 2, "{arrived:?}");
    assert!(arrived.iter().all(|name| name.starts_with("as itself")), "{arrived:?}");
    let places: [&dyn Place; 2] = [&scene.near, near];
    all_reach(&places, &addresses(&[&scene.far as &dyn Place]));
    scene.agents.iter().for_each(Agent::kill);
    near.run(&format!("nft delete table inet {TABLE}")).ok();
    assert_eq!(scene.arriving(&attacks).len(), attacks.len(), "without rules");
    scene.agents.clear();
}
