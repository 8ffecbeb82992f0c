//! Reading a store without its lock.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nix::fcntl::AtFlags;
use nix::sys::stat::{FileStat, fstatat, stat};

use crate::ipam::entry::StoreEntry;
use crate::ipam::error::StoreError;
use crate::ipam::layout::{failed, names, read};
use crate::ipam::store::Store;
use crate::net::gather::Gather;
use crate::os::files::found;

#[derive(Clone, Debug, Default)]
pub struct StoreContents {
    /// The entries of this boot, in the order of their first addresses.
    pub entries: Vec<Arc<StoreEntry>>,
    /// Addresses that have a file.
    pub taken: BTreeSet<IpAddr>,
    /// Those of them whose attachments have ended while another process held the lock.
    pub ended: Vec<StoreEntry>,
    /// Files that are not entries.
    pub faults: Vec<StoreFault>,
}

/// A file that is not an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFault {
    pub path: PathBuf,
    /// Which file, and why not.
    pub what: String,
    /// When it was written.
    pub since: Option<SystemTime>,
}

impl StoreFault {
    fn of(path: &Path, why: &str) -> StoreFault {
        let what = format!("{} is not an entry: {why}", path.display());
        let since = fs::metadata(path).and_then(|file| file.modified()).ok();
        StoreFault { path: path.to_owned(), what, since }
    }
}

/// Files that were read, as far as a later change is certain to be seen in their versions.
#[derive(Debug, Default)]
pub struct ReadEntries {
    owners: BTreeMap<String, ReadEntry>,
    addresses: BTreeMap<String, ReadEntry>,
    /// Of the folders, whose changes are those of what is in them: every file is put there by name.
    folders: Option<[FileVersion; 2]>,
}

/// Number, time of the last change in seconds and nanoseconds, length.
type FileVersion = (u64, i64, i64, i64);

type ParsedEntry = Result<Arc<StoreEntry>, String>;

/// Without a version, another content might have the same one.
type ReadEntry = (Option<FileVersion>, ParsedEntry);

/// More than the clock of files steps by: a file written twice within one step may look unchanged, and so may
/// one whose number is that of the file that it replaces.
const CLOCK_STEP: Duration = Duration::from_millis(50);

/// The same where the file system counts in seconds.
const COARSE_CLOCK_STEP: Duration = Duration::from_secs(2);

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
        // A look that fails is none: what is found the same later was not read.
        before.folders = None;
        let folders = self.folders();
        let (owners, dir) = (self.layout.owners(), self.layout.dir());
        before.owners = read_entries(&owners, names(&owners)?, &before.owners)?;
        let taken = self.layout.addresses()?.into_iter().gather();
        let mut contents = StoreContents { taken, ..StoreContents::default() };
        let addresses = contents.taken.iter().map(IpAddr::to_string).collect();
        before.addresses = read_entries(dir, addresses, &before.addresses)?;
        let mut known = BTreeSet::new();
        let of_owners = before.owners.iter().map(|file| (&*owners, file));
        for (folder, (name, (_, parsed))) in
            of_owners.chain(before.addresses.iter().map(|file| (dir, file)))
        {
            match parsed {
                Ok(entry) if entry.boot_id != self.boot_id => {}
                Ok(entry) if !known.insert(attachment(entry)) => {}
                Ok(entry) => contents.entries.push(Arc::clone(entry)),
                Err(why) => contents.faults.push(StoreFault::of(&folder.join(name), why)),
            }
        }
        contents.entries.sort_by(|a, b| a.addresses.cmp(&b.addresses));
        for path in self.notes()? {
            // A note that cannot be read keeps nothing else from being read.
            let bytes = found(fs::read(&path)).map_err(|error| error.to_string());
            match bytes.and_then(|bytes| bytes.map(|it| StoreEntry::parse(&it)).transpose()) {
                Ok(entry) => contents.ended.extend(entry.filter(|it| it.boot_id == self.boot_id)),
                Err(why) => contents.faults.push(StoreFault::of(&path, &why)),
            }
        }
        before.folders = folders;
        Ok(contents)
    }

    /// Nothing has come or gone since the contents were read. What somebody writes into a file that is there
    /// is not noticed.
    pub fn is_as_read(&self, before: &ReadEntries) -> bool {
        before.folders.is_some() && before.folders == self.folders()
    }

    fn folders(&self) -> Option<[FileVersion; 2]> {
        let now = SystemTime::now();
        let version = |folder: &Path| version(stat(folder).ok()?, now);
        Some([version(self.layout.dir())?, version(&self.layout.owners())?])
    }
}

/// What is in the files of these names in a folder, by name: read anew unless a file is as in `former`. Left out are
/// files that are gone.
fn read_entries(
    folder: &Path,
    names: Vec<String>,
    former: &BTreeMap<String, ReadEntry>,
) -> Result<BTreeMap<String, ReadEntry>, StoreError> {
    let mut entries = Vec::new();
    let Some(open) = found(File::open(folder)).map_err(failed("open", folder))? else {
        return Ok(BTreeMap::new());
    };
    for name in names {
        // Taken before the file is looked at: what is written later has a later time.
        let now = SystemTime::now();
        let found = fstatat(open.as_fd(), name.as_str(), AtFlags::empty()).ok();
        let version = found.and_then(|file| version(file, now));
        let as_before = former.get(&name).filter(|(of, _)| of.is_some() && *of == version);
        let entry = match as_before {
            Some(entry) => Some(entry.clone()),
            None => read(&folder.join(&name))?
                .map(|bytes| (version, StoreEntry::parse(&bytes).map(Arc::new))),
        };
        entries.extend(entry.map(|entry| (name, entry)));
    }
    Ok(entries.into_iter().gather())
}

/// `None`: another content might have the same version. `now`: before the file is read.
fn version(file: FileStat, now: SystemTime) -> Option<FileVersion> {
    let version = (file.st_ino, file.st_ctime, file.st_ctime_nsec, file.st_size);
    is_settled(version, now).then_some(version)
}

/// Whatever is written from `now` on has another time of change.
fn is_settled((_, seconds, nanoseconds, _): FileVersion, now: SystemTime) -> bool {
    let step = if nanoseconds == 0 { COARSE_CLOCK_STEP } else { CLOCK_STEP };
    let (Ok(seconds), Ok(nanoseconds)) = (u64::try_from(seconds), u32::try_from(nanoseconds))
    else {
        return false;
    };
    let changed = SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds));
    let age = changed.and_then(|changed| now.duration_since(changed).ok());
    age.is_some_and(|age| age >= step)
}

/// The same for all entries of one attachment, or of one address without an owner.
fn attachment(entry: &StoreEntry) -> (&str, &str, &[IpAddr]) {
    let addresses = if entry.is_unowned() { &entry.addresses[..] } else { &[] };
    (&entry.container_id, &entry.ifname, addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_in_the_moment_it_was_written_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let name = "10.1.2.3".to_owned();
        fs::write(folder.path().join(&name), "one").unwrap();
        let read = |former: Option<ReadEntry>| {
            let former = former.into_iter().map(|entry| (name.clone(), entry)).collect();
            let read = read_entries(folder.path(), vec![name.clone()], &former);
            read.unwrap().remove(&name).unwrap()
        };
        let kept = Err("kept".to_owned());
        let (version, _) = read(None);
        assert_eq!(version, None);
        assert_ne!(read(Some((version, kept.clone()))).1, kept);
        std::thread::sleep(2 * CLOCK_STEP);
        let (version, parsed) = read(None);
        assert!(version.is_some() && parsed != kept);
        // A content that was kept with its version is not read again.
        assert_eq!(read(Some((version, kept.clone()))), (version, kept));
    }

    #[test]
    fn a_time_of_change_says_something_once_the_clock_has_gone_on() {
        let is_settled_after = |age: u64, nanoseconds: u32| {
            let changed = SystemTime::UNIX_EPOCH + Duration::new(1_000_000, nanoseconds);
            let version = (7, 1_000_000, nanoseconds.into(), 3);
            is_settled(version, changed + Duration::from_millis(age))
        };
        assert!(!is_settled_after(4, 1) && !is_settled_after(49, 1) && is_settled_after(50, 1));
        assert!(!is_settled_after(999, 0) && is_settled_after(2000, 0));
        // The clock was set back.
        let now = SystemTime::now();
        assert!(!is_settled((7, i64::MAX, 1, 3), now) && !is_settled((7, -1, 1, 3), now));
    }
}
