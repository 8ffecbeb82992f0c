//! Pure. How bad a problem is, in one word, and since when.

use crate::command::table::Tone;
use crate::net::time::rfc3339;
use crate::net::{Problem, Severity};

/// The word, and how it is shown.
pub fn word(severity: Severity) -> (&'static str, Tone) {
    match severity {
        Severity::Error => ("wrong", Tone::Bad),
        Severity::Warning => ("warning", Tone::Odd),
        Severity::Note => ("note", Tone::Faint),
    }
}

/// ` (since …)` behind what is wrong, where that is known.
pub fn since(problem: &Problem) -> String {
    let since = problem.since.map(|since| format!(" (since {})", rfc3339(since)));
    since.unwrap_or_default()
}
