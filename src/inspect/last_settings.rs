//! The settings that the agent served last, on this host's disk: what it goes on with when the present ones
//! are invalid at a start.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::net::gather::Gather;
use crate::os::files::{self, FileError};
use crate::settings::{Texts, flags};

/// In the state directory.
pub const FILE: &str = "settings.json";

#[derive(Serialize, Deserialize)]
struct SettingsRecord {
    schema: u32,
    /// Those of another machine, from which this one's disk was copied, say nothing about this one.
    machine_id: String,
    settings: BTreeMap<String, String>,
}

/// The settings that the agent of this machine served last; `None` if there are none that can be read.
pub fn read(state_dir: &Path, machine_id: &str) -> Option<Texts> {
    let record: SettingsRecord = serde_json::from_slice(&fs::read(path(state_dir)).ok()?).ok()?;
    if record.machine_id != machine_id {
        return None;
    }
    Some(flags::texts(record.settings))
}

/// Keeps `texts`, unless they are kept; mode 0600.
///
/// # Errors
/// [`FileError`].
pub fn write(state_dir: &Path, machine_id: &str, texts: &Texts) -> Result<(), FileError> {
    let settings = texts.iter().map(|(name, text)| ((*name).to_owned(), text.clone()));
    let machine_id = machine_id.to_owned();
    let record = SettingsRecord { schema: 1, machine_id, settings: settings.gather() };
    let text = serde_json::to_string_pretty(&record).expect("texts are JSON") + "\n";
    let path = path(state_dir);
    match fs::read(&path) {
        Ok(kept) if kept == text.as_bytes() => Ok(()),
        _ => files::replace(&path, text.as_bytes(), 0o600),
    }
}

fn path(state_dir: &Path) -> PathBuf {
    state_dir.join(FILE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::flags::VARIABLES;

    #[test]
    fn the_settings_are_read_back_on_the_same_machine_only() {
        let folder = tempfile::tempdir().unwrap();
        let mut texts: Texts = VARIABLES.iter().map(|v| (v.name, v.default.to_owned())).collect();
        texts.insert("MTU", "1400".to_owned());
        assert_eq!(read(folder.path(), "m1"), None);
        write(folder.path(), "m1", &texts).unwrap();
        assert_eq!(read(folder.path(), "m1"), Some(texts));
        assert_eq!(read(folder.path(), "m2"), None);
        fs::write(path(folder.path()), "garbage").unwrap();
        assert_eq!(read(folder.path(), "m1"), None);
    }

    #[test]
    fn a_variable_of_another_release_is_ignored_and_a_new_one_has_its_default() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"schema":1,"machine_id":"m","settings":{"GONE":"1","MTU":"1400"}}"#;
        fs::write(path(folder.path()), text).unwrap();
        let found = read(folder.path(), "m").unwrap();
        assert_eq!((found["MTU"].as_str(), found["BACKEND"].as_str()), ("1400", "auto"));
        assert!(!found.contains_key("GONE"));
    }
}
