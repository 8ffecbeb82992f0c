//! Two hosts with pods: connected by humanz, or by the reference plugins and routes by hand.

use serde_json::json;

use crate::support::cni::{Network, PLUGINS};
use crate::support::node::{Node, Place};
use crate::support::wait::SOON;
use crate::support::{Agent, Pod};

/// Where Debian's package puts the reference plugins.
const REFERENCE: &str = "/usr/lib/cni";

pub struct Pair {
    /// On the first host: who asks, and who answers.
    pub from: Pod,
    pub near: Pod,
    /// On the second host: who answers.
    pub far: Pod,
    _agents: Vec<Agent>,
}

/// What a network that is made by hand offers besides a bridge and routes.
#[derive(Clone, Copy)]
pub struct ByHand {
    pub masquerade: bool,
}

impl Pair {
    /// With an agent on each host.
    pub fn of_humanz(hosts: [&Node; 2], variables: &[(&str, &str)]) -> Self {
        let agents = hosts.map(|host| Agent::start(host, variables));
        for agent in &agents {
            agent.wait_ready();
        }
        Self::plug(hosts, hosts.map(Network::of), agents.into())
    }

    /// With a subnet of its own and a route to the other's on each host.
    pub fn by_hand(hosts: [&Node; 2], wish: ByHand) -> Self {
        let subnets = ["10.88.1.0/24", "10.88.2.0/24"];
        let [first, second] = hosts;
        for (host, other, subnet) in [(first, second, subnets[1]), (second, first, subnets[0])] {
            host.shell(&format!(
                "mkdir -p {PLUGINS}
                 ln -s {REFERENCE}/bridge {REFERENCE}/host-local {PLUGINS}
                 echo 1 >/proc/sys/net/ipv4/ip_forward
                 ip route add {subnet} via {}",
                other.v4()
            ))
            .ok();
        }
        Self::plug(hosts, subnets.map(|subnet| reference(subnet, wish)), Vec::new())
    }

    fn plug(hosts: [&Node; 2], networks: [Network; 2], agents: Vec<Agent>) -> Self {
        let pod = |name, on: usize| {
            let pod = Pod::try_add(hosts[on], name, &networks[on]);
            pod.unwrap_or_else(|e| panic!("{}/{name}: {e}", hosts[on].name()))
        };
        let (from, near, far) = (pod("from", 0), pod("near", 0), pod("far", 1));
        for to in [&near, &far] {
            from.until_ok(&format!("ping -n -c 1 -W 1 {}", to.v4()), SOON);
        }
        Self { from, near, far, _agents: agents }
    }
}

fn reference(subnet: &str, wish: ByHand) -> Network {
    let bridge = json!({
        "type": "bridge", "bridge": "bench0", "isDefaultGateway": true, "hairpinMode": true,
        "ipMasq": wish.masquerade,
        "ipam": {"type": "host-local", "ranges": [[{ "subnet": subnet }]]}
    });
    let list = json!({"cniVersion": "1.0.0", "name": "bench", "plugins": [bridge]});
    Network::parse(&list.to_string())
}
