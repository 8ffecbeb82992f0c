//! Reading a store without its lock.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::ipam::entry::StoreEntry;
use crate::ipam::error::StoreError;
use crate::ipam::layout::{names, read};
use crate::ipam::store::Store;

/// The contents of a store.
#[derive(Clone, Debug, Default)]
pub struct StoreContents {
    /// The entries of this boot, in the order of their first addresses.
    pub entries: Vec<StoreEntry>,
    /// Addresses that have a file.
    pub taken: BTreeSet<IpAddr>,
    /// Files that are not entries, and why.
    pub faults: Vec<String>,
}

impl Store {
    /// Every entry, from owners' and addresses' files.
    ///
    /// # Errors
    /// [`StoreError::Io`] if a folder cannot be read.
    pub fn contents(&self) -> Result<StoreContents, StoreError> {
        let mut contents = StoreContents::default();
        let owners = names(&self.layout.owners())?;
        let owners = owners.iter().map(|name| self.layout.owners().join(name));
        contents.taken = self.layout.addresses()?.into_iter().collect();
        let files = contents.taken.iter().map(|address| self.layout.address(*address));
        for path in owners.chain(files).collect::<Vec<_>>() {
            let Some(bytes) = read(&path)? else { continue };
            match StoreEntry::parse(&bytes) {
                Ok(entry) if entry.boot_id != self.boot_id => {}
                Ok(entry) if contents.entries.iter().any(|known| same(known, &entry)) => {}
                Ok(entry) => contents.entries.push(entry),
                Err(why) => {
                    contents.faults.push(format!("{} is not an entry: {why}", path.display()))
                }
            }
        }
        contents.entries.sort_by(|a, b| a.addresses.cmp(&b.addresses));
        Ok(contents)
    }
}

/// Both are of the same attachment, or of the same address without an owner.
fn same(a: &StoreEntry, b: &StoreEntry) -> bool {
    a.is_of(&b.container_id, &b.ifname) && (!a.is_unowned() || a.addresses == b.addresses)
}
