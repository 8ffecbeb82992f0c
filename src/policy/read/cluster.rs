//! Pure. Pods, namespaces and nodes of the Kubernetes API as endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::net::node_name::NodeName;
use crate::net::{Object, Problem, ProblemKind};
use crate::policy::endpoint::{Endpoint, Endpoints, Namespace, Node};
use crate::policy::labels::Labels;
use crate::policy::name::ObjectName;
use crate::policy::read::fields::{Fault, ObjectField};
use crate::policy::read::interfaces::{AskedInterface, interfaces};
use crate::policy::read::kubernetes::labels;
use crate::policy::read::membership::{Claims, Membership, NamespaceRule, Refusal, assign};
use crate::policy::read::pod::{Pod, address};

/// What is known of a cluster beside its policies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    #[serde(with = "namespaces")]
    namespaces: BTreeMap<ObjectName, Arc<Namespace>>,
    /// Rules for the pods of namespaces.
    pub rules: BTreeMap<ObjectName, NamespaceRule>,
    /// Namespaces of which something was not understood: their pods stay in quarantine.
    #[serde(default)]
    closed: BTreeSet<ObjectName>,
    /// Only the host's administrator starts pods: they are as their runtimes describe them, and may choose
    /// their group where their namespace has no rule.
    free: bool,
}

impl Cluster {
    /// `free`: on hosts without Kubernetes.
    pub fn new(free: bool) -> Cluster {
        Cluster { free, ..Cluster::default() }
    }

    /// With what `other` says of namespaces that are not known here.
    pub fn and(mut self, other: &Cluster) -> Cluster {
        for (name, namespace) in &other.namespaces {
            self.namespaces.entry(name.clone()).or_insert_with(|| Arc::clone(namespace));
        }
        for (name, rule) in &other.rules {
            self.rules.entry(name.clone()).or_insert_with(|| rule.clone());
        }
        self.closed.extend(other.closed.iter().cloned());
        self
    }

    /// What is said of the pods of this namespace is not understood.
    pub fn close(&mut self, namespace: ObjectName) {
        self.closed.insert(namespace);
    }

    /// What is said of this namespace is known.
    pub fn has(&self, namespace: &ObjectName) -> bool {
        self.namespaces.contains_key(namespace)
    }

    pub fn is_closed(&self, namespace: &ObjectName) -> bool {
        self.closed.contains(namespace)
    }

    /// Pods that no source knows are as their runtimes describe them.
    pub fn trusts_runtimes(&self) -> bool {
        self.free
    }

    /// Takes the labels of a namespace.
    ///
    /// # Errors
    /// It has no name.
    pub fn namespace(&mut self, object: &Value) -> Result<(), Fault> {
        self.put(Arc::new(namespace(object)?));
        Ok(())
    }

    pub fn put(&mut self, namespace: Arc<Namespace>) {
        self.namespaces.insert(namespace.name().clone(), namespace);
    }

    /// Adds a pod that has a host to `endpoints`; gives what is wrong with it.
    pub fn pod(&self, pod: Pod, endpoints: &mut Endpoints) -> Vec<Problem> {
        let Some(host) = pod.host.clone() else { return Vec::new() };
        let (endpoint, problems) = self.endpoint(pod, host);
        endpoints.pods.push(endpoint);
        problems
    }

    /// The namespace `name`; one without labels if it is not known.
    pub fn namespace_of(&self, name: &ObjectName) -> Arc<Namespace> {
        let without = || Arc::new(Namespace::new(name.clone(), Labels::new()));
        self.namespaces.get(name).cloned().unwrap_or_else(without)
    }

    /// `pod` on `host`, and what is wrong with what it claims.
    pub fn endpoint(&self, pod: Pod, host: NodeName) -> (Endpoint, Vec<Problem>) {
        let mut endpoint = self.unassigned(pod, host);
        let problem = self.assign(&mut endpoint);
        endpoint.annotations = Labels::new();
        (endpoint, problem.into_iter().collect())
    }

    /// `pod` on `host` before anything says in which group and network it is.
    pub fn unassigned(&self, pod: Pod, host: NodeName) -> Endpoint {
        Endpoint {
            namespace: self.namespace_of(&pod.namespace),
            name: pod.name,
            uid: pod.uid,
            labels: pod.labels,
            addresses: pod.addresses,
            ports: pod.ports,
            host,
            group: None,
            network: None,
            annotations: pod.annotations,
        }
    }

    /// Puts a pod into the group and network that the rule of its namespace gives it, or that it asks for and may
    /// have; gives what is wrong with what it asks for.
    pub fn assign(&self, pod: &mut Endpoint) -> Option<Problem> {
        let namespace = pod.namespace.name();
        let found = self.membership(&pod.name, namespace, &pod.annotations, &pod.labels);
        match found {
            Ok(Membership { group, network }) => {
                (pod.group, pod.network) = (group, network);
                None
            }
            Err(refusal) => {
                let subject = Object::Pod(pod.to_string());
                Some(Problem::in_object(ProblemKind::Policy, subject, refusal))
            }
        }
    }

    /// A pod that only its runtime describes, without addresses.
    pub fn standalone(
        &self,
        (namespace, name): (ObjectName, ObjectName),
        annotations: &Labels,
        labels: Labels,
        host: NodeName,
    ) -> Endpoint {
        let found = self.membership(&name, &namespace, annotations, &labels);
        let Membership { group, network } = found.unwrap_or_default();
        Endpoint {
            namespace: self.namespace_of(&namespace),
            name,
            uid: None,
            labels,
            addresses: Vec::new(),
            ports: Vec::new(),
            host,
            group,
            network,
            annotations: Labels::new(),
        }
    }

    /// The interfaces of a pod, each with its network.
    ///
    /// # Errors
    /// It asks for what it may not have.
    pub fn interfaces(
        &self,
        name: &ObjectName,
        namespace: &ObjectName,
        annotations: &Labels,
        labels: &Labels,
    ) -> Result<Vec<AskedInterface>, Refusal> {
        let configured = Membership::default();
        interfaces(&Claims {
            name,
            annotations,
            labels,
            namespace: self.rules.get(namespace),
            configured: &configured,
            free: self.free,
        })
    }

    /// Without what only rules of policies need.
    pub fn without_labels(&self) -> Cluster {
        Cluster { namespaces: BTreeMap::new(), ..self.clone() }
    }

    fn membership(
        &self,
        name: &ObjectName,
        namespace: &ObjectName,
        annotations: &Labels,
        labels: &Labels,
    ) -> Result<Membership, Refusal> {
        assign(&Claims {
            name,
            annotations,
            labels,
            namespace: self.rules.get(namespace),
            configured: &Membership::default(),
            free: self.free,
        })
    }
}

/// A namespace with its labels.
///
/// # Errors
/// It has no name, or more labels than are read.
pub fn namespace(object: &Value) -> Result<Namespace, Fault> {
    let metadata = ObjectField::root(object).need("metadata")?;
    metadata.get("labels").map(|labels| labels.entries().map(drop)).transpose()?;
    Ok(Namespace::new(metadata.need("name")?.name()?, labels(metadata.get("labels"))))
}

mod namespaces {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serializer};

    use crate::policy::endpoint::Namespace;
    use crate::policy::name::ObjectName;

    type ByName = BTreeMap<ObjectName, Arc<Namespace>>;

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
    let root = ObjectField::root(object);
    let metadata = root.need("metadata")?;
    let name = metadata.need("name")?;
    let name = name.text()?.parse().map_err(|error| name.fault(format!("{error}")))?;
    let status = root.get("status");
    let addresses = status.and_then(|status| status.list("addresses").ok()).unwrap_or_default();
    let addresses = addresses.iter().filter_map(|field| address(&field.get("address")?));
    Ok(Node { name, labels: labels(metadata.get("labels")), addresses: addresses.collect() })
}
