//! Pure. Keys of WireGuard: 32 bytes, as text in base64.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::net::text::is_text;

/// The key by which other hosts know this one: a point of Curve25519.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey(pub [u8; 32]);

/// The key that only its host has. It is shown nowhere: not in logs, not in errors.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKey([u8; 32]);

/// A text that is no key. Without the text, which may be a private key in the wrong place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a WireGuard key (44 characters of base64, not all zero)")]
pub struct KeyError;

impl PrivateKey {
    /// The key that these random bytes make. Source: RFC 7748 §5 (`decodeScalar25519`); the kernel does the
    /// same, and gives back what it made of them.
    pub fn of_random(mut bytes: [u8; 32]) -> PrivateKey {
        bytes[0] &= 248;
        bytes[31] = (bytes[31] & 127) | 64;
        PrivateKey(bytes)
    }

    /// For the kernel, and for the file that keeps it.
    pub fn secret_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// As it is written into the file that keeps it.
    pub fn secret_text(&self) -> String {
        STANDARD.encode(self.0)
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(…)")
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<PublicKey, KeyError> {
        decode(text).map(PublicKey)
    }
}

impl FromStr for PrivateKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<PrivateKey, KeyError> {
        decode(text).map(PrivateKey::of_random)
    }
}

is_text!(PublicKey);

pub(super) fn decode(text: &str) -> Result<[u8; 32], KeyError> {
    const LENGTH: usize = 44;
    if text.len() != LENGTH {
        return Err(KeyError);
    }
    let bytes = STANDARD.decode(text).map_err(|_| KeyError)?;
    let bytes: [u8; 32] = bytes.try_into().map_err(|_| KeyError)?;
    if bytes == [0; 32] { Err(KeyError) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_back_as_written() {
        let key = PublicKey([7; 32]);
        assert_eq!(key.to_string(), "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=");
        assert_eq!(key.to_string().parse(), Ok(key));
        let secret = PrivateKey::of_random([0xff; 32]);
        assert_eq!(secret.secret_text().parse(), Ok(secret));
    }

    #[test]
    fn what_is_no_key_is_refused_without_being_shown() {
        let zero = STANDARD.encode([0; 32]);
        let short = STANDARD.encode([7; 31]);
        let long = "B".repeat(1 << 20);
        for bad in
            ["", "key", &zero, &short, &long, "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBw==\n"]
        {
            assert_eq!(bad.parse::<PublicKey>(), Err(KeyError), "{bad:.50}");
        }
        assert!(!KeyError.to_string().contains("Bwc"));
        assert_eq!(format!("{:?}", PrivateKey::of_random([7; 32])), "PrivateKey(…)");
    }

    #[test]
    fn a_private_key_is_the_scalar_that_the_kernel_makes_of_it() {
        let key = PrivateKey::of_random([0xff; 32]);
        assert_eq!((key.secret_bytes()[0], key.secret_bytes()[31]), (0xf8, 0x7f));
    }
}
