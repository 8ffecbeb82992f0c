//! Pure. A ruleset, and changes to sets, as the messages of one transaction.

use std::collections::BTreeSet;
use std::net::IpAddr;

use neli::consts::nl::NlmF;

use crate::net::{AddressRange, Family, IfName, subnet};
use crate::netlink::wire::octets;
use crate::netlink::{Attributes, Message};
use crate::nft::expression;
use crate::nft::numbers::{
    chain, expression as list, family, flowtable, message, rule, set, table,
};
use crate::nft::ruleset::{
    Base, Chain, ElementChange, Flowtable, Policy, Rule, Ruleset, Set, SetKind,
};
use crate::nft::userdata;

/// Elements in one message. An element takes at most 36 bytes (IPv6 and flags), and the list that
/// holds them is an attribute, so shorter than 64 KiB.
const ELEMENTS_AT_ONCE: usize = 1500;

/// NFNL_SUBSYS_NFTABLES as `res_id` of the messages around a transaction.
const SUBSYSTEM: [u8; 2] = 10u16.to_be_bytes();

/// All of `messages` or none: between begin and end.
pub fn transaction(messages: impl IntoIterator<Item = Message>) -> Vec<Message> {
    let mark = |what: &str, kind: u16| {
        let header = [family::ANY, 0, SUBSYSTEM[0], SUBSYSTEM[1]];
        Message::new(what, kind, NlmF::empty(), &header, Attributes::new()).without_ack()
    };
    let begin = mark("begin an nft transaction", message::BATCH_BEGIN);
    let end = mark("end an nft transaction", message::BATCH_END);
    [begin].into_iter().chain(messages).chain([end]).collect()
}

/// Puts `ruleset` in the place of whatever table has its name.
///
/// The table is added first, because deleting one that is not there fails.
pub fn replace(ruleset: &Ruleset) -> Vec<Message> {
    let mut messages = delete(&ruleset.table);
    messages.push(add_table(&ruleset.table, Some(&ruleset.comment)));
    for (id, set) in (1..).zip(&ruleset.sets) {
        messages.push(add_set(&ruleset.table, set, id));
        let elements = Elements { table: &ruleset.table, set, ranges: &set.elements };
        messages.extend(elements.add());
    }
    messages.extend(ruleset.flowtable.iter().map(|wanted| add_flowtable(&ruleset.table, wanted)));
    for chain in &ruleset.chains {
        messages.push(add_chain(&ruleset.table, chain));
        messages.extend(chain.rules.iter().map(|rule| add_rule(&ruleset.table, chain, rule)));
    }
    messages
}

/// Removes the table, be it there or not.
pub fn delete(table: &str) -> Vec<Message> {
    let what = format!("delete table inet {table}");
    let name = Attributes::new().text(table::NAME, table);
    let delete = inet(what, message::DELETE_TABLE, NlmF::empty(), name);
    vec![add_table(table, None), delete]
}

/// Adds and removes elements; removals first, so that nothing overlaps.
pub fn change_elements(table: &str, changes: &[ElementChange]) -> Vec<Message> {
    let of = |ranges: fn(&ElementChange) -> &BTreeSet<AddressRange>| {
        changes.iter().map(move |change| Elements {
            table,
            set: &change.set,
            ranges: ranges(change),
        })
    };
    let removed = of(|change| &change.removed).flat_map(|elements| elements.remove());
    let added = of(|change| &change.added).flat_map(|elements| elements.add());
    removed.chain(added).collect()
}

/// A message about the family `inet`.
pub fn inet(what: String, kind: u16, flags: NlmF, attributes: Attributes) -> Message {
    Message::new(what, kind, flags, &header(family::INET), attributes)
}

/// `struct nfgenmsg`: family, version 0, resource 0.
pub fn header(family: u8) -> [u8; 4] {
    [family, 0, 0, 0]
}

pub(super) fn add_table(table: &str, comment: Option<&str>) -> Message {
    let attributes = Attributes::new()
        .text(table::NAME, table)
        .be32(table::FLAGS, 0)
        .put_some(table::USERDATA, comment.map(userdata::of_table));
    inet(format!("add table inet {table}"), message::NEW_TABLE, NlmF::CREATE, attributes)
}

fn add_set(table: &str, wanted: &Set, id: u32) -> Message {
    let (key_type, key_length) = match wanted.family {
        Family::V4 => (set::TYPE_IPV4, 4),
        Family::V6 => (set::TYPE_IPV6, 16),
    };
    let flags = match wanted.kind {
        SetKind::Addresses => 0,
        SetKind::Ranges => set::INTERVAL,
    };
    let attributes = Attributes::new()
        .text(set::TABLE, table)
        .text(set::NAME, &wanted.name)
        .be32(set::FLAGS, flags)
        .be32(set::KEY_TYPE, key_type)
        .be32(set::KEY_LENGTH, key_length)
        .be32(set::ID, id);
    let what = format!("add set {} to table inet {table}", wanted.name);
    inet(what, message::NEW_SET, NlmF::CREATE, attributes)
}

/// Elements of one set, to add or to remove.
struct Elements<'a> {
    table: &'a str,
    set: &'a Set,
    ranges: &'a BTreeSet<AddressRange>,
}

impl Elements<'_> {
    fn add(&self) -> Vec<Message> {
        let what = format!("add elements to set {} of table inet {}", self.set.name, self.table);
        self.messages(&what, message::NEW_ELEMENT, NlmF::CREATE)
    }

    fn remove(&self) -> Vec<Message> {
        let Elements { table, set, .. } = self;
        let what = format!("remove elements from set {} of table inet {table}", set.name);
        self.messages(&what, message::DELETE_ELEMENT, NlmF::empty())
    }

    /// As many messages as it takes.
    fn messages(&self, what: &str, kind: u16, flags: NlmF) -> Vec<Message> {
        let keys: Vec<_> =
            self.ranges.iter().flat_map(|range| keys(self.set.kind, range)).collect();
        let message = |keys: &[(IpAddr, bool)]| {
            let add = |attributes: Attributes, key: &(IpAddr, bool)| {
                attributes.nest(list::LIST_ELEMENT, element(*key))
            };
            let attributes = Attributes::new()
                .text(set::LIST_TABLE, self.table)
                .text(set::LIST_SET, &self.set.name)
                .nest(set::LIST_ELEMENTS, keys.iter().fold(Attributes::new(), add));
            inet(what.to_owned(), kind, flags, attributes)
        };
        keys.chunks(ELEMENTS_AT_ONCE).map(message).collect()
    }
}

/// The keys that stand for a range, and whether each is an end: its first address, and the first
/// one behind it if there is one.
fn keys(kind: SetKind, range: &AddressRange) -> Vec<(IpAddr, bool)> {
    let behind = subnet::offset(range.last(), 1);
    let start = (range.first(), false);
    match kind {
        SetKind::Ranges if behind > range.last() => vec![start, (behind, true)],
        SetKind::Ranges | SetKind::Addresses => vec![start],
    }
}

fn element((key, end): (IpAddr, bool)) -> Attributes {
    let value = Attributes::new().put(list::DATA_VALUE, octets(key));
    let element = Attributes::new().nest(set::ELEMENT_KEY, value);
    match end {
        true => element.be32(set::ELEMENT_FLAGS, set::INTERVAL_END),
        false => element,
    }
}

pub(super) fn add_chain(table: &str, wanted: &Chain) -> Message {
    let Base { kind, hook, priority, policy } = &wanted.base;
    let hook = Attributes::new()
        .be32(chain::HOOK_NUMBER, hook.0)
        .put(chain::HOOK_PRIORITY, priority.to_be_bytes());
    let policy = match policy {
        Policy::Accept => list::ACCEPT,
        Policy::Drop => list::DROP,
    };
    let attributes = Attributes::new()
        .text(chain::TABLE, table)
        .text(chain::NAME, &wanted.name)
        .nest(chain::HOOK, hook)
        .be32(chain::POLICY, policy)
        .text(chain::TYPE, kind);
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

pub(super) fn add_rule(table: &str, chain: &Chain, wanted: &Rule) -> Message {
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
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::net::range::covering;
    use crate::nft::found;

    fn range(first: &str, last: &str) -> AddressRange {
        AddressRange::new(first.parse().unwrap(), last.parse().unwrap()).unwrap()
    }

    #[test]
    fn a_range_is_its_first_address_and_the_one_behind_it() {
        let keys = keys(SetKind::Ranges, &range("10.0.0.0", "10.255.255.255"));
        let wanted = [("10.0.0.0".parse().unwrap(), false), ("11.0.0.0".parse().unwrap(), true)];
        assert_eq!(keys, wanted);
    }

    #[test]
    fn a_range_up_to_the_last_address_has_no_end() {
        let v4 = keys(SetKind::Ranges, &range("255.255.255.255", "255.255.255.255"));
        assert_eq!(v4, [("255.255.255.255".parse().unwrap(), false)]);
        let last = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        let v6 = keys(SetKind::Ranges, &range("ff00::", last));
        assert_eq!(v6, [("ff00::".parse().unwrap(), false)]);
    }

    proptest! {
        #[test]
        fn elements_are_read_back_as_they_were_written(
            networks in vec((any::<u32>(), 0..=32u8, any::<u128>(), 0..=128u8), 0..40)
        ) {
            for family in Family::BOTH {
                let networks = networks.iter().map(|(v4, short, v6, long)| match family {
                    Family::V4 => subnet::with_prefix(Ipv4Addr::from(*v4).into(), *short),
                    Family::V6 => subnet::with_prefix(Ipv6Addr::from(*v6).into(), *long),
                });
                let wanted: BTreeSet<_> = covering(networks).into_iter().collect();
                let written = wanted.iter().flat_map(|range| keys(SetKind::Ranges, range));
                // The kernel lists them backwards.
                let listed: Vec<_> = written.map(|(key, end)| (octets(key), end)).collect();
                let listed: Vec<_> = listed.into_iter().rev().collect();
                prop_assert_eq!(found::ranges(SetKind::Ranges, &listed), wanted);
            }
        }
    }

    #[test]
    fn many_elements_go_in_several_messages() {
        let set = Set {
            name: "nodes6".to_owned(),
            family: Family::V6,
            kind: SetKind::Addresses,
            elements: Default::default(),
        };
        let first: IpAddr = "fd00::".parse().unwrap();
        let ranges = (0..4000).map(|n| AddressRange::single(subnet::offset(first, n))).collect();
        let elements = Elements { table: "humanz", set: &set, ranges: &ranges };
        assert_eq!(elements.add().len(), 3);
    }
}
