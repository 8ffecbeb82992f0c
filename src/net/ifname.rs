//! Pure. Names of network interfaces.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A name the kernel takes for an interface: 1 to 15 bytes.
///
/// Source: `dev_valid_name` in the kernel (no `/`, no `:`, no white space, not `.` or `..`); the
/// same rule stands in the CNI specification for `CNI_IFNAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IfName(String);

/// Why a text is no interface name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IfNameError {
    /// Empty.
    #[error("interface name is empty")]
    Empty,
    /// More than 15 bytes.
    #[error("interface name {0:?} is longer than 15 bytes")]
    TooLong(String),
    /// `.` or `..`.
    #[error("interface name {0:?} is not allowed")]
    Reserved(String),
    /// A character that the kernel refuses.
    #[error("interface name {0:?} contains {1:?}")]
    Character(String, char),
}

impl IfName {
    /// The longest name, in bytes: IFNAMSIZ of linux/if.h less its final zero.
    pub const MAX_BYTES: usize = 15;

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for IfName {
    type Err = IfNameError;

    fn from_str(text: &str) -> Result<Self, IfNameError> {
        if text.is_empty() {
            return Err(IfNameError::Empty);
        }
        if text.len() > Self::MAX_BYTES {
            return Err(IfNameError::TooLong(text.to_owned()));
        }
        if text == "." || text == ".." {
            return Err(IfNameError::Reserved(text.to_owned()));
        }
        let refused = |c: char| c == '/' || c == ':' || c == '\0' || c.is_whitespace();
        match text.chars().find(|c| refused(*c)) {
            Some(c) => Err(IfNameError::Character(text.to_owned(), c)),
            None => Ok(IfName(text.to_owned())),
        }
    }
}

impl TryFrom<String> for IfName {
    type Error = IfNameError;

    fn try_from(text: String) -> Result<Self, IfNameError> {
        text.parse()
    }
}

impl From<IfName> for String {
    fn from(name: IfName) -> String {
        name.0
    }
}

impl fmt::Display for IfName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_kernel_takes() {
        for good in ["eth0", "humanz0", "a", "fifteen-bytes-x", "br.100", "ü"] {
            assert_eq!(good.parse::<IfName>().unwrap().as_str(), good);
        }
    }

    #[test]
    fn names_the_kernel_refuses() {
        for bad in ["", ".", "..", "sixteen-bytes-xx", "a/b", "a:b", "a b", "a\u{a0}b", "a\tb"] {
            assert!(bad.parse::<IfName>().is_err(), "{bad:?} was taken");
        }
    }
}
