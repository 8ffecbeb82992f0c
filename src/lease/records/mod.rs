//! Pure. What stands in etcd: keys and values, as text and as types.
//!
//! Whoever can write to etcd may write anything there: every value is parsed here, with limits, and
//! what cannot be parsed is a [`RecordError`], never a panic and never half a record.

mod alive;
mod config;
mod error;
mod node;
mod reachability;
mod roots;

pub use crate::net::node_name::{NodeName, NodeNameError};
pub use alive::Alive;
pub use config::{Ancestor, ClusterConfig};
pub use error::RecordError;
pub use node::{Backend, NodeRecord, Tunnel, Vxlan};
pub use reachability::{Row, Sight, TIMED, WayFault};
pub use roots::{Key, Roots};

use ipnetwork::IpNetwork;

use crate::net::subnet;

/// The newest `schema` of a JSON value that is understood here, and the one that is written.
pub const SCHEMA: u32 = 1;

/// Longest text of a host key or of a claim, in bytes: both are shorter than a DNS name.
const TEXT_LIMIT: usize = 256;

/// Longest JSON value, in bytes: a node record is about 400.
const JSON_LIMIT: usize = 16 * 1024;

/// The subnet of a host key. White space around it (an operator's `echo … | etcdctl put`) is let
/// through.
///
/// # Errors
/// [`RecordError`] unless `value` is one CIDR without host bits.
pub fn host_value(value: &[u8]) -> Result<IpNetwork, RecordError> {
    Ok(subnet::parse(text(value, TEXT_LIMIT)?.trim())?)
}

/// The host that a claim names.
///
/// # Errors
/// [`RecordError`] unless `value` is a host name.
pub fn claim_value(value: &[u8]) -> Result<NodeName, RecordError> {
    Ok(text(value, TEXT_LIMIT)?.trim().parse()?)
}

/// `value` as text of at most `limit` bytes.
fn text(value: &[u8], limit: usize) -> Result<&str, RecordError> {
    if value.len() > limit {
        return Err(RecordError::TooLong { bytes: value.len(), limit });
    }
    std::str::from_utf8(value).map_err(|_| RecordError::NotUtf8)
}

/// `value` as a JSON object of at most [`JSON_LIMIT`] bytes.
fn json<T: serde::de::DeserializeOwned>(value: &[u8]) -> Result<T, RecordError> {
    /// Read first, so that a later schema is called that and not a syntax error.
    #[derive(serde::Deserialize)]
    struct Versioned {
        schema: u32,
    }
    let text = text(value, JSON_LIMIT)?;
    let reason = |error: serde_json::Error| RecordError::Json(error.to_string());
    match serde_json::from_str::<Versioned>(text).map_err(reason)?.schema {
        SCHEMA => serde_json::from_str(text).map_err(reason),
        newer => Err(RecordError::Schema(newer)),
    }
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
