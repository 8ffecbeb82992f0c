//! Reading a store without its lock.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

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

/// Files that were read: each is written once, and then only replaced or removed.
#[derive(Debug, Default)]
pub struct ReadEntries(BTreeMap<PathBuf, (FileVersion, ParsedEntry)>);

/// Number, time of the last change in seconds and nanoseconds, length.
type FileVersion = (u64, i64, i64, u64);

type ParsedEntry = Result<StoreEntry, String>;

impl Store {
    /// Every entry, from owners' and addresses' files.
    ///
    /// # Errors
    /// [`StoreError::Io`] if a folder cannot be read.
    pub fn contents(&self) -> Result<StoreContents, StoreError> {
        self.contents_after(&mut ReadEntries::default())
    }

    /// The same; of the files in `before` only those are read that are others now.
    ///
    /// # Errors
    /// [`StoreError::Io`] if a folder cannot be read.
    pub fn contents_after(&self, before: &mut ReadEntries) -> Result<StoreContents, StoreError> {
        let mut former = std::mem::take(&mut before.0);
        let mut contents = StoreContents::default();
        let owners = names(&self.layout.owners())?;
        let owners = owners.iter().map(|name| self.layout.owners().join(name));
        contents.taken = self.layout.addresses()?.into_iter().collect();
        let files = contents.taken.iter().map(|address| self.layout.address(*address));
        let mut known = BTreeSet::new();
        for path in owners.chain(files).collect::<Vec<_>>() {
            let Some((version, parsed)) = entry(&path, former.remove(&path))? else { continue };
            match &parsed {
                Ok(entry) if entry.boot_id != self.boot_id => {}
                Ok(entry) if !known.insert(attachment(entry)) => {}
                Ok(entry) => contents.entries.push(entry.clone()),
                Err(why) => {
                    contents.faults.push(format!("{} is not an entry: {why}", path.display()))
                }
            }
            before.0.insert(path, (version, parsed));
        }
        contents.entries.sort_by(|a, b| a.addresses.cmp(&b.addresses));
        Ok(contents)
    }
}

/// What is in `path`, read anew unless it is as in `former`; `None` for a missing file.
fn entry(
    path: &Path,
    former: Option<(FileVersion, ParsedEntry)>,
) -> Result<Option<(FileVersion, ParsedEntry)>, StoreError> {
    let version = fs::symlink_metadata(path)
        .map(|file| (file.ino(), file.ctime(), file.ctime_nsec(), file.size()))
        .unwrap_or_default();
    if let Some(former) = former.filter(|(of, _)| *of == version && version.0 != 0) {
        return Ok(Some(former));
    }
    Ok(read(path)?.map(|bytes| (version, StoreEntry::parse(&bytes))))
}

/// The same for all entries of one attachment, or of one address without an owner.
fn attachment(entry: &StoreEntry) -> (String, String, Vec<IpAddr>) {
    let addresses = if entry.is_unowned() { entry.addresses.clone() } else { Vec::new() };
    (entry.container_id.clone(), entry.ifname.clone(), addresses)
}
