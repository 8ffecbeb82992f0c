//! Identifiers of this machine and this boot.

use std::fs;
use std::io;
use std::path::Path;

/// An identity that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("read {what}: {source}")]
pub struct IdentityError {
    what: String,
    source: io::Error,
}

/// The boot id. Source: random(4).
///
/// # Errors
/// /proc is missing.
pub fn boot_id() -> Result<String, IdentityError> {
    line(Path::new("/proc/sys/kernel/random/boot_id"))
}

/// A fresh random identifier. Source: random(4).
///
/// # Errors
/// /proc is missing.
pub fn random_id() -> Result<String, IdentityError> {
    line(Path::new("/proc/sys/kernel/random/uuid"))
}

/// `/etc/machine-id`; `None` if missing or invalid.
/// Source: machine-id(5).
pub fn machine_id() -> Option<String> {
    let id = line(Path::new("/etc/machine-id")).ok()?;
    (id.len() >= 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(id)
}

/// The kernel's host name.
///
/// # Errors
/// It is not UTF-8.
pub fn host_name() -> Result<String, IdentityError> {
    let failed = |source| IdentityError { what: "the host name".to_owned(), source };
    let name = nix::unistd::gethostname().map_err(|errno| failed(errno.into()))?;
    let text = name.into_string();
    text.map_err(|name| failed(io::Error::other(format!("{name:?} is not UTF-8"))))
}

fn line(path: &Path) -> Result<String, IdentityError> {
    match fs::read_to_string(path) {
        Ok(text) if !text.trim().is_empty() => Ok(text.trim().to_owned()),
        other => {
            let source = other.err().unwrap_or_else(|| io::Error::other("it is empty"));
            Err(IdentityError { what: path.display().to_string(), source })
        }
    }
}
