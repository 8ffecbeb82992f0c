//! Pure. Elements as the kernel lists them: the bounds of ranges one by one.

use crate::netlink::{AttributeList, NetlinkError};
use crate::nft::numbers::{expression as list, set};
use crate::nft::userdata::Userdata;
use crate::nft::verdict::Verdict;

/// An element as the kernel lists it.
#[derive(Clone, Debug)]
pub struct Entry {
    pub(super) key: Vec<u8>,
    /// It is the first key behind a range.
    pub(super) is_end: bool,
    pub(super) data: Option<RawData>,
    pub(super) userdata: Userdata,
    pub(super) packets: u64,
}

impl Entry {
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// What its counter has counted, if it has one.
    pub fn packets(&self) -> u64 {
        self.packets
    }
}

#[derive(Clone, Debug)]
pub enum RawData {
    Value(Vec<u8>),
    Verdict(Verdict),
}

/// The entries of one part of a list.
///
/// # Errors
/// [`NetlinkError::Malformed`].
pub fn entries(attributes: &AttributeList<'_>) -> Result<Vec<Entry>, NetlinkError> {
    let Some(elements) = attributes.nested(set::LIST_ELEMENTS)? else { return Ok(Vec::new()) };
    let mut entries = Vec::new();
    for (_, element) in elements.iter() {
        let element = AttributeList::parse(element)?;
        let Some(key) = element.nested(set::ELEMENT_KEY)? else { continue };
        let Some(key) = key.get(list::DATA_VALUE) else { continue };
        let data = match element.nested(set::ELEMENT_DATA)? {
            None => None,
            Some(data) => match data.nested(list::DATA_VERDICT)? {
                Some(verdict) => Verdict::read(&verdict).map(RawData::Verdict),
                None => data.get(list::DATA_VALUE).map(|value| RawData::Value(value.to_vec())),
            },
        };
        let is_end = element.be32(set::ELEMENT_FLAGS).unwrap_or(0) & set::INTERVAL_END != 0;
        let userdata = Userdata::read(element.get(set::ELEMENT_USERDATA).unwrap_or_default());
        let counter = match element.nested(set::ELEMENT_EXPRESSION)? {
            Some(expression) => expression.nested(list::DATA)?,
            None => None,
        };
        let packets = counter.and_then(|counter| counter.be64(list::COUNTER_PACKETS)).unwrap_or(0);
        entries.push(Entry { key: key.to_vec(), is_end, data, userdata, packets });
    }
    Ok(entries)
}

/// The key behind `key`, if there is one.
pub fn behind(mut key: Vec<u8>) -> Option<Vec<u8>> {
    for byte in key.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            return Some(key);
        }
    }
    None
}

pub fn before(key: &[u8]) -> Vec<u8> {
    let mut key = key.to_vec();
    for byte in key.iter_mut().rev() {
        *byte = byte.wrapping_sub(1);
        if *byte != u8::MAX {
            break;
        }
    }
    key
}
