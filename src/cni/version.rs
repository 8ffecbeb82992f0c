//! Pure. Versions of the CNI protocol.

use std::fmt;
use std::str::FromStr;

use serde_json::{Value, json};

/// A supported version, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// 0.1.0; also what a configuration without `cniVersion` means.
    V010,
    /// 0.2.0.
    V020,
    /// 0.3.0: results list interfaces.
    V030,
    /// 0.3.1.
    V031,
    /// 0.4.0: CHECK.
    V040,
    /// 1.0.0: addresses lose their `version`.
    V100,
    /// 1.1.0: GC and STATUS.
    V110,
}

/// Every supported version, oldest first.
pub const SUPPORTED: [Version; 7] = {
    use Version::*;
    [V010, V020, V030, V031, V040, V100, V110]
};

/// A version that is none of [`SUPPORTED`], spelled exactly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("CNI version {0:?} is not supported; supported are {list}", list = listed())]
pub struct UnsupportedVersion(pub String);

/// A text that is not made of up to three dotted numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a version (up to three numbers with dots, as in 1.0.0)")]
pub struct MalformedVersion(pub String);

impl Version {
    pub const LATEST: Version = Version::V110;

    pub const fn as_str(self) -> &'static str {
        match self {
            Version::V010 => "0.1.0",
            Version::V020 => "0.2.0",
            Version::V030 => "0.3.0",
            Version::V031 => "0.3.1",
            Version::V040 => "0.4.0",
            Version::V100 => "1.0.0",
            Version::V110 => "1.1.0",
        }
    }
}

impl FromStr for Version {
    type Err = UnsupportedVersion;

    /// Exactly one of [`SUPPORTED`]; the empty text is 0.1.0.
    ///
    /// Source: runtimes compare versions as strings, so `1.0` is not `1.0.0`.
    fn from_str(text: &str) -> Result<Version, UnsupportedVersion> {
        if text.is_empty() {
            return Ok(Version::V010);
        }
        let found = SUPPORTED.into_iter().find(|version| version.as_str() == text);
        found.ok_or_else(|| UnsupportedVersion(text.to_owned()))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The numbers of a version: major, minor, patch; absent ones are 0 and the empty text is 0.1.0.
///
/// # Errors
/// [`MalformedVersion`] for more than three parts, or a part that is not a number.
pub fn numbers(text: &str) -> Result<[u32; 3], MalformedVersion> {
    if text.is_empty() {
        return Ok([0, 1, 0]);
    }
    let malformed = || MalformedVersion(text.to_owned());
    let mut numbers = [0; 3];
    for (place, part) in text.split('.').enumerate() {
        let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let number = part.parse().ok().filter(|_| digits).ok_or_else(malformed)?;
        *numbers.get_mut(place).ok_or_else(malformed)? = number;
    }
    Ok(numbers)
}

/// The supported versions as one line: `0.1.0, 0.2.0, …`.
pub fn listed() -> String {
    SUPPORTED.map(Version::as_str).join(", ")
}

/// The reply to VERSION: `cniVersion` (the newest) and `supportedVersions`.
pub fn reply() -> Value {
    json!({
        "cniVersion": Version::LATEST.as_str(),
        "supportedVersions": SUPPORTED.map(Version::as_str),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_supported_version_comes_back_as_it_was_written() {
        for version in SUPPORTED {
            assert_eq!(version.as_str().parse(), Ok(version));
        }
    }

    #[test]
    fn a_missing_version_is_the_oldest() {
        assert_eq!("".parse(), Ok(Version::V010));
        assert_eq!(numbers(""), Ok([0, 1, 0]));
    }

    #[test]
    fn only_the_exact_text_counts() {
        for other in ["1.0", "1.0.0 ", "v1.0.0", "01.0.0", "4.3.2", "0.5.0", "1.1.1"] {
            assert!(other.parse::<Version>().is_err(), "{other:?} was taken");
        }
    }

    #[test]
    fn versions_are_ordered_by_age() {
        assert!(SUPPORTED.is_sorted());
        assert_eq!(SUPPORTED.last(), Some(&Version::LATEST));
    }

    #[test]
    fn numbers_are_compared_as_numbers() {
        assert!(numbers("1.2.34").unwrap() > numbers("1.2.14").unwrap());
        assert!(numbers("1.10").unwrap() > numbers("1.9.9").unwrap());
        assert_eq!(numbers("1"), Ok([1, 0, 0]));
    }

    #[test]
    fn what_is_not_up_to_three_numbers_is_malformed() {
        for bad in
            ["1.2.3.4.5", "1.2.3.4", "0.", ".", "asdf", "adsfsadf", "1.0.f", "+1.0", "99999999999"]
        {
            assert_eq!(numbers(bad), Err(MalformedVersion(bad.to_owned())));
        }
    }

    #[test]
    fn version_lists_all_seven() {
        let expected = json!({
            "cniVersion": "1.1.0",
            "supportedVersions": ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"],
        });
        assert_eq!(reply(), expected);
    }
}
