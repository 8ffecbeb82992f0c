//! Counters of the plugin's calls, written by the calls themselves: no agent is needed.
//!
//! ```text
//! <dataDir>/.calls/log        a line for each call, appended in one write: `ADD 0 1234` (verb, error
//!                             code or 0, microseconds)
//!                  log.<n>    the lines before those
//!                  total      the sum of everything before log.<n>, and that n
//!                  lock       held (flock) while lines are folded into the sum, or read
//! ```
//!
//! The call that finds the log full folds log.<n> into the sum and renames the log. A call that has
//! the renamed log open may still write to it: a writer holds a shared flock on its log, folding holds
//! an exclusive one. No call waits. Killed on any line, nothing is lost or counted twice.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::os::files::found;

/// The folder below the data directory; no network has a name with a dot at its beginning.
const FOLDER: &str = ".calls";

/// The verbs that are counted.
pub const VERBS: [&str; 5] = ["ADD", "CHECK", "DEL", "GC", "STATUS"];

/// Upper bounds of the classes of durations, in microseconds; what takes longer is in the last one.
pub const BOUNDS_MICROS: [u64; 13] = [
    1_000, 2_000, 3_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    5_000_000, 20_000_000,
];

/// Bytes of a log that is folded: some 4,000 calls.
const LOG_BYTES: u64 = 48 << 10;

/// How often to open the log while others rename and fold it.
const APPENDS: usize = 100;

/// The most that is read of a file.
const MAX_BYTES: u64 = 64 << 20;

/// The most (verb, code) pairs; ours are fewer.
const MAX_SERIES: usize = 200;

/// Calls of one verb that ended in the same way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Series {
    /// The number of calls in each class; the last one has no upper bound.
    pub classes: [u64; BOUNDS_MICROS.len() + 1],
    /// The sum of their durations.
    pub micros: u64,
}

impl Series {
    pub fn add(&mut self, micros: u64) {
        let class = BOUNDS_MICROS.iter().position(|bound| micros <= *bound);
        self.classes[class.unwrap_or(BOUNDS_MICROS.len())] += 1;
        self.micros = self.micros.saturating_add(micros);
    }

    pub fn join(&mut self, others: &Series) {
        for (class, more) in self.classes.iter_mut().zip(others.classes) {
            *class += more;
        }
        self.micros = self.micros.saturating_add(others.micros);
    }

    pub fn count(&self) -> u64 {
        self.classes.iter().sum()
    }
}

/// All calls of this boot by verb and error code (0: success).
pub type Calls = BTreeMap<(&'static str, u32), Series>;

/// Counts a call; failures are ignored.
pub fn count(data_dir: &Path, verb: &str, code: u32, took: Duration) {
    let folder = data_dir.join(FOLDER);
    let line = format!("{verb} {code} {}\n", took.as_micros());
    let appended = match append(&folder, &line) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // Without a data directory there is no network yet.
            match DirBuilder::new().mode(0o700).create(&folder) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
                _ => append(&folder, &line),
            }
        }
        appended => appended,
    };
    if appended.is_ok_and(|length| length >= LOG_BYTES)
        && let Ok(_lock) = lock(&folder)
    {
        // The next call tries again.
        let _failed = fold(&folder);
    }
}

/// The counters below `data_dir`.
///
/// # Errors
/// Unreadable, or locked for a second.
pub fn read(data_dir: &Path) -> io::Result<Calls> {
    let folder = data_dir.join(FOLDER);
    if !folder.exists() {
        return Ok(Calls::new());
    }
    let mut tries = 0;
    let _lock = loop {
        match lock(&folder) {
            Err(Errno::EWOULDBLOCK) if tries < 100 => thread::sleep(Duration::from_millis(10)),
            locked => break locked?,
        }
        tries += 1;
    };
    let (mut calls, folded) = total(&folder)?;
    for log in [aside(&folder, folded + 1), folder.join("log")] {
        add_lines(&mut calls, &contents(&log)?.unwrap_or_default());
    }
    Ok(calls)
}

/// Removes the counters below `data_dir`.
///
/// # Errors
/// As for [`fs::remove_dir_all`]; nothing there is success.
pub fn remove(data_dir: &Path) -> io::Result<()> {
    found(fs::remove_dir_all(data_dir.join(FOLDER))).map(drop)
}

/// The folder of the counters.
pub fn folder(data_dir: &Path) -> PathBuf {
    data_dir.join(FOLDER)
}

/// Appends `line`; gives the length of the log.
fn append(folder: &Path, line: &str) -> io::Result<u64> {
    for _ in 0..APPENDS {
        let mut options = OpenOptions::new();
        let log = options.append(true).create(true).mode(0o600).open(folder.join("log"))?;
        // Renamed since it was opened, and being folded.
        let Ok(mut log) = Flock::lock(log, FlockArg::LockSharedNonblock) else { continue };
        let before = log.metadata()?;
        if before.nlink() > 0 {
            log.write_all(line.as_bytes())?;
            return Ok(before.len() + line.len() as u64);
        }
    }
    Err(ErrorKind::WouldBlock.into())
}

fn lock(folder: &Path) -> Result<Flock<File>, Errno> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(folder.join("lock"));
    let file = file.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or_default()))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno)
}

/// Adds the renamed log to the sum, and renames the present one.
fn fold(folder: &Path) -> io::Result<()> {
    let (mut calls, mut folded) = total(folder)?;
    // Left by a process that was killed after the rename of the sum.
    discard(&aside(folder, folded))?;
    let before = aside(folder, folded + 1);
    if let Some(log) = found(File::open(&before))? {
        let held = Flock::lock(log, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno)?;
        add_lines(&mut calls, &text_of(&held)?);
        folded += 1;
        let new = folder.join("total.new");
        fs::write(&new, text(&calls, folded))?;
        fs::rename(&new, folder.join("total"))?;
        discard(&before)?;
    }
    fs::rename(folder.join("log"), aside(folder, folded + 1))
}

fn discard(path: &Path) -> io::Result<()> {
    found(fs::remove_file(path)).map(drop)
}

fn aside(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("log.{number}"))
}

fn contents(path: &Path) -> io::Result<Option<String>> {
    found(File::open(path))?.map(|file| text_of(&file)).transpose()
}

fn text_of(file: &File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The sum, and the number of the last log in it; empty for an invalid file.
fn total(folder: &Path) -> io::Result<(Calls, u64)> {
    let text = contents(&folder.join("total"))?.unwrap_or_default();
    Ok(parse(&text).unwrap_or_default())
}

/// The text of a sum: a head line, then a line per series: verb, code, microseconds, classes.
fn text(calls: &Calls, folded: u64) -> String {
    let mut text = format!("{HEAD}{folded}\n");
    for ((verb, code), series) in calls {
        let classes: Vec<String> = series.classes.iter().map(u64::to_string).collect();
        writeln!(text, "{verb} {code} {} {}", series.micros, classes.join(" "))
            .expect("a String takes everything");
    }
    text
}

const HEAD: &str = "humanz calls, schema 1, up to log ";

fn parse(text: &str) -> Option<(Calls, u64)> {
    let mut lines = text.lines();
    let folded: u64 = lines.next()?.strip_prefix(HEAD)?.parse().ok()?;
    let mut calls = Calls::new();
    for line in lines {
        let (key, rest) = key(line)?;
        let numbers: Option<Vec<u64>> = rest.split(' ').map(|text| text.parse().ok()).collect();
        let (micros, classes) = numbers.as_deref()?.split_first()?;
        calls.insert(key, Series { classes: classes.try_into().ok()?, micros: *micros });
    }
    Some((calls, folded))
}

/// Invalid and incomplete lines are skipped.
fn add_lines(calls: &mut Calls, lines: &str) {
    for line in lines.split_inclusive('\n') {
        let Some((key, micros)) = line.strip_suffix('\n').and_then(key) else { continue };
        if let Ok(micros) = micros.parse()
            && (calls.len() < MAX_SERIES || calls.contains_key(&key))
        {
            calls.entry(key).or_default().add(micros);
        }
    }
}

/// Verb and code at the beginning of a line, and the rest.
fn key(line: &str) -> Option<((&'static str, u32), &str)> {
    let (verb, rest) = line.split_once(' ')?;
    let verb = VERBS.into_iter().find(|known| *known == verb)?;
    let (code, rest) = rest.split_once(' ')?;
    Some(((verb, code.parse().ok()?), rest))
}

#[cfg(test)]
mod tests;
