//! What is written into a packet behind guard and policies: the checksum that the kernel, or a card, computes when the
//! packet leaves the host. A packet socket says where it belongs.

use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::time::Duration;

use crate::packets::{IPV4, IPV6, UDP, checksum, ethernet, ipv4, ipv6, udp, udp6};
use crate::support::node::command;
use crate::support::{Place, Pod};
use crate::tunnels::Scene;

/// The first word that is summed, and the place of the result: of IPv6 the end of the source, of IPv4 the port.
const WORD: usize = 36;

/// Sends a frame: its interface, the word, and the frame itself.
const PROGRAM: &str = r#"
import socket, struct, sys
name, word, frame = sys.argv[1:]
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
packets.setsockopt(263, 15, 1)  # SOL_PACKET, PACKET_VNET_HDR
packets.bind((name, 0))
packets.send(struct.pack("=BBHHHH", 1, 0, 0, 0, int(word), 0) + bytes.fromhex(frame))
"#;

/// The host computes what a card would, where no real one is.
const WITHOUT_CARD: &str = r#"
import array, fcntl, socket, struct
off = array.array("B", struct.pack("II", 0x17, 0))  # ETHTOOL_STXCSUM
request = struct.pack("16sQ16x", b"eth0", off.buffer_info()[0])
fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8946, request)
"#;

fn send(pod: &Pod, frame: &[u8]) {
    let frame: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
    pod.run_command(&mut command(&format!("python3 - eth0 {WORD} {frame}")), PROGRAM).ok();
}

/// `frame`, whose word `at`, zero so far, is set so that `wanted` becomes the one that is written.
fn tuned(mut frame: Vec<u8>, at: usize, wanted: u16) -> Vec<u8> {
    let without = u32::from(!checksum(&frame[WORD..]));
    let missing = (u32::from(!wanted) + 0xffff - without) % 0xffff;
    frame[at..at + 2].copy_from_slice(&(missing as u16).to_be_bytes());
    frame
}

/// The sender of what comes to port 4001.
fn heard(socket: &UdpSocket) -> Option<IpAddr> {
    socket.recv_from(&mut [0; 64]).ok().map(|(_, from)| from.ip())
}

/// The guide says what is not stopped (trust.md). A kernel that refuses it would make that wrong.
#[test]
fn a_checksum_that_is_written_later_changes_an_address_or_a_port_behind_the_guard() {
    let scene = Scene::new();
    scene.hosts()[0].run_command(&mut command("python3 -"), WITHOUT_CARD).ok();
    let (near, far) = (&scene.near, &scene.far);
    let own = humanz::net::Mac::of_address(near.v4());
    let gateway = near.shell("ip neigh show | grep -o '..:..:..:..:..:..' | head -n 1").ok();
    let gateway: humanz::net::Mac = gateway.trim().parse().unwrap();
    let socket = far.spot().inside(|| UdpSocket::bind("[::]:4001").unwrap());
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();

    let (IpAddr::V6(from), IpAddr::V6(to)) = (near.v6(), far.v6()) else { panic!("IPv6") };
    let forged = Ipv6Addr::from(u128::from(from) ^ 0x40);
    let frame = |sender: Ipv6Addr| {
        let options = [UDP, 0, 0x1e, 4, 0, 0, 0, 0];
        let payload = [&options[..], &udp6((forged, to), (4000, 4001), b"forged")].concat();
        let packet = ipv6((sender, to), 60, 64, &payload);
        ethernet(gateway.0, own.0, IPV6, &packet)
    };
    let [.., high, low] = forged.octets();
    send(near, &frame(forged));
    assert_eq!(heard(&socket), None, "the guard drops it");
    // The unknown option, which receivers skip, has room for the word that decides.
    send(near, &tuned(frame(from), 14 + 40 + 4, u16::from_be_bytes([high, low])));
    assert_eq!(heard(&socket), Some(forged.into()));

    let (IpAddr::V4(from), IpAddr::V4(to)) = (near.v4(), far.v4()) else { panic!("IPv4") };
    let packet = ipv4((from, to), UDP, &udp((4000, 4999), b"\0\0port"));
    let frame = ethernet(gateway.0, own.0, IPV4, &packet);
    let data = 14 + 20 + 8;
    send(near, &tuned(frame, data, 4001));
    assert_eq!(heard(&socket), Some(IpAddr::V6(from.to_ipv6_mapped())), "a packet to port 4999");
}
