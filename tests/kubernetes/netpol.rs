//! Kubernetes' own cases with packets: nine pods on two hosts, policies and labels from the API.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use humanz::net::{Family, Protocol};
use humanz::policy::Transport;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, getpeername, socket,
};
use serde_json::{Value, json};

use crate::Scene;
use crate::policies::namespace;
use crate::rbac::role;
use crate::reachability::{NAMESPACES, PODS, PORTS, Table};
use crate::support::cni::{Attachment, Network};
use crate::support::pod::make_netns;
use crate::support::wait::{SOON, patience};
use crate::support::{Place, Pod, eventually};
use crate::upstream::cases;

const ON: &[(&str, &str)] = &[("POLICY", "on"), ("IPV6_SUBNET", "fd10:244::/48")];

/// How long a packet may take that is allowed.
const WINDOW: Duration = Duration::from_millis(150);

/// A pod that serves on all ports.
struct Server {
    pod: Pod,
    listeners: Vec<TcpListener>,
    sockets: Vec<UdpSocket>,
}

impl Server {
    fn open(pod: Pod) -> Server {
        let any = |port: u16| SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        let listeners: Vec<TcpListener> =
            PORTS.map(|port| pod.spot().inside(|| TcpListener::bind(any(port)).unwrap())).into();
        let sockets: Vec<UdpSocket> =
            PORTS.map(|port| pod.spot().inside(|| UdpSocket::bind(any(port)).unwrap())).into();
        listeners.iter().for_each(|one| one.set_nonblocking(true).unwrap());
        sockets.iter().for_each(|one| one.set_nonblocking(true).unwrap());
        Server { pod, listeners, sockets }
    }

    fn address(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.pod.v4(),
            Family::V6 => self.pod.v6(),
        }
    }

    /// Who sent a packet over UDP.
    fn received(&self) -> BTreeSet<IpAddr> {
        // What was accepted is closed at once, so that the next ones have room.
        self.listeners.iter().for_each(|one| while one.accept().is_ok() {});
        let mut sources = BTreeSet::new();
        for socket in &self.sockets {
            while let Ok((_, from)) = socket.recv_from(&mut [0; 8]) {
                sources.insert(from.ip().to_canonical());
            }
        }
        sources
    }
}

type Servers = BTreeMap<String, Server>;

/// The pods that `source` connects to.
fn connected(servers: &Servers, source: &Server, to: (Family, u16)) -> BTreeSet<String> {
    let (family, port) = to;
    source.pod.spot().inside(|| {
        let begin = |server: &Server| {
            let sockets = match family {
                Family::V4 => AddressFamily::Inet,
                Family::V6 => AddressFamily::Inet6,
            };
            let socket = socket(sockets, SockType::Stream, SockFlag::SOCK_NONBLOCK, None).unwrap();
            let to: SockaddrStorage = SocketAddr::new(server.address(family), port).into();
            // It is in progress, then.
            connect(socket.as_raw_fd(), &to).ok();
            socket
        };
        let sockets: Vec<_> = servers.iter().map(|(name, it)| (name, begin(it))).collect();
        std::thread::sleep(WINDOW * patience());
        let is_there = |fd| getpeername::<SockaddrStorage>(fd).is_ok();
        let there = sockets.iter().filter(|(_, socket)| is_there(socket.as_raw_fd()));
        there.map(|(name, _)| (*name).clone()).collect()
    })
}

/// Which pod reaches which; `None` if this kernel has no such sockets.
fn reached(
    servers: &Servers,
    family: Family,
    transport: Transport,
) -> Option<BTreeSet<(String, String)>> {
    let pair = |a: &String, b: String| (a.clone(), b);
    servers.values().for_each(|server| drop(server.received()));
    match transport {
        Transport::Port(Protocol::Tcp, port) => std::thread::scope(|scope| {
            let probes: Vec<_> = servers
                .iter()
                .map(|(name, from)| {
                    (name, scope.spawn(move || connected(servers, from, (family, port))))
                })
                .collect();
            let pairs = probes.into_iter().flat_map(|(name, probe)| {
                let there = probe.join().unwrap().into_iter();
                there.map(|to| pair(name, to)).collect::<Vec<_>>()
            });
            Some(pairs.collect())
        }),
        Transport::Port(Protocol::Udp, port) => {
            for from in servers.values() {
                let own = (from.address(family), 0);
                let socket = from.pod.spot().inside(|| UdpSocket::bind(own).unwrap());
                for to in servers.values() {
                    socket.send_to(b"x", (to.address(family), port)).ok();
                }
            }
            std::thread::sleep(WINDOW * patience());
            let name_of = |address: &IpAddr| {
                servers.iter().find(|(_, it)| it.address(family) == *address).map(|(name, _)| name)
            };
            let pairs = servers.iter().flat_map(|(to, server)| {
                let sources = server.received();
                let names = sources.iter().filter_map(name_of);
                names.map(|from| pair(from, to.clone())).collect::<Vec<_>>()
            });
            Some(pairs.collect())
        }
        _ => None,
    }
}

fn check(case: &str, servers: &Servers, transport: Transport, table: &Table) -> bool {
    Family::BOTH.into_iter().all(|family| check_in(family, case, servers, transport, table))
}

fn check_in(
    family: Family,
    case: &str,
    servers: &Servers,
    transport: Transport,
    table: &Table,
) -> bool {
    let Some(_) = reached(servers, family, transport) else { return false };
    eventually(&format!("{case}, {family}, {transport:?}"), SOON, || {
        let found = reached(servers, family, transport).unwrap_or_default();
        let names = || servers.keys().flat_map(|a| servers.keys().map(move |b| (a, b)));
        let wrong: Vec<String> = names()
            // As upstream, which leaves a pod's connections to itself undefined.
            .filter(|(a, b)| a != b)
            .filter(|(a, b)| table.allows(a, b) != found.contains(&((*a).clone(), (*b).clone())))
            .map(|(a, b)| format!("{a} -> {b} must be {}", table.allows(a, b)))
            .collect();
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join(", ")) }
    });
    true
}

fn object(name: &str, host: &str, addresses: &[IpAddr]) -> Value {
    let (namespace, pod) = name.split_once('/').unwrap();
    let port = |(port, protocol): (u16, &str)| {
        json!({"name": format!("serve-{port}-{}", protocol.to_lowercase()),
            "containerPort": port, "protocol": protocol})
    };
    let all = PORTS.into_iter().flat_map(|port| ["TCP", "UDP", "SCTP"].map(|it| (port, it)));
    json!({"kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": pod, "namespace": namespace, "labels": {"pod": pod}},
        "spec": {"nodeName": host, "containers": [{"name": "c",
            "ports": all.map(port).collect::<Vec<_>>()}]},
        "status": {"phase": "Running", "podIPs": addresses.iter().map(|it| json!({"ip": it})).collect::<Vec<_>>()}})
}

fn start(scene: &Scene, name: &str, number: usize) -> Server {
    let (namespace, pod) = name.split_once('/').unwrap();
    let container = format!("{namespace}-{pod}");
    let host = scene.host(number);
    scene.api.put(object(name, host.name(), &[]));
    make_netns(host, &container);
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={pod}");
    let attachment = Attachment { args, ..Attachment::new(&container) };
    let pod = Pod::connect(host, &Network::of(host), attachment).unwrap();
    scene.api.put(object(name, host.name(), &[pod.v4(), pod.v6()]));
    Server::open(pod)
}

#[test]
fn every_case_of_kubernetes_own_tests_holds_for_packets() {
    let scene = Scene::new(2, 0);
    let api = &scene.api;
    api.enforce(role());
    for name in NAMESPACES {
        api.put(namespace(name, json!({"ns": name})));
    }
    let agents = [scene.serve(1, ON), scene.serve(2, ON)];
    let mut servers = Servers::new();
    for name in NAMESPACES.iter().flat_map(|ns| PODS.map(|pod| format!("{ns}/{pod}"))) {
        let number = 1 + servers.len() % 2;
        servers.insert(name.clone(), start(&scene, &name, number));
    }
    let all = cases(&|name| vec![servers[name].pod.v4(), servers[name].pod.v6()]);
    let (mut checked, mut left) = (0, Vec::new());
    for case in all {
        let mut labelled = Vec::new();
        let mut there: Vec<String> = Vec::new();
        for step in case.steps {
            for (what, key, value) in step.labels {
                let kind = if what.contains('/') { "Pod" } else { "Namespace" };
                let put = |it: &mut Value| it["metadata"]["labels"][key] = json!(value);
                api.edit_of(kind, what, put);
                labelled.push((kind, what, key));
            }
            let key = |policy: &Value| {
                let metadata = &policy["metadata"];
                let text = |name: &str| metadata[name].as_str().unwrap().to_owned();
                format!("{}/{}", text("namespace"), text("name"))
            };
            let wanted: Vec<String> = step.policies.iter().map(key).collect();
            let gone = there.iter().filter(|key| !wanted.contains(key));
            gone.for_each(|key| api.delete_of("NetworkPolicy", key));
            step.policies.into_iter().for_each(|policy| api.put(policy));
            there = wanted;
            for (transport, table) in &step.reach {
                match check(case.name, &servers, *transport, table) {
                    true => checked += 1,
                    false => left.push(case.name),
                }
            }
        }
        there.iter().for_each(|key| api.delete_of("NetworkPolicy", key));
        for (kind, what, key) in labelled {
            api.edit_of(kind, what, |object: &mut Value| {
                object["metadata"]["labels"].as_object_mut().unwrap().remove(key);
            });
        }
    }
    println!("{checked} tables of connections; without sockets of their protocol: {left:?}");
    assert!(checked >= 55 && left.len() == 3, "{checked} {left:?}");
    agents.iter().for_each(crate::support::Agent::stop);
}
