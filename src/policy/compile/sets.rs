//! Pure. The sets that rules look into: what each holds, and where that comes from.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;

use crate::net::gather::Gather;
use crate::net::{AddressRange, Family, Protocol, subnet};
use crate::nft::{Element, Set, Shape, Type, Value};
use crate::policy::compile::name;
use crate::policy::endpoint::NamedPort;
use crate::policy::name::ObjectName;
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
    /// `None`: its addresses. Else address, protocol and number of each port of this name.
    port: Option<(Option<Protocol>, ObjectName)>,
}

impl Sets {
    /// A rule that does not allow looks into this set.
    pub fn note_denial(&mut self, name: &str) {
        self.denying.insert(name.to_owned());
    }

    /// The addresses of what `selector` finds.
    pub fn selected(&mut self, selector: &Selector, family: Family) -> String {
        let kind = if matches!(selector, Selector::Nodes(_)) { "nodes" } else { "pods" };
        let name = name::set(kind, Some(family), &selector.text());
        self.found(name, selector, FoundKeys { family, port: None })
    }

    /// Address, protocol and number of each port of this name of what `selector` finds.
    pub fn named_ports(
        &mut self,
        selector: &Selector,
        (protocol, port): (Option<Protocol>, &ObjectName),
        family: Family,
    ) -> String {
        let text = format!("{} {protocol:?} {port}", selector.text());
        let name = name::set("named", Some(family), &text);
        let port = Some((protocol, port.clone()));
        self.found(name, selector, FoundKeys { family, port })
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

    /// The addresses of `cidr` without those of `except`.
    pub fn network(&mut self, cidr: IpNetwork, except: &[IpNetwork]) -> String {
        let family = subnet::family(cidr);
        let ranges = without(cidr, except);
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
    pub fn shape(&self) -> Shape {
        let address = Type::address(self.family);
        match &self.port {
            None => Shape::set([address]),
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
            let Some((protocol, name)) = &self.port else {
                elements.push(Element::key([address]));
                continue;
            };
            let wanted = |of: Protocol| protocol.is_none_or(|protocol| protocol == of);
            for port in ports.iter().filter(|it| it.name == *name && wanted(it.protocol)) {
                let (protocol, port) = (port.protocol.number(), port.port);
                let key = [address.clone(), Value::Protocol(protocol), Value::port(port)];
                elements.push(Element::key(key));
            }
        }
        elements
    }
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
}
