//! Waiting for a file descriptor.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Waits at most `patience` until `file` is readable or at its end. A signal ends the wait early.
///
/// # Errors
/// poll(2).
pub fn is_readable(file: &impl AsFd, patience: Duration) -> io::Result<bool> {
    let patience = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
    match poll(&mut [PollFd::new(file.as_fd(), PollFlags::POLLIN)], patience) {
        Err(Errno::EINTR) => Ok(false),
        ready => Ok(ready? > 0),
    }
}
