//! The log of the agent, whose level can change while it runs.

use std::io::{self, Write};
use std::sync::RwLock;

use env_logger::Logger;
use env_logger::fmt::Formatter;
use log::{Level, Log, Metadata, Record};

/// What is logged by default.
pub const USUAL: &str = "info";

/// Characters of one record; names and values of others are shorter where they are quoted.
const LONGEST: usize = 4000;

/// What is logged now; nothing before [`set`].
static CURRENT: RwLock<Option<Logger>> = RwLock::new(None);

struct Current;

impl Log for Current {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.with(|logger| logger.enabled(metadata)).unwrap_or(false)
    }

    fn log(&self, record: &Record<'_>) {
        let text = record.args().to_string();
        match text.char_indices().nth(LONGEST) {
            None => self.with(|logger| logger.log(record)),
            Some((end, _)) => self.with(|logger| {
                let (start, bytes) = (&text[..end], text.len());
                let mut cut = Record::builder();
                cut.metadata(record.metadata().clone()).module_path(record.module_path());
                logger.log(&cut.args(format_args!("{start}… ({bytes} bytes)")).build());
            }),
        };
    }

    fn flush(&self) {
        self.with(|logger| logger.flush());
    }
}

impl Current {
    fn with<T>(&self, task: impl FnOnce(&Logger) -> T) -> Option<T> {
        CURRENT.read().ok()?.as_ref().map(task)
    }
}

/// Logs what `filter` says (in the words of `RUST_LOG`) from now on, to stderr; there journald adds
/// the time by itself, and reads the priority of each line.
pub fn set(filter: &str) {
    let mut builder = env_logger::Builder::new();
    match std::env::var_os("JOURNAL_STREAM") {
        Some(_) => builder.format(journal_lines),
        None => builder.format_timestamp_millis(),
    };
    let logger = builder.parse_filters(filter).format_target(false).build();
    log::set_max_level(logger.filter());
    if let Ok(mut current) = CURRENT.write() {
        *current = Some(logger);
    }
    // A second time it is there already.
    let _there = log::set_boxed_logger(Box::new(Current));
}

/// The record as lines with the priority in front that journald takes off.
///
/// Source: sd-daemon(3), `SyslogLevelPrefix=` of systemd.exec(5).
fn journal_lines(out: &mut Formatter, record: &Record<'_>) -> io::Result<()> {
    let level = record.level();
    let text = format!("[{level:<5}] {}", record.args());
    text.lines().try_for_each(|line| writeln!(out, "<{}>{line}", priority(level)))
}

/// The level of syslog(3).
fn priority(level: Level) -> u8 {
    match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    }
}
