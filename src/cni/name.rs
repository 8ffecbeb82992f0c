//! Pure. Names of networks and containers, which become parts of paths.

use std::fmt;
use std::str::FromStr;

/// A network's name or a container's id: an ASCII letter or digit, then letters, digits, `_`, `.`
/// and `-`. It is never empty, `.` or `..` and has no `/`: a safe part of a path.
///
/// Source: CNI SPEC, "Network configuration format" (`name`) and "Parameters"
/// (`CNI_CONTAINERID`), which give both the same rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

/// A text that is not a [`Name`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} must start with a letter or digit and go on with letters, digits, '_', '.' and '-'")]
pub struct NameError(String);

impl Name {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Name, NameError> {
        let first = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
        let rest = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b));
        if first && rest { Ok(Name(text.to_owned())) } else { Err(NameError(text.to_owned())) }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_names_are_valid() {
        for good in ["a", "0", "cni-loopback", "k8s.io-c1", "A_b.c-1", "x..", "1"] {
            assert_eq!(good.parse::<Name>().unwrap().as_str(), good);
        }
    }

    #[test]
    fn names_that_could_leave_a_directory_are_refused() {
        let bad = ["", ".", "..", "../x", "a/b", "-a", "_a", "a b", "a\n", "ä", "a\0", "te%%st"];
        for bad in bad {
            assert!(bad.parse::<Name>().is_err(), "{bad:?} was taken");
        }
    }
}
