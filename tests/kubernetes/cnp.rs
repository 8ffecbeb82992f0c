//! The cases of ClusterNetworkPolicy's conformance suite with packets: eight pods on two hosts, policies from
//! an API that serves v1beta1 alone.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use humanz::net::{Family, Protocol};
use humanz::policy::Transport;
use humanz::policy::read::documents;
use humanz::policy::view::View;
use serde_json::{Value, json};

use crate::Scene;
use crate::conformance::{
    HOUSE, HOUSES, POD_NAME, Poke, TCP_PORTS, UDP_PORTS, cases, namespace as full,
};
use crate::policies::namespace;
use crate::rbac::role;
use crate::state::V1BETA1;
use crate::support::cni::{Attachment, Network};
use crate::support::local;
use crate::support::pod::make_netns;
use crate::support::wait::{SOON, patience};
use crate::support::{Node, Place, Pod, eventually};

const ON: &[(&str, &str)] = &[("POLICY", "on"), ("IPV6_SUBNET", "fd10:244::/48")];

/// How long a packet may take that is allowed.
const WINDOW: Duration = Duration::from_millis(150);

/// A pod that serves on all ports.
struct Student {
    pod: Pod,
    listeners: Vec<TcpListener>,
    sockets: BTreeMap<u16, UdpSocket>,
}

impl Student {
    fn open(pod: Pod) -> Student {
        let any = |port: u16| SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        let listeners = TCP_PORTS.map(|port| {
            let listener = pod.spot().inside(|| TcpListener::bind(any(port)).unwrap());
            listener.set_nonblocking(true).unwrap();
            listener
        });
        let sockets = UDP_PORTS.map(|port| {
            let socket = pod.spot().inside(|| UdpSocket::bind(any(port)).unwrap());
            socket.set_nonblocking(true).unwrap();
            (port, socket)
        });
        Student { pod, listeners: listeners.into(), sockets: sockets.into() }
    }

    fn address(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.pod.v4(),
            Family::V6 => self.pod.v6(),
        }
    }

    /// Whether a packet of `source` came to this port.
    fn received(&self, port: u16, source: IpAddr) -> bool {
        let until = Instant::now() + WINDOW * patience();
        while Instant::now() < until {
            if let Ok((_, from)) = self.sockets[&port].recv_from(&mut [0; 8]) {
                if from.ip().to_canonical() == source {
                    return true;
                }
                continue;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }
}

/// Whether it connects; `None` if this kernel has no such sockets.
fn connects(from: &Student, to: &Student, family: Family, transport: Transport) -> Option<bool> {
    let address = to.address(family);
    match transport {
        Transport::Port(Protocol::Tcp, port) => {
            to.listeners.iter().for_each(|one| while one.accept().is_ok() {});
            let target = SocketAddr::new(address, port);
            let connect = || TcpStream::connect_timeout(&target, WINDOW * patience()).is_ok();
            Some(from.pod.spot().inside(connect))
        }
        Transport::Port(Protocol::Udp, port) => {
            while to.sockets[&port].recv_from(&mut [0; 8]).is_ok() {}
            let own = from.address(family);
            let socket = from.pod.spot().inside(|| UdpSocket::bind((own, 0)).unwrap());
            socket.send_to(b"x", (address, port)).ok();
            Some(to.received(port, own))
        }
        _ => None,
    }
}

fn object(name: &str, house: &str, host: &str, addresses: &[String]) -> Value {
    let addresses: Vec<Value> = addresses.iter().map(|address| json!({"ip": address})).collect();
    json!({"kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": name, "namespace": full(house), "labels": {HOUSE: house, POD_NAME: name}},
        "spec": {"nodeName": host, "containers": [{"name": "c"}]},
        "status": {"phase": "Running", "podIPs": addresses}})
}

fn start(scene: &Scene, house: &str, name: &str, number: usize) -> Student {
    let host = scene.host(number);
    scene.api.put(object(name, house, host.name(), &[]));
    make_netns(host, name);
    let namespace = full(house);
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}");
    let attachment = Attachment { args, ..Attachment::new(name) };
    let pod = Pod::connect(host, &Network::of(host), attachment).unwrap();
    let addresses = [pod.v4(), pod.v6()].map(|address| address.to_string());
    scene.api.put(object(name, house, host.name(), &addresses));
    Student::open(pod)
}

fn start_all(scene: &Scene) -> BTreeMap<String, Student> {
    let mut students = BTreeMap::new();
    for (house, name) in HOUSES {
        for number in 0..2 {
            let name = format!("{name}-{number}");
            let student = start(scene, house, &name, number + 1);
            students.insert(format!("{}/{name}", full(house)), student);
        }
    }
    students
}

/// What `poke` must give, soon; false where it cannot be tried.
fn holds(students: &BTreeMap<String, Student>, case: &str, family: Family, poke: &Poke) -> bool {
    let (from, to) = (&students[&poke.from], &students[&poke.to]);
    if connects(from, to, family, poke.transport).is_none() {
        return false;
    }
    eventually(&format!("{case}: {family} {poke:?}"), SOON, || {
        let found = connects(from, to, family, poke.transport);
        if found == Some(poke.allowed) { Ok(()) } else { Err(format!("{found:?}")) }
    });
    true
}

/// Waits until this host's agent has put the rules of these policies in force, and no others.
fn are_in_force(host: &Node, case: &str, policies: &[Value]) {
    let wanted = documents::read(policies, true).rules;
    eventually(&format!("{case}: policies on {}", host.name()), SOON, || {
        let mut reply: Value = serde_json::from_str(&local::get(host, "/v1/policies").1).unwrap();
        let view: View = serde_json::from_value(reply["view"].take()).unwrap();
        let rules = view.known.map(|known| known.rules.clone()).unwrap_or_default();
        if rules == wanted { Ok(()) } else { Err(format!("{rules:#?}, not {wanted:#?}")) }
    });
}

#[test]
fn the_cases_of_the_conformance_suite_hold_for_packets() {
    let scene = Scene::new(2, 0);
    let api = &scene.api;
    api.enforce(role());
    api.serve_path(V1BETA1, true);
    for (house, _) in HOUSES {
        api.put(namespace(&full(house), json!({HOUSE: house})));
    }
    let agents = [scene.serve(1, ON), scene.serve(2, ON)];
    let students = start_all(&scene);
    let all = Family::BOTH.map(|family| (family, cases(&|name| students[name].address(family))));
    let all =
        all.into_iter().flat_map(|(family, all)| all.into_iter().map(move |one| (family, one)));
    let (mut checked, mut left, mut there) = (0, 0, Vec::<(String, String)>::new());
    for (family, case) in all {
        for step in case.steps {
            let key = |policy: &Value| {
                let metadata = &policy["metadata"];
                let name = metadata["name"].as_str().unwrap();
                let namespace = metadata["namespace"].as_str().map(|own| format!("{own}/"));
                let kind = policy["kind"].as_str().unwrap().to_owned();
                (kind, format!("{}{name}", namespace.unwrap_or_default()))
            };
            let wanted: Vec<_> = step.policies.iter().map(key).collect();
            let gone = there.iter().filter(|one| !wanted.contains(one));
            gone.for_each(|(kind, key)| api.delete_of(kind, key));
            step.policies.iter().for_each(|policy| api.put(policy.clone()));
            there = wanted;
            let name = format!("{} {}", case.name, step.name);
            scene.cluster.hosts.iter().for_each(|host| are_in_force(host, &name, &step.policies));
            for poke in &step.pokes {
                match holds(&students, &name, family, poke) {
                    true => checked += 1,
                    false => left += 1,
                }
            }
        }
    }
    println!("{checked} connections; {left} without sockets of their protocol");
    assert!(checked > 300, "{checked}");
    agents.iter().for_each(crate::support::Agent::stop);
}

/// The agent says that nobody knows the pod, learns of it from the API, and puts its policies in force before the
/// plugin has acted on the answer.
#[test]
fn a_pod_starts_whenever_the_api_makes_it_known() {
    let scene = Scene::new(1, 0);
    scene.api.enforce(role());
    let (house, _) = HOUSES[0];
    scene.api.put(namespace(&full(house), json!({HOUSE: house})));
    let _agent = scene.serve(1, &[("POLICY", "on")]);
    let host = scene.host(1);
    for number in 0..60u64 {
        let name = format!("late-{number}");
        make_netns(host, &name);
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={name}", full(house));
        let attachment = Attachment { args, ..Attachment::new(&name) };
        let pod = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_micros(250 * number));
                scene.api.put(object(&name, house, host.name(), &[]));
            });
            Pod::connect(host, &Network::of(host), attachment).unwrap()
        });
        pod.delete();
    }
}
