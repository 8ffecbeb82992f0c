//! File locks with a deadline: a process that hangs must not block every pod of the host.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::ipam::error::StoreError;
use crate::os::files;

/// The first and the longest pause between two tries. The lock is held for about 0.1 ms.
const PAUSES: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(2));

/// Takes the lock at `path`, creating a missing file (0600); dropping it releases the lock.
///
/// # Errors
/// [`StoreError::LockTimeout`] after `wait`; [`StoreError::Io`] if the file cannot be opened.
pub(super) fn acquire(path: &Path, wait: Duration) -> Result<Flock<File>, StoreError> {
    let failed = |what, source| StoreError::Io { what, path: path.to_owned(), source };
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut file = options.open(path).map_err(|source| failed("open", source))?;
    // Whoever may read it may hold it.
    files::keep_private(&file).map_err(|source| failed("protect", source))?;
    let started = Instant::now();
    let mut pause = PAUSES.0;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((unlocked, Errno::EWOULDBLOCK | Errno::EINTR)) => file = unlocked,
            Err((_, errno)) => return Err(failed("lock", io::Error::from(errno))),
        }
        if started.elapsed() >= wait {
            return Err(StoreError::LockTimeout { path: path.to_owned(), waited: wait });
        }
        sleep(pause);
        pause = (pause * 2).min(PAUSES.1);
    }
}
