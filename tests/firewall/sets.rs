//! Sets that rules of iptables ask (`-m set`), made as ipset(8) does: by netlink, without that program.

use std::net::Ipv4Addr;

use humanz::netlink::{Attributes, Message, NetlinkProtocol, NetlinkSocket};
use neli::consts::nl::NlmF;

/// Those that kube-proxy has in mode ipvs and its rules ask, with their types.
const OF_KUBE_PROXY: [(&str, &str); 8] = [
    ("KUBE-CLUSTER-IP", "hash:ip,port"),
    ("KUBE-EXTERNAL-IP", "hash:ip,port"),
    ("KUBE-EXTERNAL-IP-LOCAL", "hash:ip,port"),
    ("KUBE-HEALTH-CHECK-NODE-PORT", "bitmap:port"),
    ("KUBE-IPVS-IPS", "hash:ip"),
    ("KUBE-LOAD-BALANCER", "hash:ip,port"),
    ("KUBE-LOAD-BALANCER-FW", "hash:ip,port"),
    ("KUBE-LOAD-BALANCER-SOURCE-CIDR", "hash:ip,port,net"),
];

/// From linux/netfilter/ipset/ip_set.h and linux/netfilter/nfnetlink.h.
const SUBSYSTEM: u16 = 6;
const CREATE: u16 = 2;
const ADD: u16 = 9;
const PROTOCOL: u8 = 6;
const NET_BYTEORDER: u16 = 1 << 14;
const AF_INET: u8 = 2;
const TCP: u8 = 6;

/// Makes them in this namespace: of a service with the cluster address 10.96.0.12 and the load balancer `address`, both
/// at port 80.
pub fn make_kube_proxys(address: Ipv4Addr) {
    for (name, kind) in OF_KUBE_PROXY {
        let ports =
            |it: Attributes| it.put(4 | NET_BYTEORDER, [0, 0]).put(5 | NET_BYTEORDER, [255; 2]);
        let about =
            if kind == "bitmap:port" { ports(Attributes::new()) } else { Attributes::new() };
        let set = of_set(name).text(3u16, kind).u8(4u16, 0).u8(5u16, AF_INET).nest(7u16, about);
        send(CREATE, set);
    }
    let cluster = Ipv4Addr::new(10, 96, 0, 12);
    for each in [cluster, address] {
        add("KUBE-IPVS-IPS", ip(1, each));
    }
    add("KUBE-CLUSTER-IP", at_port_80(cluster));
    add("KUBE-LOAD-BALANCER", at_port_80(address));
    add("KUBE-LOAD-BALANCER-FW", at_port_80(address));
}

/// Lets `network` and what follows it use the load balancer `address`.
pub fn allow_source(address: Ipv4Addr, (network, prefix): (Ipv4Addr, u8)) {
    let mut member = at_port_80(address);
    member.append(ip(20, network).u8(21u16, prefix));
    add("KUBE-LOAD-BALANCER-SOURCE-CIDR", member);
}

fn at_port_80(address: Ipv4Addr) -> Attributes {
    ip(1, address).put(4 | NET_BYTEORDER, 80u16.to_be_bytes()).u8(7u16, TCP)
}

fn ip(kind: u16, address: Ipv4Addr) -> Attributes {
    Attributes::new().nest(kind, Attributes::new().put(1 | NET_BYTEORDER, address.octets()))
}

fn of_set(name: &str) -> Attributes {
    Attributes::new().u8(1u16, PROTOCOL).text(2u16, name)
}

fn add(set: &str, member: Attributes) {
    send(ADD, of_set(set).nest(7u16, member));
}

fn send(command: u16, attributes: Attributes) {
    let (kind, flags) = (SUBSYSTEM << 8 | command, NlmF::EXCL);
    let message = Message::new("ip_set", kind, flags, &[AF_INET, 0, 0, 0], attributes);
    NetlinkSocket::open(NetlinkProtocol::Netfilter).unwrap().transact(&[message]).unwrap();
}
