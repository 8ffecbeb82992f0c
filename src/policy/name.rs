//! Pure. Names of policies, namespaces, pods, tenants, groups, networks and ports.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::net::text::is_text;

/// A name: 1 to 253 bytes of ASCII letters, digits, `-`, `.`, `_`, first a letter or digit. It stands
/// in keys and in names of nftables objects, so nothing else gets through. A copy costs a reference
/// count.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ObjectName(Arc<str>);

/// A text that is no name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a name (1 to 253 letters, digits, '-', '.', '_')")]
pub struct ObjectNameError(String);

/// A name inside a tenant: a group or a network.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scoped {
    pub tenant: ObjectName,
    pub name: ObjectName,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PodName {
    pub namespace: ObjectName,
    pub name: ObjectName,
}

impl ObjectName {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 253;

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Scoped {
    /// `NAME`, then of `tenant`, or `TENANT/NAME`.
    ///
    /// # Errors
    /// One of the two is no name.
    pub fn parse(text: &str, tenant: &ObjectName) -> Result<Scoped, ObjectNameError> {
        Ok(match text.split_once('/') {
            Some((tenant, name)) => Scoped { tenant: tenant.parse()?, name: name.parse()? },
            None => Scoped { tenant: tenant.clone(), name: text.parse()? },
        })
    }
}

impl FromStr for ObjectName {
    type Err = ObjectNameError;

    fn from_str(text: &str) -> Result<ObjectName, ObjectNameError> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
        let starts_well = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
        if starts_well && text.len() <= ObjectName::MAX_BYTES && text.bytes().all(allowed) {
            Ok(ObjectName(text.into()))
        } else {
            Err(ObjectNameError(text.chars().take(64).collect()))
        }
    }
}

is_text!(ObjectName);

impl Borrow<str> for ObjectName {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Display for PodName {
    /// `namespace/name`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Display for Scoped {
    /// `tenant/name`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.tenant, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_objects_are_taken() {
        for good in ["web", "kube-system", "a.b-c_D", "0", &"a".repeat(253)] {
            assert_eq!(good.parse::<ObjectName>().unwrap().as_str(), good);
        }
    }

    #[test]
    fn what_could_leave_a_key_or_reach_a_shell_is_refused() {
        for bad in ["", "..", "-a", "a/b", "a b", "a;b", "a\n", "ü", "$(id)", &"a".repeat(254)] {
            assert!(bad.parse::<ObjectName>().is_err(), "{bad:?} was taken");
            assert!(serde_json::from_value::<ObjectName>(bad.into()).is_err(), "{bad:?} was read");
        }
    }
}
