//! Sysctls: files below /proc/sys.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
#[error("{what} sysctl {key}: {source}")]
pub struct SysctlError {
    what: &'static str,
    key: String,
    source: io::Error,
}

impl SysctlError {
    /// No such sysctl: the module is not loaded, or the interface is gone.
    pub fn is_missing(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }
}

/// The value of `key`, as in `net/ipv4/ip_forward`, without its line end.
///
/// # Errors
/// [`SysctlError`].
pub fn read(key: &str) -> Result<String, SysctlError> {
    match fs::read_to_string(path(key)) {
        Ok(value) => Ok(value.trim_end().to_owned()),
        Err(source) => Err(SysctlError { what: "read", key: key.to_owned(), source }),
    }
}

/// Writes `value`. (Read first: a read-only /proc/sys may have it already.)
///
/// # Errors
/// [`SysctlError`].
pub fn write(key: &str, value: &str) -> Result<(), SysctlError> {
    let failed = |source| SysctlError { what: "write", key: key.to_owned(), source };
    fs::write(path(key), value).map_err(failed)
}

fn path(key: &str) -> PathBuf {
    Path::new("/proc/sys").join(key)
}
