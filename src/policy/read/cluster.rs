//! Pure. Pods, namespaces and nodes of the Kubernetes API as endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::net::node_name::NodeName;
use crate::net::{Object, Problem, ProblemKind};
use crate::policy::endpoint::{Endpoint, Endpoints, Namespace, Node};
use crate::policy::labels::Labels;
use crate::policy::name::{ObjectName, Scoped};
use crate::policy::read::fields::{Fault, ObjectField};
use crate::policy::read::interfaces::{AskedInterface, interfaces};
use crate::policy::read::kubernetes::labels;
use crate::policy::read::membership::{
    Claims, Membership, NamespaceRule, Refusal, assign, configured,
};
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
    /// their group and network while no namespace has a rule.
    free: bool,
    /// A namespace has a rule, understood or not. `None`: a release wrote this that did not note it.
    #[serde(default)]
    ruled: Option<bool>,
}

impl Cluster {
    /// `free`: on hosts without Kubernetes.
    pub fn new(free: bool) -> Cluster {
        Cluster { free, ruled: Some(false), ..Cluster::default() }
    }

    /// With what `other` says of namespaces that are not known here.
    pub fn and(mut self, other: &Cluster) -> Cluster {
        self.ruled = Some(self.is_ruled() || other.is_ruled());
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

    /// Some namespace has a rule, whatever it says.
    pub fn note_rule(&mut self) {
        self.ruled = Some(true);
    }

    fn is_ruled(&self) -> bool {
        !self.rules.is_empty() || self.ruled.unwrap_or(!self.closed.is_empty())
    }

    /// Where there is a rule for one namespace, namespaces say the tenant: those without one have none.
    fn lets_pods_choose(&self) -> bool {
        self.free && !self.is_ruled()
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

    /// Puts a pod into the group and network that it asks for and may have, or else that the rule of its namespace
    /// gives it; gives what is wrong with what it asks for.
    pub fn assign(&self, pod: &mut Endpoint) -> Option<Problem> {
        let namespace = pod.namespace.name();
        let (Membership { group, network }, refusal) =
            self.membership(&pod.name, namespace, &pod.annotations, &pod.labels);
        (pod.group, pod.network) = (group, network);
        refusal.map(|refusal| refused(pod, &refusal))
    }

    /// Puts a pod that is in no group by now into that of the settings, as far as the rule of its namespace allows;
    /// gives the reason where it does not.
    pub fn configure(&self, pod: &mut Endpoint, group: Option<&Scoped>) -> Option<Problem> {
        let group = group.filter(|_| pod.group.is_none())?;
        match configured(self.rules.get(pod.namespace.name()), group) {
            Ok(group) => pod.group = Some(group),
            Err(refusal) => return Some(refused(pod, &refusal)),
        }
        None
    }

    /// A pod that only its runtime describes, without addresses, and what is wrong with what it asks for.
    pub fn standalone(
        &self,
        (namespace, name): (ObjectName, ObjectName),
        annotations: &Labels,
        labels: Labels,
        host: NodeName,
    ) -> (Endpoint, Option<Problem>) {
        let (Membership { group, network }, refusal) =
            self.membership(&name, &namespace, annotations, &labels);
        let endpoint = Endpoint {
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
        };
        let problem = refusal.map(|refusal| refused(&endpoint, &refusal));
        (endpoint, problem)
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
        interfaces(&Claims {
            name,
            annotations,
            labels,
            namespace: self.rules.get(namespace),
            free: self.lets_pods_choose(),
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
    ) -> (Membership, Option<Refusal>) {
        assign(&Claims {
            name,
            annotations,
            labels,
            namespace: self.rules.get(namespace),
            free: self.lets_pods_choose(),
        })
    }
}

fn refused(pod: &Endpoint, refusal: &Refusal) -> Problem {
    let problem = Problem::in_object(ProblemKind::Policy, Object::Pod(pod.to_string()), refusal);
    match refusal.fix(pod.namespace.name()) {
        Some(fix) => problem.with_fix(fix),
        None => problem,
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

    use crate::net::gather::Gather;
    use crate::policy::endpoint::Namespace;
    use crate::policy::name::ObjectName;

    type ByName = BTreeMap<ObjectName, Arc<Namespace>>;

    pub fn serialize<S: Serializer>(all: &ByName, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(all.values().map(|one| &**one))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ByName, D::Error> {
        let all: Vec<Namespace> = Vec::deserialize(from)?;
        Ok(all.into_iter().map(|one| (one.name().clone(), Arc::new(one))).gather())
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::policy::read::documents;

    fn of(objects: &[Value]) -> Cluster {
        documents::read(objects, true).cluster
    }

    fn rule(metadata: &Value, spec: &Value) -> Value {
        json!({"apiVersion": "humanz.io/v1", "kind": "NamespaceRule", "metadata": metadata, "spec": spec})
    }

    /// A pod of a namespace without a rule gets the network and the group that it asks for.
    fn check(cluster: &Cluster, gets_them: bool) {
        let said = |key: &str| Labels::from([(key.into(), "red/front".into())]);
        let (name, plain) = ("spy".parse().unwrap(), "plain".parse().unwrap());
        for key in ["humanz.io/network", "humanz.io/networks"] {
            let asked = cluster.interfaces(&name, &plain, &said(key), &Labels::new());
            assert_eq!(asked.is_ok(), gets_them, "{key}: {cluster:?}");
        }
        let (spy, host) = ((plain, name), "n1".parse().unwrap());
        let group = said("humanz.io/group");
        let (pod, problem) = cluster.standalone(spy, &group, Labels::new(), host);
        assert_eq!((pod.group.is_some(), problem.is_none()), (gets_them, gets_them), "{cluster:?}");
    }

    #[test]
    fn pods_choose_only_while_no_namespace_has_a_rule() {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}});
        let shop = rule(&json!({"name": "shop"}), &json!({"tenant": "blue"}));
        check(&of(&[]), true);
        check(&of(std::slice::from_ref(&namespace)), true);
        check(&Cluster::new(false), false);
        check(&of(std::slice::from_ref(&shop)), false);
        for bad in [
            rule(&json!({"name": "shop"}), &json!({"moon": 1})),
            rule(&json!({}), &json!({})),
            rule(&json!(7), &json!({})),
            json!({"apiVersion": "humanz.io/v2", "kind": "NamespaceRule"}),
        ] {
            check(&of(&[namespace.clone(), bad]), false);
        }
        // Whichever source has it.
        check(&of(&[]).and(&of(std::slice::from_ref(&shop))), false);
        check(&of(std::slice::from_ref(&shop)).and(&of(&[])), false);
        check(&of(&[]).and(&of(&[rule(&json!({}), &json!({}))])), false);
        check(&of(&[]).and(&of(&[])), true);
    }

    #[test]
    fn what_an_older_release_wrote_is_open_only_if_it_has_no_rule() {
        let older = |cluster: &Cluster| -> Cluster {
            let mut text = serde_json::to_value(cluster).unwrap();
            text.as_object_mut().unwrap().remove("ruled").unwrap();
            serde_json::from_value(text).unwrap()
        };
        let shop = |spec: Value| of(&[rule(&json!({"name": "shop"}), &spec)]);
        check(&older(&of(&[])), true);
        check(&older(&shop(json!({"tenant": "blue"}))), false);
        check(&older(&shop(json!({"moon": 1}))), false);
        check(&older(&of(&[])).and(&older(&shop(json!({"moon": 1})))), false);
        let again: Cluster =
            serde_json::from_value(serde_json::to_value(shop(json!({}))).unwrap()).unwrap();
        check(&again, false);
    }
}
