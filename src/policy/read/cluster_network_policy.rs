//! Pure. ClusterNetworkPolicy of `policy.networking.k8s.io/v1alpha2` and `v1beta1`, and what came before:
//! AdminNetworkPolicy and BaselineAdminNetworkPolicy of `v1alpha1`.
//!
//! A rule that is not understood fails closed as the standard says: one that accepts matches nothing,
//! one that denies or passes denies everything. Of an object that is not understood as a whole the rules that were
//! understood last hold; without any, what is left here closes.

use serde_json::Value;

use crate::policy::labels::LabelSelector;
use crate::policy::read::fields::{Fault, ObjectField, quoted};
use crate::policy::read::kubernetes::{Metadata, label_selector, namespaces, port_range, protocol};
use crate::policy::read::parsed::Parsed;
use crate::policy::rule::{Direction, Origin, PolicyKind, PolicyPeer, PolicyVerdict, Rule, Tier};
use crate::policy::selector::{Namespaces, Selector};
use crate::policy::service::{PortRange, Service};

use crate::net::Protocol;

/// The highest priority number.
const PRIORITY_LIMIT: u16 = 1000;

/// The kinds of objects read here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ClusterPolicyKind {
    Cluster,
    Admin,
    BaselineAdmin,
}

impl ClusterPolicyKind {
    fn source(self) -> PolicyKind {
        match self {
            ClusterPolicyKind::Cluster => PolicyKind::ClusterNetworkPolicy,
            ClusterPolicyKind::Admin => PolicyKind::AdminNetworkPolicy,
            ClusterPolicyKind::BaselineAdmin => PolicyKind::BaselineAdminNetworkPolicy,
        }
    }

    /// The field with protocols and ports of a rule.
    fn services(self) -> &'static str {
        if self == ClusterPolicyKind::Cluster { "protocols" } else { "ports" }
    }

    /// The word for [`PolicyVerdict::Allow`].
    fn allow(self) -> &'static str {
        if self == ClusterPolicyKind::Cluster { "Accept" } else { "Allow" }
    }
}

/// What follows from a subject that is not understood: the pods to close are not known.
pub const NOT_ENFORCED: &str =
    "its rules of before hold; if there are none, none of its rules is enforced";

/// What follows from a tier or priority that is not understood.
const DENIED_FIRST: &str = "its rules of before hold; if there are none, what it denies is denied first, and \
                            what it accepts or passes on is not";

/// The rules of such an object. Of one whose subject is not understood there are none; of one whose tier or
/// priority is not, those that deny, before all others; a list that is not understood denies everything.
pub fn read(kind: ClusterPolicyKind, object: &Value) -> Parsed {
    let metadata = match Metadata::read(object) {
        Ok(metadata) => metadata,
        Err(fault) => return Parsed::nameless(kind.source().name(), fault),
    };
    let origin =
        Origin { source: kind.source(), namespace: None, name: metadata.name, index: None };
    let mut reader = ClusterPolicyReader {
        kind,
        origin,
        audit: metadata.audit,
        rules: Vec::new(),
        faults: metadata.faults,
        is_unread: false,
    };
    if let Err(fault) = reader.read(&ObjectField::root(object)) {
        reader.faults.push(fault);
    }
    let unread = reader.is_unread.then(|| reader.origin.clone()).into_iter().collect();
    Parsed { unread, ..Parsed::new(&reader.origin, reader.rules, &reader.faults) }
}

struct ClusterPolicyReader {
    kind: ClusterPolicyKind,
    origin: Origin,
    audit: bool,
    rules: Vec<Rule>,
    faults: Vec<Fault>,
    /// It is not understood as a whole.
    is_unread: bool,
}

/// What holds for all rules of an object.
struct RuleHead {
    tier: Tier,
    priority: u32,
    subject: Selector,
}

impl ClusterPolicyReader {
    fn read(&mut self, object: &ObjectField<'_>) -> Result<(), Fault> {
        let found =
            object.need("spec").and_then(|spec| Ok((subject(&spec.need("subject")?)?, spec)));
        let (subject, spec) = found.map_err(|fault| self.unread(fault, NOT_ENFORCED))?;
        let (tier, priority) = (self.tier(&spec), self.priority(&spec));
        let is_placed = tier.is_ok() && priority.is_ok();
        let tier = tier.unwrap_or_else(|fault| self.note_unread(fault, Tier::Admin));
        let priority = priority.unwrap_or_else(|fault| self.note_unread(fault, 0));
        let head = RuleHead { tier, priority, subject };
        for direction in Direction::BOTH {
            match spec.list(direction.name()) {
                Ok(rules) => {
                    for (index, field) in (0..).zip(&rules) {
                        self.rule(&head, direction, index, field);
                    }
                }
                Err(fault) => self.close(&head, direction, fault),
            }
        }
        if !is_placed {
            self.rules.retain(|rule| rule.verdict == PolicyVerdict::Deny);
        }
        let own = if self.kind == ClusterPolicyKind::Cluster { "tier" } else { "priority" };
        spec.only(&["priority", "subject", "ingress", "egress", own])
    }

    fn unread(&mut self, fault: Fault, consequence: &str) -> Fault {
        self.is_unread = true;
        fault.so(consequence)
    }

    /// Takes `instead` for a tier or priority.
    fn note_unread<T>(&mut self, fault: Fault, instead: T) -> T {
        let fault = self.unread(fault, DENIED_FIRST);
        self.faults.push(fault);
        instead
    }

    /// Any rule may stand in a list that is not understood.
    fn close(&mut self, head: &RuleHead, direction: Direction, fault: Fault) {
        let consequence = format!(
            "its rules of before hold; if there are none, all {direction} of its subject is denied"
        );
        let fault = self.unread(fault, &consequence);
        self.faults.push(fault);
        self.rules.push(Rule {
            tier: head.tier,
            priority: head.priority,
            origin: self.origin.clone(),
            direction,
            subject: head.subject.clone(),
            peers: None,
            services: None,
            verdict: PolicyVerdict::Deny,
            audit: self.audit,
        });
    }

    fn tier(&self, spec: &ObjectField<'_>) -> Result<Tier, Fault> {
        match self.kind {
            ClusterPolicyKind::Admin => Ok(Tier::Admin),
            ClusterPolicyKind::BaselineAdmin => Ok(Tier::Baseline),
            ClusterPolicyKind::Cluster => {
                let tier = spec.need("tier")?;
                match tier.text()? {
                    "Admin" => Ok(Tier::Admin),
                    "Baseline" => Ok(Tier::Baseline),
                    other => Err(tier.fault(format!("{} is not known", quoted(other)))),
                }
            }
        }
    }

    /// Inside the tier: the one BaselineAdminNetworkPolicy comes after all others.
    fn priority(&self, spec: &ObjectField<'_>) -> Result<u32, Fault> {
        if self.kind == ClusterPolicyKind::BaselineAdmin {
            return Ok(u32::from(PRIORITY_LIMIT) + 1);
        }
        Ok(spec.need("priority")?.number(0..=PRIORITY_LIMIT)?.into())
    }

    fn rule(
        &mut self,
        scope: &RuleHead,
        direction: Direction,
        index: u16,
        field: &ObjectField<'_>,
    ) {
        let verdict = self.verdict(field);
        let (verdict, matches) = match (verdict, self.matches(field, direction)) {
            (Ok(verdict), Ok((peers, services))) => (verdict, Some((Some(peers), services))),
            (Ok(PolicyVerdict::Allow), Err(fault)) => {
                self.faults.push(fault);
                (PolicyVerdict::Allow, None)
            }
            (Ok(_), Err(fault)) | (Err(fault), _) => {
                self.faults.push(fault);
                (PolicyVerdict::Deny, Some((None, None)))
            }
        };
        let Some((peers, services)) = matches else { return };
        self.rules.push(Rule {
            tier: scope.tier,
            priority: scope.priority,
            origin: Origin { index: Some(index), ..self.origin.clone() },
            direction,
            subject: scope.subject.clone(),
            peers,
            services,
            verdict,
            audit: self.audit,
        });
    }

    fn verdict(&self, field: &ObjectField<'_>) -> Result<PolicyVerdict, Fault> {
        let action = field.need("action")?;
        match action.text()? {
            word if word == self.kind.allow() => Ok(PolicyVerdict::Allow),
            "Deny" => Ok(PolicyVerdict::Deny),
            "Pass" if self.kind != ClusterPolicyKind::BaselineAdmin => Ok(PolicyVerdict::Pass),
            other => Err(action.fault(format!("{} is not known", quoted(other)))),
        }
    }

    fn matches(
        &self,
        field: &ObjectField<'_>,
        direction: Direction,
    ) -> Result<(Vec<PolicyPeer>, Option<Vec<Service>>), Fault> {
        let peers = match direction {
            Direction::Ingress => "from",
            Direction::Egress => "to",
        };
        field.only(&["name", "action", peers, self.kind.services()])?;
        let list = field.need(peers)?.items()?;
        if list.is_empty() {
            return Err(field.fault(format!("{peers} must not be empty")));
        }
        let mut found = Vec::new();
        for item in &list {
            found.append(&mut peer(item, direction)?);
        }
        let services = field.list(self.kind.services())?;
        let read = if self.kind == ClusterPolicyKind::Cluster { service } else { admin_port };
        let read: Result<Vec<Service>, Fault> = services.iter().map(read).collect();
        Ok((found, Some(read?).filter(|services| !services.is_empty())))
    }
}

fn subject(field: &ObjectField<'_>) -> Result<Selector, Fault> {
    field.only(&["namespaces", "pods"])?;
    match (field.get("namespaces"), field.get("pods")) {
        (Some(all), None) => namespaces(&all),
        (None, Some(pods)) => namespaced_pods(&pods),
        _ => Err(field.fault("must have one of namespaces and pods")),
    }
}

fn namespaced_pods(field: &ObjectField<'_>) -> Result<Selector, Fault> {
    field.only(&["namespaceSelector", "podSelector"])?;
    let selector =
        |name| field.get(name).map_or(Ok(LabelSelector::default()), |field| label_selector(&field));
    let namespaces = Namespaces::Labelled(selector("namespaceSelector")?);
    Ok(Selector::Pods { namespaces, labels: selector("podSelector")? })
}

/// Exactly one field of a peer is set.
fn peer(field: &ObjectField<'_>, direction: Direction) -> Result<Vec<PolicyPeer>, Fault> {
    let known: &[&str] = match direction {
        Direction::Ingress => &["namespaces", "pods"],
        Direction::Egress => &["namespaces", "pods", "nodes", "networks", "domainNames"],
    };
    field.only(known)?;
    let set: Vec<(&str, ObjectField<'_>)> =
        known.iter().filter_map(|name| Some((*name, field.get(name)?))).collect();
    let [(name, value)] = set.as_slice() else {
        return Err(field.fault("must have exactly one field that is known"));
    };
    match *name {
        "namespaces" => Ok(vec![PolicyPeer::Selected(namespaces(value)?)]),
        "pods" => Ok(vec![PolicyPeer::Selected(namespaced_pods(value)?)]),
        "nodes" => Ok(vec![PolicyPeer::Selected(Selector::Nodes(label_selector(value)?))]),
        "networks" => {
            let items = value.items()?;
            let network = |item: &ObjectField<'_>| {
                Ok(PolicyPeer::Network { cidr: item.network()?, except: Vec::new() })
            };
            items.iter().map(network).collect()
        }
        _ => Err(value.fault("names of domains are not supported")),
    }
}

/// An entry of `protocols`.
fn service(field: &ObjectField<'_>) -> Result<Service, Fault> {
    const PROTOCOLS: [(&str, Protocol); 3] =
        [("tcp", Protocol::Tcp), ("udp", Protocol::Udp), ("sctp", Protocol::Sctp)];
    field.only(&["tcp", "udp", "sctp", "destinationNamedPort"])?;
    let mut found = Vec::new();
    for (name, protocol) in PROTOCOLS {
        if let Some(value) = field.get(name) {
            value.only(&["destinationPort"])?;
            found.push(Service::Ports(protocol, port(&value.need("destinationPort")?)?));
        }
    }
    if let Some(name) = field.get("destinationNamedPort") {
        found.push(Service::Named(None, name.name()?));
    }
    match (found.pop(), found.is_empty()) {
        (Some(service), true) => Ok(service),
        _ => Err(field.fault("must have exactly one field that is known")),
    }
}

fn port(field: &ObjectField<'_>) -> Result<PortRange, Fault> {
    field.only(&["number", "range"])?;
    match (field.get("number"), field.get("range")) {
        (Some(number), None) => Ok(PortRange::single(number.number(1..=u16::MAX)?)),
        (None, Some(range)) => {
            range.only(&["start", "end"])?;
            port_range(&range.need("start")?, &range.need("end")?)
        }
        _ => Err(field.fault("must have one of number and range")),
    }
}

/// An entry of `ports` of the older kinds.
fn admin_port(field: &ObjectField<'_>) -> Result<Service, Fault> {
    field.only(&["portNumber", "portRange", "namedPort"])?;
    let protocol = |value: &ObjectField<'_>| {
        value.get("protocol").map_or(Ok(Protocol::Tcp), |field| protocol(&field))
    };
    match (field.get("portNumber"), field.get("portRange"), field.get("namedPort")) {
        (Some(value), None, None) => {
            value.only(&["protocol", "port"])?;
            let port = value.need("port")?.number(1..=u16::MAX)?;
            Ok(Service::Ports(protocol(&value)?, PortRange::single(port)))
        }
        (None, Some(value), None) => {
            value.only(&["protocol", "start", "end"])?;
            let range = port_range(&value.need("start")?, &value.need("end")?)?;
            Ok(Service::Ports(protocol(&value)?, range))
        }
        (None, None, Some(name)) => Ok(Service::Named(None, name.name()?)),
        _ => Err(field.fault("must have exactly one field that is known")),
    }
}
