//! The last snapshots on disk: a host that starts without its sources has the policies it had.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::os::files::{self, FileError};
use crate::policy::{Provider, Snapshot};

/// In the state directory.
pub const FILE: &str = "policy.json";

const SCHEMA: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Kept<T> {
    schema: u32,
    snapshots: T,
}

/// # Errors
/// It cannot be written.
pub fn keep(state_dir: &Path, snapshots: &BTreeMap<Provider, Snapshot>) -> Result<(), FileError> {
    let text = serde_json::to_vec(&Kept { schema: SCHEMA, snapshots });
    files::replace(&state_dir.join(FILE), &text.unwrap_or_default(), 0o600)
}

/// When they were kept.
pub fn written(state_dir: &Path) -> Option<SystemTime> {
    fs::metadata(state_dir.join(FILE)).and_then(|file| file.modified()).ok()
}

/// What was kept; nothing if it cannot be used.
pub fn kept(state_dir: &Path) -> BTreeMap<Provider, Snapshot> {
    let path = state_dir.join(FILE);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return BTreeMap::new(),
        Err(error) => {
            log::error!("read {}: {error}", path.display());
            return BTreeMap::new();
        }
    };
    match serde_json::from_slice::<Kept<_>>(&bytes) {
        Ok(kept) if kept.schema == SCHEMA => kept.snapshots,
        Ok(kept) => {
            log::error!("{}: schema {} is not {SCHEMA}", path.display(), kept.schema);
            BTreeMap::new()
        }
        Err(error) => {
            log::error!("{}: {error}", path.display());
            BTreeMap::new()
        }
    }
}
