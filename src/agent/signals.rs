//! Signals, as wakes of the loop.

use std::thread;

use nix::sys::signal::{SigSet, Signal};

/// Blocks the signals that the agent answers in this thread and all it starts from now on, and
/// hands each one to `publish` from a thread of its own.
///
/// Must be called before any other thread is started.
pub fn watch(publish: impl Fn(Signal) + Send + 'static) -> std::io::Result<()> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block()?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        while let Ok(signal) = signals.wait() {
            publish(signal);
        }
    })?;
    Ok(())
}
