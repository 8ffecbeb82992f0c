//! Answers of the Kubernetes API, as far as they arrive.

use std::error::Error;
use std::future::poll_fn;
use std::pin::Pin;

use http_body::Body as _;
use rustls::{CertificateError, Error as TlsError};
use tonic::body::Body;
use tonic::codegen::Bytes;

use crate::etcd::failure::chain;
use crate::etcd::tls_error;
use crate::net::FailureReason;

/// Why a call failed, as far as it decides what to do next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The requested version is too old; list again.
    #[error("{0}")]
    Expired(String),
    /// The API has no such resource.
    #[error("{0}")]
    Missing(String),
    /// The object has changed since it was read.
    #[error("{0}")]
    Conflict(String),
    /// The answer exceeds the size limit.
    #[error("{0}")]
    TooLarge(String),
    /// No answer, a refusal, or an invalid one.
    #[error("{0}")]
    Failed(FailureReason),
}

impl From<ApiError> for FailureReason {
    fn from(error: ApiError) -> FailureReason {
        match error {
            ApiError::Failed(reason) => reason,
            ApiError::Expired(what)
            | ApiError::Missing(what)
            | ApiError::Conflict(what)
            | ApiError::TooLarge(what) => what.into(),
        }
    }
}

/// The next bytes of a body; `None` at its end.
pub async fn next_bytes(body: &mut Body) -> Result<Option<Bytes>, FailureReason> {
    loop {
        let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await;
        match frame.transpose().map_err(|status| broken(&status))? {
            None => return Ok(None),
            Some(frame) => {
                if let Ok(bytes) = frame.into_data() {
                    return Ok(Some(bytes));
                }
            }
        }
    }
}

/// An error of the connection, with its fix.
pub fn broken(error: &(dyn Error + 'static)) -> FailureReason {
    let reason = chain(error);
    let (meaning, fix) = match tls_error(error) {
        Some(TlsError::InvalidCertificate(CertificateError::UnknownIssuer)) => (
            "its certificate was not signed by the authority in the kubeconfig (or the service account)",
            "humanz-agent config # KUBECONFIG: set certificate-authority there to that of this cluster",
        ),
        Some(TlsError::InvalidCertificate(CertificateError::NotValidForNameContext { .. })) => (
            "its certificate is for other names",
            "humanz-agent config # KUBECONFIG: set tls-server-name there, or KUBE_API to a name of the certificate",
        ),
        _ => return reason.into(),
    };
    FailureReason::new(format!("{reason}; {meaning}"), fix)
}
