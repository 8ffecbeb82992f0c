//! What this host sent of its members of groups, on disk: an agent that is killed, or a host that fails, does
//! not forget what etcd may have.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use crate::os::files::{self, FileError};
use crate::policy::held::Published;

/// In the state directory.
pub const FILE: &str = "published.json";

/// # Errors
/// It cannot be written.
pub fn write(state_dir: &Path, published: &Published) -> Result<(), FileError> {
    let text = serde_json::to_vec(published).unwrap_or_default();
    files::replace(&state_dir.join(FILE), &text, 0o600)
}

/// Not known, where there is no file, or none that can be used.
pub fn read(state_dir: &Path) -> Published {
    let path = state_dir.join(FILE);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) => {
            if error.kind() != ErrorKind::NotFound {
                log::error!("read {}: {error}", path.display());
            }
            return Published::default();
        }
    };
    serde_json::from_slice(&bytes).unwrap_or_else(|error| {
        log::error!("{}: {error}", path.display());
        Published::default()
    })
}
