//! Pure. Why a request to etcd failed.

use crate::net::FailureReason;

/// Why a request to etcd failed, as far as it decides what to do next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EtcdError {
    /// No member answers; each with its reason.
    #[error("{0}")]
    Unreachable(FailureReason),
    #[error("{0}; {GRANT}")]
    Denied(String),
    /// The requested revision no longer exists; read everything again.
    #[error("{0}")]
    Compacted(String),
    /// The etcd lease does not exist.
    #[error("{0}")]
    NoLease(String),
    /// The answer exceeds the size limit.
    #[error("{0}")]
    TooLarge(String),
    /// Any other refusal.
    #[error("{0}")]
    Refused(FailureReason),
}

/// The fix of a permission that was denied.
const GRANT: &str = "humanz-agent nodes roles # prints what grants the role of this host's etcd user that permission";

impl From<EtcdError> for FailureReason {
    fn from(error: EtcdError) -> FailureReason {
        match error {
            EtcdError::Unreachable(reason) | EtcdError::Refused(reason) => reason,
            EtcdError::Denied(what) => FailureReason::new(what, GRANT),
            EtcdError::Compacted(what) | EtcdError::NoLease(what) | EtcdError::TooLarge(what) => {
                what.into()
            }
        }
    }
}
