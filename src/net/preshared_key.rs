//! Pure. What two hosts have besides their WireGuard keys, made of a secret that all hosts have.
//!
//! Whoever has neither the secret nor a host's file gets no handshake, whatever key is put into a record, and what
//! was recorded stays closed to a computer that solves for private keys. Source: the WireGuard paper §5.2.

use std::fmt;
use std::str::FromStr;

use ring::hmac;

use crate::net::PublicKey;
use crate::net::wireguard_key::{KeyError, decode};

/// Before the keys of the pair, so that the secret may be of use elsewhere.
const LABEL: &[u8] = b"humanz pre-shared key of a pair, 1";

/// What all hosts have. It is shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct PresharedSecret([u8; 32]);

/// What two devices have besides their keys. It is shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct PresharedKey([u8; 32]);

impl PresharedSecret {
    /// That of the devices with these keys, in any order: HMAC-SHA256 under the secret, of label, lesser and
    /// greater key.
    pub fn of_pair(&self, one: PublicKey, other: PublicKey) -> PresharedKey {
        let mut code = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &self.0));
        code.update(LABEL);
        code.update(&one.min(other).0);
        code.update(&one.max(other).0);
        let bytes = code.sign().as_ref().try_into();
        PresharedKey(bytes.expect("SHA-256 has 32 bytes"))
    }
}

impl PresharedKey {
    /// As the kernel has it; `None`: all zero, which is none.
    pub fn of_kernel(bytes: [u8; 32]) -> Option<PresharedKey> {
        (bytes != [0; 32]).then_some(PresharedKey(bytes))
    }

    /// For the kernel.
    pub fn secret_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl FromStr for PresharedSecret {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<PresharedSecret, KeyError> {
        decode(text).map(PresharedSecret)
    }
}

impl fmt::Debug for PresharedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PresharedSecret(…)")
    }
}

impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PresharedKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    const SECRET: &str = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=";

    fn pair(secret: &str, one: u8, other: u8) -> String {
        let secret: PresharedSecret = secret.parse().unwrap();
        let key = secret.of_pair(PublicKey([one; 32]), PublicKey([other; 32]));
        STANDARD.encode(key.secret_bytes())
    }

    /// By Python 3: `hmac.new(secret, label + min(keys) + max(keys), "sha256")`.
    #[test]
    fn another_program_makes_the_same_of_it() {
        let ones = STANDARD.encode([0xff; 32]);
        for (secret, one, other, expected) in [
            (SECRET, 7, 9, "YwekB9BkKaez0WGDGoljIKDFvz8pjzhbE00kW4sVA+g="),
            (SECRET, 9, 7, "YwekB9BkKaez0WGDGoljIKDFvz8pjzhbE00kW4sVA+g="),
            (SECRET, 9, 0xfe, "mTpSUjgOJQ8j0N0z4zP2EeRBQl72iZR/91EQmvgZ2WI="),
            (&ones, 7, 9, "YRwobZl6P+WIanMzEoHD9wX7Q53pGb9dUXf4ykfuzcY="),
        ] {
            assert_eq!(pair(secret, one, other), expected, "{one} with {other}");
        }
    }

    #[test]
    fn neither_secret_nor_key_is_shown() {
        let secret: PresharedSecret = SECRET.parse().unwrap();
        let key = secret.of_pair(PublicKey([7; 32]), PublicKey([9; 32]));
        let shown = format!("{secret:?} {key:?}");
        assert_eq!(shown, "PresharedSecret(…) PresharedKey(…)");
        assert_eq!(PresharedKey::of_kernel([0; 32]), None);
    }
}
