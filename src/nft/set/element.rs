//! Pure. An element of a set or map.

use std::fmt;
use std::sync::Arc;

use crate::net::AddressRange;
use crate::nft::set::value::{Value, bytes};
use crate::nft::userdata::Userdata;
use crate::nft::verdict::Verdict;

/// An element of a set or map.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Element {
    /// Copies of an element share it.
    pub key: Arc<[Value]>,
    pub data: Option<Data>,
    pub userdata: Userdata,
}

/// What a map holds for a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Data {
    Values(Vec<Value>),
    Verdict(Arc<Verdict>),
}

impl Element {
    /// An element of a set, or one of a map to remove.
    pub fn key(key: impl Into<Arc<[Value]>>) -> Element {
        Element { key: key.into(), data: None, userdata: Userdata::default() }
    }

    /// The first and the last key in bytes, as the kernel compares them.
    pub fn bounds(&self) -> (Vec<u8>, Vec<u8>) {
        (bytes(&self.key, Value::first), bytes(&self.key, Value::last))
    }
}

impl From<AddressRange> for Element {
    fn from(range: AddressRange) -> Element {
        Element::key([Value::Addresses(range)])
    }
}

impl fmt::Display for Element {
    /// As nft writes it: `10.0.0.1 . tcp . 80 : 10.1.2.3 . 80`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        joined(f, &self.key)?;
        match &self.data {
            None => Ok(()),
            Some(data) => {
                f.write_str(" : ")?;
                match data {
                    Data::Values(values) => joined(f, values),
                    Data::Verdict(verdict) => write!(f, "{verdict}"),
                }
            }
        }
    }
}

fn joined(f: &mut fmt::Formatter<'_>, values: &[Value]) -> fmt::Result {
    for (at, value) in values.iter().enumerate() {
        let dot = if at > 0 { " . " } else { "" };
        write!(f, "{dot}{value}")?;
    }
    Ok(())
}
