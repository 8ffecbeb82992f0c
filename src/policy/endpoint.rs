//! Pure. Pods and nodes as policies see them.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::net::Protocol;
use crate::net::node_name::NodeName;
use crate::policy::labels::Labels;
use crate::policy::name::{ObjectName, Scoped};
use crate::policy::network::Networks;

/// A pod with addresses of its own; one in its host's network is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    #[serde(with = "shared")]
    pub namespace: Arc<Namespace>,
    pub name: ObjectName,
    /// `None` if its source does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    pub labels: Labels,
    /// Of both families; each belongs to one pod only.
    pub addresses: Vec<IpAddr>,
    /// Of its containers.
    pub ports: Vec<NamedPort>,
    pub host: NodeName,
    /// Its group, if it is in one.
    pub group: Option<Scoped>,
    /// Its network, if that is known.
    pub network: Option<Scoped>,
    /// Annotations by which it asks for a group and a network, where another source than its own has the rules
    /// for that.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub annotations: Labels,
}

/// A namespace, or a tenant's stand-in for one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    name: ObjectName,
    labels: Labels,
}

/// A container port with a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NamedPort {
    pub name: ObjectName,
    pub protocol: Protocol,
    pub port: u16,
}

/// A host of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub name: NodeName,
    pub labels: Labels,
    /// All of its own: node addresses and gateways of its pods.
    pub addresses: Vec<IpAddr>,
}

/// Everything that selectors can find.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoints {
    pub pods: Vec<Endpoint>,
    pub nodes: Vec<Node>,
}

impl Namespace {
    /// The label by which policies select a namespace by name.
    pub const NAME_LABEL: &str = "kubernetes.io/metadata.name";

    /// With [`Namespace::NAME_LABEL`], which API servers before 1.21 neither set nor protect.
    pub fn new(name: ObjectName, mut labels: Labels) -> Namespace {
        labels.insert(Namespace::NAME_LABEL.into(), name.as_str().into());
        Namespace { name, labels }
    }

    pub fn name(&self) -> &ObjectName {
        &self.name
    }

    pub fn labels(&self) -> &Labels {
        &self.labels
    }
}

impl Endpoint {
    /// Its network is the one that has its addresses, whatever the pod says, where there is more than one.
    pub fn place(&mut self, networks: &Networks) {
        if !networks.is_empty() {
            self.network = self.addresses.iter().find_map(|address| networks.of(*address));
        }
    }
}

impl Endpoints {
    /// The pod that has `address`.
    pub fn pod(&self, address: IpAddr) -> Option<&Endpoint> {
        self.pods.iter().find(|pod| pod.addresses.contains(&address))
    }

    /// The node that has `address`.
    pub fn node(&self, address: IpAddr) -> Option<&Node> {
        self.nodes.iter().find(|node| node.addresses.contains(&address))
    }
}

mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Namespace;

    pub fn serialize<S: Serializer>(one: &Arc<Namespace>, to: S) -> Result<S::Ok, S::Error> {
        (**one).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<Namespace>, D::Error> {
        Namespace::deserialize(from).map(Arc::new)
    }
}

impl fmt::Display for Endpoint {
    /// `namespace/name`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace.name, self.name)
    }
}
