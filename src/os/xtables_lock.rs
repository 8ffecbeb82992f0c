//! Detects runs of iptables-legacy, for which the kernel has no events.
//!
//! Every run opens and locks a file, and closes it at its end (iptables, `XT_LOCK_NAME`).

use std::ffi::OsStr;
use std::path::Path;

use nix::sys::inotify::{AddWatchFlags, Inotify, InotifyEvent};

/// The folder of the lock file, and its name.
const FOLDER: &str = "/run";
const NAME: &str = "xtables.lock";

/// Another lock file, for a run that changes nothing and must not be detected.
pub const ELSEWHERE: (&str, &str) = ("XTABLES_LOCKFILE", "/dev/null");

/// Begins to watch, also if iptables-legacy has never run since the boot.
///
/// # Errors
/// There is no `/run`, or the user has too many watches.
pub fn listen(inotify: &Inotify) -> nix::Result<()> {
    inotify.add_watch(FOLDER, AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO)?;
    watch_file(inotify);
    Ok(())
}

/// A run has ended, or begun for the first time. The lock file is the only file with a watch of its
/// own.
pub fn concerns(inotify: &Inotify, event: &InotifyEvent) -> bool {
    match event.name.as_deref() {
        Some(name) if name == OsStr::new(NAME) => {
            watch_file(inotify);
            true
        }
        Some(_) => false,
        None => event.mask.intersects(AddWatchFlags::IN_CLOSE),
    }
}

/// If it does not exist yet, the watch on its folder reports its creation.
fn watch_file(inotify: &Inotify) {
    let _missing = inotify.add_watch(&Path::new(FOLDER).join(NAME), AddWatchFlags::IN_CLOSE);
}
