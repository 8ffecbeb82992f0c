//! Pure. Selectors of pods and nodes in a canonical form.
//!
//! Equal selectors are equal values with one JSON text: that text is what hosts share.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::policy::endpoint::{Endpoint, Namespace, Node};
use crate::policy::labels::{LabelSelector, Requirement};
use crate::policy::name::{ObjectName, Scoped};

/// Which namespaces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Namespaces {
    Named(ObjectName),
    Labelled(LabelSelector),
}

/// A set of pods or nodes, which every host finds among its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Selector {
    Pods {
        namespaces: Namespaces,
        labels: LabelSelector,
    },
    /// Pods that [`Selector::Pods`] of such namespaces may find: their namespaces' labels are not known.
    Doubtful {
        namespaces: LabelSelector,
        labels: LabelSelector,
    },
    /// The pods of a group.
    Group(Scoped),
    /// The pods of a network.
    Network(Scoped),
    Nodes(LabelSelector),
}

impl Namespaces {
    pub fn matches(&self, namespace: &Namespace) -> bool {
        match self {
            Namespaces::Named(name) => name == namespace.name(),
            Namespaces::Labelled(selector) => selector.matches(namespace.labels()),
        }
    }
}

impl Selector {
    /// All pods of the cluster: a set that needs no members where the pool stands for it.
    pub fn every_pod() -> Selector {
        let namespaces = Namespaces::Labelled(LabelSelector::default());
        Selector::Pods { namespaces, labels: LabelSelector::default() }
    }

    /// Keys, values and names that it asks for: what it costs to compare it with another one.
    pub fn words(&self) -> usize {
        match self {
            Selector::Pods { namespaces: Namespaces::Named(_), labels } => 1 + labels.words(),
            Selector::Pods { namespaces: Namespaces::Labelled(namespaces), labels }
            | Selector::Doubtful { namespaces, labels } => namespaces.words() + labels.words(),
            Selector::Group(_) | Selector::Network(_) => 1,
            Selector::Nodes(labels) => labels.words(),
        }
    }

    pub fn matches_pod(&self, pod: &Endpoint) -> bool {
        match self {
            Selector::Pods { namespaces, labels } => {
                namespaces.matches(&pod.namespace) && labels.matches(&pod.labels)
            }
            Selector::Group(group) => pod.group.as_ref() == Some(group),
            Selector::Network(network) => pod.network.as_ref() == Some(network),
            Selector::Nodes(_) | Selector::Doubtful { .. } => false,
        }
    }

    /// The same for a pod of whose namespace only the name is known; `None`: its labels would decide.
    pub fn matches_pod_of_unknown(&self, pod: &Endpoint) -> Option<bool> {
        match self {
            Selector::Pods { namespaces: Namespaces::Labelled(namespaces), labels } => {
                may_match(namespaces, labels, pod)
            }
            Selector::Doubtful { namespaces, labels } => {
                Some(may_match(namespaces, labels, pod).is_none())
            }
            _ => Some(self.matches_pod(pod)),
        }
    }

    /// Finds the pods for which [`Selector::matches_pod_of_unknown`] of this one is `None`.
    pub fn doubtful(&self) -> Option<Selector> {
        match self {
            Selector::Pods { namespaces: Namespaces::Labelled(namespaces), labels } => {
                let (namespaces, labels) = (namespaces.clone(), labels.clone());
                Some(Selector::Doubtful { namespaces, labels })
            }
            _ => None,
        }
    }

    /// Pods of `namespace` may be among those of this selector.
    pub fn may_match_namespace(&self, namespace: &Namespace) -> bool {
        match self {
            Selector::Pods { namespaces, .. } => namespaces.matches(namespace),
            Selector::Group(_) | Selector::Network(_) => true,
            Selector::Nodes(_) | Selector::Doubtful { .. } => false,
        }
    }

    pub fn matches_node(&self, node: &Node) -> bool {
        matches!(self, Selector::Nodes(labels) if labels.matches(&node.labels))
    }

    /// The canonical text: JSON on one line, read back with [`Selector::parse`].
    pub fn text(&self) -> String {
        serde_json::to_string(self).expect("a selector holds only texts")
    }

    /// # Errors
    /// Not the canonical text of a selector.
    pub fn parse(text: &str) -> Result<Selector, String> {
        let selector: Selector =
            serde_json::from_slice(text.as_bytes()).map_err(|error| error.to_string())?;
        let canonical = selector.text() == text;
        if canonical { Ok(selector) } else { Err("not the canonical form".to_owned()) }
    }
}

/// As far as that is certain without the labels of the pod's namespace, but for its name.
fn may_match(namespaces: &LabelSelector, labels: &LabelSelector, pod: &Endpoint) -> Option<bool> {
    let is_of_name = |one: &&Requirement| one.key() == Namespace::NAME_LABEL;
    let names = namespaces.requirements().filter(is_of_name);
    let is_other = |one: &Requirement| !one.matches(pod.namespace.labels());
    if !labels.matches(&pod.labels) || names.into_iter().any(is_other) {
        return Some(false);
    }
    namespaces.requirements().all(|one| is_of_name(&one)).then_some(true)
}

impl fmt::Display for Selector {
    /// `pods app=web of namespace shop`, `pods of all namespaces`, `group blue/web`, `nodes`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with = |labels: &LabelSelector| match labels.is_everything() {
            true => String::new(),
            false => format!(" {labels}"),
        };
        match self {
            Selector::Pods { namespaces, labels } => {
                write!(f, "pods{} of ", with(labels))?;
                match namespaces {
                    Namespaces::Named(name) => write!(f, "namespace {name}"),
                    Namespaces::Labelled(all) if all.is_everything() => {
                        f.write_str("all namespaces")
                    }
                    Namespaces::Labelled(labels) => write!(f, "namespaces {labels}"),
                }
            }
            Selector::Doubtful { namespaces, labels } => {
                let pods = with(labels);
                write!(f, "pods{pods} of namespaces {namespaces} whose labels are not known")
            }
            Selector::Group(group) => write!(f, "group {group}"),
            Selector::Network(network) => write!(f, "network {network}"),
            Selector::Nodes(labels) => write!(f, "nodes{}", with(labels)),
        }
    }
}
