//! File locks with a deadline: a process that hangs must not block every pod of the host.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::ipam::error::StoreError;
use crate::os::files;

/// The first and the longest pause between two tries. The lock is held for about 0.1 ms.
const PAUSES: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(2));

/// Takes the lock at `path`, creating a missing file (0600); dropping it releases the lock. `boot_id`: of
/// the caller, which will free what is of another boot.
///
/// # Errors
/// [`StoreError::LockTimeout`] after `wait`; [`StoreError::Io`] if the file cannot be opened, or the caller
/// does not know this boot.
pub(super) fn acquire(
    path: &Path,
    boot_id: &str,
    wait: Duration,
) -> Result<Flock<File>, StoreError> {
    let failed = |what, source| StoreError::Io { what, path: path.to_owned(), source };
    if boot_id.is_empty() {
        return Err(failed("lock", io::Error::other("the id of this boot is unknown")));
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let started = Instant::now();
    let mut pause = PAUSES.0;
    loop {
        let file = options.open(path).map_err(|source| failed("open", source))?;
        // flock(2) needs read access only.
        files::keep_private(&file).map_err(|source| failed("protect", source))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            // A file that was deleted meanwhile locks no other process out.
            Ok(lock) if is_one(&lock, fs::metadata(path)) => return Ok(lock),
            Ok(_) | Err((_, Errno::EWOULDBLOCK | Errno::EINTR)) => {}
            Err((_, errno)) => return Err(failed("lock", io::Error::from(errno))),
        }
        if started.elapsed() >= wait {
            return Err(StoreError::LockTimeout { path: path.to_owned(), waited: wait });
        }
        sleep(pause);
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// It is the `other` file.
pub(super) fn is_one(file: &File, other: io::Result<Metadata>) -> bool {
    let place = |found: Metadata| (found.dev(), found.ino());
    matches!((file.metadata().map(place), other.map(place)), (Ok(one), Ok(other)) if one == other)
}
