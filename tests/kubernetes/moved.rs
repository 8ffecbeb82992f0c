//! From kindnet and from Calico, as packaging/migration.md says: its kubectl commands do with the manifest what an API and
//! kubelets do; pods are started again, and nothing of before is in their way.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::kubelets::Kubelets;
use crate::policies::{namespace, policy};
use crate::support::guide::{Guide, Step};
use crate::support::node::command;
use crate::support::pod::make_netns;
use crate::support::{Agent, Node, Place, Process, ping};
use crate::traffic::{Flood, Server};
use crate::{Scene, node};

/// Both nodes, each with what the other network made for its only pod and for the other node.
struct FormerNetwork {
    /// A script; `$own`, `$other`: number of the subnet, `$node`: address of the other node.
    made: &'static str,
    /// What its daemon makes again and again while it runs.
    kept: &'static str,
    conf: &'static str,
    /// The objects that it was installed by, as far as a guide deletes them.
    manifest: &'static str,
    /// Its DaemonSet there.
    daemon: &'static str,
    /// The sections of the guide: the end of the former network, what it left, the start of humanz.
    sections: [&'static str; 3],
}

/// Source: kindnet's cmd/kindnetd: cniTemplate, routes.go, masq.go.
const KINDNET: FormerNetwork = FormerNetwork {
    made: "
        ip route add 10.244.$own.2 dev old0 scope host
        ip route add 10.244.$other.0/24 via $node
        iptables -t nat -N KIND-MASQ-AGENT
        iptables -t nat -A KIND-MASQ-AGENT -d 10.244.0.0/16 -j RETURN
        iptables -t nat -A KIND-MASQ-AGENT -j MASQUERADE
        iptables -t nat -A POSTROUTING -m addrtype ! --dst-type LOCAL -j KIND-MASQ-AGENT
        echo '{}' >/etc/cni/net.d/10-kindnet.conflist",
    kept: "ip route replace 10.244.$other.0/24 via $node; echo '{}' >/etc/cni/net.d/10-kindnet.conflist",
    conf: "10-kindnet.conflist",
    manifest: "{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: kindnet, namespace: kube-system}}",
    daemon: "kube-system/kindnet",
    sections: ["Stop kindnet", "Remove what kindnet left", "Start humanz in place of kindnet"],
};

/// Source: Calico's reference: VXLAN of an IP pool, felix's dataplane/linux (routes of protocol 80, chains cali-…); the
/// names in its manifest calico.yaml.
const CALICO: FormerNetwork = FormerNetwork {
    made: "
        ip link add vxlan.calico type vxlan id 4096 dev eth0 dstport 4789 nolearning
        ip address add 10.244.$own.64/32 dev vxlan.calico
        ip link set vxlan.calico up
        ip route add 10.244.$own.2 dev old0 scope link proto 80
        ip route add blackhole 10.244.$own.0/26 proto 80
        ip route add 10.244.$other.0/26 via 10.244.$other.64 dev vxlan.calico onlink proto 80
        iptables -N cali-FORWARD
        iptables -N cali-from-wl-dispatch
        iptables -I FORWARD -m comment --comment cali:wUHhoiAYhphO9Mso -j cali-FORWARD
        iptables -A cali-FORWARD -i cali+ -j cali-from-wl-dispatch
        iptables -A cali-from-wl-dispatch -j DROP
        echo '{}' >/etc/cni/net.d/10-calico.conflist
        echo '{}' >/etc/cni/net.d/calico-kubeconfig",
    kept: "ip route replace blackhole 10.244.$own.0/26 proto 80; echo '{}' >/etc/cni/net.d/10-calico.conflist",
    conf: "10-calico.conflist",
    manifest: "\
{apiVersion: v1, kind: ServiceAccount, metadata: {name: calico-node, namespace: kube-system}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: calico-config, namespace: kube-system}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: calico-node}}
---
{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: calico-node, namespace: kube-system}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: calico-kube-controllers, namespace: kube-system}}",
    daemon: "kube-system/calico-node",
    sections: ["Stop Calico", "Remove what Calico left", "Start humanz in place of Calico"],
};

#[test]
fn pods_of_kindnet_are_started_again_on_humanz() {
    moves(&KINDNET);
}

#[test]
fn pods_of_calico_are_started_again_on_humanz() {
    moves(&CALICO);
}

fn moves(former: &FormerNetwork) {
    let scene = Scene::new(2, 0);
    let (h1, h2) = (scene.host(1), scene.host(2));
    // As the manifest has it: IPv4 alone.
    for (host, subnet) in [(h1, "10.244.1.0/24"), (h2, "10.244.2.0/24")] {
        scene.api.put(node(host.name(), &[subnet], &[&host.v4().to_string()]));
    }
    scene.api.put(namespace("shop", json!({})));
    // It was in force before, and remains.
    scene.api.put(policy("db"));
    let daemons = vec![former.on(h1, 1, 2, h2), former.on(h2, 2, 1, h1)];
    let mut kubelets = Kubelets::new(&scene, former.manifest, former.daemon, daemons);
    sources_of_the_reader(h1, former);
    let [stop, remove, start] = former.sections;
    let mut guide = Guide::read("migration.md");
    assert!(kubelets.is_running(former.daemon));
    guide.follow(stop, h1, |step| typed(&mut kubelets, step));
    assert!(!kubelets.is_running(former.daemon));
    guide.follow_on(remove, &[h1, h2], |_, _| false);
    guide.follow(start, h1, |step| typed(&mut kubelets, step));
    assert!(kubelets.is_running("kube-system/humanz"));

    let pods = &kubelets.pods;
    let outside = scene.cluster.outside.addresses()[0];
    let [db, web, far, other] = ["db", "web", "web-far", "other"].map(|name| &pods[name]);
    for (pod, number) in [(db, 1), (web, 1), (far, 2), (other, 2)] {
        let address = pod.v4().to_string();
        assert!(address.starts_with(&format!("10.244.{number}.")), "its node's: {address}");
    }
    ping::all_reach(&[web, far, other], &[web.v4(), far.v4(), other.v4(), outside]);
    let mut server = Server::open(db);
    let floods = [web, far, other].map(|pod| Flood::start(pod, db.v4()));
    [web, far].iter().for_each(|pod| server.wait(pod.v4()));
    floods[2].go_on();
    assert_eq!(server.received(other.v4()), 0, "the policy of before lets it through");
    // Nothing of before is a problem on the other one, either.
    Agent::run(h2, "status --wait 20", &[("ETCD_HOST", "")]).ok();
}

/// A kubectl command of the guide.
fn typed(kubelets: &mut Kubelets<'_>, step: &Step) -> bool {
    let is_kubectl = step.command.starts_with("kubectl ");
    if is_kubectl {
        kubelets.kubectl(&step.command);
    }
    is_kubectl
}

/// The folder in which the guide's commands are typed: humanz's sources, and the manifest of the former network.
fn sources_of_the_reader(host: &Node, former: &FormerNetwork) {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging");
    let copied = Command::new("cp").arg("-r").args([packaging, host.place("/root")]).status();
    assert!(copied.unwrap().success());
    host.write("/root/calico.yaml", former.manifest);
}

impl FormerNetwork {
    /// On `host`, with a pod that has the second address of the subnet `own`; its daemon.
    fn on(&self, host: &Node, own: u8, other: u8, neighbour: &Node) -> Process {
        make_netns(host, "old");
        let names = format!("own={own}; other={other}; node={}", neighbour.v4());
        host.shell(&format!(
            "{names}
             mkdir -p /etc/cni/net.d
             ip link add old0 type veth peer name eth0 netns old
             ip link set old0 up
             ip -n old address add 10.244.$own.2/32 dev eth0
             ip -n old link set eth0 up
             {}",
            self.made
        ))
        .ok();
        assert!(host.list("/etc/cni/net.d").iter().any(|file| file == self.conf));
        host.run(&format!("ip route get 10.244.{other}.2")).ok();
        let mut daemon = command("sh -c");
        let daemon = daemon.arg(format!("{names}; while :; do {}; sleep 0.1; done", self.kept));
        host.spawn(daemon)
    }
}
