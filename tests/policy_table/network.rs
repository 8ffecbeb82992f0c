//! Two hosts with four pods each and a machine between them, which is the outside, in network
//! namespaces; pods have a veth each, so that everything between them is forwarded.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use humanz::net::Protocol;
use humanz::policy::{Transport, Tuple};
use humanz_test_support::netns::{Netns, ip, run_args};
use nix::sys::socket::sockopt::{Ipv6V6Only, ReuseAddr};
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, bind,
    connect, getpeername, listen, recv, sendto, setsockopt, socket,
};

use super::world::{GATEWAYS, NODES, OUTSIDE, PORTS, own_addresses};

const PODS_PER_HOST: usize = 4;

/// A machine that forwards, and whose processes may ping.
fn machine() -> Netns {
    let netns = Netns::new();
    netns.inside(|| {
        for (key, value) in [
            ("ipv4/ip_forward", "1"),
            ("ipv6/conf/all/forwarding", "1"),
            ("ipv4/ping_group_range", "0 0"),
        ] {
            std::fs::write(format!("/proc/sys/net/{key}"), value).unwrap();
        }
        ip("link set lo up");
    });
    netns
}

/// Runs `test` in a network namespace of its own.
pub fn alone(test: impl FnOnce() + Send) {
    machine().inside(test);
}

/// The number of the next packet over UDP.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A connection that was begun.
pub struct Probe {
    socket: OwnedFd,
    kind: Kind,
    to: SockaddrStorage,
}

enum Kind {
    Tcp,
    Ping,
    /// What the packet says.
    Udp(Vec<u8>),
    /// The packet: the kernel need not know SCTP.
    Sctp(Vec<u8>),
}

/// The end of what a packet of UDP or SCTP says, by which it is known: the parameters of an INIT, in bytes.
const TAIL: usize = 16;

fn tail(packet: &[u8]) -> &[u8] {
    &packet[packet.len().saturating_sub(TAIL)..]
}

pub struct Network {
    pub hosts: [Netns; 2],
    /// Where each address is.
    pub places: BTreeMap<IpAddr, Netns>,
    /// Of each pod's address that of a service which leads there, as kube-proxy translates it.
    services: BTreeMap<IpAddr, IpAddr>,
    servers: Vec<OwnedFd>,
    /// The tails of what came over UDP and SCTP.
    received: std::cell::RefCell<std::collections::BTreeSet<Vec<u8>>>,
}

impl Network {
    pub fn new() -> Network {
        let hosts = [machine(), machine()];
        let core = machine();
        let (mut places, mut services) = (BTreeMap::new(), BTreeMap::new());
        let mut servers = Vec::new();
        for (place, host) in hosts.iter().enumerate() {
            join(&core, host, place);
            for number in (0..2 * PODS_PER_HOST).filter(|number| number % 2 == place) {
                let pod = machine();
                let addresses = plug(host, &pod, place, 10 + number);
                servers.extend(pod.inside(serve));
                for address in addresses {
                    let copy = pod.again();
                    places.insert(address, copy);
                    services.insert(address, service(address));
                }
            }
            servers.extend(host.inside(serve));
            for address in own_addresses(place) {
                places.insert(address, host.again());
            }
        }
        servers.extend(core.inside(serve));
        for address in OUTSIDE {
            places.insert(address.parse().unwrap(), core.again());
        }
        hosts.iter().for_each(|host| host.inside(|| translate(&services)));
        Network { hosts, places, services, servers, received: Default::default() }
    }

    /// Begins it by way of a service, if both ends are pods, and two.
    pub fn probe_by_service(&self, tuple: &Tuple) -> Option<Probe> {
        let destination = *self.services.get(&tuple.destination)?;
        let is_between =
            self.services.contains_key(&tuple.source) && tuple.source != tuple.destination;
        is_between.then(|| self.probe(&Tuple { destination, ..*tuple }))
    }

    /// Begins a connection.
    pub fn probe(&self, tuple: &Tuple) -> Probe {
        self.places[&tuple.source].inside(|| Probe::begin(tuple))
    }

    /// It came to its destination.
    pub fn has_arrived(&self, probe: &Probe) -> bool {
        let mut buffer = [0; 256];
        match &probe.kind {
            Kind::Tcp => getpeername::<SockaddrStorage>(probe.socket.as_raw_fd()).is_ok(),
            Kind::Ping => {
                recv(probe.socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT).is_ok()
            }
            Kind::Udp(text) | Kind::Sctp(text) => {
                let mut received = self.received.borrow_mut();
                for server in &self.servers {
                    let flags = MsgFlags::MSG_DONTWAIT;
                    while let Ok(length) = recv(server.as_raw_fd(), &mut buffer, flags) {
                        received.insert(tail(&buffer[..length]).to_vec());
                    }
                }
                received.contains(tail(text))
            }
        }
    }
}

impl Probe {
    fn begin(tuple: &Tuple) -> Probe {
        let family = match tuple.source.is_ipv4() {
            true => AddressFamily::Inet,
            false => AddressFamily::Inet6,
        };
        let port = match tuple.transport {
            Transport::Port(_, port) => port,
            _ => 0,
        };
        let is_sctp = matches!(tuple.transport, Transport::Port(Protocol::Sctp, _));
        // The address of a raw socket has no port.
        let to = address(SocketAddr::new(tuple.destination, if is_sctp { 0 } else { port }));
        let (kind, protocol) = match tuple.transport {
            Transport::Port(Protocol::Sctp, _) => (SockType::Raw, SockProtocol::Sctp),
            Transport::Port(Protocol::Tcp, _) => (SockType::Stream, SockProtocol::Tcp),
            Transport::Port(..) => (SockType::Datagram, SockProtocol::Udp),
            _ if tuple.source.is_ipv4() => (SockType::Datagram, SockProtocol::Icmp),
            _ => (SockType::Datagram, SockProtocol::IcmpV6),
        };
        let socket = socket(family, kind, SockFlag::SOCK_NONBLOCK, protocol).unwrap();
        let fd = socket.as_raw_fd();
        bind(fd, &address(SocketAddr::new(tuple.source, 0))).unwrap();
        let kind = match tuple.transport {
            Transport::Port(Protocol::Tcp, _) => Kind::Tcp,
            Transport::Port(Protocol::Sctp, port) => {
                Kind::Sctp(sctp_init(port, NEXT.fetch_add(1, Ordering::Relaxed)))
            }
            Transport::Port(..) => {
                Kind::Udp(format!("{tuple} {}", NEXT.fetch_add(1, Ordering::Relaxed)).into_bytes())
            }
            _ => Kind::Ping,
        };
        let probe = Probe { socket, kind, to };
        // A refusal is a connection that does not arrive.
        if matches!(probe.kind, Kind::Tcp) {
            connect(fd, &probe.to).ok();
        }
        probe.send();
        probe
    }

    /// Sends the packet, unless the kernel does it itself.
    pub fn send(&self) {
        let echo = if self.to.as_sockaddr_in().is_some() { 8 } else { 128 };
        let packet = match &self.kind {
            Kind::Tcp => return,
            Kind::Ping => vec![echo, 0, 0, 0, 0, 0, 0, 1],
            Kind::Udp(packet) | Kind::Sctp(packet) => packet.clone(),
        };
        sendto(self.socket.as_raw_fd(), &packet, &self.to, MsgFlags::empty()).ok();
    }
}

fn address(socket: SocketAddr) -> SockaddrStorage {
    socket.into()
}

/// A common header and an INIT chunk with `number` in it. Source: RFC 9260 §3.1, §3.3.2.
fn sctp_init(port: u16, number: u64) -> Vec<u8> {
    let number = u32::try_from(number).unwrap();
    let source = 20_000 + (number % 20_000) as u16;
    let mut packet = [source.to_be_bytes(), port.to_be_bytes()].concat();
    // No tag yet, the checksum, and the chunk's type and length.
    packet.extend([0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 20]);
    // Tag, window, one stream each way, first number.
    let words = [number + 1, 65_536, 0x1_0001, number];
    packet.extend(words.iter().flat_map(|word| word.to_be_bytes()));
    let checksum = crc32c(&packet).to_le_bytes();
    packet[8..12].copy_from_slice(&checksum);
    packet
}

/// Source: RFC 9260, appendix A.
fn crc32c(bytes: &[u8]) -> u32 {
    let bit = |crc: u32, _| (crc >> 1) ^ (0x82f6_3b78 * (crc & 1));
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit))
}

/// Sockets that take every connection of TCP, every packet of UDP on [`PORTS`], and every packet of SCTP; all of
/// them are to be kept.
fn serve() -> Vec<OwnedFd> {
    let mut sockets = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let flags = SockFlag::SOCK_NONBLOCK;
        sockets.push(socket(family, SockType::Raw, flags, SockProtocol::Sctp).unwrap());
    }
    for port in PORTS {
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            for kind in [SockType::Datagram, SockType::Stream] {
                let server = socket(family, kind, SockFlag::SOCK_NONBLOCK, None).unwrap();
                setsockopt(&server, ReuseAddr, &true).unwrap();
                let any: IpAddr = match family {
                    AddressFamily::Inet => "0.0.0.0".parse().unwrap(),
                    _ => {
                        setsockopt(&server, Ipv6V6Only, &true).unwrap();
                        "::".parse().unwrap()
                    }
                };
                bind(server.as_raw_fd(), &address(SocketAddr::new(any, port))).unwrap();
                if kind == SockType::Stream {
                    listen(&server, Backlog::new(1000).unwrap()).unwrap();
                }
                sockets.push(server);
            }
        }
    }
    sockets
}

/// Sends a message of ICMP.
pub fn send_raw_icmp(to: IpAddr, message: &[u8]) {
    let flags = SockFlag::empty();
    let raw = socket(AddressFamily::Inet, SockType::Raw, flags, SockProtocol::Icmp).unwrap();
    let to = address(SocketAddr::new(to, 0));
    assert_eq!(sendto(raw.as_raw_fd(), message, &to, MsgFlags::empty()), Ok(message.len()));
}

/// A link between the machine in the middle and a host.
fn join(core: &Netns, host: &Netns, place: usize) {
    let [v4, v6] = NODES[place];
    let (number, path) = (place + 1, host.path());
    let [gateway4, gateway6] = GATEWAYS[place];
    core.inside(|| {
        ip(&format!(
            "link add host{number} type veth peer name uplink netns {path}
             link set host{number} up"
        ));
    });
    host.inside(|| {
        ip(&format!(
            "addr add {v4} peer 192.0.2.25{number} dev uplink
             addr add {v6} peer 2001:db8::25{number} dev uplink nodad
             addr add {gateway4}/32 dev lo
             addr add {gateway6}/128 dev lo nodad
             link set uplink up
             route add default via 192.0.2.25{number} dev uplink onlink
             route add default via 2001:db8::25{number} dev uplink onlink"
        ));
    });
    core.inside(|| {
        ip(&format!(
            "addr add 192.0.2.25{number} peer {v4} dev host{number}
             route add 10.244.{number}.0/24 via {v4} dev host{number} onlink
             addr add 2001:db8::25{number} peer {v6} dev host{number} nodad
             route add fd00:10:{number}::/64 via {v6} dev host{number} onlink"
        ));
        if place == 0 {
            let [v4, v6] = OUTSIDE;
            ip(&format!("addr add {v4}/32 dev lo\naddr add {v6}/128 dev lo nodad"));
        }
    });
}

/// `10.96.1.10` for `10.244.1.10`, `fd00:96:1::10` for `fd00:10:1::10`.
fn service(pod: IpAddr) -> IpAddr {
    let text = pod.to_string().replace("10.244.", "10.96.").replace("fd00:10:", "fd00:96:");
    text.parse().unwrap()
}

/// The host's pods reach pods by the addresses of services.
fn translate(services: &BTreeMap<IpAddr, IpAddr>) {
    let map = |is_wanted: fn(&IpAddr) -> bool| -> String {
        let wanted = services.iter().filter(|(pod, _)| is_wanted(pod));
        wanted.map(|(pod, service)| format!("{service} : {pod}, ")).collect()
    };
    let (v4, v6) = (map(IpAddr::is_ipv4), map(IpAddr::is_ipv6));
    let table = format!(
        "add table inet services
         add chain inet services pre {{ type nat hook prerouting priority dstnat; }}
         add rule inet services pre dnat ip to ip daddr map {{ {v4} }}
         add rule inet services pre dnat ip6 to ip6 daddr map {{ {v6} }}"
    );
    run_args("nft", &[&table]);
}

/// Gives a pod its link and addresses.
fn plug(host: &Netns, pod: &Netns, place: usize, number: usize) -> [IpAddr; 2] {
    let path = pod.path();
    let subnet = place + 1;
    let (v4, v6) = (format!("10.244.{subnet}.{number}"), format!("fd00:10:{subnet}::{number}"));
    host.inside(|| {
        ip(&format!(
            "link add pod{number} type veth peer name eth0 netns {path}
             link set pod{number} up
             addr add 169.254.1.1/32 dev pod{number}
             addr add fe80::1/64 dev pod{number} nodad
             route add {v4}/32 dev pod{number}
             route add {v6}/128 dev pod{number}"
        ));
    });
    pod.inside(|| {
        ip(&format!(
            "addr add {v4}/32 dev eth0
             addr add {v6}/128 dev eth0 nodad
             link set eth0 up
             route add 169.254.1.1/32 dev eth0
             route add default via 169.254.1.1 dev eth0
             route add default via fe80::1 dev eth0"
        ));
    });
    [v4.parse().unwrap(), v6.parse().unwrap()]
}
