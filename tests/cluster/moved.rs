//! From kindnet and from Calico: pods are started again, and nothing of before is in their way.

use crate::support::guide::{Guide, Step};
use crate::support::pod::make_netns;
use crate::support::{Agent, Cluster, Node, Place, Pod, ping};

/// Both nodes, each with what the other network made for its only pod and for the other node.
struct FormerNetwork {
    /// A script; `$own`, `$other`: number of the subnet, `$node`: address of the other node.
    made: &'static str,
    conf: &'static str,
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
    conf: "10-kindnet.conflist",
    sections: ["Stop kindnet", "Remove what kindnet left", "Start humanz in place of kindnet"],
};

/// Source: Calico's reference: VXLAN of an IP pool, felix's dataplane/linux (routes of protocol 80, chains cali-…).
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
    conf: "10-calico.conflist",
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
    let cluster = Cluster::new(2);
    let [h1, h2] = &cluster.hosts[..] else { panic!("two hosts") };
    former.on(h1, 1, 2, h2);
    former.on(h2, 2, 1, h1);
    let [stop, remove, start] = former.sections;
    let mut guide = Guide::read("migration.md");
    let kubectl = |step: &Step| step.command.starts_with("kubectl ");
    guide.follow(stop, h1, kubectl);
    guide.follow_on(remove, &[h1, h2], |_, _| false);
    assert!(h1.list("/etc/cni/net.d").is_empty(), "{:?}", h1.list("/etc/cni/net.d"));
    let mut agents = Vec::new();
    guide.follow(start, h1, |step| {
        match step.command.as_str() {
            "kubectl delete pods --all --all-namespaces" => {
                for host in [h1, h2] {
                    host.run("ip netns del old").ok();
                }
            }
            "kubectl apply -f packaging/daemonset-kubernetes.yaml" => {
                agents = cluster.start_agents(&[])
            }
            _ => return false,
        }
        true
    });
    assert_eq!(agents.len(), 2);
    let pods = [h1, h2].map(|host| Pod::add(host, "new"));
    let outside = cluster.outside.addresses()[0];
    ping::all_reach(&[&pods[0], &pods[1]], &[pods[0].v4(), pods[1].v4(), outside]);
    // Nothing of before is a problem on the other one, either.
    Agent::run(h2, "status --wait 20", &[]).ok();
}

impl FormerNetwork {
    /// On `host`, with a pod that has the second address of the subnet `own`.
    fn on(&self, host: &Node, own: u8, other: u8, node: &Node) {
        make_netns(host, "old");
        host.shell(&format!(
            "own={own}; other={other}; node={}
             mkdir -p /etc/cni/net.d
             ip link add old0 type veth peer name eth0 netns old
             ip link set old0 up
             ip -n old address add 10.244.$own.2/32 dev eth0
             ip -n old link set eth0 up
             {}",
            node.v4(),
            self.made
        ))
        .ok();
        assert!(host.list("/etc/cni/net.d").iter().any(|file| file == self.conf));
        host.run(&format!("ip route get 10.244.{other}.2")).ok();
    }
}
