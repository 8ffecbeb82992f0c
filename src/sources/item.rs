//! Pure. What is kept of an object of the Kubernetes API.

use std::sync::Arc;

use ipnetwork::IpNetwork;
use serde_json::Value;

use crate::kube::Resource;
use crate::net::{Object, Problem, ProblemKind, subnet};
use crate::policy::read::fields::{Fault, ObjectField, quoted};
use crate::policy::read::pod::Pod;
use crate::policy::read::{Parsed, cluster, policy};
use crate::policy::{Namespace, Node};
use crate::sources::custom_resource;

/// An object, parsed.
#[derive(Clone, Debug)]
pub enum Item {
    Policy(Parsed),
    Namespace(Arc<Namespace>),
    Node(HostNode),
    Pod(Pod),
    /// A custom resource of humanz, as etcd would have it.
    Own(Value),
    /// It is not understood.
    Faulty(Problem),
}

/// A node, and the subnets of its pods.
#[derive(Clone, Debug, PartialEq)]
pub struct HostNode {
    pub node: Node,
    pub subnets: Vec<IpNetwork>,
}

/// Subnets of a node; Kubernetes gives one of each family.
const SUBNETS_LIMIT: usize = 16;

impl Item {
    /// What is kept of `object`.
    pub fn read(resource: Resource, object: &Value) -> Item {
        let item = match resource {
            Resource::Namespaces => cluster::namespace(object).map(Arc::new).map(Item::Namespace),
            Resource::Nodes => node(object).map(Item::Node),
            Resource::Pods => Pod::read(object).map(Item::Pod),
            own if own.is_own() => custom_resource::document(own, object).map(Item::Own),
            _ => policy(object)
                .map(Item::Policy)
                .ok_or_else(|| ObjectField::root(object).fault("is no policy")),
        };
        item.unwrap_or_else(|fault| Item::Faulty(problem(resource, object, &fault)))
    }
}

fn node(object: &Value) -> Result<HostNode, Fault> {
    let mut node = cluster::node(object)?;
    let spec = ObjectField::root(object).get("spec");
    let list = |name| spec.as_ref().map_or(Ok(Vec::new()), |spec| spec.list(name));
    let one = spec.as_ref().and_then(|spec| spec.get("podCIDR"));
    let mut fields = list("podCIDRs")?;
    if fields.is_empty() {
        fields.extend(one.filter(|one| one.text() != Ok("")));
    }
    fields.truncate(SUBNETS_LIMIT);
    let subnets: Vec<IpNetwork> =
        fields.iter().map(ObjectField::network).collect::<Result<_, _>>()?;
    // Its pods' gateways are the node, too.
    node.addresses.extend(subnets.iter().map(|subnet| subnet::gateway(*subnet)));
    Ok(HostNode { node, subnets })
}

fn problem(resource: Resource, object: &Value, fault: &Fault) -> Problem {
    let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
    let (kind, namespace) = (resource.kind(), text("namespace"));
    let slash = if namespace.is_empty() { "" } else { "/" };
    let name = quoted(&format!("{namespace}{slash}{}", text("name")));
    Problem::in_object(ProblemKind::Policy, Object::named(format!("{kind} {name}")), fault)
}
