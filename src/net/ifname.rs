//! Pure. Names of network interfaces.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A name of an interface: 1 to 15 bytes. Parsed from a text, it is one that can be asked for;
/// [`IfName::found`] reads one that is there already.
///
/// Source: `dev_valid_name` in the kernel (no `/`, no `:`, no white space, not `.` or `..`); the
/// same rule stands in the CNI specification for `CNI_IFNAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct IfName(String);

/// Why a text is no interface name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IfNameError {
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
    /// The kernel would choose another name by it.
    #[error("interface name {0:?} contains '%': the kernel would make a new name of it every time")]
    Pattern(String),
    /// A folder below `/proc/sys/net/ipv4/conf` that is no interface's.
    #[error(
        "interface name {0:?} is not allowed: in /proc/sys/net/ipv4/conf it means no interface"
    )]
    NotOne(String),
}

impl IfName {
    /// The longest name, in bytes: IFNAMSIZ of linux/if.h less its final zero.
    pub const MAX_BYTES: usize = 15;

    /// The name of an interface that somebody made, or speaks of: by the kernel's rule alone.
    ///
    /// # Errors
    /// [`IfNameError`].
    pub fn found(text: &str) -> Result<IfName, IfNameError> {
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

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for IfName {
    type Err = IfNameError;

    /// Source: `__dev_alloc_name` of the kernel for `%d`, `devinet_sysctl_register` for the names
    /// of folders.
    fn from_str(text: &str) -> Result<Self, IfNameError> {
        let name = Self::found(text)?;
        match text {
            "all" | "default" => Err(IfNameError::NotOne(name.0)),
            _ if text.contains('%') => Err(IfNameError::Pattern(name.0)),
            _ => Ok(name),
        }
    }
}

impl TryFrom<String> for IfName {
    type Error = IfNameError;

    fn try_from(text: String) -> Result<Self, IfNameError> {
        Self::found(&text)
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
            assert!(IfName::found(bad).is_err(), "{bad:?} was found");
        }
    }

    #[test]
    fn names_that_would_make_another_interface_or_none_are_read_but_never_asked_for() {
        for bad in ["hz%d", "e%d", "%d", "50%", "all", "default"] {
            assert!(bad.parse::<IfName>().is_err(), "{bad:?} was taken");
            assert_eq!(IfName::found(bad).unwrap().as_str(), bad);
        }
        for good in ["all0", "default.1", "All"] {
            assert!(good.parse::<IfName>().is_ok(), "{good:?} was refused");
        }
    }
}
