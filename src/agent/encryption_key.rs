//! This host's private key for WireGuard, in a file of the state directory that only root can read.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::net::PrivateKey;
use crate::os::{files, random};

/// In the state directory.
pub const FILE: &str = "wireguard.key";

/// Bytes of such a file, and some room.
const LIMIT_BYTES: u64 = 4096;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct KeyRecord {
    schema: u32,
    /// A machine whose disk was copied needs a key of its own.
    machine_id: String,
    private_key: String,
}

pub fn path(state_dir: &Path) -> PathBuf {
    state_dir.join(FILE)
}

/// The key in the file. Without one, or with that of another machine: `in_use`, the one that the kernel has, so
/// that the other hosts need not learn a new one; else a new one. Both are kept in the file.
///
/// # Errors
/// The file cannot be read or written, or there are no random numbers. The text never has the key.
pub fn read_or_make(
    state_dir: &Path,
    machine_id: &str,
    in_use: Option<PrivateKey>,
) -> anyhow::Result<PrivateKey> {
    let path = path(state_dir);
    if let Some(key) =
        read(&path, machine_id).with_context(|| format!("read {}", path.display()))?
    {
        return Ok(key);
    }
    let new = || random::secret().map(PrivateKey::of_random).context("read /dev/random");
    let key = in_use.map_or_else(new, Ok)?;
    let record =
        KeyRecord { schema: 1, machine_id: machine_id.to_owned(), private_key: key.secret_text() };
    let text = serde_json::to_string(&record).expect("texts are JSON") + "\n";
    files::replace(&path, text.as_bytes(), 0o600)?;
    Ok(key)
}

/// `None`: there is no file, it is garbled, or of another machine.
fn read(path: &Path, machine_id: &str) -> std::io::Result<Option<PrivateKey>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    files::keep_private(&file)?;
    let mut text = Vec::new();
    file.take(LIMIT_BYTES).read_to_end(&mut text)?;
    let record: Option<KeyRecord> = serde_json::from_slice(&text).ok();
    let own = record.filter(|record| record.machine_id == machine_id);
    Ok(own.and_then(|record| record.private_key.parse().ok()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_only_root_can_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let made = read_or_make(folder.path(), "m1", None).unwrap();
        assert_eq!(read_or_make(folder.path(), "m1", None).unwrap(), made);
        let mode = || fs::metadata(path(folder.path())).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o600);
        fs::set_permissions(path(folder.path()), fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(read_or_make(folder.path(), "m1", None).unwrap(), made);
        assert_eq!(mode(), 0o600, "it is taken from the others");
    }

    #[test]
    fn a_copied_disk_gets_a_key_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let original = read_or_make(folder.path(), "m1", None).unwrap();
        let copy = read_or_make(folder.path(), "m2", None).unwrap();
        assert_ne!(copy, original);
    }

    #[test]
    fn the_key_that_the_kernel_has_outlives_a_lost_or_garbled_file() {
        let folder = tempfile::tempdir().unwrap();
        let used = PrivateKey::of_random([9; 32]);
        for garbage in [&b""[..], b"{", b"\xff\xfe", &[b'x'; 1 << 20]] {
            fs::write(path(folder.path()), garbage).unwrap();
            let kept = read_or_make(folder.path(), "m1", Some(used.clone())).unwrap();
            assert_eq!(kept, used);
            assert_eq!(read_or_make(folder.path(), "m1", None).unwrap(), used);
        }
    }

    #[test]
    fn an_error_never_shows_the_key() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(path(folder.path())).unwrap();
        let used = PrivateKey::of_random([9; 32]);
        let error = read_or_make(folder.path(), "m1", Some(used.clone())).unwrap_err();
        assert!(!format!("{error:#}").contains(&used.secret_text()), "{error:#}");
    }
}
