//! The paths of the store, and its file operations.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::ipam::entry;
use crate::ipam::error::StoreError;
use crate::os::files::found;

/// The folder of one network.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    dir: PathBuf,
}

impl Layout {
    pub fn new(dir: PathBuf) -> Layout {
        Layout { dir }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn lock(&self) -> PathBuf {
        self.dir.join("lock")
    }

    pub fn boot(&self) -> PathBuf {
        self.dir.join("boot")
    }

    /// Of the sets that have this place in their networks.
    pub fn cursor(&self, set: usize) -> PathBuf {
        self.dir.join(format!("cursor.{set}"))
    }

    pub fn owners(&self) -> PathBuf {
        self.dir.join("owners")
    }

    pub fn owner(&self, container_id: &str, ifname: &str) -> PathBuf {
        self.owners().join(entry::file_name(container_id, ifname))
    }

    pub fn address(&self, address: IpAddr) -> PathBuf {
        self.dir.join(address.to_string())
    }

    pub fn ended(&self) -> PathBuf {
        self.dir.join("ended")
    }

    pub fn swept(&self) -> PathBuf {
        self.dir.join("swept")
    }

    pub fn quarantine(&self) -> PathBuf {
        self.dir.join("quarantine")
    }

    /// Creates the folder: its parents readable by all, itself by root.
    pub fn create(&self) -> Result<(), StoreError> {
        let make = |mode, path: &Path| {
            DirBuilder::new()
                .recursive(true)
                .mode(mode)
                .create(path)
                .map_err(failed("create", path))
        };
        if let Some(parent) = self.dir.parent() {
            make(0o755, parent)?;
        }
        make(0o700, &self.owners())
    }

    /// Writes `bytes` to a temporary file in the folder, and gives its path.
    ///
    /// Only the holder of the lock may call this: the path is always the same, so that killed
    /// processes leave at most one file.
    pub fn write_new(&self, bytes: &[u8]) -> Result<PathBuf, StoreError> {
        let path = self.dir.join("new");
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let opened = match options.open(&path) {
            // Never truncated: it may be a hard link to a valid entry.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                remove(&path)?;
                options.open(&path)
            }
            other => other,
        };
        let mut file = opened.map_err(failed("create", &path))?;
        if let Err(error) = file.write_all(bytes) {
            remove(&path)?;
            return Err(failed("write", &path)(error));
        }
        Ok(path)
    }

    /// Replaces the file at `path` by one that holds `bytes`; a reader sees the old or the new one.
    pub fn replace(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let new = self.write_new(bytes)?;
        if let Err(error) = fs::rename(&new, path) {
            remove(&new)?;
            return Err(failed("replace", path)(error));
        }
        Ok(())
    }

    /// The addresses that have a file, in no particular order.
    pub fn addresses(&self) -> Result<Vec<IpAddr>, StoreError> {
        Ok(names(&self.dir)?.iter().filter_map(|name| name.parse().ok()).collect())
    }
}

/// Adds verb and path to an I/O error.
pub(super) fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    move |source| StoreError::Io { what, path: path.to_owned(), source }
}

/// The content of the file at `path`; `None` if there is none.
pub(super) fn read(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    found(fs::read(path)).map_err(failed("read", path))
}

/// The content of a file of one short line, without its end; `None` if it is missing or not text.
pub(super) fn read_line(path: &Path) -> Result<Option<String>, StoreError> {
    let mut bytes = [0; 128];
    let text = read_start(path, &mut bytes)?.and_then(|text| std::str::from_utf8(text).ok());
    Ok(text.map(|text| text.trim_end().to_owned()))
}

/// As much of the file at `path` as fits into `bytes`, by one call; `None` if it is missing.
pub(super) fn read_start<'b>(
    path: &Path,
    bytes: &'b mut [u8],
) -> Result<Option<&'b [u8]>, StoreError> {
    let Some(mut file) = found(File::open(path)).map_err(failed("open", path))? else {
        return Ok(None);
    };
    let length = file.read(bytes).map_err(failed("read", path))?;
    Ok(Some(&bytes[..length]))
}

/// Removes the file at `path`; `false` if there was none.
pub(super) fn remove(path: &Path) -> Result<bool, StoreError> {
    Ok(found(fs::remove_file(path)).map_err(failed("remove", path))?.is_some())
}

/// There is a file at `path`.
pub(super) fn exists(path: &Path) -> Result<bool, StoreError> {
    Ok(found(fs::symlink_metadata(path)).map_err(failed("look at", path))?.is_some())
}

/// The names in a folder, in no particular order; none if it is missing.
pub(super) fn names(dir: &Path) -> Result<Vec<String>, StoreError> {
    let Some(entries) = found(fs::read_dir(dir)).map_err(failed("read", dir))? else {
        return Ok(Vec::new());
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed("read", dir))?.file_name();
        names.extend(name.into_string().ok());
    }
    Ok(names)
}
