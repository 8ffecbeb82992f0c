//! Pure. Why the agent leaves, and with which exit code.

use std::fmt;
use std::path::Path;

use crate::net::Problem;

/// A reason to leave; the text says what failed, on what, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The exit code; see the constants of this module.
    pub code: u8,
    /// For the operator.
    pub why: String,
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
        Exit { code, why: why.to_string() }
    }

    /// Lists every invalid setting.
    pub fn invalid_settings(problems: &[Problem]) -> Exit {
        let lines: Vec<String> = problems.iter().map(|problem| format!("  {problem}")).collect();
        let count = if lines.len() == 1 { "a setting is" } else { "settings are" };
        Exit::new(SETTINGS, format!("{count} wrong:\n{}", lines.join("\n")))
    }

    /// This user may not do that (`read`, `take`) with `path`: nobody knows what is there.
    pub fn denied(what: &str, path: &Path) -> Exit {
        Exit::new(UNAVAILABLE, format!("only root may {what} {}: try sudo", path.display()))
    }
}

impl From<anyhow::Error> for Exit {
    fn from(error: anyhow::Error) -> Exit {
        Exit { code: FAILURE, why: format!("{error:#}") }
    }
}
