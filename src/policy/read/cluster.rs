//! Pure. Pods, namespaces and nodes of the Kubernetes API as endpoints.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::net::node_name::NodeName;
use crate::net::{Object, Problem, ProblemKind, Protocol};
use crate::policy::endpoint::{Endpoint, Endpoints, NamedPort, Namespace, Node};
use crate::policy::labels::Labels;
use crate::policy::name::Name;
use crate::policy::read::fields::{Fault, Field};
use crate::policy::read::kubernetes::{labels, protocol};
use crate::policy::read::membership::{Claims, Membership, NamespaceRule, assign};

/// What is known of a cluster beside its policies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    #[serde(with = "namespaces")]
    namespaces: BTreeMap<Name, Arc<Namespace>>,
    /// Rules for the pods of namespaces.
    pub rules: BTreeMap<Name, NamespaceRule>,
    free: bool,
}

impl Cluster {
    /// `free`: pods may choose their group where their namespace has no rule.
    pub fn new(free: bool) -> Cluster {
        Cluster { free, ..Cluster::default() }
    }

    /// Takes the labels of a namespace.
    ///
    /// # Errors
    /// It has no name.
    pub fn namespace(&mut self, object: &Value) -> Result<(), Fault> {
        let metadata = Field::root(object).need("metadata")?;
        let name = metadata.need("name")?.name()?;
        let namespace = Namespace::new(name.clone(), labels(metadata.get("labels")));
        self.namespaces.insert(name, Arc::new(namespace));
        Ok(())
    }

    /// Adds a pod to `endpoints`, and what is wrong with it; not one in its host's network, without
    /// addresses, or at its end, whose address may be another's.
    ///
    /// # Errors
    /// It has no name, namespace or host: it is no endpoint.
    pub fn pod(&self, object: &Value, endpoints: &mut Endpoints) -> Result<Vec<Problem>, Fault> {
        let root = Field::root(object);
        let (metadata, spec) = (root.need("metadata")?, root.need("spec")?);
        let status = root.get("status");
        let name = metadata.need("name")?.name()?;
        let namespace = metadata.need("namespace")?.name()?;
        let phase = status.as_ref().and_then(|status| status.get("phase"));
        let ended = phase.is_some_and(|phase| matches!(phase.text(), Ok("Succeeded" | "Failed")));
        let host_network = spec.get("hostNetwork").is_some_and(|field| field.flag() == Ok(true));
        let addresses = status.map(|status| addresses(&status)).unwrap_or_default();
        if ended || host_network || addresses.is_empty() {
            return Ok(Vec::new());
        }
        let host = spec.need("nodeName")?;
        let host = host.text()?.parse().map_err(|error| host.fault(format!("{error}")))?;
        let own = labels(metadata.get("labels"));
        let annotations = labels(metadata.get("annotations"));
        let (member, problems) = self.membership(&name, &namespace, &annotations, &own);
        endpoints.pods.push(Endpoint {
            namespace: self.namespace_of(&namespace),
            name,
            labels: own,
            addresses,
            ports: ports(&spec),
            host,
            group: member.group,
            network: member.network,
        });
        Ok(problems)
    }

    /// A pod that only its runtime describes, without addresses, and what is wrong with it.
    pub fn standalone(
        &self,
        (namespace, name): (Name, Name),
        annotations: &Labels,
        labels: Labels,
        host: NodeName,
    ) -> (Endpoint, Vec<Problem>) {
        let (member, problems) = self.membership(&name, &namespace, annotations, &labels);
        let endpoint = Endpoint {
            namespace: self.namespace_of(&namespace),
            name,
            labels,
            addresses: Vec::new(),
            ports: Vec::new(),
            host,
            group: member.group,
            network: member.network,
        };
        (endpoint, problems)
    }

    fn namespace_of(&self, name: &Name) -> Arc<Namespace> {
        let without = || Arc::new(Namespace::new(name.clone(), Labels::new()));
        self.namespaces.get(name).cloned().unwrap_or_else(without)
    }

    fn membership(
        &self,
        name: &Name,
        namespace: &Name,
        annotations: &Labels,
        labels: &Labels,
    ) -> (Membership, Vec<Problem>) {
        let configured = Membership::default();
        let rule = self.rules.get(namespace);
        let claims = Claims {
            name,
            annotations,
            labels,
            namespace: rule,
            configured: &configured,
            free: self.free,
        };
        match assign(&claims) {
            Ok(membership) => (membership, Vec::new()),
            Err(refusal) => {
                let subject = Object::named(format!("pod {namespace}/{name}"));
                let problem = Problem::new(ProblemKind::Policy, subject, refusal.to_string());
                (configured, vec![problem])
            }
        }
    }
}

mod namespaces {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serializer};

    use crate::policy::endpoint::Namespace;
    use crate::policy::name::Name;

    type ByName = BTreeMap<Name, Arc<Namespace>>;

    pub fn serialize<S: Serializer>(all: &ByName, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(all.values().map(|one| &**one))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ByName, D::Error> {
        let all: Vec<Namespace> = Vec::deserialize(from)?;
        Ok(all.into_iter().map(|one| (one.name().clone(), Arc::new(one))).collect())
    }
}

/// A node with its addresses.
///
/// # Errors
/// It has no name.
pub fn node(object: &Value) -> Result<Node, Fault> {
    let root = Field::root(object);
    let metadata = root.need("metadata")?;
    let name = metadata.need("name")?;
    let name = name.text()?.parse().map_err(|error| name.fault(format!("{error}")))?;
    let status = root.get("status");
    let addresses = status.and_then(|status| status.list("addresses").ok()).unwrap_or_default();
    let addresses = addresses.iter().filter_map(|field| address(&field.get("address")?));
    Ok(Node { name, labels: labels(metadata.get("labels")), addresses: addresses.collect() })
}

fn address(field: &Field<'_>) -> Option<IpAddr> {
    field.text().ok()?.parse().ok()
}

/// `podIPs`, or the one of old API servers.
fn addresses(status: &Field<'_>) -> Vec<IpAddr> {
    let all = status.list("podIPs").unwrap_or_default();
    let all: Vec<IpAddr> = all.iter().filter_map(|field| address(&field.get("ip")?)).collect();
    if all.is_empty() {
        status.get("podIP").as_ref().and_then(address).into_iter().collect()
    } else {
        all
    }
}

/// Ports with names, of containers and of init containers that stay.
fn ports(spec: &Field<'_>) -> Vec<NamedPort> {
    let stays = |container: &Field<'_>| {
        container.get("restartPolicy").is_some_and(|policy| policy.text() == Ok("Always"))
    };
    let containers = spec.list("containers").unwrap_or_default();
    let sidecars = spec.list("initContainers").unwrap_or_default();
    let sidecars = sidecars.into_iter().filter(stays);
    let ports = containers.into_iter().chain(sidecars);
    let ports = ports.flat_map(|container| container.list("ports").unwrap_or_default());
    ports.filter_map(|port| named_port(&port)).collect()
}

fn named_port(field: &Field<'_>) -> Option<NamedPort> {
    let name = field.get("name")?.name().ok()?;
    let port = field.get("containerPort")?.number(1..=u16::MAX).ok()?;
    let protocol =
        field.get("protocol").map_or(Ok(Protocol::Tcp), |field| protocol(&field)).ok()?;
    Some(NamedPort { name, protocol, port })
}
