//! Pure. The services of a rule, grouped so that a long list becomes few conditions.
//!
//! A rule has as many alternatives as ends times groups: a namespace's user writes both lists, and with one
//! alternative for each service a text of 16 kB took 700 MB of kernel memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::net::{Family, Protocol, hash};
use crate::policy::endpoint::NamedPort;
use crate::policy::name::ObjectName;
use crate::policy::rule::{Direction, Rule};
use crate::policy::service::{PortRange, Service};

/// What a rule says of protocols and ports; each only once.
#[derive(Debug, Default)]
pub struct RuleServices {
    /// Numbers of whole protocols.
    pub protocols: BTreeSet<u8>,
    pub ports: BTreeMap<Protocol, Vec<PortRange>>,
    /// Types (upper byte) and codes of ICMP.
    pub icmp: BTreeMap<Family, Vec<PortRange>>,
    /// Of the destination, where that is the rule's peer.
    pub named: Option<Arc<NamedPorts>>,
    pub host_port: bool,
}

/// Ports by name.
#[derive(Debug)]
pub struct NamedPorts {
    asked: AskedPorts,
    /// In the names of sets. Made once: each selected peer of the rule has sets of these ports.
    digest: u64,
}

/// Each name with the protocols that its port may have; `None`: any.
type AskedPorts = BTreeMap<ObjectName, BTreeSet<Option<Protocol>>>;

impl RuleServices {
    /// The services of `rule` for a pod with these ports of its own; `None`: whatever the service.
    pub fn of(rule: &Rule, own: &[NamedPort]) -> Option<RuleServices> {
        let mut of = RuleServices::default();
        let mut named = AskedPorts::new();
        for service in rule.services.as_ref()? {
            match service {
                Service::Protocol(number) => drop(of.protocols.insert(*number)),
                Service::Ports(protocol, range) => {
                    of.ports.entry(*protocol).or_default().push(*range);
                }
                Service::Named(protocol, name) => {
                    named.entry(name.clone()).or_default().insert(*protocol);
                }
                Service::HostPort => of.host_port = true,
                Service::Icmp { family, kind, code } => {
                    of.icmp.entry(*family).or_default().push(icmp(*kind, *code));
                }
            }
        }
        let named = (!named.is_empty()).then(|| NamedPorts::new(named));
        match rule.direction {
            Direction::Egress => of.named = named.map(Arc::new),
            Direction::Ingress => {
                let is_asked = |port: &&NamedPort| named.as_ref().is_some_and(|it| it.has(port));
                for port in own.iter().filter(is_asked) {
                    let range = PortRange::single(port.port);
                    of.ports.entry(port.protocol).or_default().push(range);
                }
            }
        }
        of.ports.values_mut().chain(of.icmp.values_mut()).for_each(merge);
        Some(of)
    }
}

impl NamedPorts {
    fn new(asked: AskedPorts) -> NamedPorts {
        let text = |(name, protocols)| format!("{name} {protocols:?}");
        let texts: Vec<String> = asked.iter().map(text).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let digest = hash::stable(&texts);
        NamedPorts { asked, digest }
    }

    /// `port` has one of the names, and a protocol that goes with it.
    pub fn has(&self, port: &NamedPort) -> bool {
        let is_wanted = |of: &BTreeSet<_>| of.contains(&None) || of.contains(&Some(port.protocol));
        self.asked.get(&port.name).is_some_and(is_wanted)
    }

    /// Differs where the names or their protocols differ.
    pub fn digest(&self) -> u64 {
        self.digest
    }
}

fn icmp(kind: u8, code: Option<u8>) -> PortRange {
    let first = u16::from_be_bytes([kind, code.unwrap_or(0)]);
    let last = u16::from_be_bytes([kind, code.unwrap_or(u8::MAX)]);
    PortRange::new(first, last).expect("no code is above the last one")
}

/// The same numbers in the fewest ranges, which do not touch.
fn merge(ranges: &mut Vec<PortRange>) {
    ranges.sort_unstable();
    let mut merged: Vec<PortRange> = Vec::new();
    for range in ranges.drain(..) {
        match merged.last_mut() {
            Some(before) if range.first() <= before.last().saturating_add(1) => {
                let last = before.last().max(range.last());
                *before = PortRange::new(before.first(), last).unwrap_or(range);
            }
            _ => merged.push(range),
        }
    }
    *ranges = merged;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_that_touch_are_one_range() {
        let range = |first, last| PortRange::new(first, last).unwrap();
        let mut ranges =
            vec![range(80, 80), range(1, 10), range(5, 20), range(21, 21), range(65535, 65535)];
        merge(&mut ranges);
        assert_eq!(ranges, [range(1, 21), range(80, 80), range(65535, 65535)]);
    }

    #[test]
    fn a_type_of_icmp_is_all_of_its_codes_and_swallows_each() {
        let mut ranges = vec![icmp(3, Some(4)), icmp(8, None), icmp(3, None), icmp(255, None)];
        merge(&mut ranges);
        let range = |first, last| PortRange::new(first, last).unwrap();
        let wanted = [range(0x300, 0x3ff), range(0x800, 0x8ff), range(0xff00, 0xffff)];
        assert_eq!(ranges, wanted);
    }
}
