//! Errors of the lower modules as CNI errors.

use std::error::Error;
use std::fmt::Display;
use std::io::Write;

use crate::cni::error::{CniError, RefusedRequest, code};
use crate::ipam::StoreError;

/// Turns an error without a code of its own into code 999.
pub trait OrInternal<T> {
    /// `what` failed; the details are the chain of sources.
    fn or_internal(self, what: impl Display) -> Result<T, CniError>;
}

impl<T, E: Error> OrInternal<T> for Result<T, E> {
    fn or_internal(self, what: impl Display) -> Result<T, CniError> {
        self.map_err(|error| internal(what, &error))
    }
}

/// Code 999: `what` failed with `error`.
pub fn internal(what: impl Display, error: &dyn Error) -> CniError {
    CniError::internal(what.to_string()).with_details(chain(error))
}

/// `error` and its sources, outermost first.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let inner = error.to_string();
        // Some errors print their source themselves.
        if !text.ends_with(&inner) {
            text.push_str(": ");
            text.push_str(&inner);
        }
        source = error.source();
    }
    text
}

/// Writes the error object. If stdout is closed, the exit code must do.
pub fn answer(stdout: &mut dyn Write, refused: &RefusedRequest) {
    let object = refused.error.to_json(refused.version);
    stdout.write_all(format!("{object}\n").as_bytes()).and_then(|()| stdout.flush()).ok();
}

impl From<StoreError> for CniError {
    fn from(error: StoreError) -> CniError {
        let code = match error {
            StoreError::Exhausted { .. } => code::EXHAUSTED,
            StoreError::Duplicate(_) => code::ALREADY_ATTACHED,
            StoreError::Taken { .. } | StoreError::NotInRange { .. } | StoreError::Gateway(_) => {
                code::ADDRESS_REFUSED
            }
            StoreError::PortTaken { .. } => code::PORT_TAKEN,
            StoreError::LockTimeout { .. } | StoreError::Closed { .. } => code::TRY_AGAIN,
            StoreError::Io { .. } => code::IO,
        };
        let details = error.source().map(chain);
        CniError { details, ..CniError::new(code, error.to_string()) }
    }
}

/// The failures of a verb that goes on after each of them.
#[derive(Debug, Default)]
pub struct Failures(Vec<CniError>);

impl Failures {
    /// The value; `None` for an error, which is kept.
    pub fn note<T>(&mut self, outcome: Result<T, impl Into<CniError>>) -> Option<T> {
        outcome.map_err(|error| self.0.push(error.into())).ok()
    }

    /// All failures as one error: the code of the first, and no words that a runtime takes for
    /// success.
    pub fn into_result(self) -> Result<(), CniError> {
        let text = |error: &CniError| match &error.details {
            Some(details) => format!("{}: {details}", error.msg),
            None => error.msg.clone(),
        };
        let Some(first) = self.0.first() else { return Ok(()) };
        let all: Vec<String> = self.0.iter().map(text).collect();
        Err(CniError::new(first.code, unmistakable(&all.join("; "))))
    }
}

/// `text` without the words from which containerd concludes that a DEL had nothing to do.
///
/// Source: containerd/go-cni, `cni.go`, `Remove`.
fn unmistakable(text: &str) -> String {
    text.replace("not found", "missing")
        .replace("o such file or directory", "o such path")
        .replace("o such device", "o such link")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_failures_are_one_error() {
        let mut failures = Failures::default();
        assert_eq!(failures.note(Ok::<_, CniError>(7)), Some(7));
        failures.note::<()>(Err(CniError::try_again("busy")));
        failures.note::<()>(Err(CniError::io("read").with_details("disk on fire")));
        let error = failures.into_result().unwrap_err();
        assert_eq!((error.code, error.msg.as_str()), (11, "busy; read: disk on fire"));
        assert_eq!(Failures::default().into_result(), Ok(()));
    }

    #[test]
    fn no_failure_can_be_mistaken_for_success() {
        let mut failures = Failures::default();
        let text = "open x: No such file or directory (os error 2): container not found";
        failures.note::<()>(Err(CniError::internal(text)));
        let error = failures.into_result().unwrap_err();
        assert_eq!(error.msg, "open x: No such path (os error 2): container missing");
    }
}
