//! Free space on the file system of a path. Source: statvfs(3).

use std::io;
use std::path::Path;

use nix::sys::statvfs::{FsFlags, statvfs};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpace {
    /// For root.
    pub free_bytes: u64,
    /// Inodes; `None` where they are not counted.
    pub free_files: Option<u64>,
    pub read_only: bool,
}

/// The free space at `path`, or at its nearest existing parent.
///
/// # Errors
/// statvfs(3).
pub fn at(path: &Path) -> io::Result<FreeSpace> {
    let there = path.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    let found = statvfs(there)?;
    Ok(FreeSpace {
        free_bytes: found.blocks_free().saturating_mul(found.fragment_size()),
        free_files: (found.files() > 0).then(|| found.files_free()),
        read_only: found.flags().contains(FsFlags::ST_RDONLY),
    })
}
