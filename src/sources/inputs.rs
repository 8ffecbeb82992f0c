//! Pure. What a host says of its own pods, and what it needs to know of others'.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::lease::Peers;
use crate::net::node_name::NodeName;
use crate::net::subnet;
use crate::policy::sources::denied;
use crate::policy::{Endpoint, Endpoints, Labels, Node, Snapshot, members};
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
    /// `pods`: all of this host, with their addresses.
    pub fn of(known: &Snapshot, pods: Vec<Endpoint>, own: &OwnHost, hosts: Arc<Hosts>) -> Self {
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
        ExchangeInputs { own: members::find(&in_use, &here), needed, hosts, record: own.record }
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
