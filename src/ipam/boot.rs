//! Locking a store: its first use in a boot removes what is stale, and imports older stores.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::time::Duration;

use crate::ipam::entry::StoreEntry;
use crate::ipam::error::StoreError;
use crate::ipam::layout::{names, read, read_line, remove};
use crate::ipam::sources::Sources;
use crate::ipam::store::{LockedStore, Store};
use crate::ipam::{import, lock};

impl Store {
    /// Takes the lock, waiting at most `wait`; creates a missing folder. The first time in a boot,
    /// removes entries of another boot and imports the stores of older plugins. Each time, releases the attachments
    /// that have ended while it was locked.
    ///
    /// # Errors
    /// [`StoreError::LockTimeout`], [`StoreError::Io`].
    pub fn lock(&self, wait: Duration) -> Result<LockedStore<'_>, StoreError> {
        let path = self.layout.lock();
        let lock = match lock::acquire(&path, &self.boot_id, wait) {
            Err(StoreError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                self.layout.create()?;
                lock::acquire(&path, &self.boot_id, wait)?
            }
            other => other?,
        };
        let locked = LockedStore { store: self, others: HashSet::new(), _lock: lock };
        let begun = read_line(&self.layout.boot())?;
        if begun.as_ref() != Some(&self.boot_id) && begun != Some(self.begun()) {
            locked.begin_boot()?;
        }
        locked.release_ended();
        Ok(locked)
    }

    /// The record of a boot that has begun. A call without sources (after another plugin of a chain)
    /// leaves the import to the first one that has them.
    fn begun(&self) -> String {
        let nothing_taken_over = if self.sources.is_empty() { " nothing imported" } else { "" };
        format!("{}{nothing_taken_over}", self.boot_id)
    }
}

impl LockedStore<'_> {
    /// Imports the stores of older plugins before the first call of a plugin does: that call imports again,
    /// because the older plugins may be in use until then. After it, nothing is imported.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn import_early(&self, sources: &Sources) -> Result<(), StoreError> {
        match read_line(&self.store.layout.boot())? {
            Some(begun) if begun == self.store.boot_id => Ok(()),
            _ => {
                self.remove_files(import::superseded(sources))?;
                import::run(self, sources, false)
            }
        }
    }

    /// The first use in a boot; if killed in between, the next process does it again.
    fn begin_boot(&self) -> Result<(), StoreError> {
        let layout = &self.store.layout;
        layout.create()?;
        let is_superseded = import::superseded(&self.store.sources);
        let stale =
            self.remove_files(|entry| entry.boot_id != self.store.boot_id || is_superseded(entry))?;
        if stale > 0 {
            log::info!("{}: removed {stale} stale files", layout.dir().display());
        }
        import::run(self, &self.store.sources, true)?;
        layout.replace(&layout.boot(), format!("{}\n", self.store.begun()).as_bytes())
    }

    /// Removes the files of entries like that; gives their number.
    fn remove_files(&self, is_stale: impl Fn(&StoreEntry) -> bool) -> Result<usize, StoreError> {
        let layout = &self.store.layout;
        let owners = names(&layout.owners())?;
        let owners = owners.iter().map(|name| layout.owners().join(name));
        let addresses = layout.addresses()?.into_iter().map(|address| layout.address(address));
        let mut stale = 0;
        for path in addresses.chain(owners) {
            // The import reads host-local's; others that are no entries, a power cut may have left.
            if read(&path)?.is_some_and(|bytes| import::reservation(&bytes).is_some()) {
                continue;
            }
            if self.entry_at(&path)?.is_some_and(|entry| is_stale(&entry)) && remove(&path)? {
                stale += 1;
            }
        }
        Ok(stale)
    }
}
