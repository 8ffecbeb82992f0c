//! A flow with the names of its ends, and what the policies of this host say of it now.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};

use crate::flows::reply::FlowEntry;
use crate::inspect::Host;
use crate::net::Protocol;
use crate::net::gather::Gather;
use crate::net::time::rfc3339;
use crate::policy::drops::{DenialReason, Reporters};
use crate::policy::partial::{Knowledge, PartialDecision};
use crate::policy::view::View;
use crate::policy::{Direction, Endpoint, PolicySnapshot, Reason, Transport, Tuple};
use crate::settings::exit::Exit;

/// What judges flows.
pub struct Judges<'a> {
    view: &'a View,
    host: &'a Host,
    reporters: Reporters,
    known: PolicySnapshot,
    pods: Vec<Endpoint>,
    names: BTreeMap<IpAddr, String>,
    own: BTreeSet<IpAddr>,
}

/// The source first.
const ENDS: [Direction; 2] = [Direction::Egress, Direction::Ingress];

/// One flow, as people know it.
#[derive(Debug)]
pub struct JudgedFlow {
    pub entry: FlowEntry,
    /// `shop/web`, `h2 10.244.2.5`, `192.0.2.7`.
    pub from: String,
    pub to: String,
    /// `5432 tcp`, `icmp type 8`, with the address of the service if there is one.
    pub service: String,
    pub allowed: bool,
    /// `allowed`, `denied`, `would be denied`.
    pub verdict: &'static str,
    /// At the source and at the destination; of what was denied at one of them.
    ends: [Option<EndVerdict>; 2],
}

/// What is said of one end.
#[derive(Debug)]
struct EndVerdict {
    /// `NetworkPolicy shop/db`, if one decides.
    policy: Option<String>,
    says: String,
}

impl<'a> Judges<'a> {
    /// # Errors
    /// The kernel's.
    pub fn new(view: &'a View, host: &'a Host) -> Result<Judges<'a>, Exit> {
        let names = view.pods.iter().flat_map(|pod| {
            let name = pod.pod.as_ref().unwrap_or(&pod.container_id);
            pod.addresses.iter().map(|address| (*address, name.clone()))
        });
        Ok(Judges {
            view,
            host,
            reporters: Reporters::new(view),
            known: view.known.as_deref().cloned().unwrap_or_default(),
            pods: view.endpoints(),
            names: names.gather(),
            own: host.addresses()?.iter().map(|found| found.address.ip()).gather(),
        })
    }

    /// What is known of `entry`.
    pub fn flow(&self, entry: &FlowEntry) -> JudgedFlow {
        let (verdict, ends) = match &entry.report {
            None => ("allowed", ENDS.map(|direction| self.end(entry, direction))),
            Some(prefix) => self.denied(entry, prefix),
        };
        JudgedFlow {
            from: self.name(entry.source, entry.source_pod.as_deref()),
            to: self.name(entry.destination, entry.destination_pod.as_deref()),
            service: service(entry),
            allowed: entry.report.is_none(),
            verdict,
            ends,
            entry: entry.clone(),
        }
    }

    /// What the rules of now say at one end of a connection.
    fn end(&self, entry: &FlowEntry, direction: Direction) -> Option<EndVerdict> {
        let (address, pod) = match direction {
            Direction::Ingress => (entry.destination, &entry.destination_pod),
            Direction::Egress => (entry.source, &entry.source_pod),
        };
        let unknown = |says: String| Some(EndVerdict { policy: None, says });
        if pod.is_none() {
            let (name, _, subnet) = self.host.peer(address)?;
            subnet?;
            return unknown(format!("not known here: {name} judges its own pods"));
        }
        let tuple = tuple(entry);
        let is_still = |address, pod: &Option<String>| self.names.get(&address) == pod.as_ref();
        if !is_still(entry.source, &entry.source_pod)
            || !is_still(entry.destination, &entry.destination_pod)
        {
            return unknown("not known: a pod has gone since then".to_owned());
        }
        if let Some(holds) = self.view.without_policies() {
            return unknown(holds.to_string());
        }
        let knowledge = Knowledge {
            rules: &self.known.rules,
            pods: &self.pods,
            subnets: &self.view.subnets,
            members: &self.known.members,
            networks: &self.known.networks,
            own: &self.own,
        };
        let decision = knowledge.end(&tuple, direction);
        let policy = match &decision {
            PartialDecision::Known(decision) => match decision.reason {
                Reason::Rule(rule) => Some(rule.origin.object().to_string()),
                _ => None,
            },
            PartialDecision::DependsOn(_) => None,
        };
        Some(EndVerdict { policy, says: decision.to_string() })
    }

    fn denied(&self, entry: &FlowEntry, prefix: &str) -> (&'static str, [Option<EndVerdict>; 2]) {
        let denial = self.reporters.denial(prefix, entry.packet());
        let (says, policy) = match &denial.reason {
            DenialReason::Rule(rule) => (rule.to_string(), Some(rule)),
            DenialReason::Quarantine => ("a pod is in quarantine".to_owned(), None),
            DenialReason::NoConnection => ("it belongs to no connection".to_owned(), None),
            DenialReason::ForeignError => {
                ("it is an error about a connection of others".to_owned(), None)
            }
            DenialReason::UnknownRule(prefix) => {
                (format!("a rule that is not in force any more ({prefix})"), None)
            }
        };
        let is_audited = denial.is_audited();
        let (verdict, begin) =
            if is_audited { ("would be denied", "would deny") } else { ("denied", "denied") };
        let end = EndVerdict {
            policy: policy.map(|rule| rule.origin.object().to_string()),
            says: format!("{begin}: {says}"),
        };
        match policy.map(|rule| rule.direction) {
            Some(Direction::Egress) => (verdict, [Some(end), None]),
            _ => (verdict, [None, Some(end)]),
        }
    }

    fn name(&self, address: IpAddr, pod: Option<&str>) -> String {
        match (pod, self.host.peer(address)) {
            (Some(pod), _) => pod.to_owned(),
            (None, _) if self.own.contains(&address) => format!("{} {address}", self.view.host),
            (None, Some((host, ..))) => format!("{host} {address}"),
            (None, None) => address.to_string(),
        }
    }
}

fn tuple(entry: &FlowEntry) -> Tuple {
    let transport = match (Protocol::of_number(entry.protocol), entry.port, entry.icmp) {
        (Some(protocol), Some(port), _) => Transport::Port(protocol, port),
        (_, _, Some((kind, code))) => Transport::Icmp { kind, code },
        _ => Transport::Other(entry.protocol),
    };
    Tuple { source: entry.source, destination: entry.destination, transport }
}

fn protocol(entry: &FlowEntry) -> String {
    match (Protocol::of_number(entry.protocol), entry.icmp) {
        (Some(protocol), _) => protocol.to_string(),
        (None, Some((kind, _))) => format!("icmp type {kind}"),
        (None, None) => format!("protocol {}", entry.protocol),
    }
}

fn service(entry: &FlowEntry) -> String {
    let protocol = protocol(entry);
    let port = entry.port.map(|port| format!("{port} ")).unwrap_or_default();
    match entry.service {
        None => format!("{port}{protocol}"),
        Some((address, Some(sent))) => {
            format!("{port}{protocol} as {}", SocketAddr::new(address, sent))
        }
        Some((address, None)) => format!("{port}{protocol} as {address}"),
    }
}

impl JudgedFlow {
    /// The pod is one of its ends.
    pub fn is_of(&self, pod: &str) -> bool {
        [&self.entry.source_pod, &self.entry.destination_pod]
            .into_iter()
            .any(|end| end.as_deref() == Some(pod))
    }

    /// The policies that decide, else what is said.
    pub fn by(&self) -> String {
        let ends = || self.ends.iter().flatten();
        let mut policies: Vec<&str> = ends().filter_map(|end| end.policy.as_deref()).collect();
        policies.dedup();
        if !policies.is_empty() {
            return policies.join(", ");
        }
        let says: BTreeSet<&str> = ends().map(|end| end.says.as_str()).gather();
        says.into_iter().collect::<Vec<_>>().join(", ")
    }

    pub fn json(&self) -> Value {
        let entry = &self.entry;
        let [egress, ingress] = &self.ends;
        let says = |end: &Option<EndVerdict>| end.as_ref().map(|end| end.says.clone());
        let policy = |end: &Option<EndVerdict>| end.as_ref().and_then(|end| end.policy.clone());
        json!({
            "from": self.from,
            "to": self.to,
            "source": entry.source,
            "source_pod": entry.source_pod,
            "destination": entry.destination,
            "destination_pod": entry.destination_pod,
            "service": entry.service.map(|(address, port)| json!({"address": address, "port": port})),
            "protocol": protocol(entry),
            "port": entry.port,
            "verdict": self.verdict,
            "egress": says(egress),
            "egress_policy": policy(egress),
            "ingress": says(ingress),
            "ingress_policy": policy(ingress),
            "count": entry.count,
            "first": rfc3339(entry.first),
            "last": rfc3339(entry.last),
        })
    }
}
