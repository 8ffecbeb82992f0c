//! Pure. NetworkPolicy of `networking.k8s.io/v1`.
//!
//! A peer, port or rule that is not understood allows nothing; a policy whose pods or directions are
//! not understood isolates the namespace. Source: API reference, NetworkPolicySpec.

use serde_json::Value;

use crate::net::Protocol;
use crate::policy::labels::LabelSelector;
use crate::policy::name::ObjectName;
use crate::policy::read::fields::{Fault, ObjectField, quoted};
use crate::policy::read::kubernetes::{
    Metadata, ip_block, label_selector, namespaces, port_range, protocol,
};
use crate::policy::read::parsed::Parsed;
use crate::policy::rule::{
    Direction, Limits, Origin, PolicyKind, PolicyPeer, PolicyVerdict, Rule, Tier,
};
use crate::policy::selector::{Namespaces, Selector};
use crate::policy::service::{PortRange, Service};

/// Any rule of any policy that allows a connection is judged before every isolation.
const ALLOW: u32 = 0;
const ISOLATION: u32 = 1;

/// The rules of a NetworkPolicy: what it allows, and the isolation of its pods.
pub fn read(object: &Value) -> Parsed {
    let named = Metadata::read(object).and_then(|metadata| {
        let missing = || ObjectField::root(object).fault("metadata.namespace is missing");
        let namespace = metadata.namespace.clone().ok_or_else(missing)?;
        Ok((namespace, metadata))
    });
    match named {
        Err(fault) => Parsed::nameless("NetworkPolicy", fault),
        Ok((namespace, metadata)) => {
            NetworkPolicyReader::new(namespace, metadata).read(&ObjectField::root(object))
        }
    }
}

struct NetworkPolicyReader {
    namespace: ObjectName,
    origin: Origin,
    audit: bool,
    rules: Vec<Rule>,
    faults: Vec<Fault>,
}

impl NetworkPolicyReader {
    fn new(namespace: ObjectName, metadata: Metadata) -> NetworkPolicyReader {
        let origin = Origin {
            source: PolicyKind::NetworkPolicy,
            namespace: Some(namespace.clone()),
            name: metadata.name,
            index: None,
        };
        NetworkPolicyReader {
            namespace,
            origin,
            audit: metadata.audit,
            rules: Vec::new(),
            faults: metadata.faults,
        }
    }

    fn read(mut self, object: &ObjectField<'_>) -> Parsed {
        let nothing = Value::Object(serde_json::Map::new());
        let spec = object.get("spec").unwrap_or_else(|| ObjectField::root(&nothing));
        let known = ["podSelector", "policyTypes", "ingress", "egress"];
        let understood = spec.only(&known);
        self.faults.extend(understood.err());
        let subject = self.subject(&spec);
        let all = self.pods(LabelSelector::default());
        for direction in self.directions(&spec) {
            self.direction(&spec, direction, subject.as_ref().unwrap_or(&all));
        }
        if subject.is_none() {
            self.rules.retain(|rule| rule.verdict == PolicyVerdict::Deny);
        }
        Parsed::new(&self.origin, self.rules, &self.faults)
    }

    /// The pods of the policy; `None` if that is not understood: it isolates all of the namespace then, and allows
    /// nothing, or it would open pods that other policies isolate.
    fn subject(&mut self, spec: &ObjectField<'_>) -> Option<Selector> {
        let labels = spec.get("podSelector").map(|field| label_selector(&field));
        let labels = labels.unwrap_or(Ok(LabelSelector::default()));
        labels.map(|labels| self.pods(labels)).map_err(|fault| self.faults.push(fault)).ok()
    }

    fn pods(&self, labels: LabelSelector) -> Selector {
        Selector::Pods { namespaces: Namespaces::Named(self.namespace.clone()), labels }
    }

    /// The directions in which the pods are isolated; both if that is not understood. By default
    /// ingress, and egress if there are rules for it.
    fn directions(&mut self, spec: &ObjectField<'_>) -> Vec<Direction> {
        let types = spec.list("policyTypes").and_then(|types| {
            types.iter().map(policy_type).collect::<Result<Vec<Direction>, Fault>>()
        });
        match types {
            Ok(types) if types.is_empty() => {
                let egress = spec.list("egress").is_ok_and(|rules| rules.is_empty());
                if egress { vec![Direction::Ingress] } else { Direction::BOTH.to_vec() }
            }
            Ok(mut types) => {
                types.sort_unstable();
                types.dedup();
                types
            }
            Err(fault) => {
                self.faults.push(fault);
                Direction::BOTH.to_vec()
            }
        }
    }

    fn direction(&mut self, spec: &ObjectField<'_>, direction: Direction, subject: &Selector) {
        let isolation = Rule {
            tier: Tier::NetworkPolicy,
            priority: ISOLATION,
            origin: self.origin.clone(),
            direction,
            subject: subject.clone(),
            peers: None,
            services: None,
            verdict: PolicyVerdict::Deny,
            audit: self.audit,
        };
        let rules = spec.list(direction.name()).unwrap_or_else(|fault| {
            self.faults.push(fault);
            Vec::new()
        });
        for (index, field) in (0..).zip(&rules) {
            match self.rule(field, direction) {
                Ok((peers, services)) => self.rules.push(Rule {
                    priority: ALLOW,
                    origin: Origin { index: Some(index), ..self.origin.clone() },
                    peers,
                    services,
                    verdict: PolicyVerdict::Allow,
                    ..isolation.clone()
                }),
                Err(fault) => self.faults.push(fault),
            }
        }
        self.rules.push(isolation);
    }

    /// Peers and services of a rule; without those that are not understood.
    fn rule(&mut self, field: &ObjectField<'_>, direction: Direction) -> Result<Limits, Fault> {
        let peers = match direction {
            Direction::Ingress => "from",
            Direction::Egress => "to",
        };
        field.only(&[peers, "ports"])?;
        let (peers, ports) = (field.list(peers)?, field.list("ports")?);
        let peers = self.understood(&peers, NetworkPolicyReader::peer);
        let services = self.understood(&ports, |_, port| service(port));
        Ok((peers, services))
    }

    /// What `read` makes of `fields`; `None` if there are none, which is no limit.
    fn understood<'a, T>(
        &mut self,
        fields: &[ObjectField<'a>],
        read: impl Fn(&NetworkPolicyReader, &ObjectField<'a>) -> Result<T, Fault>,
    ) -> Option<Vec<T>> {
        let mut understood = Vec::new();
        for field in fields {
            match read(self, field) {
                Ok(item) => understood.push(item),
                Err(fault) => self.faults.push(fault),
            }
        }
        (!fields.is_empty()).then_some(understood)
    }

    fn peer(&self, field: &ObjectField<'_>) -> Result<PolicyPeer, Fault> {
        field.only(&["podSelector", "namespaceSelector", "ipBlock"])?;
        let selector = |name| field.get(name).map(|field| label_selector(&field)).transpose();
        match (selector("podSelector")?, field.get("namespaceSelector"), field.get("ipBlock")) {
            (None, None, Some(block)) => ip_block(&block),
            (_, _, Some(block)) => Err(block.fault("must be the only field of its peer")),
            (None, None, None) => Err(field.fault("selects nothing")),
            (Some(labels), None, None) => Ok(PolicyPeer::Selected(self.pods(labels))),
            (None, Some(all), None) => Ok(PolicyPeer::Selected(namespaces(&all)?)),
            (Some(labels), Some(of), None) => {
                let namespaces = Namespaces::Labelled(label_selector(&of)?);
                Ok(PolicyPeer::Selected(Selector::Pods { namespaces, labels }))
            }
        }
    }
}

fn policy_type(field: &ObjectField<'_>) -> Result<Direction, Fault> {
    match field.text()? {
        "Ingress" => Ok(Direction::Ingress),
        "Egress" => Ok(Direction::Egress),
        other => Err(field.fault(format!("{} is not Ingress or Egress", quoted(other)))),
    }
}

fn service(field: &ObjectField<'_>) -> Result<Service, Fault> {
    field.only(&["protocol", "port", "endPort"])?;
    let protocol = field.get("protocol").map_or(Ok(Protocol::Tcp), |field| protocol(&field))?;
    match (field.get("port"), field.get("endPort")) {
        (None, None) => Ok(Service::Protocol(protocol.number())),
        (Some(port), None) if port.is_word() => Ok(Service::Named(Some(protocol), port.name()?)),
        (Some(port), None) => {
            Ok(Service::Ports(protocol, PortRange::single(port.number(1..=u16::MAX)?)))
        }
        (Some(port), Some(end)) => Ok(Service::Ports(protocol, port_range(&port, &end)?)),
        (None, Some(end)) => Err(end.fault("needs port")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_policy_whose_pods_are_not_understood_isolates_all_and_opens_none() {
        let object = json!({"metadata": {"namespace": "shop", "name": "db"},
            "spec": {"podSelector": {"matchLabels": {"app": 7}}, "ingress": [{}], "egress": [{}]}});
        let parsed = read(&object);
        let rules = parsed.rules.iter().map(|rule| (rule.verdict, rule.direction));
        let deny = |direction| (PolicyVerdict::Deny, direction);
        assert!(rules.eq(Direction::BOTH.map(deny)), "{:?}", parsed.rules);
        assert_eq!(parsed.problems.len(), 1);
    }
}
