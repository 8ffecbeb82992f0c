//! The store of one network: reading and releasing. (Reserving is in [`crate::ipam::reserve`].)

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::Flock;

use crate::ipam::claims::PortClaims;
use crate::ipam::entry::StoreEntry;
use crate::ipam::error::StoreError;
use crate::ipam::layout::{Layout, exists, failed, names, read, remove};
use crate::ipam::sources::Sources;
use crate::os::files::found;

/// How long the holder of the store's lock waits for that of the host ports.
const PORTS_WAIT: Duration = Duration::from_secs(2);

/// The reserved addresses of one network of this host, in the folder `<dataDir>/<network>`.
#[derive(Clone, Debug)]
pub struct Store {
    pub(super) layout: Layout,
    pub(super) boot_id: String,
    ports: PortClaims,
    pub(super) sources: Sources,
}

/// The store, locked until dropped. Hold the lock for file operations only, not for netlink calls.
#[derive(Debug)]
pub struct LockedStore<'s> {
    pub(super) store: &'s Store,
    /// Addresses that are not chosen, beside those that have a file.
    pub(super) others: HashSet<IpAddr>,
    pub(super) _lock: Flock<File>,
}

impl Store {
    /// The store of `network` under `data_dir`. Reads and creates nothing.
    ///
    /// `network` is a CNI network name (no `/`). Entries of another boot than `boot_id` are free.
    /// `sources`: stores of older plugins, see [`Sources`].
    pub fn open(data_dir: &Path, network: &str, boot_id: &str, sources: Sources) -> Store {
        let layout = Layout::new(data_dir.join(network));
        let ports = PortClaims::open(data_dir, boot_id);
        Store { layout, boot_id: boot_id.to_owned(), ports, sources }
    }

    /// The host ports of all networks under the data directory.
    pub fn ports(&self) -> &PortClaims {
        &self.ports
    }

    /// `dir` holds a store, complete or not.
    ///
    /// # Errors
    /// [`StoreError::Io`], also without permission to look.
    pub fn is_at(dir: &Path) -> Result<bool, StoreError> {
        let layout = Layout::new(dir.to_owned());
        Ok(is_file(&layout.boot())? || is_file(&layout.lock())?)
    }

    /// What says in which boot the stores of older plugins were imported into that at `dir`.
    pub fn boot_record(dir: &Path) -> PathBuf {
        Layout::new(dir.to_owned()).boot()
    }

    /// The folder of the network.
    pub fn dir(&self) -> &Path {
        self.layout.dir()
    }

    /// There is no folder, and nothing to import: nothing is reserved.
    pub fn is_nowhere(&self) -> bool {
        self.sources.is_empty() && !self.dir().exists()
    }
}

impl LockedStore<'_> {
    /// Chooses none of `others`, whose owners the store does not have.
    pub fn without(self, others: HashSet<IpAddr>) -> Self {
        LockedStore { others, ..self }
    }

    /// The entry of an attachment, in one look-up.
    ///
    /// # Errors
    /// [`StoreError::Io`]. An invalid entry is moved to quarantine.
    pub fn entry(
        &self,
        container_id: &str,
        ifname: &str,
    ) -> Result<Option<StoreEntry>, StoreError> {
        self.entry_at(&self.store.layout.owner(container_id, ifname))
    }

    /// The addresses that are reserved for the attachment: those of its entry whose own files have
    /// the same owner.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn reserved(&self, container_id: &str, ifname: &str) -> Result<Vec<IpAddr>, StoreError> {
        let Some(entry) = self.entry(container_id, ifname)? else { return Ok(Vec::new()) };
        let mut reserved = Vec::new();
        for address in &entry.addresses {
            if self.holds(&entry, *address)? {
                reserved.push(*address);
            }
        }
        Ok(reserved)
    }

    /// Every entry that has an owner, in the order of the file names; at the end those whose owner's
    /// file was deleted by hand.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn entries(&self) -> Result<Vec<StoreEntry>, StoreError> {
        let layout = &self.store.layout;
        let mut names = names(&layout.owners())?;
        names.sort_unstable();
        let mut entries = Vec::with_capacity(names.len());
        for name in names {
            entries.extend(self.entry_at(&layout.owners().join(name))?);
        }
        let mut strays: Vec<StoreEntry> = Vec::new();
        for address in layout.addresses()? {
            let Some(entry) = self.entry_at(&layout.address(address))? else { continue };
            let known = strays.iter().any(|stray| stray.is_of(&entry.container_id, &entry.ifname));
            if !known && !entry.is_unowned() && !self.has_owner_file(&entry)? {
                strays.push(entry);
            }
        }
        entries.extend(strays);
        Ok(entries)
    }

    /// Releases the addresses of an attachment, in a number of steps that does not depend on the size
    /// of the store; gives them. None is success.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn release(&self, container_id: &str, ifname: &str) -> Result<Vec<IpAddr>, StoreError> {
        let entry = match self.entry(container_id, ifname)? {
            Some(entry) => Some(entry),
            // Old versions of host-local kept no interface name.
            None => self.entry(container_id, "")?,
        };
        entry.map_or(Ok(Vec::new()), |entry| self.remove_entry(&entry))
    }

    /// Those of `addresses` that no other attachment has. (Old versions of host-local kept no interface
    /// name.)
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn without_others(
        &self,
        container_id: &str,
        ifname: &str,
        addresses: Vec<IpAddr>,
    ) -> Result<Vec<IpAddr>, StoreError> {
        let mut left = Vec::new();
        for address in addresses {
            let entry = self.entry_at(&self.store.layout.address(address))?;
            let is_other = |entry: StoreEntry| {
                let is_own = |ifname| entry.is_of(container_id, ifname);
                !entry.is_unowned() && !is_own(ifname) && !is_own("")
            };
            if !entry.is_some_and(is_other) {
                left.push(address);
            }
        }
        Ok(left)
    }

    /// Releases those of `addresses` that were imported without an owner; gives them.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn release_unowned(&self, addresses: &[IpAddr]) -> Result<Vec<IpAddr>, StoreError> {
        let mut freed = Vec::new();
        for address in addresses {
            let path = self.store.layout.address(*address);
            if self.entry_at(&path)?.is_some_and(|entry| entry.is_unowned()) && remove(&path)? {
                freed.push(*address);
            }
        }
        Ok(freed)
    }

    /// Releases every attachment for which `valid` (container id, interface) is false; gives its
    /// entries. Addresses without a known owner stay.
    ///
    /// # Errors
    /// [`StoreError::Io`] of the last one that failed; the others were released.
    pub fn retain(
        &self,
        valid: impl Fn(&str, &str) -> bool,
    ) -> Result<Vec<StoreEntry>, StoreError> {
        let mut released = Vec::new();
        let mut outcome = Ok(());
        for entry in self.entries()? {
            let done = match valid(&entry.container_id, &entry.ifname) {
                true => self.restore_owner_file(&entry),
                false => self.remove_entry(&entry).map(|_| released.push(entry)),
            };
            outcome = done.and(outcome);
        }
        outcome.map(|()| released)
    }

    /// The entry in the file at `path`, which may be an owner's or an address's.
    pub(super) fn entry_at(&self, path: &Path) -> Result<Option<StoreEntry>, StoreError> {
        let Some(bytes) = read(path)? else { return Ok(None) };
        match StoreEntry::parse(&bytes) {
            Ok(entry) if self.is_in_place(&entry, path) => return Ok(Some(entry)),
            // Its other hard links may be in place.
            Ok(entry) => {
                let reason = format!("it belongs to {}", entry.owner_text());
                self.quarantine([path.to_owned()], &reason)?;
            }
            Err(reason) => {
                let layout = &self.store.layout;
                let same = same_file(layout.dir(), path)?;
                let names = same.iter().map(|name| layout.dir().join(name));
                self.quarantine(names.chain([path.to_owned()]), &reason)?;
            }
        }
        Ok(None)
    }

    /// `path` is the file of the entry's owner or of one of its addresses. In another file it would
    /// never be removed.
    fn is_in_place(&self, entry: &StoreEntry, path: &Path) -> bool {
        let layout = &self.store.layout;
        path == layout.owner(&entry.container_id, &entry.ifname)
            || entry.addresses.iter().any(|address| path == layout.address(*address))
    }

    /// Removes what is still its own of `entry`: addresses, ports, then the owner's file.
    pub(super) fn remove_entry(&self, entry: &StoreEntry) -> Result<Vec<IpAddr>, StoreError> {
        let layout = &self.store.layout;
        let mut freed = Vec::new();
        for address in &entry.addresses {
            if self.holds(entry, *address)? {
                remove(&layout.address(*address))?;
                freed.push(*address);
            }
        }
        // On a full disk, on which no port could be claimed, there can be no lock file either.
        if entry.ports.is_some() && !self.store.ports.are_untouched() {
            self.store.ports.lock(PORTS_WAIT)?.release(entry)?;
        }
        let owner = layout.owner(&entry.container_id, &entry.ifname);
        if self.entry_at(&owner)?.is_some_and(|found| found.is_same(entry)) {
            remove(&owner)?;
        }
        Ok(freed)
    }

    /// The file of `address` is of the ADD that wrote `entry`.
    fn holds(&self, entry: &StoreEntry, address: IpAddr) -> Result<bool, StoreError> {
        let found = self.entry_at(&self.store.layout.address(address))?;
        Ok(found.is_some_and(|found| found.is_same(entry)))
    }

    fn has_owner_file(&self, entry: &StoreEntry) -> Result<bool, StoreError> {
        exists(&self.store.layout.owner(&entry.container_id, &entry.ifname))
    }

    /// Restores the owner's file of a stray entry, so that a release finds it.
    fn restore_owner_file(&self, entry: &StoreEntry) -> Result<(), StoreError> {
        if self.has_owner_file(entry)? {
            return Ok(());
        }
        log::warn!("restored the lost entry of {}", entry.owner_text());
        let path = self.store.layout.owner(&entry.container_id, &entry.ifname);
        self.store.layout.replace(&path, &entry.to_bytes())
    }

    /// Moves invalid files to the quarantine folder.
    pub(super) fn quarantine(
        &self,
        paths: impl IntoIterator<Item = PathBuf>,
        reason: &str,
    ) -> Result<(), StoreError> {
        let dir = self.store.layout.quarantine();
        found(fs::create_dir(&dir)).or_else(|error| match error.kind() {
            ErrorKind::AlreadyExists => Ok(None),
            _ => Err(failed("create", &dir)(error)),
        })?;
        for path in paths {
            log::error!(
                "{} is not an entry ({reason}): moved to {}",
                path.display(),
                dir.display()
            );
            let Some(name) = path.file_name() else { continue };
            found(fs::rename(&path, dir.join(name))).map_err(failed("move", &path))?;
        }
        Ok(())
    }
}

/// There is a file at `path`.
fn is_file(path: &Path) -> Result<bool, StoreError> {
    match fs::metadata(path) {
        Ok(found) => Ok(found.is_file()),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(false)
        }
        Err(error) => Err(failed("look at", path)(error)),
    }
}

/// The names in `dir` of the file at `path`: its other hard links.
fn same_file(dir: &Path, path: &Path) -> Result<Vec<OsString>, StoreError> {
    let Some(inode) = found(fs::symlink_metadata(path)).map_err(failed("look at", path))? else {
        return Ok(Vec::new());
    };
    let mut same = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed("read", dir))? {
        let entry = entry.map_err(failed("read", dir))?;
        if entry.ino() == inode.ino() && entry.path() != path {
            same.push(entry.file_name());
        }
    }
    Ok(same)
}
