//! Tells when somebody touches certain files: one inotify(7) for all of them, because a user has
//! only 128 of it, and containerd, systemd and the kubelet share them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};

use crate::os::wait::is_readable;
use crate::os::xtables_lock;

/// Hears runs of iptables-legacy, and of every change to the files that it is told to follow.
pub struct FileWatch {
    inotify: Inotify,
    /// What is watched for those files.
    followed: Mutex<BTreeMap<WatchDescriptor, Names>>,
}

/// The names in a folder that matter, and the followed files to which each of them leads.
type Names = BTreeMap<OsString, BTreeSet<PathBuf>>;

/// What was heard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileEvents {
    /// A run of iptables-legacy has ended.
    pub iptables: bool,
    /// The followed files that were touched, themselves or a folder on the way to them.
    pub files: BTreeSet<PathBuf>,
}

impl FileWatch {
    /// Follows no file yet.
    ///
    /// # Errors
    /// inotify(7) is refused, or there is no `/run`.
    pub fn open() -> io::Result<FileWatch> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC)?;
        xtables_lock::listen(&inotify)?;
        Ok(FileWatch { inotify, followed: Mutex::default() })
    }

    /// Follows `files`, absolute paths, and no others from now on: their folders as they are at this
    /// moment, and those on the way there, so that it is heard when one goes, or comes into being
    /// again. Called before each look at the files it misses nothing.
    ///
    /// # Errors
    /// A folder cannot be watched; the others are.
    pub fn follow<'a>(&self, files: impl IntoIterator<Item = &'a Path>) -> io::Result<()> {
        let mut refused = Ok(());
        // Nothing that is heard meanwhile is judged before all is known.
        let mut followed = self.followed();
        followed.clear();
        for (folder, place) in places(files) {
            match self.inotify.add_watch(&folder, place.mask()) {
                Ok(watch) => {
                    let names = followed.entry(watch).or_default();
                    // The same folder by two paths is one watch.
                    for (name, files) in place.names {
                        names.entry(name).or_default().extend(files);
                    }
                }
                // The folder above it tells when it comes.
                Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(error) => {
                    let why = format!("{}: {}", folder.display(), error.desc());
                    refused = Err(io::Error::new(io::Error::from(error).kind(), why));
                }
            }
        }
        refused
    }

    /// Waits for something to be heard, not longer than `patience`; says what.
    ///
    /// # Errors
    /// The watch is of no more use.
    pub fn wait(&self, patience: Duration) -> io::Result<FileEvents> {
        let mut heard = FileEvents::default();
        if !is_readable(&self.inotify, patience)? {
            return Ok(heard);
        }
        let events = self.inotify.read_events()?;
        let followed = self.followed();
        for event in &events {
            let lost = event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW);
            heard.iptables |= lost || xtables_lock::hears(&self.inotify, event);
            if lost {
                heard.files.extend(followed.values().flat_map(all));
            } else if let Some(names) = followed.get(&event.wd) {
                heard.files.extend(touched(names, event));
            }
        }
        Ok(heard)
    }

    fn followed(&self) -> MutexGuard<'_, BTreeMap<WatchDescriptor, Names>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The files that `event` is about. One without a name is about the folder itself: it is gone, or
/// somewhere else.
fn touched(names: &Names, event: &InotifyEvent) -> BTreeSet<PathBuf> {
    let gone = AddWatchFlags::IN_DELETE_SELF
        | AddWatchFlags::IN_MOVE_SELF
        | AddWatchFlags::IN_UNMOUNT
        | AddWatchFlags::IN_IGNORED;
    match &event.name {
        Some(name) => names.get(name).cloned().unwrap_or_default(),
        None if event.mask.intersects(gone) => all(names).collect(),
        None => BTreeSet::new(),
    }
}

fn all(names: &Names) -> impl Iterator<Item = PathBuf> {
    names.values().flatten().cloned()
}

/// What matters in one folder.
#[derive(Debug, Default, PartialEq, Eq)]
struct Place {
    names: Names,
    /// Followed files lie in it; else only the way to them.
    has_files: bool,
}

impl Place {
    /// Coming and going, and in folders of followed files also what is written. A folder that is
    /// watched for something else as well goes on to be.
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

/// The folders in which something matters for `files`: each one's, and every folder above it.
fn places<'a>(files: impl IntoIterator<Item = &'a Path>) -> BTreeMap<PathBuf, Place> {
    let mut places: BTreeMap<PathBuf, Place> = BTreeMap::new();
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
