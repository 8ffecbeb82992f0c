//! Pure. Why something failed, and what to do about it.

use std::fmt;

/// Why something failed; the fix only if this failure has one of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FailureReason {
    pub what: String,
    pub fix: Option<String>,
}

impl FailureReason {
    pub fn new(what: impl Into<String>, fix: impl Into<String>) -> FailureReason {
        FailureReason { what: what.into(), fix: Some(fix.into()) }
    }

    /// With the place before it: `place: what`.
    pub fn at(self, place: impl fmt::Display) -> FailureReason {
        FailureReason { what: format!("{place}: {}", self.what), ..self }
    }

    /// All of `reasons` as one, each fix once.
    pub fn joined(reasons: Vec<FailureReason>) -> FailureReason {
        let (mut what, mut fixes) = (Vec::new(), Vec::new());
        for reason in reasons {
            what.push(reason.what);
            fixes.extend(reason.fix.filter(|fix| !fixes.contains(fix)));
        }
        let fix = (!fixes.is_empty()).then(|| fixes.join("; "));
        FailureReason { what: what.join("; "), fix }
    }
}

impl From<String> for FailureReason {
    fn from(what: String) -> FailureReason {
        FailureReason { what, fix: None }
    }
}

impl From<&str> for FailureReason {
    fn from(what: &str) -> FailureReason {
        what.to_owned().into()
    }
}

impl fmt::Display for FailureReason {
    /// `what; fix`, as a problem in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        self.fix.iter().try_for_each(|fix| write!(f, "; {fix}"))
    }
}

/// An error, or the context of one, for which the fix is known; its text is `why` alone.
#[derive(Debug)]
pub struct Hint {
    pub why: String,
    pub fix: String,
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Hint {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_of_several_members_are_joined_with_each_fix_once() {
        let of = |member: &str| FailureReason::new("no TLS", "write http://").at(member);
        let joined = FailureReason::joined(vec![of("a"), "c: no answer".into(), of("b")]);
        assert_eq!(
            joined,
            FailureReason::new("a: no TLS; c: no answer; b: no TLS", "write http://")
        );
        assert_eq!(joined.to_string(), "a: no TLS; c: no answer; b: no TLS; write http://");
        assert_eq!(FailureReason::joined(vec!["x".into()]), FailureReason::from("x"));
    }
}
