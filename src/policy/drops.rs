//! Pure. What the kernel reports of packets that policies deny, in terms of pods and rules.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::net::Protocol;
use crate::net::gather::Gather;
use crate::netlink::packet::Packet;
use crate::policy::compile::{
    foreign_error_prefix, log_prefix, no_connection_prefix, quarantine_prefix,
};
use crate::policy::endpoint::Endpoint;
use crate::policy::rule::{Direction, PolicyVerdict, Rule};
use crate::policy::view::View;

/// Rules and pods of a host, as reports refer to them.
#[derive(Debug)]
pub struct Reporters {
    /// Long prefixes are cut, so that several rules may have one.
    rules: BTreeMap<String, Vec<Rule>>,
    pods: BTreeMap<IpAddr, Endpoint>,
    /// Names of all pods, those in quarantine included.
    names: BTreeMap<IpAddr, String>,
    quarantine: String,
    no_connection: String,
    foreign_error: String,
}

/// A connection that was denied, or would have been.
#[derive(Clone, Debug, PartialEq)]
pub struct Denial {
    pub packet: Packet,
    pub source_pod: Option<String>,
    pub destination_pod: Option<String>,
    pub reason: DenialReason,
}

/// Why it was denied.
#[derive(Clone, Debug, PartialEq)]
pub enum DenialReason {
    Rule(Rule),
    /// One end is a pod in quarantine.
    Quarantine,
    /// The packet belongs to no connection, and one end is a pod with rules.
    NoConnection,
    /// An ICMP error of a pod about a connection that it is no end of, or that its host does not know.
    ForeignError,
    /// A rule with this prefix that this host does not have, or no longer.
    UnknownRule(String),
}

impl Reporters {
    pub fn new(view: &View) -> Reporters {
        let mut rules: BTreeMap<String, Vec<Rule>> = BTreeMap::new();
        let all = view.known.iter().flat_map(|known| known.rules.iter());
        for rule in all.filter(|rule| rule.verdict == PolicyVerdict::Deny) {
            rules.entry(log_prefix(rule)).or_default().push(rule.clone());
        }
        let mut pods = BTreeMap::new();
        for pod in view.endpoints() {
            pods.extend(pod.addresses.clone().into_iter().map(|address| (address, pod.clone())));
        }
        let names = view.pods.iter().flat_map(|pod| {
            let name = pod.pod.as_ref().unwrap_or(&pod.container_id);
            pod.addresses.iter().map(|address| (*address, name.clone()))
        });
        let names = names.gather();
        let (quarantine, no_connection) = (quarantine_prefix(), no_connection_prefix());
        let foreign_error = foreign_error_prefix();
        Reporters { rules, pods, names, quarantine, no_connection, foreign_error }
    }

    /// Some rule has this prefix.
    pub fn knows(&self, prefix: &str) -> bool {
        let fixed = [&self.quarantine, &self.no_connection, &self.foreign_error];
        fixed.iter().any(|own| *own == prefix) || self.rules.contains_key(prefix)
    }

    /// What a rule with this prefix says of a packet.
    pub fn denial(&self, prefix: &str, packet: Packet) -> Denial {
        let (reason, packet) = match self.rules.get(prefix).map(Vec::as_slice) {
            Some([first, ..]) if prefix != self.quarantine => {
                let (rule, packet) = self.fitting(prefix, packet).unwrap_or((first, packet));
                (DenialReason::Rule(rule.clone()), packet)
            }
            _ if prefix == self.quarantine => (DenialReason::Quarantine, packet),
            _ if prefix == self.no_connection => (DenialReason::NoConnection, packet),
            _ if prefix == self.foreign_error => (DenialReason::ForeignError, packet),
            _ => (DenialReason::UnknownRule(prefix.trim_end().to_owned()), packet),
        };
        let name = |address| self.names.get(&address).cloned();
        let (source_pod, destination_pod) = (name(packet.source), name(packet.destination));
        Denial { packet, source_pod, destination_pod, reason }
    }

    /// The rule of this prefix that is for one of the packet's ends, and the packet as the connection
    /// began: what is reported of a connection that runs may be an answer.
    fn fitting(&self, prefix: &str, packet: Packet) -> Option<(&Rule, Packet)> {
        let rules = self.rules.get(prefix)?;
        let is_for = |rule: &Rule, packet: &Packet| {
            let end = match rule.direction {
                Direction::Ingress => packet.destination,
                Direction::Egress => packet.source,
            };
            self.pods.get(&end).is_some_and(|pod| rule.subject.matches_pod(pod))
        };
        [packet, packet.reversed()].into_iter().find_map(|packet| {
            rules.iter().find(|rule| is_for(rule, &packet)).map(|rule| (rule, packet))
        })
    }
}

impl Denial {
    /// Nothing was denied: the rule is tried out.
    pub fn is_audited(&self) -> bool {
        matches!(&self.reason, DenialReason::Rule(rule) if rule.audit)
    }

    /// `tcp`, `icmp type 8`, `protocol 47`.
    pub fn service(&self) -> String {
        let Packet { protocol, icmp, .. } = self.packet;
        match (Protocol::of_number(protocol), icmp) {
            (Some(protocol), _) => protocol.to_string(),
            (None, Some((kind, _))) => format!("icmp type {kind}"),
            (None, None) => format!("protocol {protocol}"),
        }
    }

    fn destination(&self) -> String {
        let (address, port) = (self.packet.destination, self.packet.ports.map(|(_, port)| port));
        match (&self.destination_pod, port) {
            (Some(pod), Some(port)) => format!("{pod}:{port}"),
            (Some(pod), None) => pod.clone(),
            (None, Some(port)) => SocketAddr::new(address, port).to_string(),
            (None, None) => address.to_string(),
        }
    }
}

impl fmt::Display for Denial {
    /// `shop/web → shop/db:5432 tcp denied by NetworkPolicy shop/db (ingress)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.is_audited() { "would be denied" } else { "denied" };
        match &self.source_pod {
            Some(pod) => f.write_str(pod)?,
            None => self.packet.source.fmt(f)?,
        }
        write!(f, " → {} {} {verdict} ", self.destination(), self.service())?;
        match &self.reason {
            DenialReason::Rule(rule) => write!(f, "by {} ({})", rule.origin, rule.direction),
            DenialReason::Quarantine => f.write_str("because a pod is in quarantine"),
            DenialReason::NoConnection => f.write_str("because it belongs to no connection"),
            DenialReason::ForeignError => {
                f.write_str("because it is an error about a connection of others")
            }
            DenialReason::UnknownRule(prefix) => {
                write!(f, "by a rule that is not in force any more ({prefix})")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::policy::PolicySnapshot;
    use crate::policy::ask::LocalPod;
    use crate::policy::read::documents;

    fn policy(name: &str, app: &str, annotations: Value, types: &[&str]) -> Value {
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": "shop", "name": name, "annotations": annotations},
            "spec": {"podSelector": {"matchLabels": {"app": app}}, "policyTypes": types}})
    }

    fn reporters(policies: &[Value]) -> Reporters {
        let read = documents::read(policies, true);
        assert_eq!(read.problems, []);
        let standalone = Some(read.cluster);
        let pod = |name: &str, address: &str| LocalPod::in_shop(name, name, address);
        Reporters::new(&View {
            host: "n1".parse().unwrap(),
            subnets: vec!["10.1.2.0/24".parse().unwrap()],
            sources: Vec::new(),
            known: Some(Arc::new(PolicySnapshot {
                rules: read.rules,
                standalone,
                ..PolicySnapshot::default()
            })),
            pods: vec![pod("web", "10.1.2.3"), pod("db", "10.1.2.4")].into(),
            held: BTreeMap::new(),
            not_in_force: BTreeSet::new(),
            unjudged: false,
        })
    }

    fn packet(source: &str, destination: &str, protocol: u8) -> Packet {
        let ports = (protocol == 6).then_some((40000, 5432));
        let [source, destination] = [source, destination].map(|text| text.parse().unwrap());
        let icmp = (protocol == 1).then_some((8, 0));
        Packet { source, destination, protocol, ports, icmp }
    }

    fn check(prefix: &str, packet: Packet, wanted: &str) {
        let tried = json!({"humanz.io/audit": "true"});
        let found = reporters(&[
            policy("db", "db", json!({}), &["Ingress", "Egress"]),
            policy("trial", "web", tried, &["Egress"]),
        ]);
        assert_eq!(found.denial(prefix, packet).to_string(), wanted);
    }

    const INGRESS: &str = "humanz: NetworkPolicy shop/db ingress default ";

    #[test]
    fn a_denial_says_between_which_pods_and_by_which_policy() {
        let tcp = packet("10.1.2.3", "10.1.2.4", 6);
        check(
            INGRESS,
            tcp,
            "shop/web → shop/db:5432 tcp denied by NetworkPolicy shop/db (ingress)",
        );
        let ping = packet("10.1.2.4", "fd00::9", 1);
        let prefix = "humanz: NetworkPolicy shop/db egress default ";
        check(
            prefix,
            ping,
            "shop/db → fd00::9 icmp type 8 denied by NetworkPolicy shop/db (egress)",
        );
        let prefix = "humanz audit: NetworkPolicy shop/trial egress default ";
        let wanted = "would be denied by NetworkPolicy shop/trial (egress)";
        check(prefix, tcp, &format!("shop/web → shop/db:5432 tcp {wanted}"));
        let wanted = "10.9.9.9 → shop/db protocol 47 denied because a pod is in quarantine";
        check("humanz: unknown pod ", packet("10.9.9.9", "10.1.2.4", 47), wanted);
        let wanted = "denied by a rule that is not in force any more (humanz: x)";
        check("humanz: x ", tcp, &format!("shop/web → shop/db:5432 tcp {wanted}"));
    }

    #[test]
    fn an_answer_is_shown_as_the_connection_that_it_belongs_to() {
        let answer = packet("10.1.2.3", "10.1.2.4", 6).reversed();
        let wanted = "shop/web → shop/db:5432 tcp denied by NetworkPolicy shop/db (ingress)";
        check(INGRESS, answer, wanted);
    }

    #[test]
    fn rules_whose_prefix_is_cut_are_distinguished_by_their_pods() {
        let name = |end: &str| format!("{}-{end}", "a".repeat(200));
        let found = reporters(&[
            policy(&name("db"), "db", json!({}), &["Ingress", "Egress"]),
            policy(&name("web"), "web", json!({}), &["Ingress"]),
        ]);
        let prefix = format!("humanz: NetworkPolicy shop/{}", "a".repeat(100));
        assert!(found.knows(&prefix));
        for (to, name, direction) in [
            ("10.1.2.4", "db", "ingress"),
            ("10.1.2.3", "web", "ingress"),
            ("10.9.9.9", "db", "egress"),
        ] {
            let from = if direction == "egress" { "10.1.2.4" } else { "10.9.9.9" };
            let text = found.denial(&prefix, packet(from, to, 6)).to_string();
            assert!(text.ends_with(&format!("-{name} ({direction})")), "{text}");
        }
    }
}
