//! Threads of the agent and of subcommands.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread of this name.
///
/// # Errors
/// There can be no more threads.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    spawn_boxed(name, Box::new(work))
}

/// For each type of closure the standard library's would be 2 KB of code.
fn spawn_boxed(name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.to_owned()).spawn(work)
}
