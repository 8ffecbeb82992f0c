//! Pure. The sets that rules look into: each is made once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;

use crate::net::{AddressRange, Family, Protocol, subnet};
use crate::nft::{Element, Set, Shape, Type, Value};
use crate::policy::compile::name;
use crate::policy::members::{Member, Members};
use crate::policy::name::ObjectName;
use crate::policy::selector::Selector;
use crate::policy::service::PortRange;

pub struct Sets<'a> {
    members: &'a Members,
    by_name: BTreeMap<String, Set>,
    /// Those that a rule looks into which denies.
    denying: BTreeSet<String>,
}

impl<'a> Sets<'a> {
    pub fn new(members: &'a Members) -> Sets<'a> {
        Sets { members, by_name: BTreeMap::new(), denying: BTreeSet::new() }
    }

    pub fn insert(&mut self, set: Set) {
        self.by_name.insert(set.name.clone(), set);
    }

    /// A rule that does not allow looks into this set.
    pub fn note_denial(&mut self, name: &str) {
        self.denying.insert(name.to_owned());
    }

    pub fn finish(self) -> (Vec<Set>, BTreeSet<String>) {
        (self.by_name.into_values().collect(), self.denying)
    }

    /// The addresses of what `selector` finds.
    pub fn selected(&mut self, selector: &Selector, family: Family) -> String {
        let kind = if matches!(selector, Selector::Nodes(_)) { "nodes" } else { "pods" };
        let name = name::set(kind, Some(family), &selector.text());
        let members = self.members.get(selector);
        self.by_name.entry(name.clone()).or_insert_with(|| {
            let addresses = members.into_iter().flatten().flat_map(|member| &member.addresses);
            let own = addresses.filter(|address| Family::of(**address) == family);
            let elements = own.map(|address| Element::key([Value::address(*address)])).collect();
            Set { name: name.clone(), shape: Shape::set([Type::address(family)]), elements }
        });
        name
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
        let members = self.members.get(selector);
        self.by_name.entry(name.clone()).or_insert_with(|| {
            let elements = |member: &Member| {
                let wanted = |of: Protocol| protocol.is_none_or(|protocol| protocol == of);
                let ports =
                    member.ports.iter().filter(|it| it.name == *port && wanted(it.protocol));
                let ports: Vec<_> = ports.map(|it| (it.protocol.number(), it.port)).collect();
                let own = member.addresses.iter().filter(|it| Family::of(**it) == family);
                let keys = own.flat_map(|address| {
                    let key = |(protocol, port): &(u8, u16)| {
                        let protocol = Value::Protocol(*protocol);
                        Element::key([Value::address(*address), protocol, Value::port(*port)])
                    };
                    ports.iter().map(key).collect::<Vec<_>>()
                });
                keys.collect::<Vec<_>>()
            };
            let shape = Shape::set([Type::address(family), Type::Protocol, Type::Port]);
            let elements = members.into_iter().flatten().flat_map(elements).collect();
            Set { name: name.clone(), shape, elements }
        });
        name
    }

    /// These ports.
    pub fn ports(&mut self, ranges: &[PortRange]) -> String {
        let text: Vec<String> = ranges.iter().map(ToString::to_string).collect();
        let name = name::set("ports", None, &text.join(","));
        let element = |range: &PortRange| Element::key([Value::Ports(range.first(), range.last())]);
        let shape = Shape { intervals: true, ..Shape::set([Type::Port]) };
        let elements = ranges.iter().map(element).collect();
        self.insert(Set { name: name.clone(), shape, elements });
        name
    }

    /// The addresses of `cidr` without those of `except`.
    pub fn network(&mut self, cidr: IpNetwork, except: &[IpNetwork]) -> String {
        let family = subnet::family(cidr);
        let ranges = without(cidr, except);
        let text: Vec<String> = ranges.iter().map(ToString::to_string).collect();
        let name = name::set("net", Some(family), &text.join(","));
        let shape = Shape { intervals: true, ..Shape::set([Type::address(family)]) };
        let elements = ranges.into_iter().map(Element::from).collect();
        self.insert(Set { name: name.clone(), shape, elements });
        name
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
