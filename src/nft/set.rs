//! Pure. Sets and maps: their shapes and elements.

pub mod element;
pub mod entry;
pub mod value;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use crate::net::Family;
use crate::netlink::{AttributeList, Attributes};
use crate::nft::numbers::set;
use crate::nft::userdata::{self, Userdata};

pub use element::{Data, Element};
pub use value::{Type, Value};

use entry::{Entry, RawData, before, behind};
use value::{bytes, concatenation, types, value, values};

/// A named set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Unique in the table.
    pub name: String,
    pub shape: Shape,
    /// Ranges must not touch each other ([`crate::net::range::covering`]).
    pub elements: BTreeSet<Element>,
}

/// What a set or map holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// The fields of a key, at most 5.
    pub key: Vec<Type>,
    /// Of a map: what it holds for a key.
    pub data: Option<DataType>,
    /// Keys are ranges (`flags interval`): of one field, an address or a port.
    pub intervals: bool,
    /// Rules add its elements, each with a counter (`flags dynamic`).
    pub counts: bool,
    /// It has room for so many elements and never for more.
    pub size: Option<u32>,
}

/// What a map holds for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataType {
    /// These fields.
    Values(Vec<Type>),
    Verdict,
}

/// Elements to add to and to remove from one set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElementChange {
    pub set: String,
    pub shape: Shape,
    pub added: BTreeSet<Element>,
    pub removed: BTreeSet<Element>,
}

impl Shape {
    /// A set of single keys.
    pub fn set(key: impl Into<Vec<Type>>) -> Shape {
        Shape { key: key.into(), ..Shape::default() }
    }

    /// A set of keys that rules count by.
    pub fn counters(key: Type) -> Shape {
        Shape { counts: true, ..Shape::set([key]) }
    }

    /// A map from keys to values.
    pub fn map(key: impl Into<Vec<Type>>, data: impl Into<Vec<Type>>) -> Shape {
        Shape { data: Some(DataType::Values(data.into())), ..Shape::set(key) }
    }

    /// A map from keys to verdicts.
    pub fn verdicts(key: impl Into<Vec<Type>>) -> Shape {
        Shape { data: Some(DataType::Verdict), ..Shape::set(key) }
    }

    /// The shape that the attributes of a set give; `None` if it holds more than can be read here.
    pub fn read(attributes: &AttributeList<'_>) -> Option<Shape> {
        let flags = attributes.be32(set::FLAGS).unwrap_or(0);
        let known = match is_anonymous(attributes) {
            true => set::INTERVAL | set::MAP | set::ANONYMOUS | set::CONSTANT,
            false => set::INTERVAL | set::MAP,
        };
        if flags & !known != 0 {
            return None;
        }
        let key = types(attributes.be32(set::KEY_TYPE)?, attributes.be32(set::KEY_LENGTH)?)?;
        let data = match (flags & set::MAP != 0, attributes.be32(set::DATA_TYPE)) {
            (false, _) => None,
            (true, Some(set::TYPE_VERDICT)) => Some(DataType::Verdict),
            (true, kind) => {
                Some(DataType::Values(types(kind?, attributes.be32(set::DATA_LENGTH)?)?))
            }
        };
        let intervals = flags & set::INTERVAL != 0;
        let is_range = matches!(key[..], [Type::Ipv4 | Type::Ipv6 | Type::Port]);
        let size = attributes.nested(set::DESCRIPTION).ok()?.and_then(|of| of.be32(set::SIZE));
        (is_range || !intervals).then_some(Shape { key, data, intervals, counts: false, size })
    }

    /// The attributes of a set of this shape.
    pub(super) fn attributes(&self, attributes: Attributes) -> Attributes {
        let interval = if self.intervals { set::INTERVAL } else { 0 };
        let map = if self.data.is_some() { set::MAP } else { 0 };
        let dynamic = if self.counts { set::DYNAMIC } else { 0 };
        let (kind, length) = concatenation(&self.key);
        let attributes = attributes
            .be32(set::FLAGS, interval | map | dynamic)
            .be32(set::KEY_TYPE, kind)
            .be32(set::KEY_LENGTH, length);
        let attributes = match &self.data {
            None => attributes,
            Some(DataType::Verdict) => attributes.be32(set::DATA_TYPE, set::TYPE_VERDICT),
            Some(DataType::Values(types)) => {
                let (kind, length) = concatenation(types);
                attributes.be32(set::DATA_TYPE, kind).be32(set::DATA_LENGTH, length)
            }
        };
        let userdata = match self.key[..] {
            [Type::InterfaceIndex] if self.data.is_some() => Some(userdata::mac_of_device()),
            [Type::InterfaceIndex, Type::Mac] => Some(userdata::sent_by_device(None)),
            [Type::InterfaceIndex, Type::Mac, Type::Inner(family)] => {
                Some(userdata::sent_by_device(Some(family)))
            }
            [Type::Interface | Type::InterfaceIndex] => Some(Userdata::host_byte_order()),
            [Type::Ipv4, Type::Inner(inner)] => Some(userdata::sender(Family::V4, inner)),
            [Type::Ipv6, Type::Inner(inner)] => Some(userdata::sender(Family::V6, inner)),
            _ => None,
        };
        let size = self.size.map(|size| Attributes::new().be32(set::SIZE, size).into_bytes());
        attributes.put_some(set::DESCRIPTION, size).put_some(set::USERDATA, userdata)
    }

    /// The elements that `entries` stand for, in any order; those that cannot be read are left out.
    pub fn elements(&self, mut entries: Vec<Entry>) -> BTreeSet<Element> {
        if !self.intervals {
            return entries.iter().filter_map(|entry| self.element(entry, &entry.key)).collect();
        }
        // An end comes before a start at the same key.
        entries.sort_unstable_by(|a, b| (&a.key, !a.is_end).cmp(&(&b.key, !b.is_end)));
        let starts = entries.iter().enumerate().filter(|(_, entry)| !entry.is_end);
        let element = |(at, entry): (usize, &Entry)| {
            let last = match entries.get(at + 1) {
                Some(next) => before(&next.key),
                None => vec![u8::MAX; entry.key.len()],
            };
            self.element(entry, &last)
        };
        starts.filter_map(element).collect()
    }

    fn element(&self, entry: &Entry, last: &[u8]) -> Option<Element> {
        let data = match (&self.data, &entry.data) {
            (Some(DataType::Values(types)), Some(RawData::Value(bytes))) => {
                Some(Data::Values(values(types, bytes, bytes)?))
            }
            (Some(DataType::Verdict), Some(RawData::Verdict(verdict))) => {
                Some(Data::Verdict(verdict.clone().into()))
            }
            (Some(_), _) => return None,
            (None, _) => None,
        };
        let key = values(&self.key, &entry.key, last)?;
        Some(Element { key: key.into(), data, userdata: entry.userdata.clone() })
    }

    /// The attributes of an element: two lists for a range, its first key and the first behind it.
    pub(super) fn encode(&self, element: &Element, with_data: bool) -> Vec<Attributes> {
        let (first, last) = element.bounds();
        let mut start = Attributes::new().nest(set::ELEMENT_KEY, value(&first));
        if with_data {
            start = match &element.data {
                None => start,
                Some(Data::Values(values)) => {
                    start.nest(set::ELEMENT_DATA, value(&bytes(values, Value::first)))
                }
                Some(Data::Verdict(verdict)) => start.nest(set::ELEMENT_DATA, verdict.encode()),
            };
            let userdata = Some(element.userdata.bytes()).filter(|bytes| !bytes.is_empty());
            start = start.put_some(set::ELEMENT_USERDATA, userdata);
        }
        let mut list = vec![start];
        if let Some(behind) = behind(last).filter(|_| self.intervals) {
            let end = Attributes::new().nest(set::ELEMENT_KEY, value(&behind));
            list.push(end.be32(set::ELEMENT_FLAGS, set::INTERVAL_END));
        }
        list
    }
}

/// The set has no name of its own: it is part of a rule.
pub fn is_anonymous(attributes: &AttributeList<'_>) -> bool {
    attributes.be32(set::FLAGS).unwrap_or(0) & set::ANONYMOUS != 0
}
