//! SIGINT and SIGTERM, held back so that pods of this program are detached before it ends.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::SignalFd;

use crate::os::wait::{is_any_readable, is_readable};
use crate::settings::exit::{self, Exit};

/// Neither ends this process any more. Programs that it starts get both.
pub struct HeldSignals(SignalFd);

impl HeldSignals {
    /// Must be called before another thread is started.
    ///
    /// # Errors
    /// The kernel's.
    pub fn hold() -> Result<HeldSignals, Exit> {
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGINT);
        signals.add(Signal::SIGTERM);
        signals.thread_block().context("block signals")?;
        Ok(HeldSignals(SignalFd::new(&signals).context("open a signalfd")?))
    }

    /// Whether one came, or comes before `patience` ends.
    pub fn came(&self, patience: Duration) -> bool {
        is_readable(&self.0, patience).unwrap_or(true)
    }

    /// The same, or `input` ends.
    pub fn came_or_ended(&self, input: Option<BorrowedFd<'_>>, patience: Duration) -> bool {
        let files: Vec<_> = input.into_iter().chain([self.0.as_fd()]).collect();
        is_any_readable(&files, patience).unwrap_or(true)
    }

    /// # Errors
    /// One came.
    pub fn verify(&self) -> Result<(), Exit> {
        match self.came(Duration::ZERO) {
            true => Err(Exit::new(exit::FAILURE, "stopped by a signal; the pods are removed")),
            false => Ok(()),
        }
    }
}
