//! Pure. What is written is read back.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::collection::vec;
use proptest::prelude::*;

use super::entry::entries;
use super::*;
use crate::net::range::covering;
use crate::net::{AddressRange, subnet};
use crate::netlink::wire;
use crate::nft::numbers::expression as list;
use crate::nft::verdict::Verdict;

fn ranges(family: Family) -> Shape {
    Shape { intervals: true, ..Shape::set([Type::address(family)]) }
}

/// The entries that the kernel lists of an element.
fn listed(shape: &Shape, element: &Element) -> Vec<Entry> {
    let list = |elements: Attributes, element| elements.nest(list::LIST_ELEMENT, element);
    let elements = shape.encode(element, true).into_iter().fold(Attributes::new(), list);
    let reply = Attributes::new().nest(set::LIST_ELEMENTS, elements).into_bytes();
    entries(&AttributeList::parse(&reply).unwrap()).unwrap()
}

/// Checks the keys in bytes, an end with `!`, of a range.
fn check_range(first: &str, last: &str, wanted: &[(&str, bool)]) {
    let range = AddressRange::new(first.parse().unwrap(), last.parse().unwrap()).unwrap();
    let shape = ranges(Family::of(range.first()));
    let entries = listed(&shape, &range.into());
    let found: Vec<_> = entries
        .iter()
        .map(|entry| (wire::address(&entry.key).unwrap().to_string(), entry.is_end))
        .collect();
    let wanted: Vec<_> = wanted.iter().map(|(key, is_end)| ((*key).to_owned(), *is_end)).collect();
    assert_eq!(found, wanted);
}

#[test]
fn a_range_is_its_first_address_and_the_one_behind_it() {
    let wanted = [("10.0.0.0", false), ("11.0.0.0", true)];
    check_range("10.0.0.0", "10.255.255.255", &wanted);
}

#[test]
fn a_range_up_to_the_last_address_has_no_end() {
    check_range("255.255.255.255", "255.255.255.255", &[("255.255.255.255", false)]);
    let last = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
    check_range("ff00::", last, &[("ff00::", false)]);
}

/// Checks the elements of a set of ranges with these keys, true for an end.
fn check_keys(keys: &[(&str, bool)], wanted: &[&str]) {
    let entry = |(key, is_end): &(&str, bool)| Entry {
        key: wire::octets(key.parse().unwrap()),
        is_end: *is_end,
        data: None,
        userdata: Userdata::default(),
        packets: 0,
    };
    let family = Family::of(keys[0].0.parse().unwrap());
    let elements = ranges(family).elements(keys.iter().map(entry).collect());
    let found: Vec<_> = elements.iter().map(ToString::to_string).collect();
    assert_eq!(found, wanted);
}

#[test]
fn a_start_and_an_end_are_a_range() {
    check_keys(&[("11.0.0.0", true), ("10.0.0.0", false)], &["10.0.0.0/8"]);
}

#[test]
fn a_last_start_without_end_goes_to_the_end_of_the_space() {
    check_keys(&[("ff00::", false)], &["ff00::/8"]);
    check_keys(&[("255.255.255.255", false)], &["255.255.255.255"]);
}

#[test]
fn the_end_that_nft_puts_at_the_start_of_the_space_is_nothing() {
    check_keys(&[("0.0.0.0", true), ("10.0.0.0", false), ("11.0.0.0", true)], &["10.0.0.0/8"]);
}

#[test]
fn ranges_that_touch_are_kept_apart() {
    let keys = [("10.0.0.0", false), ("10.1.0.0", true), ("10.1.0.0", false), ("10.2.0.0", true)];
    check_keys(&keys, &["10.0.0.0/16", "10.1.0.0/16"]);
}

#[test]
fn ranges_of_ports_end_before_the_next_key() {
    let shape = Shape { intervals: true, ..Shape::set([Type::Port]) };
    let written =
        [(22, 22), (80, u16::MAX)].map(|(first, last)| Element::key([Value::Ports(first, last)]));
    let entries: Vec<_> = written.iter().flat_map(|element| listed(&shape, element)).collect();
    assert_eq!(entries.len(), 3);
    assert_eq!(shape.elements(entries), written.into());
}

#[test]
fn elements_of_a_map_are_read_back_with_data_and_userdata() {
    let address = |text: &str| Value::address(text.parse().unwrap());
    let userdata = Userdata { fingerprint: Some(7), ..Userdata::comment("net c1 eth0") };
    let shape = Shape::map([Type::Ipv6, Type::Protocol, Type::Port], [Type::Ipv4, Type::Port]);
    let data = Some(Data::Values(vec![address("10.1.2.3"), Value::port(80)]));
    let key = vec![address("2001:db8::1"), Value::Protocol(132), Value::port(8080)];
    let element = Element { key: key.into(), data, userdata: userdata.clone() };
    assert_eq!(shape.elements(listed(&shape, &element)), [element.clone()].into());
    assert_eq!(element.to_string(), "2001:db8::1 . sctp . 8080 : 10.1.2.3 . 80");
    let shape = Shape { data: Some(DataType::Verdict), ..Shape::set([Type::Interface]) };
    let key = vec![Value::Interface("humanz0".parse().unwrap())];
    let data = Some(Data::Verdict(Verdict::Goto("pods".to_owned()).into()));
    let element = Element { key: key.into(), data, userdata };
    assert_eq!(shape.elements(listed(&shape, &element)), [element.clone()].into());
    assert_eq!(element.to_string(), "\"humanz0\" : goto pods");
}

#[test]
fn shapes_are_read_back_and_types_are_those_of_nft() {
    assert_eq!(concatenation(&[Type::Protocol, Type::Port]), (781, 8));
    assert_eq!(concatenation(&[Type::Ipv6, Type::Protocol, Type::Port]).1, 24);
    let verdicts = Shape { data: Some(DataType::Verdict), ..Shape::set([Type::Ipv4]) };
    let map = Shape::map([Type::Ipv4, Type::Mark], [Type::Ipv6, Type::Port]);
    for shape in [Shape::set([Type::Interface]), ranges(Family::V6), verdicts, map] {
        let bytes = shape.attributes(Attributes::new()).into_bytes();
        assert_eq!(Shape::read(&AttributeList::parse(&bytes).unwrap()), Some(shape));
    }
}

#[test]
fn broken_bytes_give_nothing() {
    for bytes in [&b""[..], b"\x06\0\0\0", b"\x06\0\0\0\x50"] {
        assert_eq!(values(&[Type::Protocol, Type::Port], bytes, bytes), None);
    }
    assert_eq!(types(0, 4), None);
}

proptest! {
    #[test]
    fn ranges_are_read_back_as_they_were_written(
        networks in vec((any::<u32>(), 0..=32u8, any::<u128>(), 0..=128u8), 0..40)
    ) {
        for family in Family::BOTH {
            let networks = networks.iter().map(|(v4, short, v6, long)| match family {
                Family::V4 => subnet::with_prefix(Ipv4Addr::from(*v4).into(), *short),
                Family::V6 => subnet::with_prefix(Ipv6Addr::from(*v6).into(), *long),
            });
            let wanted: BTreeSet<_> = covering(networks).into_iter().map(Element::from).collect();
            let shape = ranges(family);
            // The kernel lists them backwards.
            let entries = wanted.iter().flat_map(|element| listed(&shape, element));
            let entries: Vec<_> = entries.collect();
            let entries = entries.into_iter().rev().collect();
            prop_assert_eq!(shape.elements(entries), wanted);
        }
    }
}
