//! Pure. How bad a problem is, in one word.

use crate::command::table::Tone;
use crate::net::Severity;

/// The word, and how it is shown.
pub fn word(severity: Severity) -> (&'static str, Tone) {
    match severity {
        Severity::Error => ("wrong", Tone::Bad),
        Severity::Warning => ("warning", Tone::Odd),
        Severity::Note => ("note", Tone::Faint),
    }
}
