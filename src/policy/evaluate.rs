//! Pure. What the rules decide for one connection, at both of its ends, and which rule did.
//!
//! The reference for the nftables rules, and the answer of `policy test`: written for reading, apart
//! from the code that makes the table.

use std::fmt;
use std::net::IpAddr;

use crate::net::Protocol;
use crate::policy::endpoint::{Endpoint, Endpoints, Node};
use crate::policy::rule::{Direction, PolicyPeer, PolicyVerdict, Rule, Rules, Tier};
use crate::policy::selector::Selector;
use crate::policy::service::{DNS_PORT, Service};
use crate::policy::tuple::{Transport, Tuple};

/// What both ends say. The connection is allowed if both allow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement<'a> {
    /// At the source.
    pub egress: Decision<'a>,
    /// At the destination.
    pub ingress: Decision<'a>,
}

/// What one end says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision<'a> {
    pub allowed: bool,
    pub reason: Reason<'a>,
    /// What audited policies would have decided here, if one of their rules matches.
    pub audit: Option<&'a Rule>,
}

/// Why an end decides as it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason<'a> {
    Rule(&'a Rule),
    /// No rule decides: connections are allowed then.
    NoRule,
    /// This end is no pod; rules are for pods only.
    NoPod,
    /// From the node to one of its own pods.
    OwnNode,
    /// From a pod to its own node, which answers questions about names.
    OwnResolver,
    /// From a pod to itself, which only rules of tier Admin judge.
    Itself,
}

/// What `rules` decide for `tuple`.
pub fn evaluate<'a>(rules: &'a Rules, endpoints: &Endpoints, tuple: &Tuple) -> Judgement<'a> {
    let end = |direction| EvaluatedEnd::new(rules, endpoints, tuple, direction).decision();
    Judgement { egress: end(Direction::Egress), ingress: end(Direction::Ingress) }
}

/// One end of a connection.
struct EvaluatedEnd<'a, 'b> {
    rules: &'a Rules,
    endpoints: &'b Endpoints,
    tuple: &'b Tuple,
    direction: Direction,
    /// The pod at this end.
    subject: Option<&'b Endpoint>,
    /// The address of the other end.
    peer: IpAddr,
}

impl<'a, 'b> EvaluatedEnd<'a, 'b> {
    fn new(
        rules: &'a Rules,
        endpoints: &'b Endpoints,
        tuple: &'b Tuple,
        direction: Direction,
    ) -> EvaluatedEnd<'a, 'b> {
        let (own, peer) = match direction {
            Direction::Ingress => (tuple.destination, tuple.source),
            Direction::Egress => (tuple.source, tuple.destination),
        };
        EvaluatedEnd { rules, endpoints, tuple, direction, subject: endpoints.pod(own), peer }
    }

    fn decision(&self) -> Decision<'a> {
        let decided = |allowed, reason| Decision { allowed, reason, audit: None };
        let Some(subject) = self.subject else { return decided(true, Reason::NoPod) };
        let peer = self.endpoints.node(self.peer);
        if self.direction == Direction::Ingress && peer.is_some_and(|n| n.name == subject.host) {
            return decided(true, Reason::OwnNode);
        }
        let is_own_node = |node: &Node| node.name == subject.host;
        if self.direction == Direction::Egress
            && peer.is_some_and(is_own_node)
            && self.asks_for_names()
        {
            return decided(true, Reason::OwnResolver);
        }
        let itself = self.tuple.source == self.tuple.destination;
        let last = if itself { Tier::Admin } else { Tier::Baseline };
        let reason = match self.first(self.rules.enforced(), subject, last) {
            Some(rule) => Reason::Rule(rule),
            None if itself => Reason::Itself,
            None => Reason::NoRule,
        };
        let allowed = !matches!(reason, Reason::Rule(rule) if rule.verdict == PolicyVerdict::Deny);
        let audit = self.first(self.rules.audited(), subject, last);
        Decision { allowed, reason, audit }
    }

    fn asks_for_names(&self) -> bool {
        let dns = [Protocol::Udp, Protocol::Tcp].map(|it| Transport::Port(it, DNS_PORT));
        dns.contains(&self.tuple.transport)
    }

    /// The rule that decides, of tiers up to `last`.
    fn first(
        &self,
        rules: impl Iterator<Item = &'a Rule>,
        subject: &Endpoint,
        last: Tier,
    ) -> Option<&'a Rule> {
        let mut passed = None;
        for rule in rules.take_while(|rule| rule.tier <= last) {
            if passed == Some(rule.tier) || !self.matches(rule, subject) {
                continue;
            }
            match rule.verdict {
                PolicyVerdict::Pass => passed = Some(rule.tier),
                PolicyVerdict::Allow | PolicyVerdict::Deny => return Some(rule),
            }
        }
        None
    }

    fn matches(&self, rule: &Rule, subject: &Endpoint) -> bool {
        let peer = |peers: &Vec<PolicyPeer>| peers.iter().any(|peer| self.is_peer(peer));
        let service = |services: &Vec<Service>| services.iter().any(|one| self.is_service(one));
        rule.direction == self.direction
            && rule.subject.matches_pod(subject)
            && rule.peers.as_ref().is_none_or(peer)
            && rule.services.as_ref().is_none_or(service)
    }

    fn is_peer(&self, peer: &PolicyPeer) -> bool {
        match peer {
            PolicyPeer::Network { .. } => peer.contains(self.peer),
            PolicyPeer::Selected(selector @ Selector::Nodes(_)) => {
                self.endpoints.node(self.peer).is_some_and(|node| selector.matches_node(node))
            }
            PolicyPeer::Selected(selector) => {
                self.endpoints.pod(self.peer).is_some_and(|pod| selector.matches_pod(pod))
            }
        }
    }

    fn is_service(&self, service: &Service) -> bool {
        match (service, self.tuple.transport) {
            (Service::Named(protocol, name), Transport::Port(own, port)) => {
                let destination = self.endpoints.pod(self.tuple.destination);
                let mut ports = destination.iter().flat_map(|pod| &pod.ports);
                protocol.is_none_or(|protocol| protocol == own)
                    && ports.any(|it| it.name == *name && it.protocol == own && it.port == port)
            }
            (service, _) => service.is_of(self.tuple),
        }
    }
}

impl<'a> Decision<'a> {
    /// `None` if it allows: nothing but a rule denies.
    pub fn denying_rule(&self) -> Option<&'a Rule> {
        match self.reason {
            Reason::Rule(rule) if !self.allowed => Some(rule),
            _ => None,
        }
    }
}

impl<'a> Judgement<'a> {
    /// Both ends allow the connection.
    pub fn allowed(&self) -> bool {
        self.egress.allowed && self.ingress.allowed
    }

    /// The end in `direction`.
    pub fn end(&self, direction: Direction) -> &Decision<'a> {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Rule(rule) => rule.fmt(f),
            Reason::NoRule => f.write_str("no rule matches"),
            Reason::NoPod => f.write_str("not a pod"),
            Reason::OwnResolver => f.write_str("names are asked of the pod's own node"),
            Reason::OwnNode => f.write_str("from the pod's own node"),
            Reason::Itself => f.write_str("the pod itself"),
        }
    }
}

impl fmt::Display for Decision<'_> {
    /// `allowed: NetworkPolicy shop/db ingress rule 0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.allowed { "allowed" } else { "denied" };
        write!(f, "{verdict}: {}", self.reason)
    }
}
