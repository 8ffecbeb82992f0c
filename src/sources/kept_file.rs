//! Files in which this host keeps what its sources said, for its next start.

use std::fs;
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::os::files::found;

/// What the file at `path` holds; `None` if there is none, or none that can be used, which is logged.
pub fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let bytes = match found(fs::read(path)) {
        Ok(bytes) => bytes?,
        Err(error) => {
            log::error!("read {}: {error}", path.display());
            return None;
        }
    };
    match serde_json::from_slice(&bytes) {
        Ok(kept) => Some(kept),
        Err(error) => {
            log::error!("{}: {error}", path.display());
            None
        }
    }
}
