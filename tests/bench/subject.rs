//! The measured subjects: one host each, with its plugins, a network and empty pods.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::call::timed;
use crate::series::Block;
use crate::support::cni::{Attachment, Network, PLUGINS};
use crate::support::disk::{Disk, EXECUTABLE};
use crate::support::node::{Node, Place};
use crate::support::pod::make_netns;
use crate::workspace::Workspace;

/// Where Debian's package puts the reference plugins.
const REFERENCE: &str = "/usr/lib/cni";
/// Every host's own: they know nothing of each other.
const SUBNET: &str = "10.88.0.0/16";
const SUBNET_V6: &str = "fd88::/64";
/// The host port of pod 0.
pub const FIRST_PORT: usize = 20_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Program {
    Reference,
    Floor,
    Humanz,
}

/// The features of the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offer {
    Plain,
    Masquerade,
    DualStack,
    /// As [`Offer::Plain`], without the guard at the port.
    Unguarded,
    /// A host port of its own, and limits in both directions.
    PortAndLimits,
}

pub struct Subject {
    pub node: Node,
    pub network: Network,
    pods: Vec<Pod>,
}

struct Pod {
    attachment: Attachment,
    /// Each ADD is that of a new container, as from a kubelet.
    containers: AtomicUsize,
    /// The result of ADD, passed to CHECK and DEL.
    result: Mutex<Value>,
}

impl Subject {
    /// A host with `pods` empty network namespaces, where one more pod has been added and stays:
    /// it made the bridge and filled the page cache.
    pub fn new(workspace: &mut Workspace, program: Program, offer: Offer, pods: usize) -> Self {
        let subject = Self::without_bridge(workspace, program, offer, pods + 1);
        subject.one_by_one("ADD", pods..pods + 1);
        subject
    }

    /// Empty pods of `namespace` on a host with an agent, whose network it is.
    pub fn of_host(host: &Node, namespace: &str, pods: usize) -> Self {
        let pod = |number| {
            let mut pod = Pod::new(number, Offer::Plain);
            let name = format!("{namespace}-{number}");
            make_netns(host, &name);
            pod.attachment = Attachment::new(&name);
            pod.attachment.args =
                format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}");
            pod
        };
        let pods = (0..pods).map(pod).collect();
        Self { node: host.clone(), network: Network::of(host), pods }
    }

    /// Just the host and its pods.
    pub fn without_bridge(
        workspace: &mut Workspace,
        program: Program,
        offer: Offer,
        pods: usize,
    ) -> Self {
        let name = format!("bench{}", workspace.count());
        let disk = Disk::new(&workspace.folder().join(&name), &name, "");
        let node = Node::new(&name, Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST, disk);
        std::fs::create_dir_all(node.place("/opt").join("cni/bin")).unwrap();
        std::fs::copy(workspace.floor(), node.place("/opt").join("cni/bin/floor")).unwrap();
        node.boot();
        workspace.keep(&node);
        node.shell(&format!(
            "for name in bridge host-local portmap bandwidth; do
                 ln -s {REFERENCE}/$name {PLUGINS}
             done
             ln -s {EXECUTABLE} {PLUGINS}/humanz
             echo 1 >/proc/sys/net/ipv4/ip_forward
             echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
             for i in $(seq 0 {}); do echo netns add pod$i; done | ip -batch -",
            pods.saturating_sub(1)
        ))
        .ok();
        if program == Program::Floor {
            node.shell(
                "ip link add floor0 type bridge
                 ip link set floor0 up
                 ip address add 10.88.0.1/16 dev floor0
                 ip address add fd88::1/64 dev floor0 nodad",
            )
            .ok();
        }
        let network = network(program, offer);
        let pods = (0..pods).map(|number| Pod::new(number, offer)).collect();
        Self { node, network, pods }
    }

    /// One verb for some of the pods, one after the other.
    pub fn one_by_one(&self, verb: &str, pods: std::ops::Range<usize>) -> Block {
        self.node.inside(|| {
            let start = Instant::now();
            let each = self.pods[pods].iter().map(|pod| self.call(verb, pod)).collect();
            Block { each, wall: start.elapsed() }
        })
    }

    /// One verb for some of the pods, `workers` at a time.
    pub fn in_parallel(&self, verb: &str, pods: std::ops::Range<usize>, workers: usize) -> Block {
        let left = Mutex::new(self.pods[pods].iter());
        let next = || left.lock().unwrap().next();
        let work = || {
            let each = || std::iter::from_fn(next).map(|pod| self.call(verb, pod)).collect();
            self.node.inside(each)
        };
        let start = Instant::now();
        let each: Vec<Vec<Duration>> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        Block { each: each.concat(), wall: start.elapsed() }
    }

    /// The first address of a pod in the result of ADD.
    pub fn address(&self, pod: usize) -> String {
        let result = self.pods[pod].result.lock().unwrap();
        let address = result["ips"][0]["address"].as_str().expect("an address");
        address.split('/').next().expect("text").to_owned()
    }

    /// A verb that is about no pod, `times` times.
    pub fn ask(&self, verb: &str, version: &str, times: usize) -> Block {
        let network = self.network.with_version(version);
        self.node.inside(|| {
            let start = Instant::now();
            let once = |_| {
                let (command, input) =
                    network.invocation(verb, &network.plugins[0], None, &Value::Null);
                timed(command, &input).0
            };
            Block { each: (0..times).map(once).collect(), wall: start.elapsed() }
        })
    }

    /// In the node: every plugin of the list, as libcni runs them.
    fn call(&self, verb: &str, pod: &Pod) -> Duration {
        let mut result = pod.result.lock().unwrap();
        let mut plugins: Vec<&Value> = self.network.plugins.iter().collect();
        match verb {
            "ADD" => {
                *result = Value::Null;
                pod.containers.fetch_add(1, Ordering::Relaxed);
            }
            "DEL" => plugins.reverse(),
            _ => {}
        }
        let mut attachment = pod.attachment.clone();
        // In front: the floor names its link after the digits at the end.
        let number = pod.containers.load(Ordering::Relaxed);
        attachment.container.insert_str(0, &format!("{number}-"));
        let mut all = Duration::ZERO;
        for plugin in plugins {
            let attachment = Some(&attachment);
            let (command, input) = self.network.invocation(verb, plugin, attachment, &result);
            let (took, answer) = timed(command, &input);
            all += took;
            if verb == "ADD" {
                *result = serde_json::from_str(&answer).unwrap();
            }
        }
        all
    }
}

impl Pod {
    fn new(number: usize, offer: Offer) -> Self {
        let mut attachment = Attachment::new(&format!("pod{number}"));
        if offer == Offer::DualStack {
            // For the floor, which has no configuration.
            attachment.args += ";DUAL=1";
        }
        if offer == Offer::PortAndLimits {
            attachment.runtime = json!({
                "portMappings": [{
                    "hostPort": FIRST_PORT + number, "containerPort": 80, "protocol": "tcp"
                }],
                "bandwidth": {
                    "ingressRate": 100_000_000, "ingressBurst": 1_000_000,
                    "egressRate": 100_000_000, "egressBurst": 1_000_000
                },
            });
        }
        Self { attachment, containers: AtomicUsize::new(0), result: Mutex::default() }
    }
}

/// The same request in each subject's format.
fn network(program: Program, offer: Offer) -> Network {
    let mut ranges = vec![json!([{ "subnet": SUBNET }])];
    if offer == Offer::DualStack {
        ranges.push(json!([{ "subnet": SUBNET_V6 }]));
    }
    let mut conf = match program {
        Program::Floor => json!({"type": "floor"}),
        Program::Humanz => json!({"type": "humanz", "bridge": "bench0", "ranges": ranges}),
        Program::Reference => json!({
            "type": "bridge", "bridge": "bench0", "isDefaultGateway": true, "hairpinMode": true,
            "ipam": {"type": "host-local", "ranges": ranges}
        }),
    };
    if program != Program::Floor {
        conf["ipMasq"] = json!(offer == Offer::Masquerade);
    }
    if offer == Offer::Unguarded {
        conf["podGuard"] = json!(false);
    }
    let capabilities = json!({"portMappings": true, "bandwidth": true});
    let plugins = match program {
        Program::Reference if offer == Offer::PortAndLimits => vec![
            conf,
            json!({"type": "portmap", "capabilities": capabilities}),
            json!({"type": "bandwidth", "capabilities": capabilities}),
        ],
        _ => {
            conf["capabilities"] = capabilities;
            vec![conf]
        }
    };
    let list = json!({"cniVersion": "1.0.0", "name": "bench", "plugins": plugins});
    Network::parse(&list.to_string())
}
