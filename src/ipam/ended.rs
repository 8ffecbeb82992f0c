//! Attachments that ended while another process held the lock: who takes it next releases them.
//!
//! A note is a further name of the entry's file, in the folder `ended`: made by one `linkat(2)`, it is never half
//! written, needs no room for content, and lives exactly as long as the reservation that it is about (entries and
//! notes of another boot are removed together). It names the entry of one ADD. A later ADD of the same
//! container and interface writes another entry, which no note of the former one can release.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, Flock, FlockArg};
use nix::unistd::linkat;

use crate::ipam::entry::StoreEntry;
use crate::ipam::error::StoreError;
use crate::ipam::layout::{failed, names, read, read_line, remove};
use crate::ipam::lock::is_one;
use crate::ipam::store::{LockedStore, Store};
use crate::os::files::found;

/// How often another process may put a note in the place of the one that was just removed.
const TRIES: usize = 3;

/// An entry as it was seen without the lock.
#[derive(Debug)]
pub struct SeenEntry {
    entry: StoreEntry,
    /// Open, so that no other entry can take its place.
    file: File,
    name: String,
}

impl SeenEntry {
    /// What it says.
    pub fn entry(&self) -> &StoreEntry {
        &self.entry
    }
}

impl Store {
    /// The entry of an attachment, without the lock; `None` also for an invalid one, and for one of another boot.
    /// (Old versions of host-local kept no interface name.)
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn seen(&self, container_id: &str, ifname: &str) -> Result<Option<SeenEntry>, StoreError> {
        for ifname in [ifname, ""] {
            let seen = self.seen_at(&self.layout.owner(container_id, ifname))?;
            if let Some(seen) = seen.filter(|seen| seen.entry.is_of(container_id, ifname)) {
                return Ok(Some(seen));
            }
        }
        Ok(None)
    }

    /// What an ADD holds of its `entry` while it is under way, gone with its process; `None`: another process holds it,
    /// or the entry is gone.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn hold(&self, entry: &StoreEntry) -> Result<Option<Flock<File>>, StoreError> {
        let seen = || self.seen(&entry.container_id, &entry.ifname);
        let there = seen()?.filter(|seen| seen.entry.is_same(entry));
        let held = there.and_then(|it| Flock::lock(it.file, FlockArg::LockExclusiveNonblock).ok());
        // Meanwhile another process may have held and removed it: what is held then is no entry any more.
        let now = if held.is_some() { seen()? } else { None };
        Ok(held.filter(|held| now.is_some_and(|now| is_one(held, now.file.metadata()))))
    }

    /// Those of `addresses` that were imported without an owner, each with its entry.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn seen_unowned(&self, addresses: &[IpAddr]) -> Result<Vec<SeenEntry>, StoreError> {
        let mut all = Vec::new();
        for address in addresses {
            let seen = self.seen_at(&self.layout.address(*address))?;
            all.extend(seen.filter(|seen| seen.entry.is_unowned()));
        }
        Ok(all)
    }

    /// What stores of older plugins have was not imported yet in this boot.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn awaits_import(&self) -> Result<bool, StoreError> {
        let begun = read_line(&self.layout.boot())?;
        Ok(begun.as_ref() != Some(&self.boot_id) && self.sources.exist())
    }

    /// Leaves a note that the attachment of `seen` has ended. If somebody has released it meanwhile there is
    /// nothing to note.
    ///
    /// # Errors
    /// [`StoreError::Io`]: nothing was noted.
    pub fn note_end(&self, seen: &SeenEntry) -> Result<(), StoreError> {
        let folder = self.layout.ended();
        let made = DirBuilder::new().mode(0o700).create(&folder);
        made.or_else(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Ok(()),
            _ => Err(failed("create", &folder)(error)),
        })?;
        let path = folder.join(&seen.name);
        let mut linked = seen.link(&path);
        for _ in 0..TRIES {
            if !matches!(linked, Err(Errno::EEXIST)) || seen.is_at(&path) {
                break;
            }
            // Of a former attachment, whose release failed.
            remove(&path)?;
            linked = seen.link(&path);
        }
        match linked {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(Errno::EEXIST) if seen.is_at(&path) => Ok(()),
            Err(errno) => Err(failed("link", &path)(errno.into())),
        }
    }

    /// The entries of this boot of which a note waits, without the lock.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn ended(&self) -> Result<Vec<StoreEntry>, StoreError> {
        let mut ended = Vec::new();
        for path in self.notes()? {
            ended.extend(self.seen_at(&path)?.map(|seen| seen.entry));
        }
        Ok(ended)
    }

    pub(super) fn notes(&self) -> Result<Vec<PathBuf>, StoreError> {
        let folder = self.layout.ended();
        Ok(names(&folder)?.iter().map(|name| folder.join(name)).collect())
    }

    fn seen_at(&self, path: &Path) -> Result<Option<SeenEntry>, StoreError> {
        let Some(mut file) = found(File::open(path)).map_err(failed("open", path))? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed("read", path))?;
        let entry = StoreEntry::parse(&bytes).ok().filter(|entry| entry.boot_id == self.boot_id);
        let name = path.file_name().and_then(|name| name.to_str());
        Ok(entry.zip(name).map(|(entry, name)| SeenEntry { entry, file, name: name.to_owned() }))
    }
}

impl SeenEntry {
    /// Gives the file a further name, whatever stands in the place where it was found.
    fn link(&self, path: &Path) -> Result<(), Errno> {
        let open = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        linkat(AT_FDCWD, open.as_str(), AT_FDCWD, path, AtFlags::AT_SYMLINK_FOLLOW)
    }

    fn is_at(&self, path: &Path) -> bool {
        let (own, there) = (self.file.metadata(), fs::symlink_metadata(path));
        matches!((own, there), (Ok(own), Ok(there)) if own.ino() == there.ino())
    }
}

impl LockedStore<'_> {
    /// Releases what notes are about. What cannot be released now stays noted, and blocks no other pod.
    pub(super) fn release_ended(&self) {
        let notes = self.store.notes().unwrap_or_else(|error| {
            log::warn!("attachments that have ended are not released: {error}");
            Vec::new()
        });
        for path in notes {
            if let Err(error) = self.release_noted(&path) {
                log::warn!("{} stays: {error}", path.display());
            }
        }
    }

    fn release_noted(&self, path: &Path) -> Result<(), StoreError> {
        let Some(bytes) = read(path)? else { return Ok(()) };
        let entry = match StoreEntry::parse(&bytes) {
            Ok(entry) => entry,
            Err(reason) => return self.quarantine([path.to_owned()], &reason),
        };
        if entry.boot_id == self.store.boot_id {
            // The kernel forwards them still: whoever closes them releases the addresses.
            if self.store.ports().read().has_own(&entry)? {
                return Ok(());
            }
            let freed = self.remove_entry(&StoreEntry { ports: None, ..entry.clone() })?;
            let freed: Vec<String> = freed.iter().map(IpAddr::to_string).collect();
            log::info!("{} has ended: released {}", entry.owner_text(), freed.join(", "));
        }
        remove(path).map(drop)
    }
}
