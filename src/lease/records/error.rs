//! Pure. Why a value of etcd is no record.

use crate::lease::records::NodeNameError;
use crate::net::subnet::SubnetError;

/// Why a key or value of etcd is no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// More bytes than any honest value has.
    #[error("value of {bytes} bytes is longer than {limit}")]
    TooLong {
        /// Bytes found.
        bytes: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// Not text.
    #[error("value is not UTF-8")]
    NotUtf8,
    /// Not JSON of that shape; the reason names the field.
    #[error("value is not valid: {0}")]
    Json(String),
    /// Written by a later version.
    #[error("value has schema {0}, this version understands {schema}: update humanz on this host", schema = crate::lease::records::SCHEMA)]
    Schema(u32),
    /// Not a subnet.
    #[error(transparent)]
    Subnet(#[from] SubnetError),
    /// Not a host name.
    #[error(transparent)]
    Name(#[from] NodeNameError),
    /// A key that cannot be.
    #[error("key is not of the form {0}")]
    Key(&'static str),
}
