//! Waiting for a file descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Waits at most `patience` until `file` is readable or at its end. A signal ends the wait early.
///
/// # Errors
/// poll(2).
pub fn is_readable(file: &impl AsFd, patience: Duration) -> io::Result<bool> {
    is_any_readable(&[file.as_fd()], patience)
}

/// The same for several.
///
/// # Errors
/// poll(2).
pub fn is_any_readable(files: &[BorrowedFd<'_>], patience: Duration) -> io::Result<bool> {
    let patience = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
    let mut files: Vec<_> =
        files.iter().map(|file| PollFd::new(*file, PollFlags::POLLIN)).collect();
    match poll(&mut files, patience) {
        Err(Errno::EINTR) => Ok(false),
        ready => Ok(ready? > 0),
    }
}
