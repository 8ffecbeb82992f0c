//! Pure. Why a host has no lease from the Kubernetes API.

use ipnetwork::IpNetwork;

use crate::lease::records::NodeName;
use crate::net::Family;
use crate::net::subnet;

/// Why the Kubernetes API gives this host no subnets that it can serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    #[error(
        "the API knows no node {0}: does the kubelet run, and is NODE_NAME the name it registers \
        this host under?"
    )]
    Unknown(NodeName),
    #[error(
        "node {name} is another machine (machine id {theirs}, this one has {ours}): correct NODE_NAME"
    )]
    AnotherMachine { name: NodeName, theirs: String, ours: String },
    #[error(
        "node {0} has no podCIDR yet: kube-controller-manager gives it one, if it is started with \
        --allocate-node-cidrs and --cluster-cidr"
    )]
    NoSubnet(NodeName),
    #[error(
        "node {name} has no {family} podCIDR, but there is {}: give kube-controller-manager a \
        --cluster-cidr of that family, or take the pool away",
        pool_of(*family)
    )]
    NoFamily { name: NodeName, family: Family },
    #[error(
        "the podCIDR {subnet} of node {name} is not in the pool {pool}: set {} to the \
        --cluster-cidr of kube-controller-manager",
        pool_of(subnet::family(*subnet))
    )]
    OutsidePool { name: NodeName, subnet: IpNetwork, pool: IpNetwork },
    #[error(
        "the podCIDR {subnet} of node {name} is too small: it must be /30 (IPv6: /126) or wider"
    )]
    TooSmall { name: NodeName, subnet: IpNetwork },
    #[error(
        "node {name} has the podCIDR {theirs} now, and this host serves {ours}, which it keeps for \
        its pods: drain it and restart its agent"
    )]
    Changed { name: NodeName, theirs: String, ours: String },
}

impl NodeError {
    /// Only other settings help.
    pub fn is_setting(&self) -> bool {
        matches!(self, NodeError::NoFamily { .. } | NodeError::OutsidePool { .. })
    }
}

fn pool_of(family: Family) -> &'static str {
    match family {
        Family::V4 => "IP_SUBNET",
        Family::V6 => "IPV6_SUBNET",
    }
}
