//! Pure. The two address families, and values that exist once for each.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both, IPv4 first.
    pub const BOTH: [Family; 2] = [Family::V4, Family::V6];

    /// The family of an address.
    pub fn of(address: IpAddr) -> Family {
        match address {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }

    /// Bits in an address: 32 or 128.
    pub fn bits(self) -> u8 {
        match self {
            Family::V4 => 32,
            Family::V6 => 128,
        }
    }
}

impl fmt::Display for Family {
    /// `IPv4` or `IPv6`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        })
    }
}

/// A value for each family that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PerFamily<T> {
    /// The IPv4 one.
    #[serde(skip_serializing_if = "Option::is_none", default = "none")]
    pub v4: Option<T>,
    /// The IPv6 one.
    #[serde(skip_serializing_if = "Option::is_none", default = "none")]
    pub v6: Option<T>,
}

fn none<T>() -> Option<T> {
    None
}

impl<T> Default for PerFamily<T> {
    fn default() -> Self {
        PerFamily { v4: None, v6: None }
    }
}

impl<T> PerFamily<T> {
    /// The value of `family`.
    pub fn get(&self, family: Family) -> Option<&T> {
        match family {
            Family::V4 => self.v4.as_ref(),
            Family::V6 => self.v6.as_ref(),
        }
    }

    /// Sets the value of `family`.
    pub fn set(&mut self, family: Family, value: Option<T>) {
        match family {
            Family::V4 => self.v4 = value,
            Family::V6 => self.v6 = value,
        }
    }

    /// The values present, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        self.v4.iter().chain(self.v6.iter())
    }

    /// The values present with their family, IPv4 first.
    pub fn entries(&self) -> impl Iterator<Item = (Family, &T)> {
        let v4 = self.v4.iter().map(|value| (Family::V4, value));
        v4.chain(self.v6.iter().map(|value| (Family::V6, value)))
    }

    /// Neither family has a value.
    pub fn is_empty(&self) -> bool {
        self.v4.is_none() && self.v6.is_none()
    }
}
