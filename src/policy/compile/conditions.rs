//! Pure. What a rule asks of a connection, as conditions on its tuple.

use std::collections::BTreeMap;

use ipnetwork::IpNetwork;

use crate::net::{Family, Protocol, subnet};
use crate::nft::{Field, Match, Value};
use crate::policy::compile::sets::Sets;
use crate::policy::endpoint::NamedPort;
use crate::policy::name::ObjectName;
use crate::policy::rule::{Direction, PolicyPeer, PolicyVerdict, Rule};
use crate::policy::selector::Selector;
use crate::policy::service::{self, PortRange, Service};

/// Reads a rule for pods with these ports of their own.
pub struct Reader<'a> {
    pub rule: &'a Rule,
    /// Of the pod that the rule is for, for ports by name.
    pub ports: &'a [NamedPort],
    pub families: &'a [Family],
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
        let mut alternatives = Vec::new();
        for end in self.ends() {
            for service in self.services(&end) {
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
        let mut ends = Vec::new();
        for peer in peers {
            for family in self.families {
                ends.extend(self.end(peer, *family));
            }
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

    fn end(&mut self, peer: &'a PolicyPeer, family: Family) -> Option<PeerMatch<'a>> {
        let field = match self.rule.direction {
            Direction::Ingress => Field::ConnectionSource(family),
            Direction::Egress => Field::ConnectionDestination(family),
        };
        let (condition, selector) = match peer {
            PolicyPeer::Selected(selector) => {
                (Match::In(field, self.sets.selected(selector, family)), Some(selector))
            }
            PolicyPeer::Network { cidr, .. } if subnet::family(*cidr) != family => return None,
            PolicyPeer::Network { cidr, except } => (self.network(field, *cidr, except), None),
        };
        Some(PeerMatch { family: Some(family), matches: vec![condition], selector })
    }

    fn network(&mut self, field: Field, cidr: IpNetwork, except: &[IpNetwork]) -> Match {
        match except.is_empty() {
            true => Match::Within(field, subnet::masked(cidr)),
            false => Match::In(field, self.sets.network(cidr, except)),
        }
    }

    fn services(&mut self, end: &PeerMatch<'_>) -> Vec<Vec<Match>> {
        let rule = self.rule;
        let Some(services) = &rule.services else { return vec![Vec::new()] };
        let mut ports: BTreeMap<Protocol, Vec<PortRange>> = BTreeMap::new();
        let mut conditions = Vec::new();
        for service in services {
            match service {
                Service::Protocol(number) => conditions.push(vec![protocol(*number)]),
                Service::Ports(protocol, range) => ports.entry(*protocol).or_default().push(*range),
                Service::Named(protocol, name) => match rule.direction {
                    Direction::Ingress => {
                        for port in self.own_ports(*protocol, name) {
                            let range = PortRange::single(port.port);
                            ports.entry(port.protocol).or_default().push(range);
                        }
                    }
                    Direction::Egress => {
                        conditions.extend(self.port_of_peers((*protocol, name), end));
                    }
                },
                Service::HostPort => conditions.push(vec![Match::Translated]),
                Service::Icmp { family, kind, code } => {
                    if end.family.is_none_or(|end| end == *family) {
                        conditions.push(icmp(*family, *kind, *code));
                    }
                }
            }
        }
        for (of, ranges) in ports {
            let port = match &merged(ranges)[..] {
                [range] => {
                    Match::Is(Field::ConnectionPort, Value::Ports(range.first(), range.last()))
                }
                ranges => Match::In(Field::ConnectionPort, self.sets.ports(ranges)),
            };
            conditions.push(vec![protocol(of.number()), port]);
        }
        conditions
    }

    fn own_ports(&self, protocol: Option<Protocol>, name: &ObjectName) -> Vec<&'a NamedPort> {
        let wanted = |it: &&NamedPort| {
            it.name == *name && protocol.is_none_or(|protocol| protocol == it.protocol)
        };
        self.ports.iter().filter(wanted).collect()
    }

    fn port_of_peers(
        &mut self,
        port: (Option<Protocol>, &ObjectName),
        end: &PeerMatch<'_>,
    ) -> Option<Vec<Match>> {
        let family = end.family?;
        let every_pod = Selector::every_pod();
        let selector = end.selector.unwrap_or(&every_pod);
        let set = self.sets.named_ports(selector, port, family);
        let fields = vec![
            Field::ConnectionDestination(family),
            Field::ConnectionProtocol,
            Field::ConnectionPort,
        ];
        Some(vec![Match::AllIn(fields, set)])
    }
}

fn protocol(number: u8) -> Match {
    Match::Is(Field::ConnectionProtocol, Value::Protocol(number))
}

fn icmp(family: Family, kind: u8, code: Option<u8>) -> Vec<Match> {
    let first = u16::from_be_bytes([kind, code.unwrap_or(0)]);
    let last = u16::from_be_bytes([kind, code.unwrap_or(u8::MAX)]);
    vec![
        protocol(service::icmp(family)),
        Match::Is(Field::ConnectionIcmp, Value::Ports(first, last)),
    ]
}

/// The same ports in the fewest ranges, which do not touch.
fn merged(mut ranges: Vec<PortRange>) -> Vec<PortRange> {
    ranges.sort_unstable();
    let mut merged: Vec<PortRange> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(before) if range.first() <= before.last().saturating_add(1) => {
                let last = before.last().max(range.last());
                *before = PortRange::new(before.first(), last).unwrap_or(range);
            }
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_that_touch_are_one_range() {
        let range = |first, last| PortRange::new(first, last).unwrap();
        let ranges =
            vec![range(80, 80), range(1, 10), range(5, 20), range(21, 21), range(65535, 65535)];
        let wanted = [range(1, 21), range(80, 80), range(65535, 65535)];
        assert_eq!(merged(ranges), wanted);
    }
}
