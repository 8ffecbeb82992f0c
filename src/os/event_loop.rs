//! An event loop in a thread of its own, for a connection that stays; or for one question.

use std::io;
use std::thread;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::{oneshot, watch as latest};

/// A session that runs until it is stopped. Dropped, it is told to end, but nobody waits for it.
#[derive(Debug)]
pub struct EventLoop {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl EventLoop {
    /// Runs `session` in a thread of this name. It must end once what it is given comes.
    ///
    /// # Errors
    /// If the thread or its event loop cannot be made.
    pub fn spawn(
        name: &str,
        session: impl AsyncFnOnce(oneshot::Receiver<()>) + Send + 'static,
    ) -> io::Result<EventLoop> {
        let (stop, stopped) = oneshot::channel();
        let runtime = runtime()?;
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            runtime.block_on(session(stopped));
            // A name that is still being looked up holds nobody up.
            runtime.shutdown_background();
        })?;
        Ok(EventLoop { stop: Some(stop), thread: Some(thread) })
    }

    /// Ends the session, and waits for that.
    pub fn stop(mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic has ended the process.
            drop(thread.join());
        }
    }
}

/// Asks something, without a connection that stays.
///
/// # Errors
/// What `ask` says, or that no event loop can be made.
pub fn once<T>(ask: impl AsyncFnOnce() -> Result<T, String>) -> Result<T, String> {
    let runtime = runtime().map_err(|error| format!("make an event loop: {error}"))?;
    let answer = runtime.block_on(ask());
    runtime.shutdown_background();
    answer
}

/// Tells a session what is so from now on; it hears of it only if that is something else.
pub fn tell<T: PartialEq>(session: &latest::Sender<T>, news: T) {
    session.send_if_modified(|known| {
        let changed = *known != news;
        *known = news;
        changed
    });
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}
