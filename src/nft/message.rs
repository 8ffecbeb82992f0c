//! Pure. A ruleset, and changes to sets, as the messages of one transaction.

use std::collections::BTreeSet;
use std::fmt;

use neli::consts::nl::NlmF;

use crate::net::IfName;
use crate::netlink::{Attributes, Message};
use crate::nft::expression;
use crate::nft::numbers::{
    chain, expression as list, family, flowtable, message, rule, set, table,
};
use crate::nft::ruleset::{Base, Chain, ChainPolicy, Flowtable, NftRule, Ruleset};
use crate::nft::set::{Element, ElementChange, Set, Shape, Value};
use crate::nft::userdata::Userdata;

/// Bytes of elements in one message: the list that holds them is an attribute, so shorter than
/// 64 KiB, and an element takes less than 600 bytes. (The kernel acknowledges every message, and
/// has room for some 250 acknowledgements.)
const ELEMENTS_BYTES: usize = 64_000;

/// Flags of a table that one socket alone changes and that outlives it (Linux 6.9).
pub(super) const CLAIMED: u32 = table::OWNER | table::PERSIST;

/// NFNL_SUBSYS_NFTABLES as `res_id` of the messages around a transaction.
const SUBSYSTEM: [u8; 2] = 10u16.to_be_bytes();

/// All of `messages` or none: between begin and end.
pub fn transaction(messages: impl IntoIterator<Item = Message>) -> Vec<Message> {
    between(Attributes::new(), messages)
}

/// The same, refused with `ERESTART` if any table has changed since `generation`.
pub fn transaction_at(
    generation: u32,
    messages: impl IntoIterator<Item = Message>,
) -> Vec<Message> {
    between(Attributes::new().be32(message::BATCH_GENERATION, generation), messages)
}

fn between(begin: Attributes, messages: impl IntoIterator<Item = Message>) -> Vec<Message> {
    let mark = |what: &str, kind: u16, attributes: Attributes| {
        let header = [family::ANY, 0, SUBSYSTEM[0], SUBSYSTEM[1]];
        Message::new(what, kind, NlmF::empty(), &header, attributes).without_ack()
    };
    let begin = mark("begin an nft transaction", message::BATCH_BEGIN, begin);
    let end = mark("end an nft transaction", message::BATCH_END, Attributes::new());
    [begin].into_iter().chain(messages).chain([end]).collect()
}

/// Puts `ruleset` in the place of whatever table has its name.
///
/// The table is added first, because deleting one that is not there fails.
pub fn replace(ruleset: &Ruleset) -> Vec<Message> {
    let table = ruleset.table.as_str();
    let mut messages = delete(table);
    messages.push(add_table(table, &ruleset.comment, 0));
    for (id, set) in (1..).zip(&ruleset.sets) {
        messages.push(add_set(table, set, id));
    }
    messages.extend(ruleset.flowtable.iter().map(|wanted| add_flowtable(table, wanted)));
    // Elements and rules may call chains, and rules look into sets.
    messages.extend(ruleset.chains.iter().map(|chain| add_chain(table, chain)));
    for set in &ruleset.sets {
        messages.extend(add_elements(table, (&set.name, &set.shape), &set.elements));
    }
    for chain in &ruleset.chains {
        messages.extend(chain.rules.iter().map(|rule| add_rule(table, chain, rule)));
    }
    messages
}

/// Makes the table, its sets, maps and chains where they are missing, and its rules anew; elements
/// stay. All that is there already must be as this function makes it.
pub fn ensure(ruleset: &Ruleset) -> Vec<Message> {
    let table = ruleset.table.as_str();
    let mut messages = vec![add_table(table, &ruleset.comment, 0)];
    messages.extend((1..).zip(&ruleset.sets).map(|(id, set)| add_set(table, set, id)));
    for chain in &ruleset.chains {
        messages.push(add_chain(table, chain));
        messages.push(flush_chain(table, &chain.name));
    }
    for chain in &ruleset.chains {
        messages.extend(chain.rules.iter().map(|rule| add_rule(table, chain, rule)));
    }
    messages
}

/// Removes the table, be it there or not.
pub fn delete(table: &str) -> Vec<Message> {
    vec![inet_table(table, Attributes::new()), delete_present(table)]
}

fn delete_present(table: &str) -> Message {
    let what = format!("delete table inet {table}");
    let name = Attributes::new().text(table::NAME, table);
    inet(what, message::DELETE_TABLE, NlmF::empty(), name)
}

/// Takes a table that is there for the socket that sends this.
pub fn claim(table: &str) -> Vec<Message> {
    vec![inet_table(table, Attributes::new().be32(table::FLAGS, CLAIMED))]
}

/// What the kernel refuses if sockets cannot have a table that is not there yet.
pub fn claim_and_delete(table: &str) -> Vec<Message> {
    [claim(table), vec![delete_present(table)]].concat()
}

/// Adds and removes elements; removals first, so that nothing overlaps.
pub fn change_elements<'a>(
    table: impl Into<TablePath<'a>>,
    changes: &[ElementChange],
) -> Vec<Message> {
    let table = table.into();
    let removed = changes
        .iter()
        .flat_map(|change| remove_elements(table, (&change.set, &change.shape), &change.removed));
    let added = changes
        .iter()
        .flat_map(|change| add_elements(table, (&change.set, &change.shape), &change.added));
    removed.chain(added).collect()
}

/// What asks for the element of one key, or with `None` for all elements of a set.
pub fn get_elements<'a>(
    table: impl Into<TablePath<'a>>,
    (name, shape): (&str, &Shape),
    key: Option<&[Value]>,
) -> Message {
    let table = table.into();
    let attributes = in_set(table, name);
    let attributes = match key {
        None => attributes,
        Some(key) => {
            let element = shape.encode(&Element::key(key), false).swap_remove(0);
            let elements = Attributes::new().nest(list::LIST_ELEMENT, element);
            attributes.nest(set::LIST_ELEMENTS, elements)
        }
    };
    let what = format!("list {} {name} of {table}", kind(shape));
    table.message(what, message::GET_ELEMENT, NlmF::empty(), attributes)
}

#[derive(Clone, Copy)]
pub struct TablePath<'a> {
    pub family: u8,
    pub table: &'a str,
}

impl TablePath<'_> {
    pub fn message(self, what: String, kind: u16, flags: NlmF, attributes: Attributes) -> Message {
        Message::new(what, kind, flags, &header(self.family), attributes)
    }
}

impl<'a> From<&'a str> for TablePath<'a> {
    /// One of the family `inet`.
    fn from(table: &'a str) -> TablePath<'a> {
        TablePath { family: family::INET, table }
    }
}

impl fmt::Display for TablePath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = if self.family == family::NETDEV { "netdev" } else { "inet" };
        write!(f, "table {family} {}", self.table)
    }
}

/// A message about the family `inet`.
pub fn inet(what: String, kind: u16, flags: NlmF, attributes: Attributes) -> Message {
    Message::new(what, kind, flags, &header(family::INET), attributes)
}

/// Bytes of `struct nfgenmsg`.
pub const HEADER: usize = 4;

/// `struct nfgenmsg`: family, version 0, resource 0.
pub fn header(family: u8) -> [u8; HEADER] {
    [family, 0, 0, 0]
}

/// `flags`: 0, or [`CLAIMED`]; never dormant.
pub(super) fn add_table(table: &str, comment: &str, flags: u32) -> Message {
    let attributes = Attributes::new()
        .be32(table::FLAGS, flags)
        .put_some(table::USERDATA, Some(Userdata::comment(comment).bytes()));
    inet_table(table, attributes)
}

fn inet_table(table: &str, attributes: Attributes) -> Message {
    let what = format!("add table inet {table}");
    inet(what, message::NEW_TABLE, NlmF::CREATE, attributes.text(table::NAME, table))
}

pub(super) fn add_set<'a>(table: impl Into<TablePath<'a>>, wanted: &Set, id: u32) -> Message {
    let (table, Set { name, shape, .. }) = (table.into(), wanted);
    let attributes =
        Attributes::new().text(set::TABLE, table.table).text(set::NAME, name).be32(set::ID, id);
    let what = format!("add {} {name} to {table}", kind(shape));
    table.message(what, message::NEW_SET, NlmF::CREATE, shape.attributes(attributes))
}

fn in_set(table: TablePath<'_>, name: &str) -> Attributes {
    Attributes::new().text(set::LIST_TABLE, table.table).text(set::LIST_SET, name)
}

fn kind(shape: &Shape) -> &'static str {
    if shape.data.is_some() { "map" } else { "set" }
}

/// A key of a map is added once: the kernel refuses a second one with `EEXIST`.
pub(super) fn add_elements<'a>(
    table: impl Into<TablePath<'a>>,
    of: (&str, &Shape),
    wanted: &BTreeSet<Element>,
) -> Vec<Message> {
    let once = if of.1.data.is_some() { NlmF::EXCL } else { NlmF::empty() };
    elements(table.into(), of, wanted, Some(NlmF::CREATE | once))
}

pub(super) fn remove_elements<'a>(
    table: impl Into<TablePath<'a>>,
    of: (&str, &Shape),
    gone: &BTreeSet<Element>,
) -> Vec<Message> {
    elements(table.into(), of, gone, None)
}

/// As many messages as it takes. `added`: their flags if the elements are added, else they are removed.
fn elements(
    table: TablePath<'_>,
    (name, shape): (&str, &Shape),
    elements: &BTreeSet<Element>,
    added: Option<NlmF>,
) -> Vec<Message> {
    let encoded = elements.iter().flat_map(|element| shape.encode(element, added.is_some()));
    let mut lists: Vec<Attributes> = Vec::new();
    for element in encoded {
        let element = Attributes::new().nest(list::LIST_ELEMENT, element);
        match lists.last_mut() {
            Some(list) if list.size_bytes() + element.size_bytes() <= ELEMENTS_BYTES => {
                list.append(element)
            }
            _ => lists.push(element),
        }
    }
    let (verb, preposition, number) = match added {
        Some(_) => ("add", "to", message::NEW_ELEMENT),
        None => ("remove", "from", message::DELETE_ELEMENT),
    };
    let which = match elements.first().filter(|_| elements.len() == 1) {
        Some(element) => format!("element {element}"),
        None => "elements".to_owned(),
    };
    let what = format!("{verb} {which} {preposition} {} {name} of {table}", kind(shape));
    let message = |list| {
        let attributes = in_set(table, name).nest(set::LIST_ELEMENTS, list);
        table.message(what.clone(), number, added.unwrap_or(NlmF::empty()), attributes)
    };
    lists.into_iter().map(message).collect()
}

pub(super) fn add_chain(table: &str, wanted: &Chain) -> Message {
    let attributes = Attributes::new().text(chain::TABLE, table).text(chain::NAME, &wanted.name);
    let attributes = match &wanted.base {
        None => attributes,
        Some(Base { kind, hook, priority, policy }) => {
            let hook = Attributes::new()
                .be32(chain::HOOK_NUMBER, hook.0)
                .put(chain::HOOK_PRIORITY, priority.to_be_bytes());
            let policy = match policy {
                ChainPolicy::Accept => list::ACCEPT,
                ChainPolicy::Drop => list::DROP,
            };
            attributes.nest(chain::HOOK, hook).be32(chain::POLICY, policy).text(chain::TYPE, kind)
        }
    };
    let what = format!("add chain {} to table inet {table}", wanted.name);
    inet(what, message::NEW_CHAIN, NlmF::CREATE, attributes)
}

fn add_flowtable(table: &str, wanted: &Flowtable) -> Message {
    let add = |list: Attributes, device: &IfName| list.text(flowtable::DEVICE, device.as_str());
    let hook = Attributes::new()
        .be32(flowtable::HOOK_NUMBER, flowtable::INGRESS)
        .be32(flowtable::HOOK_PRIORITY, 0)
        .nest(flowtable::DEVICES, wanted.devices.iter().fold(Attributes::new(), add));
    let attributes = Attributes::new()
        .text(flowtable::TABLE, table)
        .text(flowtable::NAME, &wanted.name)
        .nest(flowtable::HOOK, hook);
    let what = format!("add flow table {} to table inet {table}", wanted.name);
    inet(what, message::NEW_FLOWTABLE, NlmF::CREATE, attributes)
}

/// Removes every rule of a chain.
pub(super) fn flush_chain(table: &str, chain: &str) -> Message {
    let attributes = Attributes::new().text(rule::TABLE, table).text(rule::CHAIN, chain);
    let what = format!("empty chain {chain} of table inet {table}");
    inet(what, message::DELETE_RULE, NlmF::empty(), attributes)
}

pub(super) fn add_rule(table: &str, chain: &Chain, wanted: &NftRule) -> Message {
    let attributes = Attributes::new()
        .text(rule::TABLE, table)
        .text(rule::CHAIN, &chain.name)
        .nest(rule::EXPRESSIONS, expression::of_rule(wanted))
        .put(rule::USERDATA, wanted.userdata());
    let what = format!("add rule \"{wanted}\" to chain {} of table inet {table}", chain.name);
    inet(what, message::NEW_RULE, NlmF::CREATE | NlmF::APPEND, attributes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::set::Type;

    #[test]
    fn many_elements_go_in_several_messages() {
        let shape = Shape::set([Type::Port, Type::Port]);
        let key = |number| Element::key([Value::port(number), Value::port(number)]);
        let elements: BTreeSet<Element> = (0..4000).map(key).collect();
        assert_eq!(add_elements("humanz", ("ports", &shape), &elements).len(), 2);
        assert_eq!(add_elements("humanz", ("ports", &shape), &BTreeSet::new()).len(), 0);
    }
}
