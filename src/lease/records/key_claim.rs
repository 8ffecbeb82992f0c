//! Pure. The WireGuard keys that a host claims.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::lease::records::value::text;
use crate::lease::records::{RecordError, WireguardEnd};
use crate::net::text::is_text;
use crate::net::{KeyError, PublicKey};

/// As text the key, and behind a space the one from which the host changes to it.
///
/// The claim of a key is its proof: a host that changes keys would give up that of the one in use with the claim
/// of the next one, and any host could take it until the change is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyClaim {
    pub key: PublicKey,
    /// The one before.
    pub former: Option<PublicKey>,
}

/// The WireGuard keys that a host claims.
///
/// # Errors
/// [`RecordError`] unless `value` is a public key, or two.
pub fn wireguard_value(value: &[u8]) -> Result<KeyClaim, RecordError> {
    Ok(text(value)?.trim().parse()?)
}

impl KeyClaim {
    /// That of a host which is about to publish `end`.
    pub fn of(end: WireguardEnd) -> KeyClaim {
        let key = end.newest();
        KeyClaim { key, former: Some(end.public_key).filter(|former| *former != key) }
    }

    pub fn keys(self) -> impl Iterator<Item = PublicKey> {
        std::iter::once(self.key).chain(self.former)
    }

    /// Nothing must be written for a host that publishes `end`: one that has finished a change still claims the
    /// former key, as a claim that is written again would be a younger proof of the key in use.
    pub fn covers(self, end: WireguardEnd) -> bool {
        self.key == end.newest() && end.keys().all(|key| self.keys().any(|claimed| claimed == key))
    }
}

impl fmt::Display for KeyClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key.fmt(f)?;
        self.former.map_or(Ok(()), |former| write!(f, " {former}"))
    }
}

impl FromStr for KeyClaim {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<KeyClaim, KeyError> {
        let Some((key, former)) = text.split_once(' ') else {
            return Ok(KeyClaim { key: text.parse()?, former: None });
        };
        Ok(KeyClaim { key: key.parse()?, former: Some(former.parse()?) })
    }
}

is_text!(KeyClaim);

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;

    fn key(number: u8) -> PublicKey {
        PublicKey([number; 32])
    }

    fn end(first: u8, next: Option<u8>) -> WireguardEnd {
        let port = NonZeroU16::new(10401).unwrap();
        WireguardEnd { next: next.map(key), ..WireguardEnd::new(key(first), port) }
    }

    #[test]
    fn a_claim_outlives_the_change_that_it_was_written_for() {
        let first = KeyClaim::of(end(1, None));
        assert_eq!(first.to_string(), key(1).to_string(), "as versions without changes write it");
        assert!(!first.covers(end(1, Some(8))));
        let change = KeyClaim::of(end(1, Some(8)));
        assert_eq!(change, KeyClaim { key: key(8), former: Some(key(1)) });
        for later in [end(1, Some(8)), end(8, Some(8)), end(8, None)] {
            assert!(change.covers(later), "{later:?}");
        }
        assert!(!change.covers(end(8, Some(9))));
        assert!(!change.covers(end(1, None)), "a disk of before the change is back");
        assert!(
            !KeyClaim::of(end(8, None)).covers(end(1, Some(8))),
            "the present one is unclaimed"
        );
    }

    #[test]
    fn a_claim_is_read_back_as_written_and_garbage_is_refused() {
        for claim in [KeyClaim::of(end(1, None)), KeyClaim::of(end(1, Some(8)))] {
            assert_eq!(claim.to_string().parse(), Ok(claim));
        }
        let key = key(1);
        for bad in [format!("{key} "), format!(" {key}"), format!("{key} {key} {key}")] {
            assert_eq!(bad.parse::<KeyClaim>(), Err(KeyError), "{bad}");
        }
    }

    #[test]
    fn hostile_claims_of_wireguard_keys_are_refused() {
        let key = PublicKey([7; 32]);
        let claim = KeyClaim { key, former: None };
        assert_eq!(wireguard_value(format!("{key}\n").as_bytes()), Ok(claim));
        let long = vec![b'B'; 1 << 20];
        let zero = [b'A'; 43].into_iter().chain(*b"=").collect::<Vec<_>>();
        for value in [&b""[..], b"h1", b"\xff\xfe", b"\x1b[2J", &long, &zero] {
            let error = wireguard_value(value).unwrap_err().to_string();
            assert!(error.len() < 100 && !error.contains('\u{1b}'), "{error}");
        }
    }
}
