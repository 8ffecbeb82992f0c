//! Cleanup after an interruption.

use std::path::PathBuf;

use nix::sys::signal::{SigSet, Signal};

/// Removes `folder` and ends this program on a termination signal; the hosts end with it.
///
/// To be called before any other thread starts, which would take the signal.
pub fn when_interrupted(folder: impl Fn() -> Option<PathBuf> + Send + 'static) {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    signals.thread_block().unwrap();
    std::thread::spawn(move || {
        signals.wait().unwrap();
        if let Some(folder) = folder() {
            drop(std::fs::remove_dir_all(folder));
        }
        eprintln!("\ninterrupted; everything is removed");
        std::process::exit(130);
    });
}
