//! Pure. Errors as the runtime sees them.

use serde_json::{Value, json};

use crate::cni::version::{Version, listed};

/// Error codes. Below 100 they are the specification's, from 100 on humanz's own.
///
/// Source: CNI SPEC, section "Error".
pub mod code {
    macro_rules! codes {
        ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
            $($(#[$doc])* pub const $name: u32 = $code;)*
            pub const ALL: [u32; [$($code),*].len()] = [$($code),*];
        };
    }

    codes! {
        /// The configuration asks for a version, or for a verb in a version, that does not exist.
        INCOMPATIBLE_VERSION = 1;
        /// A key asks for something that humanz does not have; the message has key and value.
        UNSUPPORTED_FIELD = 2;
        /// The container is unknown: no DEL is needed.
        UNKNOWN_CONTAINER = 3;
        /// An environment variable is missing or invalid.
        ENVIRONMENT = 4;
        IO = 5;
        /// Not JSON, or an invalid version.
        DECODE = 6;
        /// An invalid value in the configuration.
        CONFIG = 7;
        /// `CNI_NETNS` is the host's own namespace, or not a namespace.
        NETNS = 8;
        /// A temporary condition; the runtime should try again.
        TRY_AGAIN = 11;
        /// STATUS: no ADD can be served now.
        NOT_AVAILABLE = 50;
        /// STATUS: no ADD can be served now, and running containers may have lost their network.
        NOT_AVAILABLE_LIMITED = 51;
        /// Every address of the configured ranges is taken.
        EXHAUSTED = 100;
        /// A requested address is taken, or outside the ranges.
        ADDRESS_REFUSED = 101;
        /// This interface of this container is already attached.
        ALREADY_ATTACHED = 102;
        /// CHECK found something other than `prevResult` says.
        CHECK_FAILED = 103;
        /// A requested host port belongs to another container.
        PORT_TAKEN = 104;
        /// The bridge has no free port.
        BRIDGE_FULL = 105;
        /// Anything else.
        INTERNAL = 999;
    }
}

/// An error for the runtime.
///
/// Runtimes search the text of a failed DEL: containerd takes `not found` (and, without a namespace,
/// `no such file or directory`) for success. Neither may occur in a real failure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{msg}")]
pub struct CniError {
    /// One of [`code`].
    pub code: u32,
    /// What failed, on what, and what to do: one line.
    pub msg: String,
    /// The chain of sources, or more.
    pub details: Option<String>,
}

impl CniError {
    pub fn new(code: u32, msg: impl Into<String>) -> CniError {
        CniError { code, msg: msg.into(), details: None }
    }

    pub fn with_details(self, details: impl Into<String>) -> CniError {
        CniError { details: Some(details.into()), ..self }
    }

    /// Code 1: the configuration's version is not supported; the details list both sides.
    pub fn incompatible_version(wanted: &str) -> CniError {
        let msg = "incompatible CNI versions";
        let details = format!("the configuration wants {wanted:?}, humanz supports {}", listed());
        CniError::new(code::INCOMPATIBLE_VERSION, msg).with_details(details)
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
    pub error: CniError,
}

macro_rules! constructors {
    ($($name:ident: $code:ident,)*) => {
        impl CniError {
            $(pub fn $name(msg: impl Into<String>) -> CniError {
                CniError::new(code::$code, msg)
            })*
        }
    };
}

constructors! {
    environment: ENVIRONMENT,
    io: IO,
    decode: DECODE,
    config: CONFIG,
    netns: NETNS,
    try_again: TRY_AGAIN,
    not_available: NOT_AVAILABLE,
    internal: INTERNAL,
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn an_unsupported_version_is_answered_with_both_sides() {
        let error = CniError::incompatible_version("4.3.2");
        assert_eq!(error.code, 1);
        let details = error.details.unwrap();
        assert!(details.contains("4.3.2") && details.contains("0.1.0, 0.2.0"), "{details}");
    }
}
