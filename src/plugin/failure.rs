//! Failures of the parts below, as the runtime sees them.

use std::error::Error;

use crate::cni::error::{CniError, code};
use crate::ipam::StoreError;

/// `what` failed for a reason that has no code of its own.
pub fn internal(what: &str, error: &dyn Error) -> CniError {
    CniError::internal(what).with_details(chain(error))
}

/// `error` and what caused it, outermost first.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let inner = error.to_string();
        // Some errors tell their cause themselves.
        if !text.ends_with(&inner) {
            text.push_str(": ");
            text.push_str(&inner);
        }
        cause = error.source();
    }
    text
}

/// What the address store refused.
pub fn of_store(error: &StoreError) -> CniError {
    let code = match error {
        StoreError::Exhausted { .. } => code::EXHAUSTED,
        StoreError::Duplicate(_) => code::ALREADY_ATTACHED,
        StoreError::Taken { .. } | StoreError::NotInRange { .. } | StoreError::Gateway(_) => {
            code::ADDRESS_REFUSED
        }
        StoreError::PortTaken { .. } => code::PORT_TAKEN,
        StoreError::LockTimeout { .. } => code::TRY_AGAIN,
        StoreError::Io { .. } => code::IO,
    };
    match error.source() {
        Some(source) => CniError::new(code, error.to_string()).with_details(chain(source)),
        None => CniError::new(code, error.to_string()),
    }
}

/// What went wrong while the rest went on.
#[derive(Debug, Default)]
pub struct Problems(Vec<CniError>);

impl Problems {
    /// The value, or `None` and the error remembered.
    pub fn note<T>(&mut self, outcome: Result<T, CniError>) -> Option<T> {
        outcome.map_err(|error| self.0.push(error)).ok()
    }

    /// One error for all of them: the code of the first, no words that a runtime takes for
    /// success.
    ///
    /// # Errors
    /// If there was any problem.
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

/// `text` without the words by which containerd tells that a DEL found nothing to do.
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
    fn several_problems_are_one_error() {
        let mut problems = Problems::default();
        assert_eq!(problems.note(Ok::<_, CniError>(7)), Some(7));
        problems.note::<()>(Err(CniError::try_again("busy")));
        problems.note::<()>(Err(CniError::io("read").with_details("disk on fire")));
        let error = problems.into_result().unwrap_err();
        assert_eq!((error.code, error.msg.as_str()), (11, "busy; read: disk on fire"));
        assert_eq!(Problems::default().into_result(), Ok(()));
    }

    #[test]
    fn no_problem_can_be_mistaken_for_success() {
        let mut problems = Problems::default();
        let text = "open x: No such file or directory (os error 2): container not found";
        problems.note::<()>(Err(CniError::internal(text)));
        let error = problems.into_result().unwrap_err();
        assert_eq!(error.msg, "open x: No such path (os error 2): container missing");
    }
}
