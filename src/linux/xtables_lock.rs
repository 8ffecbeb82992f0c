//! Tells when somebody has run iptables-legacy: the kernel itself tells no one.
//!
//! Every run opens a file, locks it against others of its kind, and closes it when it has ended
//! (iptables, `XT_LOCK_NAME`).

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::wait::is_readable;

/// The folder of the lock file, and its name.
const FOLDER: &str = "/run";
const NAME: &str = "xtables.lock";

/// A lock file in its place, for a run that changes nothing and need not be heard.
pub const ELSEWHERE: (&str, &str) = ("XTABLES_LOCKFILE", "/dev/null");

/// Hears each run that ends.
pub struct LockWatch {
    inotify: Inotify,
}

impl LockWatch {
    /// Begins to listen, also if nobody has run iptables-legacy since the host was started.
    ///
    /// # Errors
    /// inotify(7) is refused, or there is no `/run`.
    pub fn open() -> io::Result<LockWatch> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC)?;
        inotify.add_watch(FOLDER, AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO)?;
        let watch = LockWatch { inotify };
        watch.watch_file();
        Ok(watch)
    }

    /// Waits for one that has ended, or begun where none had been before, not longer than `patience`;
    /// says whether there was one.
    ///
    /// # Errors
    /// The watch is of no more use.
    pub fn wait(&self, patience: Duration) -> io::Result<bool> {
        let mut heard = false;
        if is_readable(&self.inotify, patience)? {
            for event in self.inotify.read_events()? {
                if event.name.as_deref() == Some(OsStr::new(NAME)) {
                    self.watch_file();
                    heard = true;
                }
                heard |= event.mask.intersects(AddWatchFlags::IN_CLOSE | OVERFLOW);
            }
        }
        Ok(heard)
    }

    /// None is there yet: its folder tells when it comes.
    fn watch_file(&self) {
        let _missing =
            self.inotify.add_watch(&Path::new(FOLDER).join(NAME), AddWatchFlags::IN_CLOSE);
    }
}

/// Events were lost.
const OVERFLOW: AddWatchFlags = AddWatchFlags::IN_Q_OVERFLOW;
