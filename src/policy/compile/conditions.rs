//! Pure. What a rule asks of a connection, as conditions on its tuple.
//!
//! Networks of a rule are one end for each family, services a handful of groups: the lists add up, and only
//! selected peers are multiplied by the groups, of which there are at most eight.

use std::collections::BTreeSet;

use crate::net::gather::Gather;
use crate::net::{AddressRange, Family};
use crate::nft::{Field, Match, Value};
use crate::policy::compile::peers::PeerSelectors;
use crate::policy::compile::services::RuleServices;
use crate::policy::compile::sets::{Sets, ranges_of};
use crate::policy::endpoint::NamedPort;
use crate::policy::rule::{Direction, PolicyPeer, PolicyVerdict, Rule};
use crate::policy::selector::Selector;
use crate::policy::service::{self, PortRange, Service};

/// Reads a rule for pods with these ports of their own.
pub struct Reader<'a> {
    pub rule: &'a Rule,
    /// Of the pod that the rule is for, for ports by name.
    pub ports: &'a [NamedPort],
    pub families: &'a [Family],
    pub peers: &'a PeerSelectors,
    pub sets: &'a mut Sets,
}

/// Which connections of one end, whatever the service.
struct PeerMatch<'a> {
    family: Option<Family>,
    matches: Vec<Match>,
    /// Where the connection may go, for ports by name; `None`: anywhere.
    selector: Option<&'a Selector>,
}

impl<'a> Reader<'a> {
    /// The rule matches where all conditions of one of these lists hold.
    pub fn alternatives(&mut self) -> Vec<Vec<Match>> {
        let services = RuleServices::of(self.rule, self.ports);
        let mut alternatives = Vec::new();
        for end in self.ends() {
            let conditions = match &services {
                None => vec![Vec::new()],
                Some(services) => self.services(services, &end),
            };
            for service in conditions {
                alternatives.push([end.matches.clone(), service].concat());
            }
        }
        if self.rule.verdict != PolicyVerdict::Allow && !self.rule.audit {
            alternatives.iter().flatten().for_each(|condition| self.note_denial(condition));
        }
        alternatives
    }

    fn note_denial(&mut self, condition: &Match) {
        if let Match::In(_, set) | Match::AllIn(_, set) = condition {
            self.sets.note_denial(set);
        }
    }

    fn ends(&mut self) -> Vec<PeerMatch<'a>> {
        let rule = self.rule;
        let Some(peers) = &rule.peers else { return self.anywhere() };
        let selectors: BTreeSet<&Selector> = peers.iter().filter_map(PolicyPeer::selector).gather();
        let mut ends = Vec::new();
        for family in self.families {
            ends.extend(self.network(peers, *family));
            ends.extend(selectors.iter().map(|selector| self.selected(selector, *family)));
        }
        ends
    }

    /// Both families at once, unless ports by name are to be looked up with an address.
    fn anywhere(&self) -> Vec<PeerMatch<'a>> {
        let end = |family| PeerMatch { family, matches: Vec::new(), selector: None };
        match self.looks_up_names() {
            true => self.families.iter().map(|family| end(Some(*family))).collect(),
            false => vec![end(None)],
        }
    }

    fn looks_up_names(&self) -> bool {
        let by_name = |service: &Service| matches!(service, Service::Named(..));
        let services = self.rule.services.iter().flatten();
        self.rule.direction == Direction::Egress && services.into_iter().any(by_name)
    }

    fn field(&self, family: Family) -> Field {
        match self.rule.direction {
            Direction::Ingress => Field::ConnectionSource(family),
            Direction::Egress => Field::ConnectionDestination(family),
        }
    }

    fn selected(&mut self, selector: &'a Selector, family: Family) -> PeerMatch<'a> {
        let set = self.sets.selected(selector, family, self.peers.capacity(selector));
        let matches = vec![Match::In(self.field(family), set)];
        PeerMatch { family: Some(family), matches, selector: Some(selector) }
    }

    /// All networks among `peers`; `None` if nothing is left of them.
    fn network(&mut self, peers: &[PolicyPeer], family: Family) -> Option<PeerMatch<'a>> {
        let ranges = ranges_of(peers, family);
        let field = self.field(family);
        let condition = match (&ranges[..], ranges.first().and_then(AddressRange::network)) {
            ([], _) => return None,
            ([_], Some(network)) => Match::Within(field, network),
            _ => Match::In(field, self.sets.network(ranges, family)),
        };
        Some(PeerMatch { family: Some(family), matches: vec![condition], selector: None })
    }

    /// What `services` ask of connections of this end: one of these lists.
    fn services(&mut self, services: &RuleServices, end: &PeerMatch<'_>) -> Vec<Vec<Match>> {
        let mut conditions = Vec::new();
        match services.protocols.first() {
            None => {}
            Some(number) if services.protocols.len() == 1 => {
                conditions.push(vec![protocol(*number)]);
            }
            Some(_) => {
                let set = self.sets.protocols(&services.protocols);
                conditions.push(vec![Match::In(Field::ConnectionProtocol, set)]);
            }
        }
        for (of, ranges) in &services.ports {
            let port = self.one_of(Field::ConnectionPort, ranges);
            conditions.push(vec![protocol(of.number()), port]);
        }
        let in_family = |of: &Family| end.family.is_none_or(|end| end == *of);
        for (of, ranges) in services.icmp.iter().filter(|(of, _)| in_family(of)) {
            let kind = self.one_of(Field::ConnectionIcmp, ranges);
            conditions.push(vec![protocol(service::icmp(*of)), kind]);
        }
        conditions.extend(self.ports_of_peers(services, end).map(|port| vec![port]));
        conditions.extend(services.host_port.then(|| vec![Match::Translated]));
        conditions
    }

    fn one_of(&mut self, field: Field, ranges: &[PortRange]) -> Match {
        match ranges {
            [range] => Match::Is(field, Value::Ports(range.first(), range.last())),
            ranges => Match::In(field, self.sets.ports(ranges)),
        }
    }

    fn ports_of_peers(&mut self, services: &RuleServices, end: &PeerMatch<'_>) -> Option<Match> {
        let (family, ports) = (end.family?, services.named.as_ref()?);
        let every_pod = Selector::every_pod();
        let selector = end.selector.unwrap_or(&every_pod);
        let set = self.sets.named_ports(selector, ports, family);
        let fields = vec![
            Field::ConnectionDestination(family),
            Field::ConnectionProtocol,
            Field::ConnectionPort,
        ];
        Some(Match::AllIn(fields, set))
    }
}

fn protocol(number: u8) -> Match {
    Match::Is(Field::ConnectionProtocol, Value::Protocol(number))
}
