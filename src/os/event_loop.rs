//! Event loops: in a thread of their own for a session, or for one request.

use std::io;
use std::pin::Pin;
use std::thread;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::{oneshot, watch as latest};

use crate::os::threads;

/// A session that runs until it is stopped. Dropping it signals the end without waiting.
#[derive(Debug)]
pub struct EventLoop {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl EventLoop {
    /// Runs `session` in a thread of this name. It must end on the signal.
    ///
    /// # Errors
    /// The thread or its event loop cannot be created.
    pub fn spawn(
        name: &str,
        session: impl AsyncFnOnce(oneshot::Receiver<()>) + Send + 'static,
    ) -> io::Result<EventLoop> {
        let (stop, stopped) = oneshot::channel();
        let runtime = runtime()?;
        let thread = threads::spawn(name, move || {
            runtime.block_on(session(stopped));
            // Pending name lookups are abandoned.
            runtime.shutdown_background();
        })?;
        Ok(EventLoop { stop: Some(stop), thread: Some(thread) })
    }

    /// Ends the session, and waits for its end.
    pub fn stop(mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic ends the process.
            drop(thread.join());
        }
    }
}

/// A session whose settings and attributes may change while it runs. Dropping it ends it like
/// [`Steered::stop`], but without waiting.
#[derive(Debug)]
pub struct Steered<Setup, Attributes> {
    pub setup: latest::Sender<Setup>,
    pub attributes: latest::Sender<Attributes>,
    pub event_loop: EventLoop,
}

impl<Setup: PartialEq, Attributes: PartialEq> Steered<Setup, Attributes> {
    /// Applies other settings. Returns at once.
    pub fn set_up(&self, setup: Setup) {
        send_if_changed(&self.setup, setup);
    }

    /// Connects anew: an address of this host was removed, and perhaps the connection with it, which
    /// would take seconds to notice. Returns at once.
    pub fn reconnect(&self) {
        self.setup.send_modify(|_| {});
    }

    /// Publishes other attributes of this host. Returns at once.
    pub fn set_attributes(&self, attributes: Attributes) {
        send_if_changed(&self.attributes, attributes);
    }

    /// Ends the session, and waits for its end.
    pub fn stop(self) {
        self.event_loop.stop();
    }
}

/// Runs one request.
///
/// # Errors
/// Those of `request`, or that no event loop can be created.
pub fn once<T>(request: impl AsyncFnOnce() -> Result<T, String>) -> Result<T, String> {
    let mut answer = None;
    run(Box::pin(async { answer = Some(request().await) }))
        .map_err(|error| format!("create an event loop: {error}"))?;
    answer.unwrap_or_else(|| Err("the event loop ended".to_owned()))
}

/// Compiled once, not for each kind of request.
fn run(request: Pin<Box<dyn Future<Output = ()> + '_>>) -> io::Result<()> {
    let runtime = runtime()?;
    runtime.block_on(request);
    runtime.shutdown_background();
    Ok(())
}

/// Sends `value` to a session, which is woken only if it differs from the last one.
pub fn send_if_changed<T: PartialEq>(session: &latest::Sender<T>, value: T) {
    session.send_if_modified(|last| {
        let changed = *last != value;
        *last = value;
        changed
    });
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}
