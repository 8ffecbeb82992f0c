//! What the agent changed that bears no mark: settings of the kernel, with what they were before.
//!
//! Kept in the state directory, for the boot in which it was done. Only an uninstallation reads it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::os::{files, identity};

/// The file in the state directory.
pub const FILE: &str = "sysctls.json";

/// Of a file that can be read.
const SCHEMA: u32 = 1;

/// Only root reads what root may write.
const MODE: u32 = 0o600;

/// A setting of the kernel that was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SysctlChange {
    /// What it was before the first change of this boot.
    pub before: String,
    /// What it was set to last.
    pub set: String,
}

/// Key below /proc/sys → change.
pub type SysctlChanges = BTreeMap<String, SysctlChange>;

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SysctlRecord {
    schema: u32,
    boot_id: String,
    sysctls: SysctlChanges,
}

/// What was changed since the kernel started; nothing if that is not known.
pub fn sysctls(state_dir: &Path) -> SysctlChanges {
    let read = || -> anyhow::Result<SysctlChanges> {
        let boot_id = identity::boot_id()?;
        Ok(of_boot(state_dir, &boot_id)?.sysctls)
    };
    read().unwrap_or_else(|error| {
        log::warn!("{error:#}: settings of the kernel stay as they are");
        SysctlChanges::new()
    })
}

/// Notes that `key` is about to be changed from `before` to `set`.
///
/// # Errors
/// The record cannot be written.
pub fn note(state_dir: &Path, key: &str, before: &str, set: &str) -> anyhow::Result<()> {
    let boot_id = identity::boot_id()?;
    // One that cannot be understood is of no use to anybody.
    let mut record = of_boot(state_dir, &boot_id).unwrap_or_default();
    (record.schema, record.boot_id) = (SCHEMA, boot_id);
    add(&mut record.sysctls, key, before, set);
    let text = serde_json::to_vec_pretty(&record)?;
    Ok(files::replace(&path(state_dir), &text, MODE)?)
}

/// What somebody else set in between is what it was before.
fn add(sysctls: &mut SysctlChanges, key: &str, before: &str, set: &str) {
    let known = sysctls.get(key).filter(|known| known.set == before);
    let before = known.map_or(before, |known| &known.before).to_owned();
    sysctls.insert(key.to_owned(), SysctlChange { before, set: set.to_owned() });
}

/// The record, if it is of this boot; else an empty one.
fn of_boot(state_dir: &Path, boot_id: &str) -> anyhow::Result<SysctlRecord> {
    let path = path(state_dir);
    let bytes =
        files::found(fs::read(&path)).with_context(|| format!("read {}", path.display()))?;
    let Some(bytes) = bytes else { return Ok(SysctlRecord::default()) };
    let record: SysctlRecord =
        serde_json::from_slice(&bytes).with_context(|| format!("read {}", path.display()))?;
    anyhow::ensure!(
        record.schema == SCHEMA,
        "{} has schema {}, not {SCHEMA}",
        path.display(),
        record.schema
    );
    Ok(if record.boot_id == boot_id { record } else { SysctlRecord::default() })
}

fn path(state_dir: &Path) -> PathBuf {
    state_dir.join(FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "net/ipv4/ip_forward";

    fn changes(steps: &[(&str, &str)]) -> SysctlChange {
        let mut sysctls = SysctlChanges::new();
        for (before, set) in steps {
            add(&mut sysctls, KEY, before, set);
        }
        sysctls[KEY].clone()
    }

    fn changed(before: &str, set: &str) -> SysctlChange {
        SysctlChange { before: before.to_owned(), set: set.to_owned() }
    }

    #[test]
    fn the_value_before_the_first_change_is_kept() {
        assert_eq!(changes(&[("0", "1")]), changed("0", "1"));
        assert_eq!(changes(&[("1024", "2000"), ("2000", "4000")]), changed("1024", "4000"));
    }

    #[test]
    fn what_somebody_else_set_in_between_is_given_back() {
        assert_eq!(changes(&[("1024", "2000"), ("3000", "4000")]), changed("3000", "4000"));
    }

    #[test]
    fn an_earlier_boot_is_forgotten_and_a_newer_file_refused() {
        let folder = tempfile::tempdir().unwrap();
        note(folder.path(), KEY, "0", "1").unwrap();
        let boot_id = identity::boot_id().unwrap();
        assert_eq!(of_boot(folder.path(), &boot_id).unwrap().sysctls[KEY], changed("0", "1"));
        assert!(of_boot(folder.path(), "another").unwrap().sysctls.is_empty());
        fs::write(path(folder.path()), r#"{"schema":2,"bootId":"b","sysctls":{}}"#).unwrap();
        assert!(of_boot(folder.path(), "b").is_err());
    }
}
