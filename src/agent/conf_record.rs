//! Where the agent wrote the CNI configuration, and what: kept in the state directory, so that one
//! that the settings have moved is found again, and taken for ours only while nobody changed it.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::net::hash;
use crate::os::files;

/// The file in the state directory.
pub const FILE: &str = "configuration.json";

/// Of a file that can be read.
const SCHEMA: u32 = 1;

/// Only root reads what root may write.
const MODE: u32 = 0o600;

/// A configuration that was written, or was about to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// Where.
    pub path: PathBuf,
    /// [`hash::stable`] of its text, in hexadecimal.
    text: String,
}

#[derive(Default, Serialize, Deserialize)]
struct Record {
    schema: u32,
    written: Vec<Written>,
}

impl Written {
    /// `text` at `path`.
    pub fn new(path: &Path, text: &str) -> Written {
        Written { path: path.to_owned(), text: digest(text) }
    }

    /// The file is there, and as it was written.
    pub fn is_there(&self) -> bool {
        let is_file = fs::symlink_metadata(&self.path).is_ok_and(|found| found.is_file());
        is_file && fs::read_to_string(&self.path).is_ok_and(|text| digest(&text) == self.text)
    }

    /// It lies at another place than `path`: not the same file by another name.
    pub fn is_elsewhere(&self, path: &Path) -> bool {
        let file = |path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
        let (own, other) = (file(self.path.as_path()), file(path));
        self.path != path && (own.is_none() || own != other)
    }
}

/// What was written by this and earlier agents of the host.
///
/// # Errors
/// That is not known; says what follows.
pub fn all(state_dir: &Path) -> anyhow::Result<Vec<Written>> {
    read(state_dir)
}

/// Keeps `written`, and nothing else.
///
/// # Errors
/// The record cannot be written.
pub fn keep(state_dir: &Path, written: Vec<Written>) -> anyhow::Result<()> {
    let text = serde_json::to_vec(&Record { schema: SCHEMA, written })?;
    Ok(files::replace(&state_dir.join(FILE), &text, MODE)?)
}

fn read(state_dir: &Path) -> anyhow::Result<Vec<Written>> {
    let path = state_dir.join(FILE);
    let bytes = match fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.with_context(|| format!("read {}", path.display()))?,
    };
    let record: Record =
        serde_json::from_slice(&bytes).with_context(|| format!("read {}", path.display()))?;
    let Record { schema, written } = record;
    anyhow::ensure!(schema == SCHEMA, "{} has schema {schema}, not {SCHEMA}", path.display());
    Ok(written)
}

fn digest(text: &str) -> String {
    format!("{:016x}", hash::stable(&[text]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nobody_changed_is_ours() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("05-humanz.conflist");
        let written = Written::new(&path, "text");
        assert!(!written.is_there());
        fs::write(&path, "text").unwrap();
        assert!(written.is_there());
        std::os::unix::fs::symlink(&path, folder.path().join("link")).unwrap();
        let link = folder.path().join("link");
        assert!(!Written::new(&link, "text").is_there(), "somebody's link to it");
        assert!(!written.is_elsewhere(&link), "the same file by another name");
        assert!(written.is_elsewhere(&folder.path().join("10-humanz.conflist")));
        fs::write(&path, "other").unwrap();
        assert!(!written.is_there());
    }

    #[test]
    fn what_was_kept_is_read_again_and_garbage_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(all(folder.path()).unwrap(), []);
        let written = vec![Written::new(Path::new("/a"), "b"), Written::new(Path::new("/a"), "c")];
        keep(folder.path(), written.clone()).unwrap();
        assert_eq!(all(folder.path()).unwrap(), written);
        for garbage in ["", "{", r#"{"schema":2,"written":[]}"#, r#"{"schema":1,"written":"all"}"#]
        {
            fs::write(folder.path().join(FILE), garbage).unwrap();
            let told = all(folder.path()).unwrap_err();
            let told = format!("{told:#}");
            assert!(told.contains(FILE), "{garbage}: {told}");
        }
    }
}
