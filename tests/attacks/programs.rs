//! What a program of a host sends that has no rights at all: every user may bind a socket to an IPv6 address that is
//! not the host's, and send from it.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use crate::packet_socket::PacketSocket;
use crate::packets::{IPV6, UDP, ethernet, ipv6, udp6};
use crate::support::{Agent, Cluster, Node, Place, Pod};
use crate::tunnels::{PORT, TABLE, mac, send};

const SETTINGS: &[(&str, &str)] = &[("IPV6_SUBNET", "fd10::/48")];

/// Source, destination, port, and the payload in hexadecimal digits; 78 is IPV6_FREEBIND.
const SENDER: &str = "import socket, sys
source, to, port, payload = sys.argv[1:]
sender = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
sender.setsockopt(socket.IPPROTO_IPV6, 78, 1)
sender.bind((source, 4000))
sender.sendto(bytes.fromhex(payload), (to, int(port)))";

fn send_as_user_nobody(host: &Node, [source, to]: [IpAddr; 2], port: u16, payload: &[u8]) {
    let payload: String = payload.iter().map(|byte| format!("{byte:02x}")).collect();
    host.write("/tmp/sender.py", SENDER);
    let user = "setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all";
    let ended = host.run(&format!("{user} python3 /tmp/sender.py {source} {to} {port} {payload}"));
    // What OUTPUT drops is an error of the call.
    assert!(ended.succeeded() || ended.stderr.contains("PermissionError"), "{ended}");
}

/// Whether what `attack` sends comes to `pod`; `friend` may send to it.
fn comes(pod: &Pod, friend: &Pod, mark: &[u8], attack: impl FnOnce()) -> bool {
    let watcher = PacketSocket::open(pod, "eth0");
    attack();
    thread::sleep(Duration::from_millis(50));
    let fence = b"the fence".to_vec();
    send(friend, (pod.v6(), 4001).into(), &fence);
    watcher.sees(&[mark.to_vec()], &fence)
}

/// Policies, and other hosts, know pods by their addresses.
#[test]
fn no_user_of_a_host_sends_from_an_address_of_a_pod() {
    for [near_hosts, far_hosts] in [[2, 0], [1, 1]] {
        let cluster = Cluster::routed(near_hosts, far_hosts);
        let agents = cluster.start_agents(SETTINGS);
        let pods: Vec<Pod> = cluster.hosts.iter().map(|host| Pod::add(host, "a")).collect();
        let [near, far] = &pods[..] else { unreachable!() };
        near.until_ok(&format!("ping -n -c 1 -W 1 {}", far.v6()), crate::support::wait::SOON);
        let host = &cluster.hosts[0];
        let as_pod = || {
            let mark = b"as a pod";
            comes(far, near, mark, || send_as_user_nobody(host, [near.v6(), far.v6()], 4001, mark))
        };
        assert!(!as_pod(), "{near_hosts} hosts on a segment");
        let itself: IpAddr = near.gateways()[1];
        let as_itself = comes(far, near, b"itself", || {
            send_as_user_nobody(host, [itself, far.v6()], 4001, b"itself");
        });
        assert!(as_itself, "a host reaches pods of others from its own address");
        agents.iter().for_each(Agent::kill);
        host.run("nft delete table inet humanz").ok();
        host.run(&format!("nft delete table inet {TABLE}")).ok();
        assert!(as_pod(), "the attack works without the rule");
    }
}

#[test]
fn no_user_of_a_host_sends_through_a_tunnel_as_another_host() {
    let cluster = Cluster::new(3);
    let agents = cluster.start_agents(&[SETTINGS[0], ("BACKEND", "vxlan")]);
    let pods: Vec<Pod> = cluster.hosts.iter().map(|host| Pod::add(host, "a")).collect();
    let [stolen, victim, other] = &cluster.hosts[..] else { unreachable!() };
    let address = |pod: &Pod| match pod.v6() {
        IpAddr::V6(address) => address,
        IpAddr::V4(_) => unreachable!(),
    };
    let (from, to) = (address(&pods[2]), address(&pods[1]));
    pods[2].until_ok(&format!("ping -n -c 1 -W 1 {to}"), crate::support::wait::SOON);
    let mark = b"as another host";
    let packet = ipv6((from, to), UDP, 64, &udp6((from, to), (4000, 4001), mark));
    let frame = ethernet(mac(victim), mac(other), IPV6, &packet);
    let tunnelled = [&[8, 0, 0, 0, 0, 0, 104, 0], &frame[..]].concat();
    let ends = [other.v6(), victim.v6()].map(IpAddr::from);
    let attack =
        || comes(&pods[1], &pods[2], mark, || send_as_user_nobody(stolen, ends, PORT, &tunnelled));
    assert!(!attack());
    agents.iter().for_each(Agent::kill);
    stolen.run(&format!("nft delete table inet {TABLE}")).ok();
    assert!(attack(), "the attack works without the rule");
}
