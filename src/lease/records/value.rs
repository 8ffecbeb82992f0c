//! Pure. Values of etcd as text and JSON, with limits.

use ipnetwork::IpNetwork;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};

use crate::lease::records::{NodeName, RecordError};
use crate::net::shown::shown;
use crate::net::subnet;

/// The `schema` of a JSON value that is understood and written.
pub const SCHEMA: u32 = 1;

/// Longest text of a host key or of a claim, in bytes: both are shorter than a DNS name.
const TEXT_LIMIT: usize = 256;

/// Longest text inside a JSON value that people see.
pub const LABEL_LIMIT: usize = 128;

/// Characters of an error that may quote a value.
const WHY: usize = 200;

/// Longest JSON value, in bytes: a node record is about 400.
const JSON_LIMIT: usize = 16 * 1024;

/// The subnet of a host key. White space around it (an operator's `echo … | etcdctl put`) is
/// ignored.
///
/// # Errors
/// [`RecordError`] unless `value` is one CIDR without host bits.
pub fn host_value(value: &[u8]) -> Result<IpNetwork, RecordError> {
    Ok(subnet::parse(text(value)?.trim())?)
}

/// The host of a claim.
///
/// # Errors
/// [`RecordError`] unless `value` is a host name.
pub fn claim_value(value: &[u8]) -> Result<NodeName, RecordError> {
    Ok(text(value)?.trim().parse()?)
}

/// The text in a value.
///
/// # Errors
/// [`RecordError`] unless `value` is a short text.
pub fn text(value: &[u8]) -> Result<&str, RecordError> {
    utf8(limited(value, TEXT_LIMIT)?)
}

fn utf8(value: &[u8]) -> Result<&str, RecordError> {
    std::str::from_utf8(value).map_err(|_| RecordError::NotUtf8)
}

/// `value`, if it has at most `limit` bytes.
pub fn limited(value: &[u8], limit: usize) -> Result<&[u8], RecordError> {
    if value.len() > limit {
        return Err(RecordError::TooLong { bytes: value.len(), limit });
    }
    Ok(value)
}

/// A text of a record that people see: an id, a version, a time.
pub fn label<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Box<str>, D::Error> {
    let text = Box::<str>::deserialize(deserializer)?;
    let printable = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
    if text.len() > LABEL_LIMIT || !text.bytes().all(printable) {
        let start = shown(&text, 32);
        return Err(D::Error::custom(format!(
            "text {start} is not at most {LABEL_LIMIT} printable ASCII characters"
        )));
    }
    Ok(text)
}

/// `value` as a JSON object of at most [`JSON_LIMIT`] bytes.
pub fn json<T: DeserializeOwned>(value: &[u8]) -> Result<T, RecordError> {
    json_within(value, JSON_LIMIT)
}

/// `value` as a JSON object of at most `limit` bytes.
pub fn json_within<T: DeserializeOwned>(value: &[u8], limit: usize) -> Result<T, RecordError> {
    /// Read first, so that the error of a later schema is that and not a syntax error.
    #[derive(serde::Deserialize)]
    struct Versioned {
        schema: u32,
    }
    let text = utf8(limited(value, limit)?)?;
    let reason = |error: serde_json::Error| RecordError::Json(shown(&error.to_string(), WHY));
    match serde_json::from_slice::<Versioned>(text.as_bytes()).map_err(reason)?.schema {
        SCHEMA => serde_json::from_slice(text.as_bytes()).map_err(reason),
        newer => Err(RecordError::Schema { found: newer, known: SCHEMA }),
    }
}

pub fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("strings and numbers always serialise")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_key_holds_one_subnet() {
        assert_eq!(host_value(b"10.244.3.0/24\n").unwrap().to_string(), "10.244.3.0/24");
        assert_eq!(host_value(b"fd00:0:0:3::/64").unwrap().to_string(), "fd00:0:0:3::/64");
    }

    #[test]
    fn hostile_host_keys_are_refused() {
        let long = vec![b'1'; 1 << 20];
        let cases: [(&[u8], &str); 6] = [
            (b"10.244.3.0/24; touch /x", "not a subnet"),
            (b"$(reboot)", "not a subnet"),
            (b"", "not a subnet"),
            (b"10.244.3.7/24", "host bits"),
            (b"\xff\xfe", "not UTF-8"),
            (&long, "1048576 bytes"),
        ];
        for (value, reason) in cases {
            let error = host_value(value).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn a_claim_names_a_host() {
        assert_eq!(claim_value(b"h1").unwrap().as_str(), "h1");
        assert!(claim_value(b"h 1").is_err());
        assert!(claim_value(b"../etc").is_err());
    }
}
