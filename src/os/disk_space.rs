//! Room on the file system of a path. Source: statvfs(3).

use std::io;
use std::path::Path;

use nix::sys::statvfs::{FsFlags, statvfs};

/// What a file system has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpace {
    /// Bytes that root may still write.
    pub free_bytes: u64,
    /// Files that may still be made; `None` where they are not counted.
    pub free_files: Option<u64>,
    /// Nothing can be written.
    pub read_only: bool,
}

/// What is left where `path` is, or its nearest folder that is there.
///
/// # Errors
/// It cannot be looked at.
pub fn at(path: &Path) -> io::Result<FreeSpace> {
    let there = path.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    let found = statvfs(there)?;
    Ok(FreeSpace {
        free_bytes: found.blocks_free().saturating_mul(found.fragment_size()),
        free_files: (found.files() > 0).then(|| found.files_free()),
        read_only: found.flags().contains(FsFlags::ST_RDONLY),
    })
}
