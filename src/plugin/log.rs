//! The log file: one line per call, after its warnings.
//!
//! A line that cannot be written is dropped: no pod waits or fails for it.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use log::{Level, LevelFilter, Log, Metadata, Record};
use nix::libc::{O_NOCTTY, O_NOFOLLOW, O_NONBLOCK};

use crate::net::time::timestamp;

/// Readable by root and the file's group.
const MODE: u32 = 0o640;

/// The log line of one call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogLine {
    /// The verb, and the network's name if known.
    pub subject: Vec<String>,
    /// `key=value` pairs.
    pub facts: Vec<(&'static str, String)>,
    pub error: Option<String>,
}

impl LogLine {
    /// Adds `key=value`, unless the value is empty.
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

/// Appends lines to the file at `path` in one write, making it (0640) if it is missing. Whoever may write
/// into its directory leads the plugin nowhere else: no link is followed, nothing but a regular file is
/// written to, and a pipe is not waited for.
pub fn append(path: &Path, lines: &[String]) {
    let mut text = String::new();
    for line in lines {
        text.push_str(line);
        text.push('\n');
    }
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(MODE).custom_flags(O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if let Ok(mut file) = options.open(path)
        && file.metadata().is_ok_and(|found| found.is_file())
    {
        file.write_all(text.as_bytes()).ok();
    }
}

/// Messages of the lower modules, collected for the log file.
pub struct Notes(Mutex<Vec<String>>);

pub static NOTES: Notes = Notes(Mutex::new(Vec::new()));

impl Notes {
    /// Collects messages of `log::info` and above from now on.
    pub fn listen(&'static self) {
        // Fails if there is a logger already, which then gets them.
        if log::set_logger(self).is_ok() {
            log::set_max_level(LevelFilter::Info);
        }
    }

    /// The messages since the last call.
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

/// Escapes control characters, which could forge a line.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_verb_facts_duration_and_outcome() {
        let mut line =
            LogLine { subject: vec!["ADD".into(), "humanz".into()], ..LogLine::default() };
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
    fn an_unwritable_log_is_no_failure() {
        append(Path::new("/nonexistent/log"), &["x".into()]);
        append(Path::new("/"), &["x".into()]);
    }
}
