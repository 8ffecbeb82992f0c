//! Pure. The table of host ports, and changes to what it holds, as the messages of a transaction.

use std::collections::BTreeMap;

use neli::consts::nl::NlmF;

use crate::net::HostPort;
use crate::netlink::{Attributes, Message};
use crate::nft::host_port_maps::{
    BRIDGES, PortChange, PortElement, PortMap, answer, concatenation, key,
};
use crate::nft::message::{add_chain, add_rule, add_table, flush_chain, inet};
use crate::nft::numbers::{expression as list, message as kind, set};
use crate::nft::ruleset::Ruleset;
use crate::nft::userdata;

/// Bytes of an interface's name in a set: IFNAMSIZ.
const IFNAMSIZ: usize = 16;

/// Elements in one message: the list that holds them is an attribute, so shorter than 64 KiB, and
/// an element takes at most 300 bytes, its userdata included.
const ELEMENTS_AT_ONCE: usize = 200;

/// Makes the table, its sets and its maps where they are missing, and its chains anew; elements
/// stay. All that must be there already is as it was made by this function.
pub fn ensure(ruleset: &Ruleset) -> Vec<Message> {
    let table = &ruleset.table;
    let mut messages = vec![add_table(table, Some(&ruleset.comment)), add_bridges(table)];
    messages.extend((2..).zip(PortMap::ALL).map(|(id, map)| add_map(table, map, id)));
    for chain in &ruleset.chains {
        messages.push(add_chain(table, chain));
        messages.push(flush_chain(table, &chain.name));
        let rules = chain.rules.iter().map(|rule| add_rule(table, chain, rule));
        messages.extend(rules);
    }
    messages
}

/// Carries out `changes`: those that remove before those that add, each map's in as few messages as can
/// be. (The kernel acknowledges every message, and has room for some 250 acknowledgements.)
pub fn change(table: &str, changes: &[PortChange]) -> Vec<Message> {
    let mut alike: BTreeMap<(u16, &'static str), Vec<&PortChange>> = BTreeMap::new();
    for change in changes {
        alike.entry(place(change)).or_default().push(change);
    }
    let (removed, added): (Vec<_>, Vec<_>) =
        alike.into_iter().partition(|((kind, _), _)| *kind == kind::DELETE_ELEMENT);
    let ordered = removed.into_iter().chain(added);
    let messages = ordered.flat_map(|(_, changes)| {
        let some = changes.chunks(ELEMENTS_AT_ONCE);
        some.map(|some| change_alike(table, some)).collect::<Vec<_>>()
    });
    messages.collect()
}

/// Which message a change may go in: its kind and its set.
fn place(change: &PortChange) -> (u16, &'static str) {
    match change {
        PortChange::Bridge(_) => (kind::NEW_ELEMENT, BRIDGES),
        PortChange::Add(element) => (kind::NEW_ELEMENT, PortMap::of(&element.forward.from).name()),
        PortChange::Remove(port) => (kind::DELETE_ELEMENT, PortMap::of(port).name()),
    }
}

fn change_alike(table: &str, changes: &[&PortChange]) -> Message {
    let (kind, set_name) = place(changes[0]);
    let flags = match changes[0] {
        PortChange::Bridge(_) => NlmF::CREATE,
        PortChange::Add(_) => NlmF::CREATE | NlmF::EXCL,
        PortChange::Remove(_) => NlmF::empty(),
    };
    let elements = changes.iter().fold(Attributes::new(), |elements, change| {
        elements.nest(list::LIST_ELEMENT, element(change))
    });
    let what = match (changes[0], changes) {
        (PortChange::Add(element), [_]) => format!("add {}", element.forward),
        (PortChange::Remove(port), [_]) => format!("remove host port {port}"),
        _ => format!("change elements of {set_name} in table inet {table}"),
    };
    inet(what, kind, flags, in_set(table, set_name).nest(set::LIST_ELEMENTS, elements))
}

fn element(change: &PortChange) -> Attributes {
    match change {
        PortChange::Bridge(name) => {
            let mut bytes = [0; IFNAMSIZ];
            bytes[..name.as_str().len()].copy_from_slice(name.as_str().as_bytes());
            Attributes::new().nest(set::ELEMENT_KEY, value(&bytes))
        }
        PortChange::Remove(port) => Attributes::new().nest(set::ELEMENT_KEY, value(&key(port))),
        PortChange::Add(element) => {
            let PortElement { forward, comment, mark } = element;
            let beside = userdata::of_port(comment, mark.store, mark.link.as_str());
            Attributes::new()
                .nest(set::ELEMENT_KEY, value(&key(&forward.from)))
                .nest(set::ELEMENT_DATA, value(&answer(forward.to)))
                .put(set::ELEMENT_USERDATA, beside)
        }
    }
}

/// What asks for the element of `port`, or with `None` for all elements of the map.
pub fn question(table: &str, map: PortMap, port: Option<&HostPort>) -> Message {
    let attributes = in_set(table, map.name());
    let attributes = match port {
        None => attributes,
        Some(port) => {
            let element = Attributes::new().nest(set::ELEMENT_KEY, value(&key(port)));
            let elements = Attributes::new().nest(list::LIST_ELEMENT, element);
            attributes.nest(set::LIST_ELEMENTS, elements)
        }
    };
    let what = format!("look at map {} of table inet {table}", map.name());
    inet(what, kind::GET_ELEMENT, NlmF::empty(), attributes)
}

/// What asks for the bridges.
pub fn question_bridges(table: &str) -> Message {
    let what = format!("look at set {BRIDGES} of table inet {table}");
    inet(what, kind::GET_ELEMENT, NlmF::empty(), in_set(table, BRIDGES))
}

fn add_bridges(table: &str) -> Message {
    let length = IFNAMSIZ as u32;
    let attributes = named_set(table, BRIDGES, 1)
        .be32(set::FLAGS, 0)
        .be32(set::KEY_TYPE, set::TYPE_IFNAME)
        .be32(set::KEY_LENGTH, length)
        .put(set::USERDATA, userdata::of_names());
    inet(
        format!("add set {BRIDGES} to table inet {table}"),
        kind::NEW_SET,
        NlmF::CREATE,
        attributes,
    )
}

fn add_map(table: &str, map: PortMap, id: u32) -> Message {
    let (key_type, key_length) = concatenation(&map.key_parts());
    let (data_type, data_length) = concatenation(&map.answer_parts());
    let attributes = named_set(table, map.name(), id)
        .be32(set::FLAGS, set::MAP)
        .be32(set::KEY_TYPE, key_type)
        .be32(set::KEY_LENGTH, key_length)
        .be32(set::DATA_TYPE, data_type)
        .be32(set::DATA_LENGTH, data_length);
    let what = format!("add map {} to table inet {table}", map.name());
    inet(what, kind::NEW_SET, NlmF::CREATE, attributes)
}

fn named_set(table: &str, name: &str, id: u32) -> Attributes {
    Attributes::new().text(set::TABLE, table).text(set::NAME, name).be32(set::ID, id)
}

fn in_set(table: &str, name: &str) -> Attributes {
    Attributes::new().text(set::LIST_TABLE, table).text(set::LIST_SET, name)
}

fn value(bytes: &[u8]) -> Attributes {
    Attributes::new().put(list::DATA_VALUE, bytes)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::net::Protocol;

    #[test]
    fn many_elements_go_in_several_messages() {
        let port = |n: u16| HostPort { protocol: Protocol::Udp, port: n, address: [0; 4].into() };
        let changes: Vec<_> = (0..500).map(|n| PortChange::Remove(port(n))).collect();
        assert_eq!(change("t", &changes).len(), 3);
    }

    #[test]
    fn both_families_in_turns_take_as_few_messages_as_one_after_the_other() {
        let port = |n: u16, address| HostPort { protocol: Protocol::Udp, port: n, address };
        let any = [IpAddr::from([0; 4]), IpAddr::from([0; 16])];
        let changes: Vec<_> = (0..200)
            .flat_map(|n| any.map(|address| PortChange::Remove(port(n, address))))
            .collect();
        assert_eq!(change("t", &changes).len(), 2);
    }
}
