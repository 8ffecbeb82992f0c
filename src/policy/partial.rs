//! Pure. What one host can say of a connection: of its own pods everything, of other hosts' pods what
//! its members tell.
//!
//! As [`crate::policy::evaluate`], with a third answer: where the verdict depends on what this host
//! does not know, it says so.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::net::Protocol;
use crate::net::subnet::gateway;
use crate::policy::endpoint::Endpoint;
use crate::policy::evaluate::{Decision, Reason};
use crate::policy::members::Members;
use crate::policy::name::Scoped;
use crate::policy::network::Networks;
use crate::policy::rule::{Direction, PolicyPeer, PolicyVerdict, Rule, Rules, Tier};
use crate::policy::selector::Selector;
use crate::policy::service::{DNS_PORT, Service};
use crate::policy::tuple::{Transport, Tuple};

/// What a host knows.
#[derive(Clone, Copy, Debug)]
pub struct Knowledge<'a> {
    pub rules: &'a Rules,
    /// This host's pods, with their addresses.
    pub pods: &'a [Endpoint],
    /// Where only this host's pods have addresses.
    pub subnets: &'a [IpNetwork],
    /// Of pods and nodes of other hosts; what a selector without an entry finds is not known.
    pub members: &'a Members,
    /// An address says in which of them its pod is.
    pub networks: &'a Networks,
    /// This host's own.
    pub own: &'a BTreeSet<IpAddr>,
}

/// What can be said of one end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartialDecision<'a> {
    Known(Decision<'a>),
    /// It depends on whether this rule matches.
    DependsOn(&'a Rule),
}

impl<'a> Knowledge<'a> {
    /// What the end in `direction` says, which is a pod of any host.
    pub fn end(&self, tuple: &Tuple, direction: Direction) -> PartialDecision<'a> {
        self.end_by(self.rules.iter(), tuple, direction)
    }

    /// The same where only `rules` can concern it, in the order in which they are judged.
    pub fn end_by(
        &self,
        rules: impl Iterator<Item = &'a Rule> + Clone,
        tuple: &Tuple,
        direction: Direction,
    ) -> PartialDecision<'a> {
        let (own, peer) = match direction {
            Direction::Ingress => (tuple.destination, tuple.source),
            Direction::Egress => (tuple.source, tuple.destination),
        };
        if self.pod(own).is_some()
            && let Some(reason) = self.exempt(tuple, direction)
        {
            return PartialDecision::Known(Decision { allowed: true, reason, audit: None });
        }
        let end = PartialEnd { known: self, tuple, direction, subject: own, peer };
        let itself = own == peer;
        let last = if itself { Tier::Admin } else { Tier::Baseline };
        let none = if itself { Reason::Itself } else { Reason::NoRule };
        let audited = rules.clone().filter(|rule| rule.audit);
        let audit = match end.first(audited, last, Reason::NoRule) {
            PartialDecision::Known(Decision { reason: Reason::Rule(rule), .. }) => Some(rule),
            _ => None,
        };
        match end.first(rules.filter(|rule| !rule.audit), last, none) {
            PartialDecision::Known(decision) => {
                PartialDecision::Known(Decision { audit, ..decision })
            }
            depends => depends,
        }
    }

    /// Why a pod of this host needs no rule at its end: the other end is the host itself, which reaches its
    /// pods and answers their questions about names. That is so in quarantine, too.
    pub fn exempt(&self, tuple: &Tuple, direction: Direction) -> Option<Reason<'a>> {
        let dns = [Protocol::Udp, Protocol::Tcp].map(|it| Transport::Port(it, DNS_PORT));
        match direction {
            Direction::Ingress if self.own.contains(&tuple.source) => Some(Reason::OwnNode),
            Direction::Egress
                if self.own.contains(&tuple.destination) && dns.contains(&tuple.transport) =>
            {
                Some(Reason::OwnResolver)
            }
            _ => None,
        }
    }

    fn pod(&self, address: IpAddr) -> Option<&'a Endpoint> {
        self.pods.iter().find(|pod| pod.addresses.contains(&address))
    }

    /// Whether `selector` finds what has `address`, if that is known.
    fn selects(&self, selector: &Selector, address: IpAddr) -> Option<bool> {
        if let Some(pod) = self.pod(address) {
            return Some(selector.matches_pod(pod));
        }
        let found = self.members.get(selector);
        if matches!(selector, Selector::Nodes(_)) && self.own.contains(&address) {
            let is_gateway = |it: &IpAddr| self.subnets.iter().any(|of| gateway(*of) == *it);
            let mut addresses = found?.iter().flat_map(|member| &member.addresses);
            return Some(addresses.any(|it| *it == address || is_gateway(it)));
        }
        if self.subnets.iter().any(|subnet| subnet.contains(address)) {
            return Some(false);
        }
        match (found, selector) {
            (Some(found), _) => {
                Some(found.iter().any(|member| member.addresses.contains(&address)))
            }
            (None, Selector::Network(network)) => self.is_in(network, address),
            (None, _) => None,
        }
    }

    /// What has `address` is a pod of `network`, if it is a pod of another host.
    fn is_in(&self, network: &Scoped, address: IpAddr) -> Option<bool> {
        let is_nodes = |(selector, _): &(&Selector, _)| matches!(selector, Selector::Nodes(_));
        let mut nodes = self.members.iter().filter(is_nodes).flat_map(|(_, found)| &**found);
        let is_node = nodes.any(|node| node.addresses.contains(&address));
        if is_node { Some(false) } else { self.networks.is_in(network, address) }
    }

    /// Whether the port that `service` names is that of `tuple`, if that is known.
    fn has_port(&self, service: &Service, tuple: &Tuple) -> Option<bool> {
        let (Service::Named(protocol, name), Transport::Port(own, port)) =
            (service, tuple.transport)
        else {
            return Some(false);
        };
        if protocol.is_some_and(|protocol| protocol != own) {
            return Some(false);
        }
        let destination = tuple.destination;
        let ports = match self.pod(destination) {
            Some(pod) => Some(&pod.ports),
            None if self.subnets.iter().any(|subnet| subnet.contains(destination)) => None,
            None => {
                let mut all = self.members.values().flat_map(|found| &**found);
                let member = all.find(|member| member.addresses.contains(&destination));
                match member {
                    Some(member) => Some(&member.ports),
                    None if self.members.contains_key(&Selector::every_pod()) => None,
                    None => return None,
                }
            }
        };
        let is_it = |it: &crate::policy::NamedPort| {
            it.name == *name && it.protocol == own && it.port == port
        };
        Some(ports.is_some_and(|ports| ports.iter().any(is_it)))
    }
}

struct PartialEnd<'a, 'b> {
    known: &'b Knowledge<'a>,
    tuple: &'b Tuple,
    direction: Direction,
    subject: IpAddr,
    peer: IpAddr,
}

impl<'a> PartialEnd<'a, '_> {
    /// The first of `rules` that decides, of tiers up to `last`; `none` if no rule does.
    fn first(
        &self,
        rules: impl Iterator<Item = &'a Rule>,
        last: Tier,
        none: Reason<'a>,
    ) -> PartialDecision<'a> {
        let mut passed = None;
        let mut doubtful: Vec<&'a Rule> = Vec::new();
        for rule in rules.take_while(|rule| rule.tier <= last) {
            if passed == Some(rule.tier) {
                continue;
            }
            match (self.matches(rule), rule.verdict) {
                (Some(false), _) => {}
                (Some(true), PolicyVerdict::Pass) => passed = Some(rule.tier),
                (Some(true), verdict) => {
                    return certain(&doubtful, verdict != PolicyVerdict::Deny, Reason::Rule(rule));
                }
                (None, PolicyVerdict::Pass) => return PartialDecision::DependsOn(rule),
                (None, _) => doubtful.push(rule),
            }
        }
        certain(&doubtful, true, none)
    }

    /// `None`: that is not known here.
    fn matches(&self, rule: &Rule) -> Option<bool> {
        if rule.direction != self.direction {
            return Some(false);
        }
        let services =
            rule.services.as_ref().map(|all| any(all.iter().map(|it| self.is_service(it))));
        let peers = rule.peers.as_ref().map(|all| any(all.iter().map(|it| self.is_peer(it))));
        let subject = self.known.selects(&rule.subject, self.subject);
        let conditions = [services.unwrap_or(Some(true)), peers.unwrap_or(Some(true)), subject];
        match conditions {
            _ if conditions.contains(&Some(false)) => Some(false),
            _ if conditions.contains(&None) => None,
            _ => Some(true),
        }
    }

    fn is_peer(&self, peer: &PolicyPeer) -> Option<bool> {
        match peer {
            PolicyPeer::Network { .. } => Some(peer.contains(self.peer)),
            PolicyPeer::Selected(selector) => self.known.selects(selector, self.peer),
        }
    }

    fn is_service(&self, service: &Service) -> Option<bool> {
        match service {
            Service::Named(..) => self.known.has_port(service, self.tuple),
            other => Some(other.is_of(self.tuple)),
        }
    }
}

/// True if one is, unknown if one may be.
fn any(all: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut found = Some(false);
    for one in all {
        match one {
            Some(true) => return Some(true),
            Some(false) => {}
            None => found = None,
        }
    }
    found
}

/// The verdict, unless one of those rules that may match first says otherwise.
fn certain<'a>(doubtful: &[&'a Rule], allowed: bool, reason: Reason<'a>) -> PartialDecision<'a> {
    let differs = |rule: &&&Rule| (rule.verdict != PolicyVerdict::Deny) != allowed;
    match doubtful.iter().find(differs) {
        Some(rule) => PartialDecision::DependsOn(rule),
        None => PartialDecision::Known(Decision { allowed, reason, audit: None }),
    }
}

impl fmt::Display for PartialDecision<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PartialDecision::Known(decision) => decision.fmt(f),
            PartialDecision::DependsOn(rule) => {
                write!(f, "not known here: it depends on whether {rule} matches")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::labels::LabelSelector;
    use crate::policy::read::documents;
    use crate::policy::{isolation, members};

    const OBJECTS: &str = r#"---
{apiVersion: humanz.io/v1, kind: Network, metadata: {tenant: blue, name: front}, spec: {subnets: [10.1.0.0/16]}}
---
{apiVersion: humanz.io/v1, kind: Network, metadata: {tenant: blue, name: back}, spec: {subnets: [10.2.0.0/16]}}
---
{apiVersion: humanz.io/v1, kind: Network, metadata: {tenant: red, name: front}, spec: {subnets: [10.3.0.0/16]}}
---
{apiVersion: humanz.io/v1, kind: GroupPolicy, metadata: {tenant: blue, name: back}, spec:
  {rules: [{direction: in, action: deny, peer: {network: back}}]}}
---
{apiVersion: humanz.io/v1, kind: Group, metadata: {tenant: blue, name: web}, spec: {policies: [back]}}
---
{apiVersion: humanz.io/v1, kind: NamespaceRule, metadata: {name: shop}, spec: {tenant: blue, network: front, group: web}}
---
{apiVersion: v1, kind: Pod, metadata: {namespace: shop, name: web}, spec: {nodeName: h1}, status: {podIPs: [{ip: 10.1.0.2}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: h2}, status: {addresses: [{type: InternalIP, address: 10.2.0.1}]}}
"#;

    /// What is said of an echo request by a host with the pod 10.1.0.2, which did not ask for members of networks.
    /// `default`: pools of the settings.
    fn says(default: &[&str], from: &str, to: &str, way: Direction) -> String {
        let read = documents::read(&documents::objects(OBJECTS).unwrap(), true);
        assert_eq!(read.problems, []);
        let default = default.iter().map(|it| it.parse().unwrap()).collect();
        let networks = read.networks.beside(default);
        let isolation = Rules::new(isolation::rules(&networks));
        let rules = Rules::merged(&[&read.rules, &isolation]);
        let nodes = Selector::Nodes(LabelSelector::default());
        let members = members::find([&nodes], &read.endpoints);
        let mut pods = read.endpoints.pods;
        pods.iter_mut().for_each(|pod| pod.place(&networks));
        let (subnets, own) = (["10.1.0.0/26".parse().unwrap()], BTreeSet::new());
        let (rules, pods, members, networks) = (&rules, &*pods, &members, &networks);
        let known = Knowledge { rules, pods, subnets: &subnets, members, networks, own: &own };
        let transport = Transport::Icmp { kind: 8, code: 0 };
        let (source, destination) = (from.parse().unwrap(), to.parse().unwrap());
        known.end(&Tuple { source, destination, transport }, way).to_string()
    }

    #[test]
    fn an_address_says_in_which_network_the_pod_of_another_host_is() {
        let default: &[&str] = &["10.244.0.0/16"];
        let (here, denied) = ("10.1.0.2", "denied: policy blue/back");
        for (from, to, way, wanted) in [
            // As a peer.
            ("10.2.0.9", here, Direction::Ingress, denied),
            ("10.1.9.9", here, Direction::Ingress, "allowed: no rule matches"),
            ("198.51.100.1", here, Direction::Ingress, "allowed: no rule matches"),
            // A node has an address of the network, as the gateway of a block.
            ("10.2.0.1", here, Direction::Ingress, "allowed: no rule matches"),
            // As the pod that is judged.
            (here, "10.2.0.9", Direction::Ingress, "allowed: no rule matches"),
            (here, "10.3.0.9", Direction::Ingress, "denied: network red/front"),
            (here, "10.244.9.9", Direction::Ingress, "denied: network default/default"),
            (here, "198.51.100.1", Direction::Ingress, "allowed: no rule matches"),
        ] {
            let said = says(default, from, to, way);
            assert!(said.starts_with(wanted), "{from} -> {to}: {said}");
        }
    }

    #[test]
    fn an_address_outside_known_pools_may_be_of_the_settings_where_those_are_not_known() {
        let said = |from| says(&[], from, "10.1.0.2", Direction::Ingress);
        assert!(said("10.2.0.9").starts_with("denied: policy blue/back"), "{}", said("10.2.0.9"));
        assert!(said("10.244.9.9").starts_with("not known here"), "{}", said("10.244.9.9"));
    }
}
