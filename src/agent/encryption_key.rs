//! This host's private keys for WireGuard, in a file of the state directory that only root can read.
//!
//! The file alone says how far a change of the key is: every stage is one rename, and devices and record follow.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::net::PrivateKey;
use crate::os::{files, random};
use crate::plan::encryption::{RotationStep, Stage};

/// In the state directory.
pub const FILE: &str = "wireguard.key";

/// In the state directory: somebody asks for another key.
pub const REQUEST: &str = "wireguard.rotate";

/// Bytes of such a file, and some room.
const LIMIT_BYTES: u64 = 4096;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct KeyRecord {
    schema: u32,
    /// A machine whose disk was copied needs a key of its own.
    machine_id: String,
    private_key: String,
    /// Of the second device, while the key is changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next_key: Option<String>,
    /// When the key was made, in seconds since 1970; earlier versions wrote none.
    #[serde(default)]
    made: Option<u64>,
}

/// The keys of this host's devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostKeys {
    pub first: PrivateKey,
    /// That of the second device, while the key is changed.
    pub second: Option<PrivateKey>,
    /// When the first one was made, in seconds since 1970.
    pub made_secs: u64,
}

impl HostKeys {
    pub fn stage(&self) -> Stage {
        Stage::of(&self.first, self.second.as_ref())
    }

    /// The keys after `step`.
    ///
    /// # Errors
    /// There are no random numbers.
    pub fn after(&self, step: RotationStep) -> anyhow::Result<HostKeys> {
        let HostKeys { first, second, made_secs } = self.clone();
        Ok(match step {
            RotationStep::Begin => HostKeys { first, second: Some(new_key()?), made_secs },
            RotationStep::TakeOver => {
                let first = second.clone().unwrap_or(first);
                HostKeys { first, second, made_secs: now_secs() }
            }
            RotationStep::Finish => HostKeys { first, second: None, made_secs },
        })
    }

    /// As made at `now` at the latest: a clock that was ahead when they were made would end their change for as long. What
    /// changes is written.
    fn made_by(
        self,
        now: u64,
        write: impl FnOnce(&HostKeys) -> anyhow::Result<()>,
    ) -> anyhow::Result<HostKeys> {
        if self.made_secs <= now {
            return Ok(self);
        }
        log::warn!(
            "the WireGuard key of this host was made at a later time than now: it counts as made now"
        );
        let keys = HostKeys { made_secs: now, ..self };
        write(&keys)?;
        Ok(keys)
    }

    pub fn age(&self) -> Duration {
        Duration::from_secs(now_secs().saturating_sub(self.made_secs))
    }
}

/// Asks the agent for another key: it looks for this file, which it removes.
///
/// # Errors
/// The file cannot be written.
pub fn request(state_dir: &Path) -> anyhow::Result<PathBuf> {
    let path = state_dir.join(REQUEST);
    files::replace(&path, b"", 0o600)?;
    Ok(path)
}

fn new_key() -> anyhow::Result<PrivateKey> {
    random::secret().map(PrivateKey::of_random).context("read /dev/random")
}

fn now_secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

pub fn path(state_dir: &Path) -> PathBuf {
    state_dir.join(FILE)
}

/// The keys in the file. Without one, or with that of another machine: `in_use`, the one that the kernel has, so
/// that the other hosts need not learn a new one; else a new one. Both are kept in the file.
///
/// # Errors
/// The file cannot be read or written, or there are no random numbers. The text never has the key.
pub fn read_or_make(
    state_dir: &Path,
    machine_id: &str,
    in_use: Option<PrivateKey>,
) -> anyhow::Result<HostKeys> {
    let path = path(state_dir);
    if let Some(keys) =
        read(state_dir, machine_id).with_context(|| format!("read {}", path.display()))?
    {
        return keys.made_by(now_secs(), |keys| write(state_dir, machine_id, keys));
    }
    let first = in_use.map_or_else(new_key, Ok)?;
    let keys = HostKeys { first, second: None, made_secs: now_secs() };
    write(state_dir, machine_id, &keys)?;
    Ok(keys)
}

/// Puts the keys into the file, at once or not at all.
///
/// # Errors
/// The file cannot be written. The text never has a key.
pub fn write(state_dir: &Path, machine_id: &str, keys: &HostKeys) -> anyhow::Result<()> {
    let record = KeyRecord {
        schema: 1,
        machine_id: machine_id.to_owned(),
        private_key: keys.first.secret_text(),
        next_key: keys.second.as_ref().map(PrivateKey::secret_text),
        made: Some(keys.made_secs),
    };
    let text = serde_json::to_string(&record).expect("texts are JSON") + "\n";
    files::replace(&path(state_dir), text.as_bytes(), 0o600)?;
    Ok(())
}

/// The keys in the file. `None`: there is no file, it is garbled, or of another machine.
///
/// # Errors
/// The file is there, and cannot be read.
pub fn read(state_dir: &Path, machine_id: &str) -> std::io::Result<Option<HostKeys>> {
    let Some(file) = files::found(File::open(path(state_dir)))? else { return Ok(None) };
    files::keep_private(&file)?;
    let changed = file.metadata()?.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut text = Vec::new();
    file.take(LIMIT_BYTES).read_to_end(&mut text)?;
    let record: Option<KeyRecord> = serde_json::from_slice(&text).ok();
    let own = record.filter(|record| record.machine_id == machine_id);
    Ok(own.and_then(|record| {
        let second = record.next_key.and_then(|text| text.parse().ok());
        let made_secs = record.made.unwrap_or(changed.as_secs());
        Some(HostKeys { first: record.private_key.parse().ok()?, second, made_secs })
    }))
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
    fn a_key_that_a_clock_ahead_has_made_is_changed_some_day() {
        let folder = tempfile::tempdir().unwrap();
        let made = read_or_make(folder.path(), "m1", None).unwrap();
        let ahead = HostKeys { made_secs: now_secs() + 365 * 24 * 3600, ..made.clone() };
        write(folder.path(), "m1", &ahead).unwrap();
        for _ in 0..2 {
            let kept = read_or_make(folder.path(), "m1", None).unwrap();
            assert!(kept.first == made.first && kept.made_secs <= now_secs());
        }
    }

    #[test]
    fn a_copied_disk_gets_a_key_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let original = read_or_make(folder.path(), "m1", None).unwrap();
        let copy = read_or_make(folder.path(), "m2", None).unwrap();
        assert_ne!(copy.first, original.first);
    }

    #[test]
    fn the_key_that_the_kernel_has_outlives_a_lost_or_garbled_file() {
        let folder = tempfile::tempdir().unwrap();
        let used = PrivateKey::of_random([9; 32]);
        for garbage in [&b""[..], b"{", b"\xff\xfe", &[b'x'; 1 << 20]] {
            fs::write(path(folder.path()), garbage).unwrap();
            let kept = read_or_make(folder.path(), "m1", Some(used.clone())).unwrap();
            assert_eq!(kept.first, used);
            assert_eq!(read_or_make(folder.path(), "m1", None).unwrap(), kept);
        }
    }

    #[test]
    fn every_step_of_a_change_is_in_the_file_and_an_older_file_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let read = || read_or_make(folder.path(), "m1", None).unwrap();
        let old = read();
        let mut stages = vec![old.stage()];
        for step in [RotationStep::Begin, RotationStep::TakeOver, RotationStep::Finish] {
            let keys = read().after(step).unwrap();
            write(folder.path(), "m1", &keys).unwrap();
            assert_eq!(read(), keys, "after a crash");
            stages.push(keys.stage());
        }
        assert_eq!(stages, [Stage::Steady, Stage::Leaving, Stage::Returning, Stage::Steady]);
        assert_ne!(read().first, old.first);
        let mode = fs::metadata(path(folder.path())).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        let secret = old.first.secret_text();
        let text = format!(r#"{{"schema":1,"machineId":"m1","privateKey":"{secret}"}}"#);
        fs::write(path(folder.path()), text).unwrap();
        assert_eq!((read().first, read().second), (old.first, None));
        assert!(read().age() < Duration::from_secs(600), "since the file was written");
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
