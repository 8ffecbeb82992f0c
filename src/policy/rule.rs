//! Pure. A rule, where it comes from, and the order in which rules are judged.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use crate::net::{Family, subnet};
use crate::policy::name::ObjectName;
use crate::policy::selector::Selector;
use crate::policy::service::Service;

/// Tiers in the order in which they are judged. A connection that no rule of any tier decides is
/// allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Tier {
    /// What keeps tenants apart: no other tier opens it.
    Tenant,
    /// ClusterNetworkPolicy of tier Admin, AdminNetworkPolicy: the last tier that judges a pod's
    /// connection to itself.
    Admin,
    /// Policies of groups.
    Group,
    /// NetworkPolicy.
    NetworkPolicy,
    /// ClusterNetworkPolicy of tier Baseline, BaselineAdminNetworkPolicy.
    Baseline,
}

/// As the subject sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Direction {
    /// To the subject.
    Ingress,
    /// From the subject.
    Egress,
}

/// What a rule says of a connection that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PolicyVerdict {
    /// Dropped.
    Deny,
    /// Allowed at this end; the other end must allow it too.
    Allow,
    /// The next tier decides.
    Pass,
}

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PolicyPeer {
    /// Pods or nodes.
    Selected(Selector),
    /// The addresses of a subnet, without those of `except`; a pod by its own address.
    Network { cidr: IpNetwork, except: Vec<IpNetwork> },
}

/// The kind of object that a rule stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PolicyKind {
    AdminNetworkPolicy,
    ClusterNetworkPolicy,
    /// A policy of groups; its namespace is the tenant.
    GroupPolicy,
    /// The default of a group; its namespace is the tenant.
    Group,
    NetworkPolicy,
    BaselineAdminNetworkPolicy,
    /// A network; its namespace is the tenant.
    Network,
}

/// Where a rule comes from: the object, and the rule in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Origin {
    pub source: PolicyKind,
    /// `None` for objects of the whole cluster.
    pub namespace: Option<ObjectName>,
    pub name: ObjectName,
    /// Its place in its list, from 0; `None` is what holds where no rule matches: the isolation of a
    /// NetworkPolicy, the default of a group.
    pub index: Option<u16>,
}

/// One rule. It matches a connection if the end in `direction` is one of `subject`, the other end one
/// of `peers`, and the service one of `services`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    pub tier: Tier,
    /// Inside the tier; lower ones are judged first.
    pub priority: u32,
    pub origin: Origin,
    pub direction: Direction,
    pub subject: Selector,
    /// `None`: anything, inside the cluster or not. An empty list matches nothing.
    pub peers: Option<Vec<PolicyPeer>>,
    /// `None`: every protocol. An empty list matches nothing.
    pub services: Option<Vec<Service>>,
    pub verdict: PolicyVerdict,
    /// Only counted and logged; decides nothing.
    pub audit: bool,
}

/// Peers and services of a rule, as [`Rule`] has them.
pub type Limits = (Option<Vec<PolicyPeer>>, Option<Vec<Service>>);

/// Rules in the order in which they are judged: the first match of a tier decides. Two values that are one
/// in memory are compared at once.
#[derive(Clone, Debug, Default, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Rule>", into = "Vec<Rule>")]
pub struct Rules(Arc<[Rule]>);

impl PartialEq for Rules {
    fn eq(&self, other: &Rules) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Rules {
    pub fn new(mut rules: Vec<Rule>) -> Rules {
        rules.sort_by(|a, b| a.order().cmp(&b.order()));
        Rules(rules.into())
    }

    /// All of these together.
    pub fn merged(all: &[&Rules]) -> Rules {
        match all {
            [one] => (*one).clone(),
            all => Rules::new(all.iter().flat_map(|rules| rules.iter()).cloned().collect()),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The rule at this place.
    pub fn get(&self, place: usize) -> &Rule {
        &self.0[place]
    }

    /// All of them, those that only audit included.
    pub fn iter(&self) -> std::slice::Iter<'_, Rule> {
        self.0.iter()
    }

    /// Those that decide.
    pub fn enforced(&self) -> impl Iterator<Item = &Rule> {
        self.iter().filter(|rule| !rule.audit)
    }

    /// Those of audited policies.
    pub fn audited(&self) -> impl Iterator<Item = &Rule> {
        self.iter().filter(|rule| rule.audit)
    }
}

impl From<Vec<Rule>> for Rules {
    fn from(rules: Vec<Rule>) -> Rules {
        Rules::new(rules)
    }
}

impl From<Rules> for Vec<Rule> {
    fn from(rules: Rules) -> Vec<Rule> {
        rules.0.to_vec()
    }
}

impl Rule {
    /// Rules of one priority follow their object's name and their place in it, so that the order is
    /// the same on every host. A rule without place is the last of its priority.
    pub fn order(&self) -> impl Ord + '_ {
        let Origin { source, namespace, name, index } = &self.origin;
        let index = (index.is_none(), index.unwrap_or_default());
        (self.tier, self.priority, source, namespace, name, self.direction, index)
    }

    /// It stands beside another one, for those that may be its peers.
    pub fn is_doubtful(&self) -> bool {
        let is_doubt =
            |peer: &PolicyPeer| matches!(peer, PolicyPeer::Selected(Selector::Doubtful { .. }));
        self.peers.iter().flatten().any(is_doubt)
    }
}

impl PolicyPeer {
    /// `None`: it is a network.
    pub fn selector(&self) -> Option<&Selector> {
        match self {
            PolicyPeer::Selected(selector) => Some(selector),
            PolicyPeer::Network { .. } => None,
        }
    }

    /// `address` is one of this network; never of pods and nodes, which are found by name.
    pub fn contains(&self, address: IpAddr) -> bool {
        match self {
            PolicyPeer::Selected(_) => false,
            PolicyPeer::Network { cidr, except } => {
                let inside = |network: &IpNetwork| {
                    subnet::family(*network) == Family::of(address) && network.contains(address)
                };
                inside(cidr) && !except.iter().any(inside)
            }
        }
    }
}

impl Origin {
    /// The object alone.
    pub fn object(&self) -> Origin {
        Origin { index: None, ..self.clone() }
    }

    /// The object as problems are about it: `NetworkPolicy shop/db`, `Group blue/web`.
    pub fn subject(&self) -> String {
        let namespace = self.namespace.iter().map(|namespace| format!("{namespace}/"));
        format!("{} {}{}", self.source.of_object(), namespace.collect::<String>(), self.name)
    }
}

impl PolicyKind {
    /// As Kubernetes names the kind; humanz's own in running text.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::AdminNetworkPolicy => "AdminNetworkPolicy",
            PolicyKind::ClusterNetworkPolicy => "ClusterNetworkPolicy",
            PolicyKind::GroupPolicy => "policy",
            PolicyKind::Group => "group",
            PolicyKind::NetworkPolicy => "NetworkPolicy",
            PolicyKind::BaselineAdminNetworkPolicy => "BaselineAdminNetworkPolicy",
            PolicyKind::Network => "network",
        }
    }

    /// As objects name the kind.
    fn of_object(self) -> &'static str {
        match self {
            PolicyKind::GroupPolicy => "GroupPolicy",
            PolicyKind::Group => "Group",
            PolicyKind::Network => "Network",
            other => other.name(),
        }
    }
}

impl Direction {
    pub const BOTH: [Direction; 2] = [Direction::Ingress, Direction::Egress];

    pub fn name(self) -> &'static str {
        match self {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for PolicyVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PolicyVerdict::Deny => "deny",
            PolicyVerdict::Allow => "allow",
            PolicyVerdict::Pass => "pass",
        })
    }
}

impl fmt::Display for Origin {
    /// The object: `NetworkPolicy shop/db`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.source.name())?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        self.name.fmt(f)
    }
}

impl fmt::Display for Rule {
    /// `NetworkPolicy shop/db ingress rule 0`, `NetworkPolicy shop/db ingress default`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", self.origin, self.direction)?;
        match self.origin.index {
            Some(index) => write!(f, "rule {index}"),
            None => f.write_str("default"),
        }
    }
}
