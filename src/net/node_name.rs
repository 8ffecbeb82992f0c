//! Pure. Names of hosts, as they stand in keys.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::net::text::is_text;

/// The name of a host: 1 to 253 bytes of ASCII letters, digits, `-`, `.`, `_`, first a letter or
/// digit. It is part of keys and is looked up in the name service, so nothing else gets through.
///
/// Source: RFC 1123 §2.1, and `_`, which kernel host names do have. A copy costs a reference count.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(Arc<str>);

/// A text that is no host name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a host name (1 to 253 letters, digits, '-', '.', '_')")]
pub struct NodeNameError(String);

impl NodeName {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 253;

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeName {
    type Err = NodeNameError;

    fn from_str(text: &str) -> Result<NodeName, NodeNameError> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
        let starts_well = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
        if starts_well && text.len() <= NodeName::MAX_BYTES && text.bytes().all(allowed) {
            Ok(NodeName(text.into()))
        } else {
            Err(NodeNameError(text.chars().take(64).collect()))
        }
    }
}

is_text!(NodeName);

impl Borrow<str> for NodeName {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_are_taken() {
        for good in ["h1", "node-7.example.com", "A_b", "0", &"a".repeat(253)] {
            assert_eq!(good.parse::<NodeName>().unwrap().as_str(), good);
        }
    }

    #[test]
    fn what_could_leave_the_key_or_reach_a_shell_is_refused() {
        for bad in ["", "..", "-a", "a/b", "a b", "a;b", "a\n", "ü", "$(id)", &"a".repeat(254)] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad:?} was taken");
        }
    }
}
