//! Tells when somebody has run iptables-legacy: the kernel itself tells no one.
//!
//! Every run opens a file, locks it against others of its kind, and closes it when it has ended
//! (iptables, `XT_LOCK_NAME`).

use std::ffi::OsStr;
use std::path::Path;

use nix::sys::inotify::{AddWatchFlags, Inotify, InotifyEvent};

/// The folder of the lock file, and its name.
const FOLDER: &str = "/run";
const NAME: &str = "xtables.lock";

/// A lock file in its place, for a run that changes nothing and need not be heard.
pub const ELSEWHERE: (&str, &str) = ("XTABLES_LOCKFILE", "/dev/null");

/// Begins to listen, also if nobody has run iptables-legacy since the host was started.
///
/// # Errors
/// There is no `/run`, or the user watches too many files.
pub fn listen(inotify: &Inotify) -> nix::Result<()> {
    inotify.add_watch(FOLDER, AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO)?;
    watch_file(inotify);
    Ok(())
}

/// A run has ended, or begun where none had been before. Of files that are watched for themselves
/// the lock file is the only one.
pub fn hears(inotify: &Inotify, event: &InotifyEvent) -> bool {
    match event.name.as_deref() {
        Some(name) if name == OsStr::new(NAME) => {
            watch_file(inotify);
            true
        }
        Some(_) => false,
        None => event.mask.intersects(AddWatchFlags::IN_CLOSE),
    }
}

/// None is there yet: its folder tells when it comes.
fn watch_file(inotify: &Inotify) {
    let _missing = inotify.add_watch(&Path::new(FOLDER).join(NAME), AddWatchFlags::IN_CLOSE);
}
