//! Pure. Why a call to etcd failed.

use std::error::Error;

/// Why a call to etcd failed, as far as it decides what to do next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EtcdError {
    /// No member answers; each with its reason.
    #[error("{0}")]
    Unreachable(String),
    /// The user may not do that.
    #[error("{0}; grant the role of this host's etcd user that permission")]
    Denied(String),
    /// The revision asked for is gone; read again.
    #[error("{0}")]
    Compacted(String),
    /// The etcd lease does not exist.
    #[error("{0}")]
    NoLease(String),
    /// The answer is larger than what is taken.
    #[error("{0}")]
    TooLarge(String),
    /// Any other refusal.
    #[error("{0}")]
    Refused(String),
}

/// `error` and everything below it in one line; what the level above already says is left out.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let reason = source.to_string();
        if !text.contains(&reason) {
            text.push_str(": ");
            text.push_str(&reason);
        }
        next = source.source();
    }
    text
}
