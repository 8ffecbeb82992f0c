//! Pure. NetworkPolicy of `networking.k8s.io/v1`.
//!
//! A peer, port or rule that is not understood allows nothing; a policy whose pods or directions are
//! not understood isolates the namespace. Source: API reference, NetworkPolicySpec.

use serde_json::Value;

use crate::net::Protocol;
use crate::policy::labels::LabelSelector;
use crate::policy::name::Name;
use crate::policy::read::fields::{Fault, Field, quoted};
use crate::policy::read::kubernetes::{
    Metadata, ip_block, label_selector, namespaces, port_range, protocol,
};
use crate::policy::read::parsed::Parsed;
use crate::policy::rule::{Direction, Limits, Origin, Peer, Rule, Source, Tier, Verdict};
use crate::policy::selector::{Namespaces, Selector};
use crate::policy::service::{PortRange, Service};

/// Any rule of any policy that allows a connection is judged before every isolation.
const ALLOW: u32 = 0;
const ISOLATION: u32 = 1;

/// The rules of a NetworkPolicy: what it allows, and the isolation of its pods.
pub fn read(object: &Value) -> Parsed {
    let named = Metadata::read(object).and_then(|metadata| {
        let missing = || Field::root(object).fault("metadata.namespace is missing");
        let namespace = metadata.namespace.clone().ok_or_else(missing)?;
        Ok((namespace, metadata))
    });
    match named {
        Err(fault) => Parsed::nameless("NetworkPolicy", fault),
        Ok((namespace, metadata)) => Reader::new(namespace, metadata).read(&Field::root(object)),
    }
}

struct Reader {
    namespace: Name,
    origin: Origin,
    audit: bool,
    rules: Vec<Rule>,
    faults: Vec<Fault>,
}

impl Reader {
    fn new(namespace: Name, metadata: Metadata) -> Reader {
        let origin = Origin {
            source: Source::NetworkPolicy,
            namespace: Some(namespace.clone()),
            name: metadata.name,
            index: None,
        };
        Reader { namespace, origin, audit: metadata.audit, rules: Vec::new(), faults: Vec::new() }
    }

    fn read(mut self, object: &Field<'_>) -> Parsed {
        let nothing = Value::Object(serde_json::Map::new());
        let spec = object.get("spec").unwrap_or_else(|| Field::root(&nothing));
        let known = ["podSelector", "policyTypes", "ingress", "egress"];
        let understood = spec.only(&known);
        self.faults.extend(understood.err());
        let subject = self.subject(&spec);
        for direction in self.directions(&spec) {
            self.direction(&spec, direction, &subject);
        }
        Parsed::new(&self.origin, self.rules, &self.faults)
    }

    /// The pods of the policy; all of the namespace if that is not understood.
    fn subject(&mut self, spec: &Field<'_>) -> Selector {
        let labels = spec.get("podSelector").map(|field| label_selector(&field));
        let labels = labels.unwrap_or(Ok(LabelSelector::default())).unwrap_or_else(|fault| {
            self.faults.push(fault);
            LabelSelector::default()
        });
        self.pods(labels)
    }

    fn pods(&self, labels: LabelSelector) -> Selector {
        Selector::Pods { namespaces: Namespaces::Named(self.namespace.clone()), labels }
    }

    /// The directions in which the pods are isolated; both if that is not understood. By default
    /// ingress, and egress if there are rules for it.
    fn directions(&mut self, spec: &Field<'_>) -> Vec<Direction> {
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

    fn direction(&mut self, spec: &Field<'_>, direction: Direction, subject: &Selector) {
        let isolation = Rule {
            tier: Tier::NetworkPolicy,
            priority: ISOLATION,
            origin: self.origin.clone(),
            direction,
            subject: subject.clone(),
            peers: None,
            services: None,
            verdict: Verdict::Deny,
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
                    verdict: Verdict::Allow,
                    ..isolation.clone()
                }),
                Err(fault) => self.faults.push(fault),
            }
        }
        self.rules.push(isolation);
    }

    /// Peers and services of a rule; without those that are not understood.
    fn rule(&mut self, field: &Field<'_>, direction: Direction) -> Result<Limits, Fault> {
        let peers = match direction {
            Direction::Ingress => "from",
            Direction::Egress => "to",
        };
        field.only(&[peers, "ports"])?;
        let (peers, ports) = (field.list(peers)?, field.list("ports")?);
        let peers = self.understood(&peers, Reader::peer);
        let services = self.understood(&ports, |_, port| service(port));
        Ok((peers, services))
    }

    /// What `read` makes of `fields`; `None` if there are none, which is no limit.
    fn understood<'a, T>(
        &mut self,
        fields: &[Field<'a>],
        read: impl Fn(&Reader, &Field<'a>) -> Result<T, Fault>,
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

    fn peer(&self, field: &Field<'_>) -> Result<Peer, Fault> {
        field.only(&["podSelector", "namespaceSelector", "ipBlock"])?;
        let selector = |name| field.get(name).map(|field| label_selector(&field)).transpose();
        match (selector("podSelector")?, field.get("namespaceSelector"), field.get("ipBlock")) {
            (None, None, Some(block)) => ip_block(&block),
            (_, _, Some(block)) => Err(block.fault("must stand alone")),
            (None, None, None) => Err(field.fault("selects nothing")),
            (Some(labels), None, None) => Ok(Peer::Selected(self.pods(labels))),
            (None, Some(all), None) => Ok(Peer::Selected(namespaces(&all)?)),
            (Some(labels), Some(of), None) => {
                let namespaces = Namespaces::Labelled(label_selector(&of)?);
                Ok(Peer::Selected(Selector::Pods { namespaces, labels }))
            }
        }
    }
}

fn policy_type(field: &Field<'_>) -> Result<Direction, Fault> {
    match field.text()? {
        "Ingress" => Ok(Direction::Ingress),
        "Egress" => Ok(Direction::Egress),
        other => Err(field.fault(format!("{} is not Ingress or Egress", quoted(other)))),
    }
}

fn service(field: &Field<'_>) -> Result<Service, Fault> {
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
