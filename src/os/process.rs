//! How a process ends when humanz itself has a bug.

use std::{panic, process};

/// From now on a panic of any thread ends the process with the exit code that `tell` gives, once that
/// has told what happened and where.
///
/// Nothing is undone on the way: whatever the process was doing, it must be right to kill it there.
/// In return the executable needs no tables that say how to unwind: 4.6 MB instead of 5.8.
pub fn end_at_a_panic(tell: impl Fn(&str) -> i32 + Send + Sync + 'static) {
    panic::set_hook(Box::new(move |panic| {
        let text = panic.to_string().replace('\n', " ");
        process::exit(tell(&text));
    }));
}
