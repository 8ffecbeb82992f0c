//! An ICMP error about a connection passes from its ends alone: others that are apart from them can neither end the
//! connection by one nor say anything in it.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, sendto, socket,
};

use crate::PORT;
use crate::etcd::{FROM_ETCD, apply};
use crate::support::{Agent, Cluster, Place, Pod, soon};
use crate::tenants::{add, is_apart, reaches, two_tenants};
use crate::traffic::Server;

const BOTH: [bool; 2] = [false, true];
const UDP: u8 = 17;

fn address(pod: &Pod, is_v6: bool) -> IpAddr {
    if is_v6 { pod.v6() } else { pod.v4() }
}

/// One end of a connection over UDP that the other end answers.
struct Asker {
    socket: UdpSocket,
}

impl Asker {
    fn start(at: &impl Place, server: &mut Server, to: IpAddr) -> Asker {
        let any: IpAddr = if to.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
        let socket = at.spot().inside(|| {
            let socket = UdpSocket::bind((any, 0)).unwrap();
            socket.connect((to, PORT)).unwrap();
            socket
        });
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let asker = Asker { socket };
        soon("an answer", || asker.is_answered(server));
        asker
    }

    fn is_answered(&self, server: &mut Server) -> bool {
        let mut buffer = [0; 16];
        let _refused = self.socket.send(b"question");
        server.total();
        self.socket.recv(&mut buffer).is_ok()
    }

    /// What the kernel says after an error of ICMP.
    fn is_refused(&self) -> bool {
        let mut buffer = [0; 16];
        loop {
            match self.socket.recv(&mut buffer) {
                Ok(_) => {}
                Err(error) => return error.kind() == ErrorKind::ConnectionRefused,
            }
        }
    }

    /// "Port unreachable", as the other end would say it of this one's packet.
    fn error(&self) -> Vec<u8> {
        let (from, to) = (self.socket.local_addr().unwrap(), self.socket.peer_addr().unwrap());
        let ports = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
        let udp = [&ports[..], &[0, 16, 0, 0], b"question"].concat();
        let (kind, quoted) = match (from.ip(), to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let head = [0x45, 0, 0, 36, 0, 7, 0x40, 0, 64, UDP, 0, 0];
                ([3, 3], [&head[..], &from.octets(), &to.octets(), &udp].concat())
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let head = [0x60, 0, 0, 0, 0, 16, UDP, 64];
                ([1, 4], [&head[..], &from.octets(), &to.octets(), &udp].concat())
            }
            other => panic!("{other:?}"),
        };
        let mut message = [&kind[..], &[0; 6], &quoted].concat();
        if to.is_ipv4() {
            let sum = checksum(&message).to_be_bytes();
            message[2..4].copy_from_slice(&sum);
        }
        message
    }

    /// `from` says that there is nothing at the other end.
    fn hears_from(&self, from: &Pod) {
        let to = SocketAddr::new(self.socket.local_addr().unwrap().ip(), 0);
        let (family, protocol) = match to.is_ipv4() {
            true => (AddressFamily::Inet, SockProtocol::Icmp),
            false => (AddressFamily::Inet6, SockProtocol::IcmpV6),
        };
        from.spot().inside(|| {
            let raw = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol).unwrap();
            let to = SockaddrStorage::from(to);
            sendto(raw.as_raw_fd(), &self.error(), &to, MsgFlags::empty()).unwrap();
        });
    }

    /// Nothing that `others` say ends it, and what its other end says does.
    fn hears_alone(&self, server: &mut Server, end: &Pod, others: &[&Pod]) {
        for _ in 0..10 {
            for other in others {
                self.hears_from(other);
                let name = other.label();
                assert!(!self.is_refused(), "{name} ended the connection with {}", end.label());
            }
            soon("an answer still", || self.is_answered(server));
        }
        soon(&format!("an error of {}", end.label()), || {
            self.hears_from(end);
            self.is_refused()
        });
        soon("an answer after it", || self.is_answered(server));
    }
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| {
        u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or_default()]))
    });
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap()
}

#[test]
fn no_pod_ends_a_connection_of_others_by_an_error_about_it() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &two_tenants());
    let agents = cluster.start_agents(FROM_ETCD);
    let pods = [(h1, "blue/a"), (h1, "blue/b"), (h2, "blue/c"), (h1, "red/a"), (h2, "red/b")];
    let [asks, near, far, red1, red2] = pods.map(|(host, pod)| add(host, pod));
    soon("both hosts", || reaches(&asks, &near) && reaches(&asks, &far) && is_apart(&red2, &asks));
    let others = [&red1, &red2];
    for is_v6 in BOTH {
        for end in [&near, &far] {
            let to = address(end, is_v6);
            let mut server = Server::open_at(end, to);
            let asker = Asker::start(&asks, &mut server, to);
            asker.hears_alone(&mut server, end, &others);
        }
        // The node's own connection with its pod.
        let to = address(&near, is_v6);
        let mut server = Server::open_at(&near, to);
        let asker = Asker::start(h1, &mut server, to);
        asker.hears_alone(&mut server, &near, &[&red1]);
    }
    let dropped = crate::counters(h1);
    assert!(!dropped.contains("counter foreign {\n\t\tpackets 0 "), "{dropped}");
    agents.iter().for_each(Agent::stop);
}
