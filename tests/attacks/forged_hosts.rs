//! Packets of tunnels with other headers than hosts send, and a host that is only a record in etcd.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use crate::packet_socket::PacketSocket;
use crate::packets::{
    DESTINATION_OPTIONS, HOP_BY_HOP, IPV4, IPV6, UDP, ethernet, ipv4_options, ipv6, padding, udp,
    udp6,
};
use crate::support::cluster::OUTSIDE;
use crate::support::{Agent, Node, Place, soon};
use crate::tunnels::{Attack, PORT, Scene, TABLE, send};

/// Flags and identifier of a VXLAN header.
const VXLAN: [u8; 8] = [8, 0, 0, 0, 0, 0, 104, 0];

/// Whoever may write a record makes the others believe in a host. It sends as itself alone, from its own
/// address, and no packet but those of tunnels is lost on the way to that.
#[test]
fn a_forged_host_sends_as_itself_alone_and_stops_no_other_packets() {
    let scene = Scene::new();
    let [near, far] = scene.hosts();
    // The address and port of a resolver.
    let resolver = SocketAddr::new(OUTSIDE[0], 53);
    let record = format!(
        r#"{{"schema":1,"machineId":"forged","bootId":"b","version":"0.1.0",
        "subnets":["10.244.108.0/24"],"addresses":["{}"],"backend":"vxlan",
        "tunnel":{{"mac":"0a:58:0a:f4:6c:00","vni":104,"port":53}},"mtu":1500}}"#,
        resolver.ip()
    );
    scene.cluster.etcd.put("/humanz/v1/nodes/forged", record);
    scene.cluster.etcd.put("/humanz/hosts/forged", "10.244.108.0/24");
    let knows = |host: &Node| {
        let listed = host.run(&format!("nft list set inet {TABLE} tunnels4")).stdout;
        listed.contains(&format!("{} . 53", resolver.ip()))
    };
    soon("both hosts know it", || knows(near) && knows(far));
    let (near_node, near_pod): (IpAddr, IpAddr) = (near.v4().into(), scene.near.v4());
    let far_pod = scene.far.v4();
    let outside = &scene.cluster.outside;
    let mut attacks: Vec<Attack<'_>> = Vec::new();
    let own = ["its own pod", "itself"];
    for (name, from) in [
        (own[0], "10.244.108.2".parse().unwrap()),
        (own[1], resolver.ip()),
        ("a pod of another host", near_pod),
        ("another host", near_node),
        ("the pod's own host", far.v4().into()),
        ("the pod itself", far_pod),
        ("the Internet", "198.51.100.11".parse().unwrap()),
    ] {
        let mark = [b'f', b'o', b'r', b'g', b'e', b'd', 0xc5, attacks.len() as u8];
        let frame = scene.inner((from, far_pod), &mark);
        let name = name.to_owned();
        attacks.push(Attack { name, from: outside, to: far.v4().into(), frame, mark });
    }
    // Another host, as the forged one.
    let mark = *b"as forge";
    let frame = scene.inner(("10.244.108.2".parse().unwrap(), far_pod), &mark);
    let name = "another host as it".to_owned();
    attacks.push(Attack { name, from: near, to: far.v4().into(), frame, mark });
    assert_eq!(scene.arriving(&attacks), own);
    let socket = outside.spot().inside(|| UdpSocket::bind("0.0.0.0:53").unwrap());
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let received = || {
        let mut buffer = [0; 200];
        let length = socket.recv(&mut buffer).unwrap();
        buffer[..length].to_vec()
    };
    let question = b"a question of a pod".to_vec();
    let tunnelled = [&VXLAN[..], &scene.inner((near_pod, far_pod), b"not for it")].concat();
    send(&scene.near, resolver, &tunnelled);
    send(&scene.near, resolver, &question);
    assert_eq!(received(), question);
    scene.agents.iter().for_each(Agent::kill);
    for host in [near, far] {
        host.run(&format!("nft delete table inet {TABLE}")).ok();
    }
    send(&scene.near, resolver, &tunnelled);
    assert_eq!(received(), tunnelled, "without rules");
    let names: Vec<String> = attacks.iter().map(|attack| attack.name.clone()).collect();
    assert_eq!(scene.arriving(&attacks), names, "without rules");
}

/// Rules that looked at fixed places would see something else there.
#[test]
fn options_do_not_get_past_the_rules() {
    let scene = Scene::new();
    let [near, far] = scene.hosts();
    let own: humanz::net::Mac =
        near.read("/sys/class/net/eth0/address").unwrap().trim().parse().unwrap();
    let router = |address: &str| -> humanz::net::Mac {
        let shown = near.shell(&format!("ip neigh show to {address} dev eth0")).ok();
        shown.split(' ').skip_while(|word| *word != "lladdr").nth(1).unwrap().parse().unwrap()
    };
    let mark = b"tunnel behind options";
    let frame = scene.inner((scene.far.v4(), scene.far.v4()), mark);
    let inner = [&VXLAN[..], &frame].concat();
    let (pair4, pair6) = ((near.v4(), far.v4()), (near.v6(), far.v6()));
    let datagram = udp6(pair6, (5000, PORT), &inner);
    let behind = |next: u8| ipv6(pair6, next, 64, &padding(UDP, &datagram));
    let twice = padding(DESTINATION_OPTIONS, &padding(UDP, &datagram));
    let packets = [
        (false, ipv4_options(pair4, UDP, &[1; 4], &udp((5000, PORT), &inner))),
        (false, ipv4_options(pair4, UDP, &[1; 40], &udp((5000, PORT), &inner))),
        (true, behind(HOP_BY_HOP)),
        (true, behind(DESTINATION_OPTIONS)),
        (true, ipv6(pair6, HOP_BY_HOP, 64, &twice)),
    ];
    let sends = || {
        packets.each_ref().map(|(is_v6, packet)| {
            let (kind, address, device, fence) = match is_v6 {
                false => (IPV4, "192.0.2.1", "humanz-vx4", scene.far.v4()),
                true => (IPV6, "fd99::1", "humanz-vx6", scene.far.v6()),
            };
            let uplink = PacketSocket::open(near, "eth0");
            let watcher = PacketSocket::open(far, device);
            uplink.send(&ethernet(router(address).0, own.0, kind, packet));
            thread::sleep(Duration::from_millis(50));
            send(&scene.near, SocketAddr::new(fence, 4001), b"the fence");
            watcher.sees(&[mark.to_vec()], b"the fence")
        })
    };
    assert_eq!(sends(), [false; 5]);
    scene.agents.iter().for_each(Agent::kill);
    far.run("nft flush ruleset").ok();
    assert_eq!(sends(), [true; 5], "without rules");
}
