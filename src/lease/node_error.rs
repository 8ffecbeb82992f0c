//! Pure. Why a host has no lease from the Kubernetes API.

use ipnetwork::IpNetwork;

use crate::lease::records::NodeName;
use crate::net::Family;
use crate::net::subnet;

/// Why the Kubernetes API gives this host no subnets that it can serve.
///
/// `Display` is what is wrong; [`NodeError::fix`] is what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    #[error("the Kubernetes API has no node {0}")]
    Unknown(NodeName),
    #[error("node {name} is another machine (machine id {theirs}, this one has {ours})")]
    AnotherMachine { name: NodeName, theirs: String, ours: String },
    #[error("node {0} has no podCIDR yet")]
    NoSubnet(NodeName),
    #[error("node {name} has no {family} podCIDR, but there is {}", pool_of(*family))]
    NoFamily { name: NodeName, family: Family },
    #[error("the podCIDR {subnet} of node {name} is not in the pool {pool}")]
    OutsidePool { name: NodeName, subnet: IpNetwork, pool: IpNetwork },
    #[error("the podCIDR {subnet} of node {name} is too small")]
    TooSmall { name: NodeName, subnet: IpNetwork },
    #[error(
        "node {name} has the podCIDR {theirs} now, and this host serves {ours}, which it keeps for \
        its pods; no new pod starts there"
    )]
    Changed { name: NodeName, theirs: String, ours: String },
}

impl NodeError {
    pub fn fix(&self) -> String {
        match self {
            NodeError::Unknown(_) => {
                "kubectl get nodes # start the kubelet, and set NODE_NAME to the name under which \
                                      it registers this host"
                    .to_owned()
            }
            NodeError::AnotherMachine { .. } => "kubectl get nodes # correct NODE_NAME".to_owned(),
            NodeError::NoSubnet(_) => {
                "kubectl get nodes # kube-controller-manager gives it one, if it is started with \
                                       --allocate-node-cidrs and --cluster-cidr"
                    .to_owned()
            }
            NodeError::NoFamily { family, .. } => format!(
                "kubectl get nodes # give kube-controller-manager a --cluster-cidr of that family, or remove {}",
                pool_of(*family)
            ),
            NodeError::OutsidePool { subnet, .. } => format!(
                "humanz-agent config # set {} to the --cluster-cidr of kube-controller-manager",
                pool_of(subnet::family(*subnet))
            ),
            NodeError::TooSmall { .. } => {
                "kubectl get nodes # give the node a podCIDR of /30 (IPv6: /126) or wider"
                    .to_owned()
            }
            NodeError::Changed { .. } => {
                "kubectl get nodes # drain this host and restart its agent".to_owned()
            }
        }
    }

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
