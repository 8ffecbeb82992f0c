//! Pure. Sets and maps that rules of others look into.

use std::collections::BTreeMap;

use crate::netlink::{AttributeList, NetlinkError, Reply};
use crate::nft::found;
use crate::nft::numbers::{expression, set};

use crate::nft::base_chains::decode;
use crate::nft::base_chains::numbers as n;
use crate::nft::base_chains::rule::Verdict;

/// Sets by name.
pub type FoundSets = BTreeMap<String, FoundSet>;

/// A set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundSet {
    /// What it holds, by nft's own numbers.
    pub key_type: u32,
    /// Its flags.
    pub flags: u32,
    /// What is in it.
    pub elements: Vec<Element>,
}

/// An element of a set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// The key.
    pub key: Vec<u8>,
    /// It is the first address behind a range.
    pub ends_range: bool,
    /// What a map says of the key.
    pub verdict: Option<Verdict>,
}

impl FoundSet {
    /// Of either family.
    pub fn holds_addresses(&self) -> bool {
        matches!(self.key_type, set::TYPE_IPV4 | set::TYPE_IPV6)
    }

    /// It is worth to be read: its keys are understood, and a list of addresses that somebody keeps
    /// (and that may be long) is none.
    pub fn is_readable(&self) -> bool {
        match self.key_type {
            set::TYPE_IFNAME => self.flags & n::SET_INTERVAL == 0,
            n::TYPE_CT_STATE => true,
            n::TYPE_PROTOCOL | n::TYPE_PORT => true,
            _ => self.holds_addresses() && self.flags & n::SET_ANONYMOUS != 0,
        }
    }
}

/// A set without its elements, and its name.
pub fn set(reply: &Reply<'_>) -> Result<Option<(String, FoundSet)>, NetlinkError> {
    let (_, attributes) = found::parts(reply)?;
    let found = FoundSet {
        key_type: attributes.be32(set::KEY_TYPE).unwrap_or(0),
        flags: attributes.be32(set::FLAGS).unwrap_or(0),
        elements: Vec::new(),
    };
    Ok(attributes.text(set::NAME).map(|name| (name, found)))
}

/// The elements in one piece of a set's list.
pub fn elements(reply: &Reply<'_>) -> Result<Option<Vec<Element>>, NetlinkError> {
    let (_, attributes) = found::parts(reply)?;
    let Some(list) = attributes.nested(set::LIST_ELEMENTS)? else { return Ok(None) };
    let mut elements = Vec::new();
    for (_, element) in list.iter() {
        let element = AttributeList::parse(element)?;
        let key = element.nested(set::ELEMENT_KEY)?;
        let key = key.as_ref().and_then(|key| key.get(expression::DATA_VALUE));
        let data = element.nested(n::ELEMENT_DATA)?;
        let verdict = match data {
            Some(data) => data.nested(expression::DATA_VERDICT)?,
            None => None,
        };
        elements.extend(key.map(|key| Element {
            key: key.to_vec(),
            ends_range: element.be32(set::ELEMENT_FLAGS).unwrap_or(0) & set::INTERVAL_END != 0,
            verdict: verdict.as_ref().and_then(decode::verdict),
        }));
    }
    Ok(Some(elements))
}
