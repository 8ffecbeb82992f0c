//! Pure. The sets that rules look into: what each holds, and where that comes from.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::net::gather::Gather;
use crate::net::{AddressRange, Family, range, subnet};
use crate::nft::{Element, Set, Shape, Type, Value};
use crate::policy::compile::capacity::Capacity;
use crate::policy::compile::name;
use crate::policy::compile::services::NamedPorts;
use crate::policy::endpoint::NamedPort;
use crate::policy::rule::PolicyPeer;
use crate::policy::selector::Selector;
use crate::policy::service::PortRange;

/// The sets of a program.
#[derive(Debug, Default)]
pub struct Sets {
    pub by_name: BTreeMap<String, SetSource>,
    /// Those that a rule looks into which denies.
    pub denying: BTreeSet<String>,
}

/// Where a set's elements come from.
#[derive(Clone, Debug)]
pub enum SetSource {
    /// What a selector finds.
    Found(Selector, FoundKeys),
    /// It is always the same.
    Fixed(Set),
}

/// What a set holds of each pod or node that a selector finds.
#[derive(Clone, Debug)]
pub struct FoundKeys {
    family: Family,
    capacity: Capacity,
    /// `None`: its addresses. Else address, protocol and number of each of these ports.
    ports: Option<Arc<NamedPorts>>,
}

impl Sets {
    /// A rule that does not allow looks into this set.
    pub fn note_denial(&mut self, name: &str) {
        self.denying.insert(name.to_owned());
    }

    /// The addresses of what `selector` finds, at most so many.
    pub fn selected(&mut self, selector: &Selector, family: Family, capacity: Capacity) -> String {
        let kind = if matches!(selector, Selector::Nodes(_)) { "nodes" } else { "pods" };
        let name = name::set(kind, Some(family), &selector.text());
        let name = match capacity.size() {
            None => name,
            Some(size) => format!("{name}_{size}"),
        };
        self.found(name, selector, FoundKeys { family, capacity, ports: None })
    }

    /// Address, protocol and number of each of these ports of what `selector` finds.
    pub fn named_ports(
        &mut self,
        selector: &Selector,
        ports: &Arc<NamedPorts>,
        family: Family,
    ) -> String {
        let name =
            name::set("named", Some(family), &format!("{} {}", selector.text(), ports.digest()));
        let (capacity, ports) = (Capacity::UNLIMITED, Some(Arc::clone(ports)));
        self.found(name, selector, FoundKeys { family, capacity, ports })
    }

    fn found(&mut self, name: String, selector: &Selector, keys: FoundKeys) -> String {
        let source = || SetSource::Found(selector.clone(), keys);
        self.by_name.entry(name.clone()).or_insert_with(source);
        name
    }

    /// These ports.
    pub fn ports(&mut self, ranges: &[PortRange]) -> String {
        let text: Vec<String> = ranges.iter().map(ToString::to_string).collect();
        let name = name::set("ports", None, &text.join(","));
        let element = |range: &PortRange| Element::key([Value::Ports(range.first(), range.last())]);
        let shape = Shape { intervals: true, ..Shape::set([Type::Port]) };
        let elements = ranges.iter().map(element).gather();
        self.fixed(Set { name, shape, elements })
    }

    /// These protocols, by their numbers.
    pub fn protocols(&mut self, numbers: &BTreeSet<u8>) -> String {
        let name = name::set("protocols", None, &format!("{numbers:?}"));
        let element = |number: &u8| Element::key([Value::Protocol(*number)]);
        let elements = numbers.iter().map(element).gather();
        self.fixed(Set { name, shape: Shape::set([Type::Protocol]), elements })
    }

    /// These addresses: ranges of the family that do not touch.
    pub fn network(&mut self, ranges: Vec<AddressRange>, family: Family) -> String {
        let text: Vec<String> = ranges.iter().map(ToString::to_string).collect();
        let name = name::set("net", Some(family), &text.join(","));
        let shape = Shape { intervals: true, ..Shape::set([Type::address(family)]) };
        let elements = ranges.into_iter().map(Element::from).gather();
        self.fixed(Set { name, shape, elements })
    }

    fn fixed(&mut self, set: Set) -> String {
        let name = set.name.clone();
        self.by_name.insert(name.clone(), SetSource::Fixed(set));
        name
    }
}

impl FoundKeys {
    /// They are those of a set of addresses that has not this room.
    pub fn is_of_another_size(&self, capacity: Capacity) -> bool {
        self.ports.is_none() && self.capacity != capacity
    }

    pub fn shape(&self) -> Shape {
        let address = Type::address(self.family);
        match &self.ports {
            None => Shape { size: self.capacity.size(), ..Shape::set([address]) },
            Some(_) => Shape::set([address, Type::Protocol, Type::Port]),
        }
    }

    /// The elements for a pod or node with these addresses and ports.
    pub fn elements(
        &self,
        addresses: impl Iterator<Item = IpAddr>,
        ports: &[NamedPort],
    ) -> Vec<Element> {
        let mut elements = Vec::new();
        for address in addresses.filter(|address| Family::of(*address) == self.family) {
            let address = Value::address(address);
            let Some(wanted) = &self.ports else {
                elements.push(Element::key([address]));
                continue;
            };
            for port in ports.iter().filter(|port| wanted.has(port)) {
                let (protocol, port) = (port.protocol.number(), port.port);
                let key = [address.clone(), Value::Protocol(protocol), Value::port(port)];
                elements.push(Element::key(key));
            }
        }
        elements
    }
}

/// The addresses of all networks of this family among `peers`, each without its exceptions; the ranges do not
/// touch.
pub fn ranges_of(peers: &[PolicyPeer], family: Family) -> Vec<AddressRange> {
    let left = |peer: &PolicyPeer| match peer {
        PolicyPeer::Network { cidr, except } if subnet::family(*cidr) == family => {
            without(*cidr, except)
        }
        _ => Vec::new(),
    };
    range::merged(peers.iter().flat_map(left).collect())
}

/// The ranges that are left, which do not touch.
fn without(cidr: IpNetwork, except: &[IpNetwork]) -> Vec<AddressRange> {
    let family = subnet::family(cidr);
    let number =
        |range: &AddressRange| (subnet::number(range.first()), subnet::number(range.last()));
    let (mut next, last) = number(&AddressRange::from(cidr));
    let own = except.iter().filter(|network| subnet::family(**network) == family);
    let mut gone: Vec<(u128, u128)> =
        own.map(|network| number(&AddressRange::from(*network))).collect();
    gone.sort_unstable();
    let mut left = Vec::new();
    for (first_gone, last_gone) in gone {
        if first_gone > next && next <= last {
            left.push((next, last.min(first_gone - 1)));
        }
        match last_gone.checked_add(1) {
            Some(behind) => next = next.max(behind),
            None => return ranges(family, left),
        }
    }
    if next <= last {
        left.push((next, last));
    }
    ranges(family, left)
}

fn ranges(family: Family, numbers: Vec<(u128, u128)>) -> Vec<AddressRange> {
    let address = |number: u128| -> IpAddr {
        match family {
            Family::V4 => Ipv4Addr::from(number as u32).into(),
            Family::V6 => Ipv6Addr::from(number).into(),
        }
    };
    numbers.iter().filter_map(|(a, b)| AddressRange::new(address(*a), address(*b))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(cidr: &str, except: &[&str], wanted: &[&str]) {
        let except: Vec<IpNetwork> = except.iter().map(|text| text.parse().unwrap()).collect();
        let left = without(cidr.parse().unwrap(), &except);
        let left: Vec<String> = left.iter().map(ToString::to_string).collect();
        assert_eq!(left, wanted);
    }

    #[test]
    fn exceptions_are_taken_out() {
        check("10.0.0.0/8", &[], &["10.0.0.0/8"]);
        check("10.0.0.0/8", &["10.0.0.0/9"], &["10.128.0.0/9"]);
        check("10.0.0.0/8", &["10.0.0.0/7"], &[]);
        check("10.0.0.0/24", &["10.0.0.1/32"], &["10.0.0.0", "10.0.0.2-10.0.0.255"]);
        check("10.0.0.0/24", &["10.0.0.128/25", "10.0.0.192/26"], &["10.0.0.0/25"]);
        check("0.0.0.0/0", &["255.255.255.255/32", "::/0"], &["0.0.0.0-255.255.255.254"]);
        check("::/0", &["8000::/1"], &["::/1"]);
        check("::/0", &["::/0"], &[]);
    }

    #[test]
    fn networks_of_a_rule_are_united_after_their_own_exceptions() {
        let network = |cidr: &str, except: &[&str]| PolicyPeer::Network {
            cidr: cidr.parse().unwrap(),
            except: except.iter().map(|text| text.parse().unwrap()).collect(),
        };
        let peers = [
            network("10.0.0.0/8", &["10.1.0.0/16", "10.3.0.0/16"]),
            network("10.1.128.0/17", &[]),
            network("10.1.128.0/17", &[]),
            network("11.0.0.0/8", &["11.0.0.0/8"]),
            network("fd00::/64", &[]),
            network("fd00:0:0:1::/64", &[]),
        ];
        let text = |family| ranges_of(&peers, family).iter().map(ToString::to_string).collect();
        let found: [Vec<String>; 2] = Family::BOTH.map(text);
        let v4 = ["10.0.0.0/16", "10.1.128.0-10.2.255.255", "10.4.0.0-10.255.255.255"];
        assert_eq!(found[0], v4);
        assert_eq!(found[1], ["fd00::/63"]);
    }
}
