//! Pure. Size, JSON syntax, version and name of a configuration.

use std::str::FromStr;

use serde_json::Value;

use crate::cni::env::Verb;
use crate::cni::error::{CniError, code};
use crate::cni::json::{FieldErrors, JsonField};
use crate::cni::name::Name;
use crate::cni::version::{self, Version};

/// The most that is read from stdin: 16 MiB. A GC for 50,000 attachments has 10.
pub const MAX_BYTES: usize = 16 << 20;

/// The longest name of a directory, bytes (`NAME_MAX` of linux/limits.h).
const LONGEST_NAME: usize = 255;

/// The object in `stdin`. Nesting deeper than 128 is refused; of a duplicate key the last one counts.
pub(super) fn parse(stdin: &[u8]) -> Result<Value, CniError> {
    if stdin.len() > MAX_BYTES {
        let msg = format!("the network configuration is larger than {MAX_BYTES} bytes");
        return Err(CniError::decode(msg));
    }
    let document: Value = serde_json::from_slice(stdin).map_err(|error| {
        CniError::decode("the network configuration on stdin is not JSON")
            .with_details(error.to_string())
    })?;
    if document.is_object() {
        return Ok(document);
    }
    Err(CniError::decode("the network configuration on stdin is not a JSON object"))
}

/// `cniVersion`.
///
/// CHECK, GC and STATUS compare versions as numbers, so for them a malformed one is undecodable
/// (code 6); ADD and DEL compare texts (code 1).
pub(super) fn version(document: &Value, command: Verb) -> Result<Version, CniError> {
    let faults = FieldErrors::default();
    let field = JsonField::root(document, &faults).get("cniVersion");
    let text = match field.map(|field| field.value()) {
        None => "",
        Some(Value::String(text)) => text,
        Some(_) => return Err(CniError::decode("cniVersion must be a text, as in \"1.0.0\"")),
    };
    if matches!(command, Verb::Check | Verb::Gc | Verb::Status) {
        let numbers = version::numbers(text);
        numbers.map_err(|error| CniError::decode(format!("cniVersion: {error}")))?;
    }
    Version::from_str(text).map_err(|_| CniError::incompatible_version(text))
}

/// The protocol of `version` has `command`.
pub(super) fn serves(version: Version, command: Verb) -> Result<(), CniError> {
    let since = command.since();
    if version >= since {
        return Ok(());
    }
    let msg = format!("CNI {version} has no {command}; the configuration needs {since} or later");
    Err(CniError::new(code::INCOMPATIBLE_VERSION, msg))
}

/// The network's name.
pub(super) fn name(document: &Value) -> Result<Name, CniError> {
    let faults = FieldErrors::default();
    let text = match JsonField::root(document, &faults).get("name").map(|field| field.value()) {
        None => return Err(CniError::config("the network's name is missing")),
        Some(Value::String(text)) => text,
        Some(other) => {
            return Err(CniError::config(format!(
                "the network's name must be a text, not {other}"
            )));
        }
    };
    if text.is_empty() {
        return Err(CniError::config("the network's name is missing"));
    }
    if text.len() > LONGEST_NAME {
        let msg = format!("the network's name is longer than {LONGEST_NAME} bytes");
        return Err(CniError::config(msg));
    }
    text.parse().map_err(|error| CniError::config(format!("invalid network name: {error}")))
}
