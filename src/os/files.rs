//! Files that other processes read while they are replaced.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::libc::O_NONBLOCK;

#[derive(Debug, thiserror::Error)]
#[error("{what} {path}: {why}")]
pub struct FileError {
    what: &'static str,
    path: PathBuf,
    /// Part of the text: as the source it would be printed twice.
    why: io::Error,
}

impl FileError {
    pub fn kind(&self) -> io::ErrorKind {
        self.why.kind()
    }

    /// What to do, if there is one thing.
    pub fn fix(&self) -> Option<&'static str> {
        Some(match self.why.kind() {
            io::ErrorKind::IsADirectory => "a directory is in the way: remove it",
            io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
                "a file is in the way of a directory: move it away"
            }
            io::ErrorKind::StorageFull => "df -h # make room on that file system",
            io::ErrorKind::ReadOnlyFilesystem => {
                "findmnt # let the agent write there (its unit's ReadWritePaths=, or a mount of its pod that is not \
                 read-only), or mount that file system read-write"
            }
            _ => return None,
        })
    }
}

/// The mode of a copy, and its execute bits.
const EXECUTABLE: u32 = 0o755;
const RUNS: u32 = 0o555;

/// The resolution of file times: two seconds on vfat, one on ext2 and ext4 with inodes of 128 bytes.
const COARSE: Duration = Duration::from_secs(2);

/// What was `read` of a file; `None` if there is no such file.
///
/// # Errors
/// Those of `read`.
pub fn found<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

/// Opens `path` to read it. A pipe in its place does not block: without a writer it is empty.
///
/// # Errors
/// Those of `open(2)`.
pub fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(O_NONBLOCK).open(path)
}

/// `path` is a file that holds exactly `bytes`.
pub fn holds(path: &Path, bytes: &[u8]) -> bool {
    fs::read(path).is_ok_and(|found| found == bytes)
}

/// This user may not read `path`.
pub fn is_denied(path: &Path) -> bool {
    matches!(File::open(path), Err(error) if error.kind() == io::ErrorKind::PermissionDenied)
}

/// Takes `file` from everybody but its owner (0600), as far as it is not.
///
/// # Errors
/// It belongs to somebody else, or the file system is read-only.
pub fn keep_private(file: &File) -> io::Result<()> {
    const OTHERS: u32 = 0o077;
    match file.metadata()?.permissions().mode() & OTHERS {
        0 => Ok(()),
        _ => file.set_permissions(Permissions::from_mode(0o600)),
    }
}

/// `copy` is a copy of `from` by [`copy_executable`]: the same length and time, and executable for
/// everybody (file systems may have other mode bits and coarse times). Reads no contents, so that it is
/// cheap.
///
/// # Errors
/// `from` cannot be looked at.
pub fn is_copy(from: &Path, copy: &Path) -> Result<bool, FileError> {
    let stamp = |metadata: &Metadata| Ok((metadata.len(), metadata.modified()?));
    let original = fs::metadata(from).and_then(|found| stamp(&found));
    let original = original.map_err(failed("look at", from))?;
    let is_same = |found: Metadata| {
        let runs = found.permissions().mode() & RUNS == RUNS;
        let is_like = |(length, time): (u64, SystemTime)| {
            length == original.0 && difference(time, original.1) <= COARSE
        };
        runs && stamp(&found).is_ok_and(is_like)
    };
    Ok(fs::symlink_metadata(copy).is_ok_and(is_same))
}

fn difference(one: SystemTime, other: SystemTime) -> Duration {
    one.duration_since(other).unwrap_or_else(|error| error.duration())
}

/// Replaces `path` by a file with `bytes`, atomically and synced; creates a missing directory.
///
/// # Errors
/// [`FileError`]; nothing is left behind.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<(), FileError> {
    swap_in(path, |new| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(new)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(bytes)?;
        file.sync_all()
    })
}

/// As [`replace`], for a directory that a runtime watches: containerd ignores a rename, but not a
/// write, so the same bytes are written once more.
///
/// # Errors
/// [`FileError`].
pub fn replace_watched(path: &Path, bytes: &[u8], mode: u32) -> Result<(), FileError> {
    replace(path, bytes, mode)?;
    let file = OpenOptions::new().write(true).open(path).map_err(failed("open", path))?;
    file.write_all_at(bytes, 0).map_err(failed("write", path))
}

/// Replaces `path` by a copy of the executable `from` with the same time, also while `path` runs.
///
/// # Errors
/// [`FileError`].
pub fn copy_executable(from: &Path, path: &Path) -> Result<(), FileError> {
    swap_in(path, |new| {
        let mut file = OpenOptions::new().write(true).create_new(true).open(new)?;
        io::copy(&mut File::open(from)?, &mut file)?;
        file.set_permissions(Permissions::from_mode(EXECUTABLE))?;
        file.set_modified(fs::metadata(from)?.modified()?)?;
        file.sync_all()
    })
}

/// Replaces `path` by a symbolic link to `target`.
///
/// # Errors
/// [`FileError`].
pub fn replace_link(target: &Path, path: &Path) -> Result<(), FileError> {
    swap_in(path, |new| symlink(target, new))
}

/// Removes a file; a missing one is success.
///
/// # Errors
/// [`FileError`].
pub fn remove(path: &Path) -> Result<(), FileError> {
    found(fs::remove_file(path)).map(drop).map_err(failed("remove", path))
}

/// The temporary name for a new `path`, which a killed process leaves behind. It has no extension that
/// a runtime reads, and is always the same, so that there is at most one leftover.
pub fn unfinished(path: &Path) -> PathBuf {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    path.with_file_name(format!(".{name}.humanz-new"))
}

/// Lets `make` create a new file beside `path`, then renames it to `path`.
/// `make` creates the file that it is given, and opens none that is there: in a directory of others that could be
/// a link to one of root's.
fn swap_in(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), FileError> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory).map_err(failed("create directory", directory))?;
    let new = unfinished(path);
    let made = found(fs::remove_file(&new)).and_then(|_| make(&new)).map_err(failed("write", &new));
    let done = made.and_then(|()| fs::rename(&new, path).map_err(failed("replace", path)));
    if done.is_err() {
        // The first error counts; the next try removes a leftover.
        let _leftover = fs::remove_file(&new);
        return done;
    }
    sync_directory(directory)
}

/// Waits until the names in `directory` are on its disk.
///
/// # Errors
/// [`FileError`].
pub fn sync_directory(directory: &Path) -> Result<(), FileError> {
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(failed("sync directory", directory))
}

/// What failed, and on which file.
pub fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
    let path = path.to_owned();
    move |why| FileError { what, path, why }
}
