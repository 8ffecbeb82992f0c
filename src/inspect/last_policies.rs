//! The last snapshots on disk: a host that starts without its sources has the policies it had.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::os::files::{self, FileError};
use crate::policy::local::Published;
use crate::policy::{Provider, Snapshot};

/// In the state directory.
pub const FILE: &str = "policy.json";

const SCHEMA: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Kept<T> {
    schema: u32,
    snapshots: T,
    #[serde(default)]
    published: Published,
}

/// # Errors
/// It cannot be written.
pub fn keep(
    state_dir: &Path,
    snapshots: &BTreeMap<Provider, Snapshot>,
    published: &Published,
) -> Result<(), FileError> {
    let text =
        serde_json::to_vec(&Kept { schema: SCHEMA, snapshots, published: published.clone() });
    files::replace(&state_dir.join(FILE), &text.unwrap_or_default(), 0o600)
}

/// What was kept; nothing if it cannot be used.
pub fn kept(state_dir: &Path) -> (BTreeMap<Provider, Snapshot>, Published) {
    let path = state_dir.join(FILE);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Default::default(),
        Err(error) => {
            log::error!("read {}: {error}", path.display());
            return Default::default();
        }
    };
    match serde_json::from_slice::<Kept<_>>(&bytes) {
        Ok(kept) if kept.schema == SCHEMA => (kept.snapshots, kept.published),
        Ok(kept) => {
            log::error!("{}: schema {} is not {SCHEMA}", path.display(), kept.schema);
            Default::default()
        }
        Err(error) => {
            log::error!("{}: {error}", path.display());
            Default::default()
        }
    }
}
