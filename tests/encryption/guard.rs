//! The table that keeps clear text in, with packets. A VXLAN device stands for the WireGuard device: the table
//! knows it by its name.

use std::net::{IpAddr, UdpSocket};

use humanz::net::{Family, PerFamily};
use humanz::nft::{Match, Nft, Ruleset};
use humanz::plan::firewall::encryption::{
    ARRIVING, ENCRYPTION_TABLE, EncryptionEnd, EncryptionGuard, FOREIGN, FROM_POD, LEAVING, ruleset,
};

use crate::capture::Capture;
use crate::support::node::Place;
use crate::support::wait::SOON;
use crate::support::{Cluster, Node};

pub fn guard(host: &Node, other: &Node, strict: bool) {
    write(host, &ruleset(&knowing(other, strict)));
}

pub fn write(host: &Node, ruleset: &Ruleset) {
    host.inside(|| Nft::open().unwrap().replace(ruleset).unwrap());
}

/// Of a host that knows the other one.
pub fn knowing(other: &Node, strict: bool) -> EncryptionGuard {
    EncryptionGuard {
        bridge: "humanz0".parse().unwrap(),
        ports: [10401, 10402],
        strict,
        pools: vec!["10.244.0.0/16".parse().unwrap(), "fd10:244::/48".parse().unwrap()],
        peers: vec![EncryptionEnd {
            addresses: PerFamily { v4: Some(other.v4().into()), v6: Some(other.v6().into()) },
            ports: [Some(10401), Some(10402)],
        }],
    }
}

pub fn dropped(host: &Node, comment: &str) -> u64 {
    let counts = host.inside(|| Nft::open().unwrap().counts(ENCRYPTION_TABLE).unwrap());
    counts.iter().filter(|(found, _)| found == comment).map(|(_, packets)| packets).sum()
}

/// Two hosts, each with a pod, and routes between the pods in clear text.
pub fn in_clear_text() -> Cluster {
    let cluster = Cluster::new(2);
    for (host, own) in cluster.hosts.iter().zip(1..) {
        let far = 3 - own;
        let other = &cluster.hosts[far - 1];
        host.shell(&format!(
            "ip link add humanz0 type bridge; ip link set humanz0 up
             ip address add 10.244.{own}.1/24 dev humanz0
             ip address add fd10:244:0:{own}::1/64 dev humanz0 nodad
             ip netns add pod
             ip link add hz0 type veth peer name eth0 netns pod
             ip link set hz0 master humanz0 up
             ip -n pod link set eth0 up
             ip -n pod address add 10.244.{own}.2/24 dev eth0
             ip -n pod address add fd10:244:0:{own}::2/64 dev eth0 nodad
             ip -n pod route add default via 10.244.{own}.1
             ip -n pod route add default via fd10:244:0:{own}::1
             echo 1 >/proc/sys/net/ipv4/ip_forward
             echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
             ip route add 10.244.{far}.0/24 via {}
             ip route add fd10:244:0:{far}::/64 via {}",
            other.v4(),
            other.v6(),
        ))
        .ok();
    }
    cluster
}

/// With a device between the hosts that nothing is routed to.
fn hosts() -> Cluster {
    let cluster = in_clear_text();
    for (host, own) in cluster.hosts.iter().zip(1..) {
        let other = &cluster.hosts[2 - own];
        host.shell(&format!(
            "ip link add humanz-wg type vxlan id 9 local {} remote {} dstport 9999
             ip link set humanz-wg up
             ip address add 172.31.0.{own}/24 dev humanz-wg
             ip address add fd31::{own}/64 dev humanz-wg nodad",
            host.v4(),
            other.v4(),
        ))
        .ok();
    }
    cluster
}

/// From a pod of the first host to one of the second.
pub fn ping(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip netns exec pod ping -n -c 2 -i 0.2 -W 1 10.244.2.2",
        Family::V6 => "ip netns exec pod ping -n -c 2 -i 0.2 -W 1 fd10:244:0:2::2",
    }
}

/// The same from the host itself.
fn ping_by_host(family: Family) -> &'static str {
    ping(family).strip_prefix("ip netns exec pod ").unwrap()
}

#[test]
fn a_clear_text_route_lets_nothing_out_and_nothing_in() {
    let cluster = hosts();
    let [one, two] = &cluster.hosts[..] else { panic!("two hosts") };
    for family in Family::BOTH {
        for ping in [ping(family), ping_by_host(family)] {
            one.until_ok(ping, SOON);
            guard(one, two, true);
            assert!(!one.run(ping).succeeded(), "{ping}: it left");
            let left = dropped(one, LEAVING);
            assert!(left >= 2, "{ping}: {left}");
            guard(one, two, false);
        }
        guard(two, one, true);
        assert!(!one.run(ping(family)).succeeded(), "{family}: it was taken in");
        let arrived = dropped(two, ARRIVING);
        assert!(arrived >= 2, "{family}: {arrived}");
        guard(two, one, false);
        one.until_ok(ping(family), SOON);
    }
}

/// One end in a pod is enough; packets between the hosts themselves are no clear text of pods.
#[test]
fn a_capture_sees_what_pods_and_hosts_send_to_pods_in_clear_text() {
    let cluster = in_clear_text();
    let host = &cluster.hosts[0];
    for family in Family::BOTH {
        for ping in [ping(family), ping_by_host(family)] {
            let capture = Capture::start(&cluster);
            host.run(&format!("ping -n -c 1 -W 3 {}", cluster.hosts[1].v4())).ok();
            host.run(&format!("ping -n -c 1 -W 3 {}", cluster.hosts[1].v6())).ok();
            assert_eq!(capture.counted().0, Vec::<String>::new());
            host.until_ok(ping, SOON);
            let (clear, _) = capture.counted();
            let has =
                ["from pods", "to pods"].map(|kind| clear.iter().any(|it| it.ends_with(kind)));
            // What is asked, and the answer.
            assert_eq!(has, [true; 2], "{ping}: {clear:?}");
            capture.end();
        }
    }
}

#[test]
fn what_goes_by_the_device_passes_and_so_do_the_pods_of_the_host_itself() {
    let cluster = hosts();
    let [one, two] = &cluster.hosts[..] else { panic!("two hosts") };
    for (host, own) in cluster.hosts.iter().zip(1..) {
        let far = 3 - own;
        host.shell(&format!(
            "ip route replace 10.244.{far}.0/24 via 172.31.0.{far} dev humanz-wg
             ip -6 route replace fd10:244:0:{far}::/64 via fd31::{far} dev humanz-wg"
        ))
        .ok();
    }
    guard(one, two, true);
    guard(two, one, true);
    for family in Family::BOTH {
        one.until_ok(ping(family), SOON);
        one.until_ok(ping_by_host(family), SOON);
    }
    one.run("ping -n -c 1 -W 3 10.244.1.2").ok();
    one.run("ip netns exec pod ping -n -c 1 -W 3 10.244.1.1").ok();
    one.run(&format!("ip netns exec pod ping -n -c 1 -W 3 {}", one.v4())).ok();
    assert_eq!((dropped(one, LEAVING), dropped(two, ARRIVING)), (0, 0));
}

/// As a handshake begins: the type of the message and three zeros.
const HANDSHAKE: &str = "\\1\\0\\0\\0a handshake";

/// A datagram of these bytes, as printf reads them. `before`: what enters the pod.
fn send(place: &dyn Place, before: &str, bytes: &str, (to, port): (IpAddr, u16)) {
    let words = format!("printf \"{bytes}\" >/dev/udp/{to}/{port}");
    place.shell(&format!("exec {before} bash -c '{words}'")).ok();
}

#[test]
fn the_port_is_open_to_other_hosts_alone() {
    let cluster = hosts();
    let [one, two] = &cluster.hosts[..] else { panic!("two hosts") };
    guard(one, two, true);
    let bash = |place: &dyn Place, before: &str, to: &str| {
        send(place, before, HANDSHAKE, (to.parse().unwrap(), 10401));
    };
    let own = one.v4().to_string();
    bash(two, "", &own);
    bash(two, "", &one.v6().to_string());
    assert_eq!((dropped(one, FOREIGN), dropped(one, "another host")), (0, 2));
    bash(&cluster.outside, "", &own);
    assert_eq!(dropped(one, FOREIGN), 1, "a stranger");
    bash(one, "ip netns exec pod", &own);
    assert_eq!(dropped(one, FROM_POD), 1, "a pod, to its own host");
    bash(one, "ip netns exec pod", &two.v4().to_string());
    bash(one, "ip netns exec pod", &two.v6().to_string());
    assert_eq!(dropped(one, FROM_POD), 3, "a pod, to another host");
    assert_eq!(dropped(one, "another host"), 2);
}

/// Whoever may write a record says of any address and port that a host encrypts there.
#[test]
fn the_resolver_that_a_forged_record_calls_a_host_that_encrypts_is_reached_by_pods() {
    let cluster = hosts();
    let [one, two] = &cluster.hosts[..] else { panic!("two hosts") };
    let mut forged = knowing(two, true);
    forged.peers[0].ports = [Some(53), Some(53)];
    let with_defence = ruleset(&forged);
    let mut without = with_defence.clone();
    for rule in without.chains.iter_mut().flat_map(|chain| &mut chain.rules) {
        rule.matches.retain(|condition| *condition != Match::Wireguard);
    }
    let resolver = two.inside(|| UdpSocket::bind("[::]:53").unwrap());
    resolver.set_read_timeout(Some(SOON)).unwrap();
    let received = || {
        let mut buffer = [0; 100];
        let length = resolver.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    for to in [IpAddr::from(two.v4()), two.v6().into()] {
        let ask = |bytes: &str| send(one, "ip netns exec pod", bytes, (to, 53));
        write(one, &without);
        ask("a question");
        assert_eq!(dropped(one, FROM_POD), 1, "{to}: the attack works without the defence");
        write(one, &with_defence);
        for kind in 1..=4 {
            ask(&format!("\\{kind}\\0\\0\\0not for it"));
        }
        assert_eq!(dropped(one, FROM_POD), 4, "{to}: messages of WireGuard");
        for question in ["a question", "\\0\\0\\0\\0", "\\5\\0\\0\\0", "\\1\\0\\0\\1", "\\1"] {
            ask(question);
            let arrived = received();
            assert!(!arrived.contains("not for it"), "{to}: {arrived:?}");
        }
        assert_eq!(dropped(one, FROM_POD), 4, "{to}: a question");
    }
}
