//! The log file: one line for each call, and whatever was warned of on the way.
//!
//! What cannot be logged is not logged: no pod waits or fails for it.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use log::{Level, LevelFilter, Log, Metadata, Record};

/// Root reads it, and the group that an administrator gives it to.
const MODE: u32 = 0o640;

/// One call, as the log file tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// The verb, and the network's name where it is known.
    pub subject: Vec<String>,
    /// `key=value` pairs in order; pairs without a value are left out.
    pub facts: Vec<(&'static str, String)>,
    /// What went wrong.
    pub error: Option<String>,
}

impl Line {
    /// Adds a fact, unless it is empty.
    pub fn fact(&mut self, key: &'static str, value: impl ToString) {
        let value = value.to_string();
        if !value.is_empty() {
            self.facts.push((key, value));
        }
    }

    /// The line, without its end: time (UTC), subject, facts, duration, `ok` or the error.
    pub fn text(&self, since_1970: Duration, took: Duration) -> String {
        let mut text = timestamp(since_1970);
        for word in &self.subject {
            text.push(' ');
            text.push_str(word);
        }
        for (key, value) in &self.facts {
            text.push_str(&format!(" {key}={}", one_line(value)));
        }
        text.push_str(&format!(" ms={:.2}", took.as_secs_f64() * 1e3));
        match &self.error {
            Some(error) => text.push_str(&format!(" error: {}", one_line(error))),
            None => text.push_str(" ok"),
        }
        text
    }
}

/// Appends lines to the file at `path` in one write, making it (0640) if it is missing.
pub fn append(path: &Path, lines: &[String]) {
    let mut text = String::new();
    for line in lines {
        text.push_str(line);
        text.push('\n');
    }
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(MODE);
    if let Ok(mut file) = options.open(path) {
        file.write_all(text.as_bytes()).ok();
    }
}

/// What the parts below changed, warned of, or failed at, kept for the log file.
pub struct Notes(Mutex<Vec<String>>);

/// The notes of this process.
pub static NOTES: Notes = Notes(Mutex::new(Vec::new()));

impl Notes {
    /// From now on, what the parts below say with `log::info` and louder is noted.
    pub fn listen(&'static self) {
        // Refused if somebody listens already: then they hear it.
        if log::set_logger(self).is_ok() {
            log::set_max_level(LevelFilter::Info);
        }
    }

    /// The notes so far, which are then forgotten.
    pub fn take(&self) -> Vec<String> {
        self.0.lock().map(|mut notes| std::mem::take(&mut *notes)).unwrap_or_default()
    }
}

impl Log for Notes {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Info && metadata.target().starts_with("humanz")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata())
            && let Ok(mut notes) = self.0.lock()
        {
            let level = record.level().as_str().to_lowercase();
            notes.push(format!("{level}: {}", one_line(&record.args().to_string())));
        }
    }

    fn flush(&self) {}
}

/// Control characters, which could forge a line, as escapes.
fn one_line(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() {
            true => safe.extend(c.escape_default()),
            false => safe.push(c),
        }
    }
    safe
}

/// `2026-11-20T18:49:45.123Z`.
///
/// Source: days to date as in H. Hinnant, "chrono-Compatible Low-Level Date Algorithms".
pub fn timestamp(since_1970: Duration) -> String {
    let seconds = since_1970.as_secs();
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Counted from 0000-03-01, in eras of 400 years, 146,097 days each.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let mut text = String::new();
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let millis = since_1970.subsec_millis();
    write!(text, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
        .expect("a String takes everything");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_rfc_3339() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.007Z"),
            (951_827_696, "2000-02-29T12:34:56.007Z"),
            (1_709_251_199, "2024-02-29T23:59:59.007Z"),
            (1_735_689_600, "2025-01-01T00:00:00.007Z"),
            (4_107_542_400, "2100-03-01T00:00:00.007Z"),
        ] {
            assert_eq!(timestamp(Duration::from_millis(seconds * 1000 + 7)), text);
        }
    }

    #[test]
    fn a_line_tells_verb_facts_duration_and_outcome() {
        let mut line = Line { subject: vec!["ADD".into(), "humanz".into()], ..Line::default() };
        line.fact("container", "c1");
        line.fact("pod", "");
        line.fact("ips", "10.1.2.3");
        let text = line.text(Duration::ZERO, Duration::from_micros(1234));
        let start = "1970-01-01T00:00:00.000Z ADD humanz container=c1 ips=10.1.2.3 ms=1.23";
        assert_eq!(text, format!("{start} ok"));
        line.error = Some("no\nADD forged".into());
        let text = line.text(Duration::ZERO, Duration::from_micros(1234));
        assert_eq!(text, format!("{start} error: no\\nADD forged"));
    }

    #[test]
    fn a_log_that_cannot_be_written_is_no_failure() {
        append(Path::new("/nonexistent/log"), &["x".into()]);
        append(Path::new("/"), &["x".into()]);
    }
}
