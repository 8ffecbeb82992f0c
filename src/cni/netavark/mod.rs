//! Pure. netavark's plugin API (podman from version 5 on has no CNI): its calls as calls of CNI, and CNI's replies as
//! netavark's.
//!
//! Source: netavark, `plugin-API.md`, API version 1.0.0.

mod call;
mod network;
mod reply;

pub use call::ContainerCall;
pub use network::{AskedNetwork, HostNetwork, created};
pub use reply::{API_VERSION, failed, translated};

use serde_json::Value;

use crate::cni::error::CniError;

/// The most that is read from stdin: 1 MiB.
pub const MAX_BYTES: usize = 1 << 20;

/// What podman or netavark calls the plugin for: its first argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetavarkVerb {
    /// podman makes a network.
    Create,
    /// A container starts.
    Setup,
    /// It has ended.
    Teardown,
    Info,
}

impl NetavarkVerb {
    pub fn of(argument: &str) -> Option<NetavarkVerb> {
        match argument {
            "create" => Some(NetavarkVerb::Create),
            "setup" => Some(NetavarkVerb::Setup),
            "teardown" => Some(NetavarkVerb::Teardown),
            "info" => Some(NetavarkVerb::Info),
            _ => None,
        }
    }
}

/// The object in `stdin`.
///
/// # Errors
/// Code 6.
pub fn document(stdin: &[u8]) -> Result<Value, CniError> {
    if stdin.len() > MAX_BYTES {
        return Err(CniError::decode(format!("stdin has more than {MAX_BYTES} bytes")));
    }
    let document: Value = serde_json::from_slice(stdin)
        .map_err(|error| CniError::decode("stdin is not JSON").with_details(error.to_string()))?;
    if document.is_object() {
        return Ok(document);
    }
    Err(CniError::decode("stdin is not a JSON object"))
}

#[cfg(test)]
mod tests;
