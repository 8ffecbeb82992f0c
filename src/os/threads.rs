//! Threads of the agent and of subcommands.

use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};

/// Starts a thread of this name.
///
/// # Errors
/// There can be no more threads.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    spawn_boxed(name, Box::new(work))
}

/// What a thread is to do.
pub type Work = Box<dyn FnOnce() + Send>;

/// Starts a thread that does what it is sent, one after the other, until nobody can send any more.
///
/// # Errors
/// As [`spawn`].
pub fn worker(name: &str) -> io::Result<Sender<Work>> {
    let (sender, all) = channel::<Work>();
    spawn(name, move || all.into_iter().for_each(|work| work()))?;
    Ok(sender)
}

/// For each type of closure the standard library's would be 2 KB of code.
fn spawn_boxed(name: &str, work: Work) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.to_owned()).spawn(work)
}
