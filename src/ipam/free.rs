//! Free addresses, read without the lock.

use std::collections::HashSet;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{AccessFlags, access};

use crate::ipam::entry::StoreEntry;
use crate::ipam::error::StoreError;
use crate::ipam::import::reservation;
use crate::ipam::layout::{exists, failed, read, read_start};
use crate::ipam::pool::RangeSet;
use crate::ipam::store::Store;

/// How many addresses are checked one by one before the folder is read.
const PROBES: usize = 64;

/// How many sets have their cursors in one file; with more, those that no pod started in for longest begin anew.
pub(super) const CURSORS: usize = 64;

impl Store {
    /// Every set has a free address, or one whose file a claim would remove.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn has_free(&self, sets: &[RangeSet]) -> Result<bool, StoreError> {
        for (position, set) in sets.iter().enumerate() {
            let free = self.next_free(&self.cursors(position)?, set, &HashSet::new())?;
            if free.is_none() && !self.has_removable(set)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The file of some address of the set is neither an entry of this boot nor one of host-local, or its attachment has
    /// ended: whoever takes the lock releases it first.
    fn has_removable(&self, set: &RangeSet) -> Result<bool, StoreError> {
        let ended = self.ended()?;
        let is_used = |entry: StoreEntry| {
            entry.boot_id == self.boot_id && !ended.iter().any(|ended| ended.is_same(&entry))
        };
        for address in set.after(None) {
            let bytes = read(&self.layout.address(address))?.unwrap_or_default();
            let entry = StoreEntry::parse(&bytes);
            if !entry.map_or_else(|_| reservation(&bytes).is_some(), is_used) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The reserved addresses, in no particular order.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn taken(&self) -> Result<Vec<IpAddr>, StoreError> {
        self.layout.addresses()
    }

    /// A claim could be written: the folder (or its nearest existing parent) is writable, and its file
    /// system has space.
    ///
    /// # Errors
    /// [`StoreError::Io`] with `EROFS`, `EACCES`, `ENOSPC`, …
    pub fn writable(&self) -> Result<(), StoreError> {
        for dir in self.dir().ancestors().filter(|dir| !dir.as_os_str().is_empty()) {
            match room(dir) {
                Err(Errno::ENOENT) => continue,
                outcome => {
                    return outcome
                        .map_err(|errno| failed("write to", dir)(io::Error::from(errno)));
                }
            }
        }
        Ok(())
    }

    /// The last address allocated of each set with this place in its network, the latest first.
    pub(super) fn cursors(&self, position: usize) -> Result<Vec<IpAddr>, StoreError> {
        let mut bytes = [0; 4096];
        let bytes = read_start(&self.layout.cursor(position), &mut bytes)?.unwrap_or_default();
        // What is no address is ignored.
        let lines = bytes.split(|byte| *byte == b'\n').take(CURSORS);
        let text = lines.filter_map(|line| std::str::from_utf8(line).ok());
        Ok(text.filter_map(|text| text.trim_end().parse().ok()).collect())
    }

    /// The next address of a set that has no file and is none of `others`, after that of `cursors` which lies in it.
    pub(super) fn next_free(
        &self,
        cursors: &[IpAddr],
        set: &RangeSet,
        others: &HashSet<IpAddr>,
    ) -> Result<Option<IpAddr>, StoreError> {
        let cursor = cursors.iter().find(|address| set.range_of(**address).is_some()).copied();
        let mut candidates = set.after(cursor).filter(|address| !others.contains(address));
        for address in candidates.by_ref().take(PROBES) {
            if !exists(&self.layout.address(address))? {
                return Ok(Some(address));
            }
        }
        let Some(candidate) = candidates.next() else { return Ok(None) };
        let taken: HashSet<IpAddr> = self.layout.addresses()?.into_iter().collect();
        Ok([candidate].into_iter().chain(candidates).find(|address| !taken.contains(address)))
    }
}

/// A file could be created in `dir`.
fn room(dir: &Path) -> Result<(), Errno> {
    access(dir, AccessFlags::W_OK | AccessFlags::X_OK)?;
    let system = statvfs(dir)?;
    if system.flags().contains(FsFlags::ST_RDONLY) {
        return Err(Errno::EROFS);
    }
    // File systems that do not count blocks or inodes report none at all.
    let full = system.blocks() > 0 && system.blocks_available() == 0;
    let no_inodes = system.files() > 0 && system.files_available() == 0;
    if full || no_inodes { Err(Errno::ENOSPC) } else { Ok(()) }
}
