//! Pure. What the kernel says of a table: its answers as values.

use std::collections::BTreeSet;
use std::fmt;

use neli::types::Buffer;

use crate::net::IfName;
use crate::net::gather::Gather;
use crate::netlink::{AttributeList, NetlinkError, Reply};
use crate::nft::message;
use crate::nft::numbers::{
    self as number, chain, expression as list, family, flowtable, object, rule, table,
};
use crate::nft::ruleset::{Base, ChainPolicy, Flowtable, Hook};
use crate::nft::set::entry;
pub use crate::nft::set::entry::Entry;
use crate::nft::set::{self, Element, Shape};
use crate::nft::userdata::Userdata;

/// A table of the family `inet` as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundTable {
    pub name: String,
    /// It is there and does nothing (`flags dormant`).
    pub dormant: bool,
    pub sets: Vec<FoundSet>,
    /// Its flow tables, which are compared whole.
    pub flowtables: Vec<Flowtable>,
    pub chains: Vec<FoundChain>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundSet {
    pub name: String,
    /// `None` if it holds what humanz does not know.
    pub shape: Option<Shape>,
    /// It has no name of its own: it is part of a rule.
    pub is_anonymous: bool,
    /// None of a set without a shape.
    pub elements: BTreeSet<Element>,
}

/// A chain as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundChain {
    pub name: String,
    /// Where the kernel calls it; `None` if only other chains do.
    pub base: Option<Base>,
    pub rules: Vec<FoundRule>,
}

/// A rule as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundRule {
    /// The kernel's number for it, unique in the table.
    pub handle: u64,
    pub comment: Option<String>,
    /// The fingerprint that humanz put beside it; `None` if another program made the rule.
    pub fingerprint: Option<u64>,
}

/// What a counter has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub packets: u64,
    pub bytes: u64,
}

/// Where a chain is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NftChain {
    pub family: TableFamily,
    pub table: String,
    pub chain: String,
}

/// Which packets a table sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TableFamily {
    /// IPv4 and IPv6.
    Inet,
    Ip,
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
pub fn parts<'a>(reply: &Reply<'a>) -> Result<(TableFamily, AttributeList<'a>), NetlinkError> {
    let (header, attributes) = reply.parse::<Buffer>(message::HEADER)?;
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
    attributes.be32(number::generation::ID).ok_or_else(missing)
}

/// Whether the table is dormant.
pub fn dormant(reply: &Reply<'_>) -> Result<bool, NetlinkError> {
    let (_, attributes) = parts(reply)?;
    Ok(attributes.be32(table::FLAGS).unwrap_or(0) & table::DORMANT != 0)
}

/// A chain without its rules.
pub fn chain(reply: &Reply<'_>) -> Result<Option<(NftChain, Option<Base>)>, NetlinkError> {
    let (family, attributes) = parts(reply)?;
    let named = attributes.text(chain::TABLE).zip(attributes.text(chain::NAME));
    let Some((table, name)) = named else { return Ok(None) };
    Ok(Some((NftChain { family, table, chain: name }, base(&attributes)?)))
}

fn base(attributes: &AttributeList<'_>) -> Result<Option<Base>, NetlinkError> {
    let Some(hook) = attributes.nested(chain::HOOK)? else { return Ok(None) };
    let policy = match attributes.be32(chain::POLICY) {
        Some(list::DROP) => ChainPolicy::Drop,
        _ => ChainPolicy::Accept,
    };
    Ok(Some(Base {
        kind: attributes.text(chain::TYPE).unwrap_or_default(),
        hook: Hook(hook.be32(chain::HOOK_NUMBER).unwrap_or(u32::MAX)),
        priority: hook.array(chain::HOOK_PRIORITY).map_or(0, i32::from_be_bytes),
        policy,
    }))
}

/// How many packets a rule has counted.
pub fn packets(rule: &AttributeList<'_>) -> Result<u64, NetlinkError> {
    let Some(expressions) = rule.nested(number::rule::EXPRESSIONS)? else { return Ok(0) };
    let mut packets = 0;
    for (_, bytes) in expressions.iter() {
        let expression = AttributeList::parse(bytes)?;
        if expression.text(list::NAME).as_deref() == Some("counter")
            && let Some(counter) = expression.nested(list::DATA)?
        {
            packets = counter.be64(list::COUNTER_PACKETS).unwrap_or(0);
        }
    }
    Ok(packets)
}

/// Comment of a rule, and how many packets it has counted.
pub fn count(reply: &Reply<'_>) -> Result<Option<(String, u64)>, NetlinkError> {
    let (_, attributes) = parts(reply)?;
    let userdata = Userdata::read(attributes.get(rule::USERDATA).unwrap_or_default());
    let packets = packets(&attributes)?;
    Ok(userdata.comment.map(|comment| (comment, packets)))
}

/// A rule and the chain that it is in.
pub fn rule(reply: &Reply<'_>) -> Result<Option<(String, FoundRule)>, NetlinkError> {
    let (_, attributes) = parts(reply)?;
    let userdata = Userdata::read(attributes.get(rule::USERDATA).unwrap_or_default());
    let Userdata { comment, fingerprint, .. } = userdata;
    let found = |(chain, handle)| (chain, FoundRule { handle, comment, fingerprint });
    Ok(attributes.text(rule::CHAIN).zip(attributes.be64(rule::HANDLE)).map(found))
}

/// A named counter.
pub fn counter(reply: &Reply<'_>) -> Result<Option<(String, Count)>, NetlinkError> {
    let (_, attributes) = parts(reply)?;
    let Some(data) = attributes.nested(object::DATA)? else { return Ok(None) };
    let count = Count {
        packets: data.be64(list::COUNTER_PACKETS).unwrap_or_default(),
        bytes: data.be64(list::COUNTER_BYTES).unwrap_or_default(),
    };
    Ok(attributes.text(object::NAME).map(|name| (name, count)))
}

/// A set without its elements.
pub fn set(reply: &Reply<'_>) -> Result<Option<FoundSet>, NetlinkError> {
    let (_, attributes) = parts(reply)?;
    let found = |name| FoundSet {
        name,
        shape: Shape::read(&attributes),
        is_anonymous: set::is_anonymous(&attributes),
        elements: BTreeSet::new(),
    };
    Ok(attributes.text(number::set::NAME).map(found))
}

/// The entries of one part of a set's list.
pub fn entries(reply: &Reply<'_>) -> Result<Vec<Entry>, NetlinkError> {
    entry::entries(&parts(reply)?.1)
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
    let devices = list.iter().flat_map(|list| list.iter()).filter_map(text).gather();
    Ok(Some((table, Flowtable { name, devices })))
}
