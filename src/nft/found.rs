//! Pure. What the kernel says of a table: its answers as values.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use neli::types::Buffer;

use crate::net::{AddressRange, Family, IfName, subnet};
use crate::netlink::wire;
use crate::netlink::{AttributeList, NetlinkError, Reply};
use crate::nft::numbers::{
    chain, expression as list, family, flowtable, generation as number, rule, set, table,
};
use crate::nft::ruleset::{Base, Flowtable, Hook, Policy, SetKind};
use crate::nft::userdata;

/// A table of the family `inet` as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundTable {
    /// Its name.
    pub name: String,
    /// It is there and does nothing (`flags dormant`).
    pub dormant: bool,
    /// Its sets.
    pub sets: Vec<FoundSet>,
    /// Its flow tables, which are compared whole.
    pub flowtables: Vec<Flowtable>,
    /// Its chains.
    pub chains: Vec<FoundChain>,
}

/// A set as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundSet {
    /// Its name.
    pub name: String,
    /// What it holds; `None` if that is nothing humanz makes: ports, names, a map.
    pub holds: Option<(Family, SetKind)>,
    /// Its elements, if it holds addresses.
    pub elements: BTreeSet<AddressRange>,
}

/// A chain as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundChain {
    /// Its name.
    pub name: String,
    /// Where the kernel calls it; `None` if only other chains do.
    pub base: Option<Base>,
    /// Its rules, in order.
    pub rules: Vec<FoundRule>,
}

/// A rule as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundRule {
    /// The kernel's number for it, unique in the table.
    pub handle: u64,
    /// The comment beside it.
    pub comment: Option<String>,
    /// The fingerprint that humanz put beside it; `None` if somebody else made the rule.
    pub fingerprint: Option<u64>,
}

/// Where a chain is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChainPlace {
    /// The table's family.
    pub family: TableFamily,
    /// The table.
    pub table: String,
    /// The chain.
    pub chain: String,
}

/// Which packets a table sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TableFamily {
    /// IPv4 and IPv6.
    Inet,
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    /// Neither, by its number (linux/netfilter.h): ARP, bridges, devices.
    Other(u8),
}

impl TableFamily {
    /// The kernel's number for it.
    pub fn number(self) -> u8 {
        match self {
            TableFamily::Inet => family::INET,
            TableFamily::Ip => family::IPV4,
            TableFamily::Ip6 => family::IPV6,
            TableFamily::Other(number) => number,
        }
    }
}

impl From<u8> for TableFamily {
    fn from(number: u8) -> TableFamily {
        match number {
            family::INET => TableFamily::Inet,
            family::IPV4 => TableFamily::Ip,
            family::IPV6 => TableFamily::Ip6,
            number => TableFamily::Other(number),
        }
    }
}

impl fmt::Display for TableFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableFamily::Inet => f.write_str("inet"),
            TableFamily::Ip => f.write_str("ip"),
            TableFamily::Ip6 => f.write_str("ip6"),
            TableFamily::Other(number) => write!(f, "{number}"),
        }
    }
}

/// The header of `reply`: its family, and its attributes.
pub fn parts(reply: &Reply<'_>) -> Result<(TableFamily, AttributeList), NetlinkError> {
    let (header, attributes) = reply.parse::<Buffer>(4)?;
    let family = header.as_ref().first().copied().unwrap_or(family::ANY);
    Ok((family.into(), attributes))
}

/// Family and name of a table.
pub fn table_name(reply: &Reply<'_>) -> Result<Option<(TableFamily, String)>, NetlinkError> {
    let (family, attributes) = parts(reply)?;
    Ok(attributes.text(table::NAME).map(|name| (family, name)))
}

/// The generation of all rules.
pub fn generation(reply: &Reply<'_>) -> Result<u32, NetlinkError> {
    let (_, attributes) = parts(reply)?;
    let missing = || NetlinkError::Malformed("no generation of the rules".to_owned());
    attributes.be32(number::ID).ok_or_else(missing)
}

/// Whether the table is dormant.
pub fn dormant(reply: &Reply<'_>) -> Result<bool, NetlinkError> {
    let (_, attributes) = parts(reply)?;
    Ok(attributes.be32(table::FLAGS).unwrap_or(0) & table::DORMANT != 0)
}

/// A chain without its rules.
pub fn chain(reply: &Reply<'_>) -> Result<Option<(ChainPlace, Option<Base>)>, NetlinkError> {
    let (family, attributes) = parts(reply)?;
    let named = attributes.text(chain::TABLE).zip(attributes.text(chain::NAME));
    let Some((table, name)) = named else { return Ok(None) };
    Ok(Some((ChainPlace { family, table, chain: name }, base(&attributes)?)))
}

fn base(attributes: &AttributeList) -> Result<Option<Base>, NetlinkError> {
    let Some(hook) = attributes.nested(chain::HOOK)? else { return Ok(None) };
    let policy = match attributes.be32(chain::POLICY) {
        Some(list::DROP) => Policy::Drop,
        _ => Policy::Accept,
    };
    Ok(Some(Base {
        kind: attributes.text(chain::TYPE).unwrap_or_default(),
        hook: Hook(hook.be32(chain::HOOK_NUMBER).unwrap_or(u32::MAX)),
        priority: hook.array(chain::HOOK_PRIORITY).map_or(0, i32::from_be_bytes),
        policy,
    }))
}

/// A rule and the chain that it is in.
pub fn rule(reply: &Reply<'_>) -> Result<Option<(String, FoundRule)>, NetlinkError> {
    let (_, attributes) = parts(reply)?;
    let userdata = attributes.get(rule::USERDATA).unwrap_or_default();
    let found = |(chain, handle)| {
        let comment = userdata::comment(userdata);
        (chain, FoundRule { handle, comment, fingerprint: userdata::fingerprint(userdata) })
    };
    Ok(attributes.text(rule::CHAIN).zip(attributes.be64(rule::HANDLE)).map(found))
}

/// A set without its elements.
pub fn set(reply: &Reply<'_>) -> Result<Option<FoundSet>, NetlinkError> {
    let (_, attributes) = parts(reply)?;
    let Some(name) = attributes.text(set::NAME) else { return Ok(None) };
    let family = match (attributes.be32(set::KEY_TYPE), attributes.be32(set::KEY_LENGTH)) {
        (Some(set::TYPE_IPV4), Some(4)) => Some(Family::V4),
        (Some(set::TYPE_IPV6), Some(16)) => Some(Family::V6),
        _ => None,
    };
    let kind = match attributes.be32(set::FLAGS).unwrap_or(0) {
        0 => Some(SetKind::Addresses),
        set::INTERVAL => Some(SetKind::Ranges),
        _ => None,
    };
    Ok(Some(FoundSet { name, holds: family.zip(kind), elements: BTreeSet::new() }))
}

/// A flow table, and the table that it is in. A device that went is no longer in it.
pub fn flowtable(reply: &Reply<'_>) -> Result<Option<(String, Flowtable)>, NetlinkError> {
    let (_, attributes) = parts(reply)?;
    let named = attributes.text(flowtable::TABLE).zip(attributes.text(flowtable::NAME));
    let Some((table, name)) = named else { return Ok(None) };
    let hook = attributes.nested(flowtable::HOOK)?;
    let list = hook.map(|hook| hook.nested(flowtable::DEVICES)).transpose()?.flatten();
    let text = |(_, name): (u16, &[u8])| {
        IfName::found(String::from_utf8_lossy(name).trim_end_matches('\0')).ok()
    };
    let devices = list.iter().flat_map(|list| list.iter()).filter_map(text).collect();
    Ok(Some((table, Flowtable { name, devices })))
}

/// The keys in one piece of a set's list, and whether each is the end of a range.
pub fn keys(reply: &Reply<'_>) -> Result<Vec<(Vec<u8>, bool)>, NetlinkError> {
    let (_, attributes) = parts(reply)?;
    let Some(elements) = attributes.nested(set::LIST_ELEMENTS)? else { return Ok(Vec::new()) };
    let mut keys = Vec::new();
    for (_, element) in elements.iter() {
        let element = AttributeList::parse(element)?;
        let key = element.nested(set::ELEMENT_KEY)?;
        let value = key.as_ref().and_then(|key| key.get(list::DATA_VALUE));
        let end = element.be32(set::ELEMENT_FLAGS).unwrap_or(0) & set::INTERVAL_END != 0;
        keys.extend(value.map(|value| (value.to_vec(), end)));
    }
    Ok(keys)
}

/// The ranges that a set's keys stand for. The kernel lists them in any order.
pub fn ranges(kind: SetKind, keys: &[(Vec<u8>, bool)]) -> BTreeSet<AddressRange> {
    let mut keys: Vec<_> =
        keys.iter().filter_map(|(key, end)| Some((wire::address(key)?, !end))).collect();
    // An end comes before a start at the same address.
    keys.sort();
    if kind == SetKind::Addresses {
        return keys.into_iter().map(|(address, _)| AddressRange::single(address)).collect();
    }
    let mut ranges = BTreeSet::new();
    let mut open: Option<IpAddr> = None;
    for (address, starts) in keys {
        // nft marks the start of the space with an end that ends nothing.
        let before = open.take().and_then(|first| AddressRange::new(first, before(address)));
        ranges.extend(before);
        open = starts.then_some(address);
    }
    ranges.extend(open.and_then(|first| AddressRange::new(first, last_of_all(first))));
    ranges
}

fn before(address: IpAddr) -> IpAddr {
    subnet::offset(address, u128::MAX)
}

fn last_of_all(address: IpAddr) -> IpAddr {
    subnet::last(subnet::with_prefix(address, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(kind: SetKind, keys: &[(&str, bool)], wanted: &[&str]) {
        let octets = |text: &str| wire::octets(text.parse().unwrap());
        let keys: Vec<_> = keys.iter().map(|(key, end)| (octets(key), *end)).collect();
        let found: Vec<_> = ranges(kind, &keys).iter().map(|range| range.to_string()).collect();
        assert_eq!(found, wanted);
    }

    #[test]
    fn a_start_and_an_end_are_a_range() {
        let keys = [("11.0.0.0", true), ("10.0.0.0", false)];
        check(SetKind::Ranges, &keys, &["10.0.0.0/8"]);
    }

    #[test]
    fn a_last_start_without_end_goes_to_the_end_of_the_space() {
        check(SetKind::Ranges, &[("ff00::", false)], &["ff00::/8"]);
        check(SetKind::Ranges, &[("255.255.255.255", false)], &["255.255.255.255"]);
    }

    #[test]
    fn the_end_that_nft_puts_at_the_start_of_the_space_is_nothing() {
        let keys = [("0.0.0.0", true), ("10.0.0.0", false), ("11.0.0.0", true)];
        check(SetKind::Ranges, &keys, &["10.0.0.0/8"]);
    }

    #[test]
    fn ranges_that_touch_are_kept_apart() {
        let keys =
            [("10.0.0.0", false), ("10.1.0.0", true), ("10.1.0.0", false), ("10.2.0.0", true)];
        check(SetKind::Ranges, &keys, &["10.0.0.0/16", "10.1.0.0/16"]);
    }

    #[test]
    fn single_addresses_are_themselves() {
        let keys = [("192.0.2.2", false), ("192.0.2.1", false)];
        check(SetKind::Addresses, &keys, &["192.0.2.1", "192.0.2.2"]);
    }
}
