//! A host, a pod on its bridge, and one remote machine in all other roles.
//!
//! The host is the namespace of the test's own thread. The remote machine has routes to pods, so
//! that what it sees is what the host let out.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use humanz::checks::forward::Traffic;
use humanz::net::PerFamily;
use humanz::plan::firewall::{AGENT_TABLE, FirewallSpec};
use humanz_test_support::netns::{ip, trust_addresses};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

pub use humanz_test_support::netns::{Netns, run, run_args};

/// The host's own addresses.
pub const HOST: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
/// Of a machine outside.
pub const OUTSIDE: [&str; 2] = ["192.0.2.100", "2001:db8::100"];
/// Of another host of the cluster.
pub const NODE: [&str; 2] = ["192.0.2.2", "2001:db8::2"];
/// Of a pod on another host.
pub const OTHER_POD: [&str; 2] = ["10.244.9.2", "fd00:10:0:9::2"];
/// Of a network that pods must reach with their own address.
pub const PLAIN: [&str; 2] = ["172.16.5.1", "fd00:99::1"];
/// Of the pod.
pub const POD: [&str; 2] = ["10.244.3.2", "fd00:10:0:3::2"];

/// How long a packet that is not dropped may take.
pub const ARRIVES: Duration = Duration::from_secs(10);
/// How long to wait for one that is.
pub const LOST: Duration = Duration::from_millis(300);

/// The pod and the remote machine.
pub struct Network {
    pub pod: Netns,
    pub remote: Netns,
}

/// Runs `test` as the host of a fresh [`Network`], with a `/run` of its own.
pub fn on_host(test: impl FnOnce(&Network) + Send + 'static) {
    let host = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
            .expect("make namespaces (root, or the runner of .cargo/config.toml)");
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        mount(Some("run"), "/run", Some("tmpfs"), MsFlags::empty(), none).unwrap();
        trust_addresses();
        test(&Network::new());
    });
    host.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

impl Network {
    fn new() -> Network {
        let (pod, remote) = (Netns::new(), Netns::new());
        ip(&format!(
            "link set lo up
             link add humanz0 type bridge
             addr add 10.244.3.1/24 dev humanz0
             addr add fd00:10:0:3::1/64 dev humanz0 nodad
             link set humanz0 up
             link add pod0 type veth peer name eth0 netns {}
             link set pod0 master humanz0 up
             link add uplink type veth peer name eth0 netns {}
             addr add 192.0.2.1/24 dev uplink
             addr add 2001:db8::1/64 dev uplink nodad
             link set uplink up
             route add default via 192.0.2.100
             route add default via 2001:db8::100",
            pod.path(),
            remote.path()
        ));
        pod.inside(|| {
            ip("link set lo up
                addr add 10.244.3.2/24 dev eth0
                addr add fd00:10:0:3::2/64 dev eth0 nodad
                link set eth0 up
                route add default via 10.244.3.1
                route add default via fd00:10:0:3::1");
        });
        remote.inside(|| {
            let on_link = [OUTSIDE, NODE].map(|[v4, v6]| {
                format!("addr add {v4}/24 dev eth0\naddr add {v6}/64 dev eth0 nodad\n")
            });
            let behind = [OTHER_POD, PLAIN].concat();
            let behind = behind.iter().map(|address| {
                let nodad = if address.contains(':') { "nodad" } else { "" };
                format!("addr add {address} dev lo {nodad}\n")
            });
            ip(&on_link.into_iter().chain(behind).collect::<String>());
            ip("link set lo up
                link set eth0 up
                route add 10.244.3.0/24 via 192.0.2.1
                route add fd00:10:0:3::/64 via 2001:db8::1");
        });
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
        Network { pod, remote }
    }

    /// The address with which the pod reaches `server` on the remote machine.
    pub fn seen_by(&self, server: &str) -> String {
        let listener = listen(&self.remote, server);
        let to = listener.local_addr().unwrap();
        let mut stream = self
            .pod
            .inside(|| TcpStream::connect_timeout(&to, ARRIVES))
            .unwrap_or_else(|error| panic!("pod to {to}: {error}"));
        let (mut accepted, peer) = listener.accept().unwrap();
        // Both directions, so that a drop of the replies fails too.
        accepted.write_all(b"hello").unwrap();
        stream.set_read_timeout(Some(ARRIVES)).unwrap();
        stream.read_exact(&mut [0; 5]).unwrap();
        peer.ip().to_string()
    }

    /// Whether what the remote machine sends to a UDP port of the host gets there, by family;
    /// `expected` is how long to wait for.
    pub fn reaches_host(&self, port: u16, expected: [bool; 2]) -> [bool; 2] {
        [0, 1].map(|family| {
            let server = UdpSocket::bind((HOST[family].parse::<IpAddr>().unwrap(), port)).unwrap();
            let client = self.remote.inside(|| UdpSocket::bind((OUTSIDE[family], 0))).unwrap();
            client.send_to(b"hello", server.local_addr().unwrap()).unwrap();
            let within = if expected[family] { ARRIVES } else { LOST };
            server.set_read_timeout(Some(within)).unwrap();
            server.recv(&mut [0; 8]).is_ok()
        })
    }

    /// Another pod on the same bridge, with the address after the first one's.
    pub fn neighbour(&self) -> Netns {
        let pod = Netns::new();
        let path = pod.path();
        ip(&format!(
            "link add pod1 type veth peer name eth0 netns {path}\nlink set pod1 master humanz0 up"
        ));
        pod.inside(|| {
            ip("link set lo up
                addr add 10.244.3.3/24 dev eth0
                addr add fd00:10:0:3::3/64 dev eth0 nodad
                link set eth0 up");
        });
        pod
    }

    /// The pod gets a connection to `address` in `server`.
    pub fn connects(&self, server: &Netns, address: &str, within: Duration) -> bool {
        let listener = listen(server, address);
        let to = listener.local_addr().unwrap();
        self.pod.inside(|| TcpStream::connect_timeout(&to, within)).is_ok()
    }

    /// A server on the remote machine that takes every connection; gives its port.
    pub fn serve(&self, server: &str) -> u16 {
        let listener = listen(&self.remote, server);
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || listener.incoming().for_each(drop));
        port
    }

    /// The pod gets a connection to `address`.
    pub fn pod_reaches(&self, address: &str, within: Duration) -> bool {
        let address = address.parse().unwrap();
        self.pod.inside(|| TcpStream::connect_timeout(&address, within)).is_ok()
    }

    /// The pod does not reach `server`.
    pub fn is_cut_off(&self, server: &str) -> bool {
        let listener = listen(&self.remote, server);
        let to = listener.local_addr().unwrap();
        self.pod.inside(|| TcpStream::connect_timeout(&to, LOST)).is_err()
    }

    /// The remote machine reaches the pod from `client`, without having been asked.
    pub fn reaches_pod(&self, client: &str, pod: &str) -> bool {
        self.arrives_at_pod(client, pod, ARRIVES)
    }

    /// It does not.
    pub fn never_reaches_pod(&self, client: &str, pod: &str) -> bool {
        !self.arrives_at_pod(client, pod, LOST)
    }

    fn arrives_at_pod(&self, client: &str, pod: &str, within: Duration) -> bool {
        let socket = |netns: &Netns, address: &str| {
            let address = SocketAddr::new(address.parse().unwrap(), 0);
            netns.inside(|| UdpSocket::bind(address)).unwrap()
        };
        let server = socket(&self.pod, pod);
        let client = socket(&self.remote, client);
        client.send_to(b"hello", server.local_addr().unwrap()).unwrap();
        server.set_read_timeout(Some(within)).unwrap();
        server.recv(&mut [0; 8]).is_ok()
    }
}

fn listen(netns: &Netns, address: &str) -> TcpListener {
    let address: IpAddr = address.parse().unwrap();
    netns.inside(|| TcpListener::bind((address, 0))).unwrap()
}

/// The firewall's parameters of this network.
pub fn spec() -> FirewallSpec {
    let networks = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect();
    FirewallSpec {
        table: AGENT_TABLE.to_owned(),
        bridge: "humanz0".parse().unwrap(),
        pod_subnets: networks(&["10.244.3.0/24", "fd00:10:0:3::/64"]),
        pools: networks(&["10.244.0.0/16", "fd00:10::/48"]),
        has_others: true,
        non_masq_cidrs: networks(&["172.16.0.0/12", "fd00:99::/64"]),
        node_addresses: [HOST, NODE].concat().iter().map(|text| text.parse().unwrap()).collect(),
        masquerade: true,
        tunnel_vni: None,
        encrypts: false,
        own_addresses: Default::default(),
        tunnel_addresses: Vec::new(),
        accept_forward: true,
    }
}

/// Traffic that foreign firewalls must accept.
pub fn traffic() -> Traffic {
    let network = |text: &str| Some(text.parse().unwrap());
    Traffic {
        bridge: "humanz0".parse().unwrap(),
        uplink: Some("uplink".parse().unwrap()),
        pods_come_by: vec!["uplink".parse().unwrap()],
        subnets: PerFamily { v4: network("10.244.3.0/24"), v6: network("fd00:10:0:3::/64") },
        pools: PerFamily { v4: network("10.244.0.0/16"), v6: network("fd00:10::/48") },
        bridged: Vec::new(),
    }
}
