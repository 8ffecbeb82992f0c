//! The store of one network: reading it, and taking things out of it. ([`crate::ipam::reserve`] puts
//! things in.)

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
use crate::ipam::import::{self, Sources};
use crate::ipam::layout::{Layout, exists, failed, found, names, read, read_line, remove};
use crate::ipam::lock;

/// How long the ports of the host are waited for by who holds the store.
const PORTS_WAIT: Duration = Duration::from_secs(5);

/// The addresses handed out in one network of this host, kept in the folder
/// `<dataDir>/<network>`.
#[derive(Clone, Debug)]
pub struct Store {
    pub(super) layout: Layout,
    pub(super) boot_id: String,
    ports: PortClaims,
    sources: Sources,
}

/// The store, held by this process alone until dropped. Hold it for file operations only, not while
/// talking to the kernel about links.
#[derive(Debug)]
pub struct LockedStore<'s> {
    pub(super) store: &'s Store,
    _lock: Flock<File>,
}

impl Store {
    /// The store of `network` under `data_dir`. Nothing is read or made yet.
    ///
    /// `network` is a CNI network name (no `/`); `boot_id` names the running boot: entries of
    /// another one are free. `sources`: what earlier plugins may have left, see [`import`].
    pub fn open(data_dir: &Path, network: &str, boot_id: &str, sources: Sources) -> Store {
        let layout = Layout::new(data_dir.join(network));
        let ports = PortClaims::open(data_dir, boot_id);
        Store { layout, boot_id: boot_id.to_owned(), ports, sources }
    }

    /// The ports of the host, which all networks under the data directory share.
    pub fn ports(&self) -> &PortClaims {
        &self.ports
    }

    /// `dir` holds a store, or one that was being made.
    ///
    /// # Errors
    /// [`StoreError::Io`] if that cannot be seen: whoever may not look knows of no absence.
    pub fn is_at(dir: &Path) -> Result<bool, StoreError> {
        let layout = Layout::new(dir.to_owned());
        Ok(is_file(&layout.boot())? || is_file(&layout.lock())?)
    }

    /// The folder of the network.
    pub fn dir(&self) -> &Path {
        self.layout.dir()
    }

    /// There is no folder, and nothing to take over into one: nothing is reserved.
    pub fn is_nowhere(&self) -> bool {
        self.sources.is_empty() && !self.dir().exists()
    }

    /// Takes the lock, waiting at most `wait`; makes the folder if it is missing. The first time in
    /// a boot, entries of another boot go, and what an earlier plugin left is taken over.
    ///
    /// # Errors
    /// [`StoreError::LockTimeout`], [`StoreError::Io`].
    pub fn lock(&self, wait: Duration) -> Result<LockedStore<'_>, StoreError> {
        let path = self.layout.lock();
        let lock = match lock::acquire(&path, wait) {
            Err(StoreError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                self.layout.create()?;
                lock::acquire(&path, wait)?
            }
            other => other?,
        };
        let locked = LockedStore { store: self, _lock: lock };
        let begun = read_line(&self.layout.boot())?;
        if begun.as_ref() != Some(&self.boot_id) && begun != Some(self.begun()) {
            locked.begin_boot()?;
        }
        Ok(locked)
    }

    /// What is written down of a boot once it has begun. Who knows of no earlier plugins (behind
    /// another plugin of a chain) leaves taking over to the first who does.
    fn begun(&self) -> String {
        let nothing_taken_over = if self.sources.is_empty() { " nothing taken over" } else { "" };
        format!("{}{nothing_taken_over}", self.boot_id)
    }
}

impl LockedStore<'_> {
    /// The entry of an attachment, in one look-up.
    ///
    /// # Errors
    /// [`StoreError::Io`]. An entry that cannot be understood is put into quarantine and counts as
    /// none.
    pub fn entry(
        &self,
        container_id: &str,
        ifname: &str,
    ) -> Result<Option<StoreEntry>, StoreError> {
        self.entry_at(&self.store.layout.owner(container_id, ifname))
    }

    /// The addresses that nobody else can get while the attachment has them: those of its entry
    /// whose own files are there and say the same.
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

    /// Every entry that has an owner, in the order of the file names; at the end those that only
    /// their addresses' files still tell of (somebody deleted the owner's by hand).
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn entries(&self) -> Result<Vec<StoreEntry>, StoreError> {
        let layout = &self.store.layout;
        let mut names = names(&layout.owners())?;
        names.sort();
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

    /// Gives the addresses of an attachment back, in a number of steps that does not depend on the
    /// size of the store; gives what they were. None: success as well.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn release(&self, container_id: &str, ifname: &str) -> Result<Vec<IpAddr>, StoreError> {
        let entry = match self.entry(container_id, ifname)? {
            Some(entry) => Some(entry),
            // host-local of old kept no interface name.
            None => self.entry(container_id, "")?,
        };
        entry.map_or(Ok(Vec::new()), |entry| self.remove_entry(&entry))
    }

    /// Frees those of `addresses` that were imported from a store that kept no owners; gives which.
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

    /// Releases every attachment of which `valid` (container id, interface) is false; gives the
    /// entries released. Addresses without a known owner stay.
    ///
    /// # Errors
    /// [`StoreError::Io`] of the last one that could not be released; the others were.
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
            Ok(entry) if self.is_at_its_place(&entry, path) => return Ok(Some(entry)),
            // Its other names may be at theirs.
            Ok(entry) => {
                let reason = format!("it is that of {}", entry.owner_text());
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

    /// `entry` is in the file of its owner or of one of its addresses. Elsewhere it would stay for
    /// ever, because it is removed from these.
    fn is_at_its_place(&self, entry: &StoreEntry, path: &Path) -> bool {
        let layout = &self.store.layout;
        path == layout.owner(&entry.container_id, &entry.ifname)
            || entry.addresses.iter().any(|address| path == layout.address(*address))
    }

    /// Removes the addresses and ports of `entry` that are still its own, then its owner file.
    pub(super) fn remove_entry(&self, entry: &StoreEntry) -> Result<Vec<IpAddr>, StoreError> {
        let layout = &self.store.layout;
        let mut freed = Vec::new();
        for address in &entry.addresses {
            if self.holds(entry, *address)? {
                remove(&layout.address(*address))?;
                freed.push(*address);
            }
        }
        // A disk so full that no port could be claimed takes no lock either.
        if entry.ports.is_some() && !self.store.ports.are_untouched() {
            self.store.ports.lock(PORTS_WAIT)?.release(entry)?;
        }
        remove(&layout.owner(&entry.container_id, &entry.ifname))?;
        Ok(freed)
    }

    /// The file of `address` is that of the owner of `entry`.
    fn holds(&self, entry: &StoreEntry, address: IpAddr) -> Result<bool, StoreError> {
        let found = self.entry_at(&self.store.layout.address(address))?;
        Ok(found.is_some_and(|found| found.is_of(&entry.container_id, &entry.ifname)))
    }

    fn has_owner_file(&self, entry: &StoreEntry) -> Result<bool, StoreError> {
        exists(&self.store.layout.owner(&entry.container_id, &entry.ifname))
    }

    /// Makes the owner's file of a stray entry again, so that a release finds it.
    fn restore_owner_file(&self, entry: &StoreEntry) -> Result<(), StoreError> {
        if self.has_owner_file(entry)? {
            return Ok(());
        }
        log::warn!("the entry of {} was lost, and is restored", entry.owner_text());
        let path = self.store.layout.owner(&entry.container_id, &entry.ifname);
        self.store.layout.replace(&path, &entry.to_bytes())
    }

    /// Moves files that are no entries out of the way.
    fn quarantine(
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
            log::error!("{} is no entry ({reason}): moved to {}", path.display(), dir.display());
            let Some(name) = path.file_name() else { continue };
            found(fs::rename(&path, dir.join(name))).map_err(failed("move", &path))?;
        }
        Ok(())
    }

    /// The exclusive first minutes of a boot; killed in between, it is done again by the next.
    fn begin_boot(&self) -> Result<(), StoreError> {
        let layout = &self.store.layout;
        layout.create()?;
        let owners = names(&layout.owners())?;
        let owners = owners.iter().map(|name| layout.owners().join(name));
        let addresses = layout.addresses()?.into_iter().map(|address| layout.address(address));
        let mut stale = 0;
        for path in addresses.chain(owners) {
            // What is no entry of ours may be host-local's: the import looks at it.
            let entry = read(&path)?.and_then(|bytes| StoreEntry::parse(&bytes).ok());
            if entry.is_some_and(|entry| entry.boot_id != self.store.boot_id) && remove(&path)? {
                stale += 1;
            }
        }
        if stale > 0 {
            log::info!("{}: {stale} files of an earlier boot removed", layout.dir().display());
        }
        import::run(self, &self.store.sources)?;
        layout.replace(&layout.boot(), format!("{}\n", self.store.begun()).as_bytes())
    }
}

/// There is a file at `path`; none in what is no folder.
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
