//! Pure. Why a key or value in etcd is not valid.

use crate::net::KeyError;
use crate::net::node_name::NodeNameError;
use crate::net::subnet::SubnetError;

/// Why a key or value in etcd is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("value of {bytes} bytes is longer than {limit}")]
    TooLong { bytes: usize, limit: usize },
    #[error("value is not UTF-8")]
    NotUtf8,
    /// Not JSON of that shape; the reason includes the field.
    #[error("value is not valid: {0}")]
    Json(String),
    /// Written by a later version.
    #[error(
        "value has schema {found}, this version understands {known}: update humanz on this host"
    )]
    Schema { found: u32, known: u32 },
    #[error(transparent)]
    Subnet(#[from] SubnetError),
    #[error(transparent)]
    WireguardKey(#[from] KeyError),
    #[error(transparent)]
    Name(#[from] NodeNameError),
    #[error("key is not of the form {0}")]
    Key(&'static str),
    /// Valid network settings that contradict those of this host, and those that were there before.
    #[error(
        "{variable} is {theirs} there, and {ours} on this host; the settings before stay in use"
    )]
    Settings { variable: &'static str, theirs: String, ours: String },
}
