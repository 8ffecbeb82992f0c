//! A host with three pods, attached by humanz or by the reference plugins.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Deref;

use serde_json::{Value, json};

use crate::packet_socket::PacketSocket;
use crate::packets::{self, ARP, BROADCAST, Mac, arp, ethernet};
use crate::support::node::command;
use crate::support::plugin_host::{Container, conf};
use crate::support::{Place, PluginHost};

/// The reference plugins of Debian's containernetworking-plugins.
const REFERENCE: &str = "/usr/lib/cni";

/// Who attaches the pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Humanz,
    /// `bridge` with `host-local`.
    Reference,
}

/// One end of an attachment.
#[derive(Clone, Copy, Debug)]
pub struct End {
    pub name: &'static str,
    pub mac: Mac,
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
}

pub struct Scene {
    pub host: PluginHost,
    pub gateway: End,
    pub attacker: End,
    pub victim: End,
    pub bystander: End,
    /// What ADD answered for the attacker.
    pub result: Value,
}

impl End {
    /// Its link-local address, as its MAC names it.
    pub fn link_local(&self) -> Ipv6Addr {
        humanz::net::Mac(self.mac).link_local()
    }
}

impl Scene {
    pub fn new(by: By) -> Self {
        let sets = json!([[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00::/64" }]]);
        Self::with(by, json!({ "ranges": sets, "isGateway": true }))
    }

    /// With these keys in the configuration.
    pub fn with(by: By, keys: Value) -> Self {
        let host = PluginHost::new();
        let mut conf = conf("1.0.0", keys);
        if by == By::Reference {
            let ranges = conf["ranges"].take();
            conf["type"] = json!("bridge");
            conf["isGateway"] = json!(true);
            conf["ipam"] = json!({ "type": "host-local", "ranges": ranges });
            // Its checks of headers are not what is tested.
            for family in ["iptables", "ip6tables"] {
                host.run(&format!("sysctl -q -w net.bridge.bridge-nf-call-{family}=0"));
            }
        }
        let [(attacker, result), (victim, _), (bystander, _)] = ["attacker", "victim", "bystander"]
            .map(|name| {
                host.netns(name);
                let result = add(&host, &conf, name);
                (end(&host, name), result)
            });
        let link = &host.ip("addr show hz0")[0];
        let gateway = end_of("hz0", link);
        // Duplicate address detection of the pods' own link-local addresses.
        host.run("ip netns exec bystander ping -n -c 1 -W 5 10.1.2.1").ok();
        Self { host, gateway, attacker, victim, bystander, result }
    }

    pub fn pod(&self, end: &End) -> Container {
        self.host.container(end.name)
    }

    /// The host's end of a pod's veth.
    pub fn port(&self, end: &End) -> String {
        let links = self.host.pod_ip(end.name, "link show eth0");
        let index = links[0]["link_index"].as_u64().unwrap();
        let links = self.host.ip("link show");
        let found = links.as_array().unwrap().iter().find(|link| link["ifindex"] == index);
        found.unwrap()["ifname"].as_str().unwrap().to_owned()
    }

    /// The MAC of that.
    pub fn port_mac(&self, end: &End) -> Mac {
        let text = self.read(&format!("/sys/class/net/{}/address", self.port(end))).unwrap();
        text.trim().parse::<humanz::net::Mac>().unwrap().0
    }

    /// The attacker sends `frames`; whether what is in each of `needles` arrives at the victim, or as
    /// one that the host's bridge takes in.
    pub fn arrives(&self, frames: &[Vec<u8>], at: At, needles: &[Vec<u8>]) -> bool {
        let attacker = PacketSocket::open(&self.pod(&self.attacker), "eth0");
        let watcher = match at {
            At::Victim => PacketSocket::open(&self.pod(&self.victim), "eth0"),
            At::Host => PacketSocket::open(&*self.host, "hz0"),
        };
        for frame in frames {
            attacker.send(frame);
        }
        let Self { attacker: own, .. } = self;
        let nobody = ([0; 6], Ipv4Addr::new(10, 1, 2, 254));
        let fence = arp(1, own.mac, own.v4, nobody);
        attacker.send(&ethernet(BROADCAST, own.mac, ARP, &fence));
        watcher.sees(needles, &fence)
    }
}

/// Where a frame may arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    Victim,
    Host,
}

impl Deref for Scene {
    type Target = PluginHost;

    fn deref(&self) -> &PluginHost {
        &self.host
    }
}

/// One call of whichever plugin the configuration names.
fn add(host: &PluginHost, conf: &Value, name: &str) -> Value {
    let kind = conf["type"].as_str().unwrap();
    let path = if kind == "humanz" { crate::support::cni::PLUGINS } else { REFERENCE };
    let mut plugin = command(&format!("{path}/{kind}"));
    plugin
        .env("CNI_COMMAND", "ADD")
        .env("CNI_CONTAINERID", name)
        .env("CNI_NETNS", format!("/run/netns/{name}"))
        .env("CNI_IFNAME", "eth0")
        .env("CNI_PATH", path);
    serde_json::from_str(&host.run_command(&mut plugin, &conf.to_string()).ok()).unwrap()
}

fn end(host: &PluginHost, name: &'static str) -> End {
    end_of(name, &host.pod_ip(name, "addr show eth0")[0])
}

fn end_of(name: &'static str, link: &Value) -> End {
    let mac: humanz::net::Mac = link["address"].as_str().unwrap().parse().unwrap();
    let address = |family: &str| {
        let addresses = link["addr_info"].as_array().unwrap();
        let found = addresses
            .iter()
            .find(|address| address["family"] == family && address["scope"] == "global");
        found.map(|address| address["local"].as_str().unwrap().to_owned())
    };
    let v4 = address("inet").unwrap().parse().unwrap();
    let v6 = address("inet6").map_or(Ipv6Addr::UNSPECIFIED, |text| text.parse().unwrap());
    End { name, mac: mac.0, v4, v6 }
}

/// An IPv4 packet with `mark` in it.
pub fn marked4(pair: packets::Pair4, mark: &[u8]) -> Vec<u8> {
    packets::ipv4(pair, packets::UDP, &packets::udp((4000, 4001), mark))
}

/// The same for IPv6.
pub fn marked6(pair: packets::Pair6, mark: &[u8]) -> Vec<u8> {
    packets::ipv6(pair, packets::UDP, 64, &packets::udp6(pair, (4000, 4001), mark))
}
