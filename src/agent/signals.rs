//! Signals, as wakes of the loop; and the end of an agent that one of them does not end.

use std::time::Duration;
use std::{process, thread};

use nix::sys::signal::{SigSet, Signal};

use crate::os::threads;
use crate::settings::exit;

/// How long the agent may take to end, whatever hangs. The longest that it waits for on purpose, pods of a test, takes half
/// of it; the unit kills after 15 s.
const END_WITHIN: Duration = Duration::from_secs(10);

/// How long it may take to log that.
const LOG_WITHIN: Duration = Duration::from_millis(100);

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
    threads::spawn("signals", move || {
        while let Ok(signal) = signals.wait() {
            publish(signal);
            if signal != Signal::SIGHUP {
                end_in_time(signal);
            }
        }
    })?;
    Ok(())
}

/// Ends the process if nothing else has ended it by then. It may be killed on any line, so that this does no harm.
fn end_in_time(signal: Signal) -> ! {
    thread::sleep(END_WITHIN);
    // What hangs may be who reads the log.
    let log = move || log::error!("{signal}: not ended within {END_WITHIN:?}: ends as it is");
    let _logged = threads::spawn("end", log);
    thread::sleep(LOG_WITHIN);
    process::exit(exit::FAILURE.into())
}
