//! Pure. The resources of the Kubernetes API that policies need, and their objects.

use serde_json::Value;

use crate::kube::object::{self, Ended, PageEnd};
use crate::kube::query::Query;
use crate::lease::records::NodeName;

/// A kind of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    Namespaces,
    Nodes,
    Pods,
    NetworkPolicies,
    ClusterNetworkPolicies,
    /// What came before ClusterNetworkPolicies.
    AdminNetworkPolicies,
    BaselineAdminNetworkPolicies,
}

/// Name of an object, and its namespace if it has one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    pub namespace: Option<Box<str>>,
    pub name: Box<str>,
}

/// An event of a watch; with the version after it.
#[derive(Debug)]
pub enum ObjectEvent {
    /// An object was added or changed.
    Put(ObjectKey, Value, String),
    /// An object was deleted.
    Gone(ObjectKey, String),
    /// All changes up to this version were sent.
    Bookmark(String),
}

/// Longest name of an object, in bytes. Source: RFC 1123; Kubernetes allows no longer one.
const NAME_LIMIT: usize = 253;

impl Resource {
    pub const ALL: [Resource; 7] = [
        Resource::Namespaces,
        Resource::Nodes,
        Resource::Pods,
        Resource::NetworkPolicies,
        Resource::ClusterNetworkPolicies,
        Resource::AdminNetworkPolicies,
        Resource::BaselineAdminNetworkPolicies,
    ];

    /// `kind` of its objects. Source: the API reference, and sigs.k8s.io/network-policy-api.
    pub fn kind(self) -> &'static str {
        match self {
            Resource::Namespaces => "Namespace",
            Resource::Nodes => "Node",
            Resource::Pods => "Pod",
            Resource::NetworkPolicies => "NetworkPolicy",
            Resource::ClusterNetworkPolicies => "ClusterNetworkPolicy",
            Resource::AdminNetworkPolicies => "AdminNetworkPolicy",
            Resource::BaselineAdminNetworkPolicies => "BaselineAdminNetworkPolicy",
        }
    }

    /// Not every cluster has it: it comes with a CustomResourceDefinition.
    pub fn is_optional(self) -> bool {
        matches!(
            self,
            Resource::ClusterNetworkPolicies
                | Resource::AdminNetworkPolicies
                | Resource::BaselineAdminNetworkPolicies
        )
    }

    /// Its API group, if clusters have different versions of it.
    pub fn versioned_group(self) -> Option<&'static str> {
        (self == Resource::ClusterNetworkPolicies).then_some("policy.networking.k8s.io")
    }

    /// All of its objects.
    pub fn query(self) -> Query {
        let (name, path, page, limit) = match self {
            Resource::Namespaces => ("namespaces", "/api/v1/namespaces", 500, 50_000),
            Resource::Nodes => ("nodes", "/api/v1/nodes", 100, 100_000),
            Resource::Pods => ("pods", "/api/v1/pods", 250, 300_000),
            Resource::NetworkPolicies => {
                ("networkpolicies", "/apis/networking.k8s.io/v1/networkpolicies", 250, 100_000)
            }
            Resource::ClusterNetworkPolicies => (
                "clusternetworkpolicies",
                "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies",
                250,
                10_000,
            ),
            Resource::AdminNetworkPolicies => (
                "adminnetworkpolicies",
                "/apis/policy.networking.k8s.io/v1alpha1/adminnetworkpolicies",
                250,
                10_000,
            ),
            Resource::BaselineAdminNetworkPolicies => (
                "baselineadminnetworkpolicies",
                "/apis/policy.networking.k8s.io/v1alpha1/baselineadminnetworkpolicies",
                250,
                10_000,
            ),
        };
        Query { name, path: path.into(), field_selector: None, page, limit }
    }

    /// The pods of the node `name`, or that node.
    pub fn query_of(self, name: &NodeName) -> Query {
        let field = match self {
            Resource::Pods => "spec.nodeName",
            _ => "metadata.name",
        };
        Query { field_selector: Some(format!("{field}={name}")), ..self.query() }
    }

    /// The objects of a page of a list by `query`, each with version and kind, which servers leave out there.
    ///
    /// # Errors
    /// Not such a list, or an object without a name.
    pub fn page(
        self,
        query: &Query,
        bytes: &[u8],
    ) -> Result<(Vec<(ObjectKey, Value)>, PageEnd), String> {
        let (items, end) = object::page_of(self.kind(), bytes)?;
        let objects = items.into_iter().map(|item| self.object(query, item));
        let objects = objects.collect::<Result<_, _>>()?;
        Ok((objects, end))
    }

    /// One line of a watch of `query`.
    ///
    /// # Errors
    /// Not an event of such an object.
    pub fn event(self, query: &Query, bytes: &[u8]) -> Result<Result<ObjectEvent, Ended>, String> {
        let (kind, object, version) = match object::line(bytes)? {
            Ok(event) => event,
            Err(ended) => return Ok(Err(ended)),
        };
        Ok(Ok(match kind.as_str() {
            "BOOKMARK" => ObjectEvent::Bookmark(version),
            "ADDED" | "MODIFIED" => {
                let (key, object) = self.object(query, object)?;
                ObjectEvent::Put(key, object, version)
            }
            "DELETED" => ObjectEvent::Gone(self.object(query, object)?.0, version),
            other => return Err(format!("{other:.40?} is not a type of event")),
        }))
    }

    fn object(self, query: &Query, mut object: Value) -> Result<(ObjectKey, Value), String> {
        let metadata = &object["metadata"];
        let text = |name: &str| {
            metadata[name].as_str().filter(|text| (1..=NAME_LIMIT).contains(&text.len()))
        };
        let name = text("name").ok_or("an object without a name")?.into();
        let key = ObjectKey { namespace: text("namespace").map(Into::into), name };
        object["apiVersion"] = query.version().into();
        object["kind"] = self.kind().into();
        Ok((key, object))
    }
}
