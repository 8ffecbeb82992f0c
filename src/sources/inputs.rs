//! Pure. What a host says of its own pods, and what it needs to know of others'.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::lease::Peers;
use crate::net::node_name::NodeName;
use crate::net::subnet;
use crate::policy::local::Pods;
use crate::policy::sources::denied;
use crate::policy::{Endpoints, Labels, Node, Snapshot, members};
use crate::sources::exchange::ExchangeInputs;
use crate::sources::find::needed;
use crate::sources::shared::{HostAddresses, Hosts};

/// This host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnHost {
    pub name: NodeName,
    pub subnets: Vec<IpNetwork>,
    pub addresses: Vec<IpAddr>,
    /// The revision of its record.
    pub record: Option<i64>,
}

impl ExchangeInputs {
    /// What is known, and all pods of this host.
    pub fn of(known: &Snapshot, pods: &Pods, own: &OwnHost, hosts: Arc<Hosts>) -> Self {
        let owners = pods.owners();
        let pods = pods.endpoints(known, &own.name);
        let in_use = members::peers(known.rules.iter());
        let mut needed: BTreeSet<_> = needed(known.rules.iter(), &pods);
        needed.extend(denied(known));
        let gateways = own.subnets.iter().map(|subnet| subnet::gateway(*subnet));
        let node = Node {
            name: own.name.clone(),
            labels: Labels::new(),
            addresses: own.addresses.iter().copied().chain(gateways).collect(),
        };
        let here = Endpoints { pods, nodes: vec![node] };
        let found = members::find(&in_use, &here);
        let members = found.values().flatten().flat_map(|member| &member.addresses);
        let published: BTreeSet<IpAddr> = members.copied().collect();
        let owners = owners.filter(|(address, _)| published.contains(address));
        let owners = owners.map(|(address, container)| (address, container.to_owned())).collect();
        let record = own.record;
        ExchangeInputs { own: found, needed, hosts, record, owners: Arc::new(owners) }
    }
}

/// What `peers` may say.
pub fn hosts(peers: &Peers) -> Hosts {
    let host = |(name, peer): (&NodeName, &crate::lease::peers::Peer)| {
        let subnets = peer.subnets.iter().copied().collect();
        (name.clone(), HostAddresses { subnets, nodes: peer.addresses.iter().copied().collect() })
    };
    peers.by_name.iter().map(host).collect()
}
