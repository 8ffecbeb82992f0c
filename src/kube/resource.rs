//! Pure. The resources of the Kubernetes API that policies need, and their objects.

use serde_json::Value;

use crate::kube::object::{self, Ended, PageEnd};
use crate::kube::query::{Query, SOON_ASKED};
use crate::lease::records::NodeName;

/// A kind of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    Namespaces,
    Nodes,
    Pods,
    NetworkPolicies,
    ClusterNetworkPolicies,
    /// The predecessor of ClusterNetworkPolicies.
    AdminNetworkPolicies,
    BaselineAdminNetworkPolicies,
    Groups,
    GroupPolicies,
    NamespaceRules,
    NetProfiles,
    /// The controller alone reads them: hosts have networks from etcd.
    Networks,
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
    /// Those of the group `humanz.io`.
    pub const OWN: [Resource; 5] = [
        Resource::Networks,
        Resource::Groups,
        Resource::GroupPolicies,
        Resource::NamespaceRules,
        Resource::NetProfiles,
    ];

    /// Those that agents watch.
    pub const ALL: [Resource; 11] = [
        Resource::Namespaces,
        Resource::Nodes,
        Resource::Pods,
        Resource::NetworkPolicies,
        Resource::ClusterNetworkPolicies,
        Resource::AdminNetworkPolicies,
        Resource::BaselineAdminNetworkPolicies,
        Resource::Groups,
        Resource::GroupPolicies,
        Resource::NamespaceRules,
        Resource::NetProfiles,
    ];

    /// It is humanz's own, of the group `humanz.io`.
    pub fn is_own(self) -> bool {
        Resource::OWN.contains(&self)
    }

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
            Resource::Groups => "Group",
            Resource::GroupPolicies => "GroupPolicy",
            Resource::NamespaceRules => "NamespaceRule",
            Resource::NetProfiles => "NetProfile",
            Resource::Networks => "Network",
        }
    }

    /// Not every cluster has it: it comes with a CustomResourceDefinition.
    fn is_optional(self) -> bool {
        self.is_own()
            || matches!(
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
        let path = self.path();
        let (_, name) = path.rsplit_once('/').unwrap_or_default();
        let (page, limit) = match self {
            Resource::Namespaces => (500, 50_000),
            Resource::Nodes => (100, 100_000),
            Resource::Pods => (250, 300_000),
            Resource::NetworkPolicies => (250, 100_000),
            Resource::NamespaceRules => (250, 50_000),
            _ => (250, 10_000),
        };
        let is_optional = self.is_optional();
        Query {
            name,
            path: path.into(),
            field_selector: None,
            page,
            limit,
            is_optional,
            had_objects: false,
            ask_again: SOON_ASKED,
        }
    }

    fn path(self) -> &'static str {
        match self {
            Resource::Namespaces => "/api/v1/namespaces",
            Resource::Nodes => "/api/v1/nodes",
            Resource::Pods => "/api/v1/pods",
            Resource::NetworkPolicies => "/apis/networking.k8s.io/v1/networkpolicies",
            Resource::ClusterNetworkPolicies => {
                "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies"
            }
            Resource::AdminNetworkPolicies => {
                "/apis/policy.networking.k8s.io/v1alpha1/adminnetworkpolicies"
            }
            Resource::BaselineAdminNetworkPolicies => {
                "/apis/policy.networking.k8s.io/v1alpha1/baselineadminnetworkpolicies"
            }
            Resource::Groups => "/apis/humanz.io/v1alpha1/groups",
            Resource::GroupPolicies => "/apis/humanz.io/v1alpha1/grouppolicies",
            Resource::NamespaceRules => "/apis/humanz.io/v1alpha1/namespacerules",
            Resource::NetProfiles => "/apis/humanz.io/v1alpha1/netprofiles",
            Resource::Networks => "/apis/humanz.io/v1alpha1/networks",
        }
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
