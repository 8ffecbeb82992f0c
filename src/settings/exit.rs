//! Pure. Why the agent leaves, and with which exit code.

use std::fmt;
use std::path::Path;

use crate::net::{Hint, Object, Problem, ProblemKind};

/// A reason to leave; the text says what failed, on what, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The exit code; see the constants of this module.
    pub code: u8,
    /// For the operator.
    pub why: String,
    /// The settings that are invalid.
    pub refused: Vec<&'static str>,
}

/// A failure while running.
pub const FAILURE: u8 = 1;
/// A setting is wrong; starting again does not help.
pub const SETTINGS: u8 = 2;
/// etcd cannot be reached, or this user may not look. Source: `EX_UNAVAILABLE` of sysexits.h.
pub const UNAVAILABLE: u8 = 69;
/// A fault of humanz itself. Source: `EX_SOFTWARE` of sysexits.h.
pub const FAULT: u8 = 70;
/// Later it may work: the pool is full. Source: `EX_TEMPFAIL` of sysexits.h.
pub const TEMPORARY: u8 = 75;

impl Exit {
    /// Leaves with `code`.
    pub fn new(code: u8, why: impl fmt::Display) -> Exit {
        Exit { code, why: why.to_string(), refused: Vec::new() }
    }

    /// Lists every invalid setting.
    pub fn invalid_settings(problems: &[Problem]) -> Exit {
        let lines: Vec<String> = problems.iter().map(|problem| format!("  {problem}")).collect();
        let count = if lines.len() == 1 { "a setting is" } else { "settings are" };
        let refused = problems.iter().filter_map(|problem| match problem.subject {
            Object::Setting(variable, _) => Some(variable),
            _ => None,
        });
        let why = format!("{count} wrong:\n{}", lines.join("\n"));
        Exit { refused: refused.collect(), ..Exit::new(SETTINGS, why) }
    }

    /// This user may not do that (`read`, `take`) with `path`: what is there is not known.
    pub fn denied(what: &str, path: &Path) -> Exit {
        Exit::new(UNAVAILABLE, format!("only root may {what} {}: try sudo", path.display()))
    }
}

impl From<anyhow::Error> for Exit {
    fn from(error: anyhow::Error) -> Exit {
        let fix = error.downcast_ref::<Hint>().map(|hint| format!("; {}", hint.fix));
        Exit::new(FAILURE, format!("{error:#}{}", fix.unwrap_or_default()))
    }
}

impl From<Problem> for Exit {
    /// With what helps. What this user may not read is not known.
    fn from(problem: Problem) -> Exit {
        let is_denied = problem.kind == ProblemKind::StoresUnread;
        Exit::new(if is_denied { UNAVAILABLE } else { FAILURE }, problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_with_a_fix_ends_with_it() {
        let hint = Hint { why: "no node address".to_owned(), fix: "set NODE_IP".to_owned() };
        let error = anyhow::Error::from(hint).context("inspect this host");
        assert_eq!(Exit::from(error).why, "inspect this host: no node address; set NODE_IP");
    }
}
