//! Events of certain files: one inotify(7) for all of them, because a user has only 128 instances, which
//! containerd, systemd and the kubelet share.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};

use crate::net::gather::Gather;
use crate::os::wait::is_readable;
use crate::os::xtables_lock;

/// Reports runs of iptables-legacy, and every change of the followed files.
pub struct FileWatch {
    inotify: Inotify,
    /// The watches for those files.
    followed: Mutex<BTreeMap<WatchDescriptor, WatchedNames>>,
}

/// The relevant names in a folder, each with the followed files on its path.
type WatchedNames = BTreeMap<OsString, BTreeSet<PathBuf>>;

/// The events since the last wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileEvents {
    /// A run of iptables-legacy has ended.
    pub iptables: bool,
    /// The followed files that changed, or a folder on their path.
    pub files: BTreeSet<PathBuf>,
}

impl FileWatch {
    /// Follows no files yet.
    ///
    /// # Errors
    /// inotify(7) is refused, or there is no `/run`.
    pub fn open() -> io::Result<FileWatch> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC)?;
        xtables_lock::listen(&inotify)?;
        Ok(FileWatch { inotify, followed: Mutex::default() })
    }

    /// Follows `files`, absolute paths, and no others from now on: their present folders, and all
    /// parents, so that their removal and creation are reported. Called before each read of the files
    /// it misses no change.
    ///
    /// # Errors
    /// A folder cannot be watched; the others are.
    pub fn follow<'a>(&self, files: impl IntoIterator<Item = &'a Path>) -> io::Result<()> {
        let mut refused = Ok(());
        // Events are evaluated after all watches are known.
        let mut followed = self.followed();
        followed.clear();
        for (folder, place) in places(files) {
            match self.inotify.add_watch(&folder, place.mask()) {
                Ok(watch) => {
                    let names = followed.entry(watch).or_default();
                    // Two paths of the same folder share one watch.
                    for (name, files) in place.names {
                        names.entry(name).or_default().extend(files);
                    }
                }
                // The watch on its parent reports its creation.
                Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(error) => {
                    let why = format!("{}: {}", folder.display(), error.desc());
                    refused = Err(io::Error::new(io::Error::from(error).kind(), why));
                }
            }
        }
        refused
    }

    /// Waits at most `patience` for events.
    ///
    /// # Errors
    /// The watch is broken.
    pub fn wait(&self, patience: Duration) -> io::Result<FileEvents> {
        let mut received = FileEvents::default();
        if !is_readable(&self.inotify, patience)? {
            return Ok(received);
        }
        let events = self.inotify.read_events()?;
        let followed = self.followed();
        for event in &events {
            let lost = event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW);
            received.iptables |= lost || xtables_lock::concerns(&self.inotify, event);
            if lost {
                received.files.extend(followed.values().flat_map(all));
            } else if let Some(names) = followed.get(&event.wd) {
                received.files.extend(touched(names, event));
            }
        }
        Ok(received)
    }

    fn followed(&self) -> MutexGuard<'_, BTreeMap<WatchDescriptor, WatchedNames>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The files of `event`. One without a name is about the folder itself: it was removed or moved.
fn touched(names: &WatchedNames, event: &InotifyEvent) -> BTreeSet<PathBuf> {
    let gone = AddWatchFlags::IN_DELETE_SELF
        | AddWatchFlags::IN_MOVE_SELF
        | AddWatchFlags::IN_UNMOUNT
        | AddWatchFlags::IN_IGNORED;
    match &event.name {
        Some(name) => names.get(name).cloned().unwrap_or_default(),
        None if event.mask.intersects(gone) => all(names).gather(),
        None => BTreeSet::new(),
    }
}

fn all(names: &WatchedNames) -> impl Iterator<Item = PathBuf> {
    names.values().flatten().cloned()
}

/// The watch of one folder.
#[derive(Debug, Default, PartialEq, Eq)]
struct FolderWatch {
    names: WatchedNames,
    /// It holds followed files, not only folders on their path.
    has_files: bool,
}

impl FolderWatch {
    /// Creation and removal, and in folders of followed files also writes; in addition to other watches
    /// of the folder.
    fn mask(&self) -> AddWatchFlags {
        let mask = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR
            | AddWatchFlags::from_bits_retain(libc::IN_MASK_ADD);
        let written =
            AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_ATTRIB;
        if self.has_files { mask | written } else { mask }
    }
}

/// The folders to watch for `files`: each one's, and all its parents.
fn places<'a>(files: impl IntoIterator<Item = &'a Path>) -> BTreeMap<PathBuf, FolderWatch> {
    let mut places: BTreeMap<PathBuf, FolderWatch> = BTreeMap::new();
    for file in files {
        for path in file.ancestors() {
            let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { continue };
            let place = places.entry(folder.to_owned()).or_default();
            place.names.entry(name.to_owned()).or_default().insert(file.to_owned());
            place.has_files |= path == file;
        }
    }
    places
}

#[cfg(test)]
mod tests;
