//! Two hosts with pods: connected by humanz, or by the reference plugins and routes by hand.

use serde_json::{Value, json};

use humanz::net::PrivateKey;

use crate::support::cni::{Attachment, Network, PLUGINS};
use crate::support::node::{Node, Place};
use crate::support::pod::make_netns;
use crate::support::wait::SOON;
use crate::support::{Agent, Pod};
use crate::traffic::{ECHO, SINK};

/// Where Debian's package puts the reference plugins.
const REFERENCE: &str = "/usr/lib/cni";

/// Of all hosts that are made by hand.
const PODS: &str = "10.88.0.0/16";

/// How far above a server's port the host's port is that leads to it.
pub const HOST_PORTS: u16 = 10_000;

pub struct Pair {
    /// On the first host: client and server.
    pub from: Pod,
    pub near: Pod,
    /// On the second host: the server.
    pub far: Pod,
    _agents: Vec<Agent>,
}

/// How packets get from host to host.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    Direct,
    Vxlan,
    Wireguard,
}

/// The features of a manually made network besides a bridge.
#[derive(Clone, Copy)]
pub struct ByHand {
    pub backend: Backend,
    pub rules: Rules,
}

/// The firewall of a manually made network.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    None,
    /// One rule of NAT.
    Masquerade,
    /// Those that flannel makes on a host.
    Flannel,
}

impl Pair {
    /// With an agent on each host.
    pub fn of_humanz(hosts: [&Node; 2], backend: Backend) -> Self {
        let variable = match backend {
            Backend::Direct => ("BACKEND", "direct"),
            Backend::Vxlan => ("BACKEND", "vxlan"),
            Backend::Wireguard => ("ENCRYPTION", "wireguard"),
        };
        let agents = hosts.map(|host| Agent::start(host, &[variable]));
        for agent in &agents {
            agent.wait_ready();
        }
        Self::plug(hosts, hosts.map(Network::of), agents.into())
    }

    /// With a subnet of its own and a route to the other's on each host.
    pub fn by_hand(hosts: [&Node; 2], wish: ByHand) -> Self {
        let subnets = ["10.88.1.0/24", "10.88.2.0/24"];
        let [first, second] = hosts;
        let [first_own, second_own] = subnets;
        for (host, other, own, subnet) in
            [(first, second, first_own, second_own), (second, first, second_own, first_own)]
        {
            host.shell(&format!(
                "mkdir -p {PLUGINS}
                 ln -s {REFERENCE}/bridge {REFERENCE}/host-local {REFERENCE}/portmap {PLUGINS}
                 echo 1 >/proc/sys/net/ipv4/ip_forward"
            ))
            .ok();
            match wish.backend {
                Backend::Direct => {
                    host.run(&format!("ip route add {subnet} via {}", other.v4())).ok();
                }
                Backend::Vxlan => tunnel(host, other, subnet),
                Backend::Wireguard => encrypt(host, other, subnet),
            }
            match wish.rules {
                Rules::None => {}
                Rules::Masquerade => masquerade(host),
                Rules::Flannel => flannel(host, own),
            }
        }
        Self::plug(hosts, subnets.map(|subnet| reference(subnet, wish)), Vec::new())
    }

    fn plug(hosts: [&Node; 2], networks: [Network; 2], agents: Vec<Agent>) -> Self {
        let pod = |name, on: usize| {
            make_netns(hosts[on], name);
            let runtime = if name == "near" { host_ports() } else { Value::Null };
            let attachment = Attachment { runtime, ..Attachment::new(name) };
            let pod = Pod::connect(hosts[on], &networks[on], attachment);
            pod.unwrap_or_else(|e| panic!("{}/{name}: {e}", hosts[on].name()))
        };
        let (from, near, far) = (pod("from", 0), pod("near", 0), pod("far", 1));
        for to in [&near, &far] {
            from.until_ok(&format!("ping -n -c 1 -W 1 {}", to.v4()), SOON);
        }
        Self { from, near, far, _agents: agents }
    }
}

fn host_ports() -> Value {
    let mapping = |port: u16| json!({"hostPort": port + HOST_PORTS, "containerPort": port, "protocol": "tcp"});
    json!({"portMappings": [mapping(SINK), mapping(ECHO)]})
}

/// Pods to the outside. The reference plugin's own rules would translate what goes to pods of the other
/// host as well: its answers would come back beside the tunnel, and it would not know who asked.
fn masquerade(host: &Node) {
    host.run(&format!("iptables -t nat -A POSTROUTING -s {PODS} ! -d {PODS} -j MASQUERADE")).ok();
}

/// The chains of a host with this subnet. Source: flannel's `masqRules` and `forwardRules` (pkg/trafficmngr/iptables).
fn flannel(host: &Node, own: &str) {
    host.shell(&format!(
        "iptables -t nat -N FLANNEL-POSTRTG
         iptables -t nat -A POSTROUTING -j FLANNEL-POSTRTG
         iptables -t nat -A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -j RETURN
         iptables -t nat -A FLANNEL-POSTRTG -s {own} -d {PODS} -j RETURN
         iptables -t nat -A FLANNEL-POSTRTG -s {PODS} -d {own} -j RETURN
         iptables -t nat -A FLANNEL-POSTRTG ! -s {PODS} -d {own} -j RETURN
         iptables -t nat -A FLANNEL-POSTRTG -s {PODS} ! -d 224.0.0.0/4 -j MASQUERADE --random-fully
         iptables -t nat -A FLANNEL-POSTRTG ! -s {PODS} -d {PODS} -j MASQUERADE --random-fully
         iptables -N FLANNEL-FWD
         iptables -A FORWARD -j FLANNEL-FWD
         iptables -A FLANNEL-FWD -s {PODS} -j ACCEPT
         iptables -A FLANNEL-FWD -d {PODS} -j ACCEPT"
    ))
    .ok();
}

/// A VXLAN device that knows the other host for good.
fn tunnel(host: &Node, other: &Node, subnet: &str) {
    let mac = |host: &Node| format!("02:00:00:00:00:{:02x}", host.v4().octets()[3]);
    let (own, its) = (mac(host), mac(other));
    let gateway = subnet.trim_end_matches("/24");
    host.shell(&format!(
        "ip link add vx0 mtu 1450 address {own} type vxlan id 77 dstport 8472 local {} dev eth0 nolearning
         ip link set vx0 up
         bridge fdb append {its} dev vx0 dst {}
         ip neighbour add {gateway} lladdr {its} dev vx0 nud permanent
         ip route add {subnet} via {gateway} dev vx0 onlink",
        host.v4(),
        other.v4()
    ))
    .ok();
}

/// A WireGuard device with the other host as its peer.
fn encrypt(host: &Node, other: &Node, subnet: &str) {
    let secret = |host: &Node| PrivateKey::of_random([host.v4().octets()[3]; 32]).secret_text();
    let pipe = |secret: &str| format!("echo {secret} | wg pubkey");
    let public = host.shell(&pipe(&secret(other))).ok();
    let settings = format!(
        "[Interface]\nPrivateKey = {}\nListenPort = 10401\n[Peer]\nPublicKey = {}\nEndpoint = {}:10401\nAllowedIPs = {subnet}\n",
        secret(host),
        public.trim(),
        other.v4()
    );
    host.write("/etc/wg0.conf", &settings);
    host.shell(&format!(
        "ip link add wg0 mtu {} type wireguard
         wg setconf wg0 /etc/wg0.conf
         ip link set wg0 up
         ip route add {subnet} dev wg0",
        Backend::Wireguard.mtu()
    ))
    .ok();
}

impl Backend {
    /// Of pods, in bytes.
    fn mtu(self) -> u32 {
        match self {
            Backend::Direct => 1500,
            Backend::Vxlan => 1450,
            Backend::Wireguard => 1440,
        }
    }
}

fn reference(subnet: &str, wish: ByHand) -> Network {
    let bridge = json!({
        "type": "bridge", "bridge": "bench0", "isDefaultGateway": true, "hairpinMode": true,
        "mtu": wish.backend.mtu(),
        "ipam": {"type": "host-local", "ranges": [[{ "subnet": subnet }]]}
    });
    let mut plugins = vec![bridge];
    if wish.rules != Rules::None {
        plugins.push(json!({"type": "portmap", "capabilities": {"portMappings": true}}));
    }
    let list = json!({"cniVersion": "1.0.0", "name": "bench", "plugins": plugins});
    Network::parse(&list.to_string())
}
