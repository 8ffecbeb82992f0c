//! Pure. Errors as the runtime sees them.

use serde_json::{Value, json};

use crate::cni::version::{Version, listed};

/// Error codes. Below 100 they are the specification's, from 100 on humanz's own.
///
/// Source: CNI SPEC, section "Error".
pub mod code {
    /// The configuration asks for a version, or for a verb in a version, that is not there.
    pub const INCOMPATIBLE_VERSION: u32 = 1;
    /// A key asks for something that humanz does not have; the message carries key and value.
    pub const UNSUPPORTED_FIELD: u32 = 2;
    /// The container is unknown; tells the runtime that no DEL is needed.
    pub const UNKNOWN_CONTAINER: u32 = 3;
    /// An environment variable is missing or wrong.
    pub const ENVIRONMENT: u32 = 4;
    /// Reading or writing failed.
    pub const IO: u32 = 5;
    /// Not JSON, or a version that cannot be read.
    pub const DECODE: u32 = 6;
    /// A value in the configuration is wrong.
    pub const CONFIG: u32 = 7;
    /// `CNI_NETNS` is the host's own namespace, or none.
    pub const NETNS: u32 = 8;
    /// Something that passes; the runtime should ask again.
    pub const TRY_AGAIN: u32 = 11;
    /// STATUS: no ADD can be served now.
    pub const NOT_AVAILABLE: u32 = 50;
    /// STATUS: no ADD can be served now, and running containers may have lost their network.
    pub const NOT_AVAILABLE_LIMITED: u32 = 51;
    /// Anything else.
    pub const INTERNAL: u32 = 999;

    /// Every address of the configured ranges is taken.
    pub const EXHAUSTED: u32 = 100;
    /// A requested address cannot be had: taken, or outside the ranges.
    pub const ADDRESS_REFUSED: u32 = 101;
    /// This interface of this container is attached already.
    pub const ALREADY_ATTACHED: u32 = 102;
    /// CHECK found something other than `prevResult` says.
    pub const CHECK_FAILED: u32 = 103;
    /// A port of the host that was asked for belongs to another container.
    pub const PORT_TAKEN: u32 = 104;
    /// The bridge takes no more pods.
    pub const BRIDGE_FULL: u32 = 105;

    /// All of them.
    pub const ALL: [u32; 18] = [
        INCOMPATIBLE_VERSION,
        UNSUPPORTED_FIELD,
        UNKNOWN_CONTAINER,
        ENVIRONMENT,
        IO,
        DECODE,
        CONFIG,
        NETNS,
        TRY_AGAIN,
        NOT_AVAILABLE,
        NOT_AVAILABLE_LIMITED,
        EXHAUSTED,
        ADDRESS_REFUSED,
        ALREADY_ATTACHED,
        CHECK_FAILED,
        PORT_TAKEN,
        BRIDGE_FULL,
        INTERNAL,
    ];
}

/// An error for the runtime: one of [`code`], what failed, and the chain behind it.
///
/// Runtimes look into the text of a failed DEL: containerd takes `not found` (and, without a
/// namespace, `no such file or directory`) for success. Neither may stand in a real failure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{msg}")]
pub struct CniError {
    /// One of [`code`].
    pub code: u32,
    /// What failed, on what, and what to do: one line.
    pub msg: String,
    /// More, if there is more to say.
    pub details: Option<String>,
}

impl CniError {
    /// An error of one of the [`code`]s.
    pub fn new(code: u32, msg: impl Into<String>) -> CniError {
        CniError { code, msg: msg.into(), details: None }
    }

    /// The same with `details`.
    pub fn with_details(self, details: impl Into<String>) -> CniError {
        CniError { details: Some(details.into()), ..self }
    }

    /// Code 1: the configuration's version is none of ours; the details list both sides.
    pub fn incompatible_version(wanted: &str) -> CniError {
        let msg = "incompatible CNI versions";
        let details = format!("the configuration wants {wanted:?}, humanz supports {}", listed());
        CniError::new(code::INCOMPATIBLE_VERSION, msg).with_details(details)
    }

    /// Code 4.
    pub fn environment(msg: impl Into<String>) -> CniError {
        CniError::new(code::ENVIRONMENT, msg)
    }

    /// Code 5.
    pub fn io(msg: impl Into<String>) -> CniError {
        CniError::new(code::IO, msg)
    }

    /// Code 6.
    pub fn decode(msg: impl Into<String>) -> CniError {
        CniError::new(code::DECODE, msg)
    }

    /// Code 7.
    pub fn config(msg: impl Into<String>) -> CniError {
        CniError::new(code::CONFIG, msg)
    }

    /// Code 8.
    pub fn netns(msg: impl Into<String>) -> CniError {
        CniError::new(code::NETNS, msg)
    }

    /// Code 11.
    pub fn try_again(msg: impl Into<String>) -> CniError {
        CniError::new(code::TRY_AGAIN, msg)
    }

    /// Code 50.
    pub fn not_available(msg: impl Into<String>) -> CniError {
        CniError::new(code::NOT_AVAILABLE, msg)
    }

    /// Code 999.
    pub fn internal(msg: impl Into<String>) -> CniError {
        CniError::new(code::INTERNAL, msg)
    }

    /// The error object for a request of `version`: `cniVersion`, `code`, `msg`, `details` if any.
    pub fn to_json(&self, version: Version) -> Value {
        let mut object =
            json!({ "cniVersion": version.as_str(), "code": self.code, "msg": self.msg });
        if let Some(details) = &self.details {
            object["details"] = json!(details);
        }
        object
    }
}

/// A request that was refused before it was served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct RefusedRequest {
    /// The version to answer in: the configuration's, or the newest if that could not be read.
    pub version: Version,
    /// Why.
    pub error: CniError,
}

impl From<anyhow::Error> for CniError {
    /// A `CniError` anywhere in the chain gives the code, anything else is 999; `msg` is the
    /// outermost text, `details` the rest of the chain.
    fn from(error: anyhow::Error) -> CniError {
        let inner = error.downcast_ref::<CniError>();
        let code = inner.map_or(code::INTERNAL, |inner| inner.code);
        let mut texts: Vec<String> = error.chain().map(|cause| cause.to_string()).collect();
        texts.extend(inner.and_then(|inner| inner.details.clone()));
        let msg = texts.remove(0);
        let details = (!texts.is_empty()).then(|| texts.join(": "));
        CniError { code, msg, details }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn every_code_is_among_all() {
        let source = include_str!("error.rs");
        let codes = source.lines().filter_map(|line| line.trim().strip_prefix("pub const "));
        let codes = codes.filter_map(|line| line.split_once(": u32 = ")?.1.strip_suffix(';'));
        let codes: Vec<u32> = codes.map(|code| code.parse().unwrap()).collect();
        let sorted = |mut codes: Vec<u32>| {
            codes.sort_unstable();
            codes
        };
        assert_eq!(sorted(codes), sorted(code::ALL.to_vec()));
    }

    #[test]
    fn the_object_has_the_keys_of_the_specification() {
        let error = CniError::io("read the configuration").with_details("stdin is closed");
        let expected = json!({
            "cniVersion": "1.0.0", "code": 5,
            "msg": "read the configuration", "details": "stdin is closed",
        });
        assert_eq!(error.to_json(Version::V100), expected);
    }

    #[test]
    fn details_may_be_absent() {
        let expected = json!({ "cniVersion": "0.4.0", "code": 11, "msg": "busy" });
        assert_eq!(CniError::try_again("busy").to_json(Version::V040), expected);
    }

    #[test]
    fn a_version_that_nobody_speaks_is_answered_with_both_sides() {
        let error = CniError::incompatible_version("4.3.2");
        assert_eq!(error.code, 1);
        let details = error.details.unwrap();
        assert!(details.contains("4.3.2") && details.contains("0.1.0, 0.2.0"), "{details}");
    }

    #[test]
    fn a_typed_error_keeps_its_code() {
        let error: anyhow::Error = CniError::new(1234, "potato").into();
        assert_eq!(CniError::from(error), CniError::new(1234, "potato"));
    }

    #[test]
    fn an_untyped_error_is_999() {
        assert_eq!(CniError::from(anyhow!("potato")), CniError::new(999, "potato"));
    }

    #[test]
    fn context_goes_in_front_and_the_chain_behind() {
        let typed: anyhow::Error = CniError::config("bad subnet").with_details("/33").into();
        let error = CniError::from(typed.context("open the store").context("add eth0"));
        let expected = CniError::new(7, "add eth0").with_details("open the store: bad subnet: /33");
        assert_eq!(error, expected);
        let io: Result<(), _> = Err(std::io::Error::other("disk on fire"));
        let error = CniError::from(io.context("write owner").unwrap_err());
        assert_eq!(error, CniError::new(999, "write owner").with_details("disk on fire"));
    }
}
